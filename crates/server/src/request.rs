//! One call in progress, and the [`VerifiedHandle`] that its handle and credential resolve to.

use std::sync::Arc;

use curt_proto::nfs3::{Fattr, NfsFh3, NfsStat3, WccAttr, WccData, WriteVerifier};
use curt_rpc::auth::OpaqueAuth;
use curt_rpc::server::{CallContext, CallFailure};
use curt_trace::stages::{self, RequestStage};
use curt_types::{Attributes, FileKind, PreOpAttr};
use curt_vfs::{FsCred, MayBlock, NodeHandle, Vfs, VfsNode};

use crate::attributes::{before_to_wire, to_wire};
use crate::authorisation_cache::Authorisation;
use crate::dispatch::NfsService;
use crate::exports::{Export, ExportRules};
use crate::file_handle::HandleContents;

/// Why a call ends before its procedure runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The procedure fails with this status.
    Status(NfsStat3),
    /// The call is rejected at the RPC level, without results.
    Call(CallFailure),
}

impl From<CallFailure> for Refusal {
    fn from(failure: CallFailure) -> Self {
        Self::Call(failure)
    }
}

impl From<NfsStat3> for Refusal {
    fn from(status: NfsStat3) -> Self {
        Self::Status(status)
    }
}

/// What a procedure needs besides its arguments.
pub(crate) struct NfsRequest<'r, 'c> {
    pub(crate) service: &'r NfsService,
    pub(crate) credential: &'r OpaqueAuth<'r>,
    pub(crate) context: &'r mut CallContext<'c>,
}

impl<'r> NfsRequest<'r, '_> {
    /// Call this before an operation on `target` that may wait for a disk: another thread then goes
    /// on reading the connection.
    pub(crate) fn may_block(&mut self, target: &VerifiedHandle<'_>) {
        if target.vfs().may_block() != MayBlock::Never {
            self.context.may_block();
        }
    }

    /// Call this before a query about `target` that is answered from memory if the object was used
    /// recently: if it was not, another thread goes on reading the connection.
    pub(crate) fn may_block_on_metadata(&mut self, target: &VerifiedHandle<'_>) {
        if !target.vfs().is_in_memory(&target.node) {
            self.context.may_block();
        }
    }

    /// Resolves the two handles of a call, which must belong to one export.
    pub(crate) fn resolve_both(
        &mut self,
        first: &NfsFh3,
        second: &NfsFh3,
    ) -> Result<HandlePair<'r>, CallFailure> {
        let mut one = |handle| match self.resolve(handle) {
            Ok(target) => Ok(Ok(target)),
            Err(Refusal::Status(status)) => Ok(Err(status)),
            Err(Refusal::Call(failure)) => Err(failure),
        };
        Ok(match (one(first)?, one(second)?) {
            (Ok(first), Ok(second)) if first.export().id == second.export().id => {
                HandlePair::Both(first, second)
            }
            (Ok(first), Ok(second)) => HandlePair::Unusable(NfsStat3::Xdev, Some(first), Some(second)),
            (Err(status), second) => HandlePair::Unusable(status, None, second.ok()),
            (Ok(first), Err(status)) => HandlePair::Unusable(status, Some(first), None),
        })
    }
}

/// What the two handles of a call resolve to.
pub(crate) enum HandlePair<'r> {
    /// Two objects of one export.
    Both(VerifiedHandle<'r>, VerifiedHandle<'r>),
    /// Why they cannot be used together, and those that resolved: the reply carries their
    /// attributes.
    Unusable(NfsStat3, Option<VerifiedHandle<'r>>, Option<VerifiedHandle<'r>>),
}

/// A file, and the caller on whose behalf it is used.
pub(crate) struct VerifiedHandle<'r> {
    service: &'r NfsService,
    pub(crate) node: NodeHandle,
    authorisation: Arc<Authorisation>,
}

impl<'r> VerifiedHandle<'r> {
    pub(crate) fn new(service: &'r NfsService, grant: Arc<Authorisation>) -> Self {
        let node = grant.signed.node;
        Self {
            service,
            node,
            authorisation: grant,
        }
    }
}

impl VerifiedHandle<'_> {
    /// The tree that it is in. The file-system stage begins here, because callers use the tree at
    /// once.
    pub(crate) fn vfs(&self) -> &dyn Vfs {
        stages::proceed(RequestStage::FileSystem);
        &*self.authorisation.export.vfs
    }

    /// The hash that stands for the handle in events.
    pub(crate) fn handle_hash(&self) -> u32 {
        curt_trace::events::handle_hash(self.authorisation.handle.as_bytes())
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

    /// The handle that it came by, or would have come by.
    pub(crate) fn handle(&self) -> NfsFh3 {
        self.authorisation.handle
    }

    pub(crate) fn read_only(&self) -> bool {
        self.authorisation.rules.read_only
    }

    /// Refuses changes where the export is read-only, as the file system would if it were.
    pub(crate) fn writable(&self) -> Result<(), NfsStat3> {
        if self.read_only() {
            Err(NfsStat3::Rofs)
        } else {
            Ok(())
        }
    }

    /// Present attributes, for replies that have none from an operation; none if the handle does
    /// not resolve.
    pub(crate) fn present(&self) -> Option<Fattr> {
        self.vfs()
            .attributes(&self.node)
            .ok()
            .map(|attributes| self.fattr(&attributes))
    }

    /// As [`Self::present`], for a mutation that was not begun.
    pub(crate) fn unchanged_wcc(&self) -> WccData {
        WccData {
            before: None,
            after: self.present(),
        }
    }

    /// Shows whether unstable writes to this target's tree may have been lost: to be read before a
    /// write and after a commit.
    pub(crate) fn write_verifier(&self) -> WriteVerifier {
        self.service.write_verifiers.of(self.vfs().losses())
    }

    pub(crate) fn fattr(&self, attributes: &Attributes) -> Fattr {
        to_wire(attributes, self.export().fsid)
    }

    pub(crate) fn post_op(&self, attributes: Option<Attributes>) -> Option<Fattr> {
        attributes.map(|attributes| self.fattr(&attributes))
    }

    pub(crate) fn wcc(&self, before: Option<PreOpAttr>, after: Option<Attributes>) -> WccData {
        let before: Option<WccAttr> = before.map(before_to_wire);
        WccData {
            before,
            after: self.post_op(after),
        }
    }

    /// The handle and attributes that stand for an object that was found in this directory under
    /// `name`.
    pub(crate) fn child_handle(&self, node: &VfsNode, name: &[u8]) -> (NfsFh3, Fattr) {
        let is_checked = self.rules().subtree_check && node.attributes.kind != FileKind::Directory;
        if is_checked {
            self.export()
                .subtree_cache
                .insert_found(&self.node, &node.handle, name);
        }
        let parent = is_checked.then_some(self.node);
        (self.sign(&node.handle, parent), self.fattr(&node.attributes))
    }

    fn sign(&self, node: &NodeHandle, parent: Option<NodeHandle>) -> NfsFh3 {
        let (export, file_system) = (self.export().id, self.export().file_system);
        self.service.key.sign(&HandleContents {
            export,
            file_system,
            node: *node,
            parent,
        })
    }
}
