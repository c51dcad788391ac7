//! One request in progress, and the [`VerifiedHandle`] that its handle and credential resolve to.

use std::sync::Arc;
use std::time::Instant;

use curt_observe::stages::{self, RequestStage};
use curt_proto::nfs4::Clientid;
use curt_rpc::auth::OpaqueAuth;
use curt_rpc::server::{CallContext, CallFailure};
use curt_types::{Attributes, Fault, FileHandle, FileKind, Wcc};
use curt_vfs::{FsCred, MayBlock, NodeHandle, PostOpResult, Vfs, VfsNode, WccResult};

use crate::authorisation_cache::{Authorisation, AuthorisationCache};
use crate::exports::{Export, ExportRules};
use crate::file_handle::HandleContents;
use crate::nlm::DeferredRequest;
use crate::ops::{BothAttributes, BothOp, FoundObject, OpResult, PostOp, WccOp};
use crate::recalls::RecallInProgress;
use crate::replay::ExecutionWindow;
use crate::service::NfsService;
use crate::state::{FileKey, IoDirection, WantedAccess};
use crate::v4::AssociatedSessions;

/// Why a request ends before its operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The operation fails with this fault.
    Fault(Fault),
    /// The call is rejected at the RPC level, without results.
    Call(CallFailure),
}

impl From<CallFailure> for Refusal {
    fn from(failure: CallFailure) -> Self {
        Self::Call(failure)
    }
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// The service's data of a connection.
pub(crate) struct ConnectionData {
    pub(crate) authorisations: Arc<AuthorisationCache>,
    pub(crate) sessions: AssociatedSessions,
}

/// The context of an operation besides its targets and arguments.
pub(crate) struct NfsRequest<'r, 'c> {
    pub(crate) service: &'r NfsService,
    pub(crate) credential: &'r OpaqueAuth<'r>,
    pub(crate) context: &'r mut CallContext<'c>,
    /// The change may have been made in this window. It is not made again, and succeeds if the tree
    /// shows that it was made.
    pub(crate) repeated: Option<ExecutionWindow>,
    /// The NFSv4 client that sends it.
    pub(crate) client: Option<Clientid>,
    /// Why it was stopped, if delegations of others are in its way.
    pub(crate) recall: Option<RecallInProgress>,
    /// When it waits no longer, if it has waited.
    pub(crate) deadline: Option<Instant>,
    /// The NLM request that its host can give up, if it has waited or is about to.
    pub(crate) deferred: Option<Arc<DeferredRequest>>,
}

impl<'r, 'c> NfsRequest<'r, 'c> {
    pub(crate) const fn new(
        service: &'r NfsService,
        credential: &'r OpaqueAuth<'r>,
        context: &'r mut CallContext<'c>,
    ) -> Self {
        Self {
            service,
            credential,
            context,
            repeated: None,
            client: None,
            recall: None,
            deadline: None,
            deferred: None,
        }
    }
}

impl<'c> NfsRequest<'_, 'c> {
    /// The service's data of the connection; none without a socket.
    pub(crate) fn connection_data(&self) -> Option<&'c ConnectionData> {
        self.context.service_data(|| ConnectionData {
            authorisations: self.service.authorisations.new_cache(),
            sessions: AssociatedSessions::default(),
        })
    }

    /// To be called before an operation on `target` that may wait for a disk: the thread hands the
    /// connection over.
    pub(crate) fn may_block(&mut self, target: &VerifiedHandle<'_>) {
        if target.vfs().may_block() != MayBlock::Never {
            self.context.may_block();
        }
    }

    /// To be called before a query of `target`, which takes no I/O if the object was used recently.
    /// If it was not, the thread hands the connection over.
    pub(crate) fn may_block_on_metadata(&mut self, target: &VerifiedHandle<'_>) {
        if !target.vfs().is_in_memory(&target.node) {
            self.context.may_block();
        }
    }
}

/// A file and its caller.
#[derive(Clone)]
pub(crate) struct VerifiedHandle<'r> {
    service: &'r NfsService,
    pub(crate) node: NodeHandle,
    authorisation: Arc<Authorisation>,
}

impl<'r> VerifiedHandle<'r> {
    pub(crate) fn new(service: &'r NfsService, authorisation: Arc<Authorisation>) -> Self {
        Self { service, node: authorisation.signed.node, authorisation }
    }

