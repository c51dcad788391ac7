//! Asking the server about one object: GETATTR, shared by those who need it at the same time, and
//! ACCESS.

use std::sync::Arc;

use curt_policy::{
    AccessDecision, AccessReason, Moment, access::decide_access, attributes::GetattrDecision,
    attributes::decide_getattr,
};
use curt_trace::{Cause, ClientCounter, scope};
use curt_types::{Access, Fault};
use rustix::io::Errno;

use crate::{
    api::InodeStat,
    client::{Client, OpContext},
    data::{DataOwner, FileData},
    errno,
    identity::{Caller, InodeId},
    inode::{
        InFlightEnd, Inode,
        tracepoints::{InodeEventFields, trace_enter, trace_exit},
    },
    protocol::v3,
};

/// Whether the attributes of other objects may be requested together with one object's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SiblingAttributes {
    /// If they are expected to be wanted.
    IfExpected,
    /// They would be too old for the caller.
    Nothing,
}

/// The number of its procedure (RFC 1813, section 3.3.1).
const GETATTR: u32 = 1;

impl Client {
    /// The attributes of `id`; from memory where that is allowed.
    ///
    /// # Errors
    /// Those of GETATTR; ESTALE if the object is gone; EINTR.
    pub fn getattr(&self, caller: &Caller, id: InodeId) -> Result<InodeStat, Errno> {
        let inode = self.find_inode(id)?;
        self.stat(&self.op_context(caller), &inode)
    }

    /// The last known attributes of `id`, however old, without any request: for a server that does
    /// not answer.
    #[must_use]
    pub fn last_attributes(&self, id: InodeId) -> Option<InodeStat> {
        let attributes = self.find_inode(id).ok()?.attributes()?;
        Some(InodeStat {
            attributes,
            valid: std::time::Duration::ZERO,
        })
    }

    /// The fields of events about `id`, without any request; all zero if it is unknown.
    #[must_use]
    pub fn event_fields(&self, id: InodeId) -> InodeEventFields {
        self.find_inode(id)
            .map_or_else(|_| InodeEventFields::default(), |inode| inode.event_fields())
    }

    pub(crate) fn stat(&self, asked: &OpContext, inode: &Arc<Inode>) -> Result<InodeStat, Errno> {
        let mut is_settled = false;
        for round in asked.rounds() {
            let options = self.core.options();
            // What is written after the first flush is none of this operation's business.
            let unsent = !is_settled && inode.has_unsent();
            let now = self.core.now();
            let facts = inode.facts();
            match decide_getattr(facts.freshness(asked, now, &options), unsent, &options) {
                GetattrDecision::Serve => {
                    let valid = curt_policy::kernel_cache::attribute_lifetime(&facts.state, now, &options);
                    let attributes = inode.attributes_in(&facts).ok_or(Errno::IO)?;
                    drop(facts);
                    if round == 0 {
                        self.count(ClientCounter::AttrHit);
                    }
                    self.note_use(inode);
                    return Ok(InodeStat { attributes, valid });
                }
                GetattrDecision::Revalidate => {
                    drop(facts);
                    self.revalidate(asked, inode)?;
                }
                GetattrDecision::FlushFirst => {
                    drop(facts);
                    self.flush_unsent(asked, inode)?;
                    is_settled = true;
                }
            }
        }
        Err(Errno::IO)
    }

    /// Sends all bytes written here to the server.
    pub(crate) fn flush_unsent(&self, asked: &OpContext, inode: &Arc<Inode>) -> Result<(), Errno> {
        if !inode.has_unsent() {
            return Ok(());
        }
        let owner: Arc<dyn DataOwner> = Arc::clone(inode) as Arc<dyn DataOwner>;
        self.core
            .data
            .flush_unsent(&owner, &asked.interrupt)
            .map_err(errno::of_data)
    }

    /// The same, and has the server commit them.
    pub(crate) fn settle_durably(&self, asked: &OpContext, inode: &Arc<Inode>) -> Result<(), Errno> {
        if !inode.data_if_any().is_some_and(FileData::has_unwritten) {
            return Ok(());
        }
        let owner: Arc<dyn DataOwner> = Arc::clone(inode) as Arc<dyn DataOwner>;
        self.core
            .data
            .settle_durably(&owner, &asked.interrupt)
            .map_err(errno::of_data)
    }

    /// Requests attributes, or waits for those that another operation has requested. To be followed
    /// by another decision: they may still be too old for this operation.
    pub(crate) fn revalidate(&self, asked: &OpContext, inode: &Arc<Inode>) -> Result<(), Errno> {
        self.revalidate_with(asked, inode, SiblingAttributes::IfExpected)
    }