    pub(crate) const fn service(&self) -> &'r NfsService {
        self.service
    }

    /// The file, in whichever export it is.
    pub(crate) fn file_key(&self) -> FileKey {
        FileKey { file_system: self.export().file_system, node: self.node }
    }

    /// The tree that contains it. The file-system stage begins here, because callers use the tree
    /// at once.
    pub(crate) fn vfs(&self) -> &dyn Vfs {
        stages::proceed(RequestStage::FileSystem);
        &*self.authorisation.export.vfs
    }

    /// The hash of the handle in events.
    pub(crate) fn handle_hash(&self) -> u32 {
        curt_observe::events::handle_hash(self.handle().as_bytes())
    }

    pub(crate) fn caller(&self) -> FsCred<'_> {
        self.authorisation.identity.caller()
    }

    pub(crate) fn export(&self) -> &Export {
        &self.authorisation.export
    }

    pub(crate) fn rules(&self) -> &ExportRules {
        &self.authorisation.rules
    }

    /// The object's handle.
    pub(crate) fn handle(&self) -> &FileHandle {
        &self.authorisation.handle
    }

    pub(crate) fn read_only(&self) -> bool {
        self.authorisation.rules.read_only
    }

    /// Refuses changes in a read-only export, with the error of a read-only file system.
    pub(crate) fn writable(&self) -> Result<(), Fault> {
        if self.read_only() { Err(Fault::Rofs) } else { Ok(()) }
    }

    /// Refuses I/O that an open of an NFSv4 client denies to others: I/O without an open, such as
    /// that of NFSv3, can only wait for its end.
    pub(crate) fn not_denied(&self, io: IoDirection) -> Result<(), Fault> {
        self.file_not_denied(&self.file_key(), io)
    }

    /// As [`Self::not_denied`], for another file of its tree.
    pub(crate) fn file_not_denied(&self, file: &FileKey, io: IoDirection) -> Result<(), Fault> {
        let held = &self.service.held;
        // What was not reclaimed yet may deny it (RFC 8881 section 8.4.2).
        if held.grace.may_deny() {
            return Err(Fault::Jukebox);
        }
        let denied = || held.shares.denies_io(file, None, io);
        // An error of the expiry leaves it denied.
        let expire = || self.service.expire_holders(file, WantedAccess::Io(io)).is_err();
        let is_denied = denied() && (expire() || denied());
        if is_denied { Err(Fault::Jukebox) } else { Ok(()) }
    }

    /// Refuses changes of two objects in different exports.
    pub(crate) fn same_export(&self, other: &Self) -> Result<(), Fault> {
        if self.export().id == other.export().id { Ok(()) } else { Err(Fault::Xdev) }
    }

    /// The current attributes, for replies that have none from an operation; none if the handle is
    /// stale.
    pub(crate) fn attributes(&self) -> Option<Attributes> {
        let attributes = self.vfs().attributes(&self.node).ok()?;
        Some(self.exported(attributes))
    }

    /// As [`Self::attributes`], for a change that was not attempted.
    pub(crate) fn unchanged(&self) -> Wcc {
        Wcc { before: None, after: self.attributes() }
    }

    /// The result of a change that was not attempted.
    pub(crate) fn not_begun<T>(&self, fault: Fault) -> WccOp<T> {
        OpResult { attributes: self.unchanged(), value: Err(fault) }
    }

    /// The write verifier: whether unstable writes to this target's tree may have been lost. It is
    /// read before a write and after a commit.
    pub(crate) fn write_verifier(&self) -> [u8; 8] {
        self.service.write_verifiers.of(self.vfs().losses())
    }

    /// Attributes as clients see them: with the fsid that is stable over restarts, unlike the
    /// kernel's device number.
    pub(crate) fn exported(&self, attributes: Attributes) -> Attributes {
        Attributes { fsid: self.export().fsid, ..attributes }
    }

    pub(crate) fn exported_wcc(&self, wcc: Wcc) -> Wcc {
        Wcc { after: wcc.after.map(|after| self.exported(after)), ..wcc }
    }

    /// The result of a change of this and another target that was not made.
    pub(crate) fn both_unchanged(&self, current: &Self, value: Result<(), Fault>) -> BothOp {
        OpResult {
            attributes: BothAttributes { saved: self.unchanged(), current: current.unchanged() },
            value,
        }
    }

    /// Converts the result of a query of the tree.
    #[inline]
    pub(crate) fn post_op<T>(&self, result: PostOpResult<T>) -> PostOp<T> {
        OpResult {
            attributes: result.attributes.map(|attributes| self.exported(attributes)),
            value: result.value.map_err(Fault::from),
        }
    }

    /// Converts the result of a change in the tree.
    pub(crate) fn wcc<T>(&self, result: WccResult<T>) -> WccOp<T> {
        OpResult {
            attributes: self.exported_wcc(Wcc { before: result.before, after: result.after }),
            value: result.value.map_err(Fault::from),
        }
    }

    /// An object that was found or created in this directory, for the same caller: what its request
    /// would be granted is what this one was. `None` if a request would be checked in another way.
    pub(crate) fn authorised_child(&self, node: &VfsNode, found: &FoundObject) -> Option<Self> {
        let Authorisation { generation, who, signed, export, rules, identity, .. } = &*self.authorisation;
        if rules.subtree_check {
            return None;
        }
        let (handle, signed) =
            (found.handle.clone(), HandleContents { node: node.handle, parent: None, ..*signed });
        let (export, identity) = (Arc::clone(export), Arc::clone(identity));
        let (generation, who, rules) = (*generation, *who, *rules);
        let child = Authorisation { generation, handle, who, signed, export, rules, identity };
        Some(Self::new(self.service, Arc::new(child)))
    }

    /// An object that was found or created in this directory with the name `name`.
    #[inline]
    pub(crate) fn child(&self, node: &VfsNode, name: &[u8]) -> FoundObject {
        let is_checked = self.rules().subtree_check && node.attributes.kind != FileKind::Directory;
        if is_checked {
            self.export().subtree_cache.insert_found(&self.node, &node.handle, name);
        }
        let handle = self.service.key.sign(&HandleContents {
            export: self.export().id,
            file_system: self.export().file_system,
            node: node.handle,
            parent: is_checked.then_some(self.node),
        });
        FoundObject { handle, attributes: Some(self.exported(node.attributes)), is_new: false }
    }
}