    /// The same; `beside` says whether attributes of other objects may be requested as well.
    pub(crate) fn revalidate_with(
        &self,
        asked: &OpContext,
        inode: &Arc<Inode>,
        beside: SiblingAttributes,
    ) -> Result<(), Errno> {
        let mut departure = match self.getattrs_in_flight.join(inode.id()) {
            Ok(flight) => {
                self.count(ClientCounter::AttrShared);
                return match flight.wait(&asked.interrupt) {
                    Some(InFlightEnd::Done) => Ok(()),
                    Some(InFlightEnd::Silent) => {
                        self.fall_back_to_cache(asked);
                        Ok(())
                    }
                    None => Err(Errno::INTR),
                };
            }
            Err(departure) => departure,
        };
        if inode.facts().state.facts().is_none() {
            self.count(ClientCounter::AttrInvalidated);
            let _why = scope::with_default_cause(Cause::AttributesUnknown);
            return self.send_getattr(asked, inode);
        }
        self.count(ClientCounter::AttrExpired);
        let _why = scope::with_default_cause(Cause::AttributesExpired);
        if self
            .with_softreval(asked, |asked| self.ask_again(asked, inode, beside))?
            .is_none()
        {
            departure.end = InFlightEnd::Silent;
        }
        Ok(())
    }

    /// Revalidates something that is cached. `None`: the server was silent for as long as
    /// `softreval` waits, so this operation uses what is cached.
    pub(crate) fn with_softreval<T>(
        &self,
        asked: &OpContext,
        ask: impl FnOnce(&OpContext) -> Result<T, Errno>,
    ) -> Result<Option<T>, Errno> {
        let Some(patience) = self
            .soft_revalidation
            .as_ref()
            .filter(|_| !asked.uses_cache.get())
        else {
            return ask(asked).map(Some);
        };
        let wait = patience.begin(&asked.interrupt);
        let soft = OpContext::new(Arc::clone(&asked.identity), wait.interrupt.clone(), asked.began);
        match ask(&soft) {
            Err(Errno::INTR) if !asked.interrupt.is_raised() => {
                self.fall_back_to_cache(asked);
                Ok(None)
            }
            result => result.map(Some),
        }
    }

    fn fall_back_to_cache(&self, asked: &OpContext) {
        asked.uses_cache.set(true);
        self.count(ClientCounter::SoftRevalidation);
    }

    /// Requests attributes that were known, and perhaps those of other objects in the same
    /// directory.
    fn ask_again(
        &self,
        asked: &OpContext,
        inode: &Arc<Inode>,
        beside: SiblingAttributes,
    ) -> Result<(), Errno> {
        match beside {
            SiblingAttributes::IfExpected if self.refresh_directory_of(asked, inode)? => Ok(()),
            SiblingAttributes::IfExpected | SiblingAttributes::Nothing => self.send_getattr(asked, inode),
        }
    }

    /// Sends GETATTR.
    pub(crate) fn send_getattr(&self, asked: &OpContext, inode: &Arc<Inode>) -> Result<(), Errno> {
        trace_enter!(
            inode.event_fields(),
            NfsRevalidateInodeEnter {
                reason: scope::cause(GETATTR).name()
            }
        );
        let answer = self.send_getattr_untraced(asked, inode);
        trace_exit!(
            inode.event_fields(),
            NfsRevalidateInodeExit {
                error: errno::event_status(&answer)
            }
        );
        answer
    }

    fn send_getattr_untraced(&self, asked: &OpContext, inode: &Arc<Inode>) -> Result<(), Errno> {
        let answer =
            v3::getattr(&self.core.rpc, asked.rpc_caller(), inode.handle()).map_err(errno::of_call)?;
        match answer.outcome {
            Ok(attributes) => {
                let _ = inode.absorb(&attributes, self.core.moment(answer.sent_at));
                Ok(())
            }
            Err(status) => Err(self.note_failed_status(inode, status)),
        }
    }

    /// The errno of a failure that was about `inode`; notes if its handle is stale.
    pub(crate) fn note_failed_status(&self, inode: &Inode, status: Fault) -> Errno {
        if matches!(status, Fault::Stale | Fault::Badhandle) {
            inode.mark_stale();
        }
        errno::of_fault(status)
    }

    /// Whether the caller may what access(2)'s `mask` says (R_OK 4, W_OK 2, X_OK 1; 0 asks for
    /// nothing).
    ///
    /// # Errors
    /// EACCES; those of ACCESS and GETATTR.
    pub fn access(&self, caller: &Caller, id: InodeId, mask: u32) -> Result<(), Errno> {
        if mask & 7 == 0 {
            return Ok(());
        }
        let inode = self.find_inode(id)?;
        let asked = self.op_context(caller);
        let kind = inode.facts().state.facts().map(|known| known.kind);
        let kind = match kind {
            Some(kind) => kind,
            None => {
                self.revalidate(&asked, &inode)?;
                inode.facts().state.facts().ok_or(Errno::IO)?.kind
            }
        };
        self.require(&asked, &inode, Access::from_access_mask(mask, kind))
    }

    /// Makes sure that the caller has `needs` on `inode`.
    pub(crate) fn require(&self, asked: &OpContext, inode: &Arc<Inode>, needs: Access) -> Result<(), Errno> {
        let mut why = None;
        for _ in asked.rounds() {
            match self.access_decision(asked, inode, needs, false) {
                AccessDecision::Allow => {
                    self.count_allowed(asked, inode, needs, why);
                    return Ok(());
                }
                AccessDecision::Deny => {
                    self.count_denied(why);
                    return Err(Errno::ACCESS);
                }
                AccessDecision::Revalidate => self.revalidate(asked, inode)?,
                AccessDecision::Ask(reason) => {
                    self.send_access(asked, inode, reason)?;
                    why = Some(reason);
                }
            }
        }
        Err(Errno::IO)
    }

    pub(crate) fn access_decision(
        &self,
        asked: &OpContext,
        inode: &Inode,
        needs: Access,
        is_foreign: bool,
    ) -> AccessDecision {
        let options = self.core.options();
        let now = self.core.now();
        let facts = inode.facts();
        let view = inode.access_view(&facts, &asked.identity, is_foreign, now);
        decide_access(&view, facts.freshness(asked, now, &options), needs, &options)
    }

    /// Sends ACCESS for all rights that could matter.
    pub(crate) fn send_access(
        &self,
        asked: &OpContext,
        inode: &Inode,
        why: AccessReason,
    ) -> Result<(), Errno> {
        let kind = inode.facts().state.facts().map(|known| known.kind);
        let rights = kind.map_or(Access::ALL, Access::worth_asking);
        let _why = scope::with_cause(match why {
            AccessReason::ForeignData | AccessReason::ConfirmDenial => Cause::AccessConfirm,
            AccessReason::Unasked => Cause::Access,
        });
        let answer = v3::access(&self.core.rpc, asked.rpc_caller(), inode.handle(), rights.bits())
            .map_err(errno::of_call)?;
        let sent_at = self.core.moment(answer.sent_at);
        self.count(ClientCounter::AccessWire);
        match why {
            AccessReason::ForeignData => self.count(ClientCounter::AccessDataCheck),
            AccessReason::ConfirmDenial => self.count_doubted_denial(asked, inode),
            AccessReason::Unasked => {}
        }
        if let Some(attributes) = &answer.attributes {
            let _ = inode.absorb(attributes, sent_at);
        }
        match answer.outcome {
            Ok(granted) => {
                inode.absorb_answer(&asked.identity, rights, Access::from_bits(granted), sent_at);
                Ok(())
            }
            Err(status) => Err(self.note_failed_status(inode, status)),
        }
    }

    fn count_doubted_denial(&self, asked: &OpContext, inode: &Inode) {
        let now = self.core.now();
        let facts = inode.facts();
        if inode
            .access_view(&facts, &asked.identity, false, now)
            .entry
            .is_none()
        {
            drop(facts);
            self.count(ClientCounter::AccessLocalDeny);
        }
    }

    /// Counts why the caller was allowed.
    pub(crate) fn count_allowed(
        &self,
        asked: &OpContext,
        inode: &Inode,
        needs: Access,
        why: Option<AccessReason>,
    ) {
        match why {
            _ if needs.is_empty() => {}
            Some(AccessReason::ConfirmDenial) => self.count(ClientCounter::AccessDenyOverturned),
            Some(AccessReason::Unasked | AccessReason::ForeignData) => {}
            None => {
                let now = self.core.now();
                let facts = inode.facts();
                let entry = inode.access_view(&facts, &asked.identity, false, now).entry;
                let by_server = entry.is_some_and(|entry| entry.granted.contains(needs));
                drop(facts);
                self.count(if by_server {
                    ClientCounter::AccessHitPositive
                } else {
                    ClientCounter::AccessLocalAllow
                });
            }
        }
    }

    /// Counts why the caller was denied.
    pub(crate) fn count_denied(&self, why: Option<AccessReason>) {
        match why {
            Some(AccessReason::ConfirmDenial) => self.count(ClientCounter::AccessDenyConfirmed),
            Some(AccessReason::Unasked | AccessReason::ForeignData) => {}
            None => self.count(ClientCounter::AccessHitNegative),
        }
    }

    /// The server refused the caller an operation on `inode` that takes `rights`.
    pub(crate) fn note_refusal(
        &self,
        asked: &OpContext,
        inode: &Inode,
        status: Fault,
        rights: Access,
        sent_at: Moment,
    ) {
        if status != Fault::Acces {
            return;
        }
        let view = inode.access_view(&inode.facts(), &asked.identity, false, self.core.now());
        let by_server = view.entry.is_some_and(|entry| entry.granted.contains(rights));
        if by_server || view.local.is_some_and(|bits| bits.contains(rights)) {
            inode.disprove(&asked.identity, rights, sent_at);
        } else {
            inode.absorb_answer(&asked.identity, rights, Access::NONE, sent_at);
        }
    }
}
