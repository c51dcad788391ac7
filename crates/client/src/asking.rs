//! Asking the server about one object: GETATTR, shared by those who need it at the same time, and ACCESS.

use std::sync::Arc;

use curt_policy::{
    AccessDecision, AskWhy, Moment, Rights, access::decide_access, attributes::GetattrDecision,
    attributes::decide_getattr,
};
use curt_proto::nfs3::Status;
use curt_trace::{Cause, ClientCounter, scope};
use rustix::io::Errno;

use crate::{
    api::Stat,
    client::{Asked, Client},
    data::{DataOwner, FileData},
    errno,
    identity::{Caller, InodeId},
    inode::{
        Inode, Landed,
        telling::{Subject, tell_begin, tell_done},
    },
    plan::v3,
};

/// Whether the attributes of other objects may be requested together with one object's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Beside {
    /// If they are expected to be wanted.
    IfWorthIt,
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
    pub fn getattr(&self, caller: &Caller, id: InodeId) -> Result<Stat, Errno> {
        let inode = self.held(id)?;
        self.stat(&self.asked(caller), &inode)
    }

    /// The last known attributes of `id`, however old, without any request: for a server that does not answer.
    #[must_use]
    pub fn last_attributes(&self, id: InodeId) -> Option<Stat> {
        let attributes = self.held(id).ok()?.attributes()?;
        Some(Stat {
            attributes,
            valid: std::time::Duration::ZERO,
        })
    }

    /// The fields of events about `id`, without any request; all zero if it is unknown.
    #[must_use]
    pub fn subject(&self, id: InodeId) -> Subject {
        self.held(id)
            .map_or_else(|_| Subject::default(), |inode| inode.subject())
    }

    pub(crate) fn stat(&self, asked: &Asked, inode: &Arc<Inode>) -> Result<Stat, Errno> {
        let mut is_settled = false;
        for round in asked.rounds() {
            let options = self.core.options();
            // What is written after the first flush is none of this operation's business.
            let unsent = !is_settled && inode.has_unsent();
            let now = self.core.now();
            let facts = inode.facts();
            match decide_getattr(facts.freshness(asked, now, &options), unsent, &options) {
                GetattrDecision::Serve => {
                    let valid = curt_policy::kernel::attribute_lifetime(&facts.state, now, &options);
                    let attributes = inode.attributes_in(&facts).ok_or(Errno::IO)?;
                    drop(facts);
                    if round == 0 {
                        self.count(ClientCounter::AttrHit);
                    }
                    self.note_use(inode);
                    return Ok(Stat { attributes, valid });
                }
                GetattrDecision::Revalidate => {
                    drop(facts);
                    self.revalidate(asked, inode)?;
                }
                GetattrDecision::FlushFirst => {
                    drop(facts);
                    self.settle(asked, inode)?;
                    is_settled = true;
                }
            }
        }
        Err(Errno::IO)
    }

    /// Sends all bytes written here to the server.
    pub(crate) fn settle(&self, asked: &Asked, inode: &Arc<Inode>) -> Result<(), Errno> {
        if !inode.has_unsent() {
            return Ok(());
        }
        let owner: Arc<dyn DataOwner> = Arc::clone(inode) as Arc<dyn DataOwner>;
        self.core
            .plane
            .settle(&owner, &asked.interrupt)
            .map_err(errno::of_data)
    }

    /// The same, and has the server commit them.
    pub(crate) fn settle_durably(&self, asked: &Asked, inode: &Arc<Inode>) -> Result<(), Errno> {
        if !inode.data_if_any().is_some_and(FileData::has_unwritten) {
            return Ok(());
        }
        let owner: Arc<dyn DataOwner> = Arc::clone(inode) as Arc<dyn DataOwner>;
        self.core
            .plane
            .settle_durably(&owner, &asked.interrupt)
            .map_err(errno::of_data)
    }

    /// Requests attributes, or waits for those that another operation has requested. To be followed by another decision: they may
    /// still be too old for this operation.
    pub(crate) fn revalidate(&self, asked: &Asked, inode: &Arc<Inode>) -> Result<(), Errno> {
        self.revalidate_with(asked, inode, Beside::IfWorthIt)
    }

    /// The same; `beside` says whether attributes of other objects may be requested as well.
    pub(crate) fn revalidate_with(
        &self,
        asked: &Asked,
        inode: &Arc<Inode>,
        beside: Beside,
    ) -> Result<(), Errno> {
        let mut departure = match self.flights.join(inode.id()) {
            Ok(flight) => {
                self.count(ClientCounter::AttrShared);
                return match flight.wait(&asked.interrupt) {
                    Some(Landed::Anyhow) => Ok(()),
                    Some(Landed::Silent) => {
                        self.be_content(asked);
                        Ok(())
                    }
                    None => Err(Errno::INTR),
                };
            }
            Err(departure) => departure,
        };
        if inode.facts().state.facts().is_none() {
            self.count(ClientCounter::AttrInvalidated);
            let _why = scope::by_default(Cause::AttributesUnknown);
            return self.ask_attributes(asked, inode);
        }
        self.count(ClientCounter::AttrExpired);
        let _why = scope::by_default(Cause::AttributesExpired);
        if self
            .patiently(asked, |asked| self.ask_again(asked, inode, beside))?
            .is_none()
        {
            departure.landed = Landed::Silent;
        }
        Ok(())
    }

    /// Revalidates something that is cached. `None`: the server was silent for as long as `softreval` waits, so this operation
    /// uses what is cached.
    pub(crate) fn patiently<T>(
        &self,
        asked: &Asked,
        ask: impl FnOnce(&Asked) -> Result<T, Errno>,
    ) -> Result<Option<T>, Errno> {
        let Some(patience) = self.patience.as_ref().filter(|_| !asked.is_content.get()) else {
            return ask(asked).map(Some);
        };
        let wait = patience.begin(&asked.interrupt);
        let soft = Asked::new(Arc::clone(&asked.identity), wait.interrupt.clone(), asked.began);
        match ask(&soft) {
            Err(Errno::INTR) if !asked.interrupt.is_raised() => {
                self.be_content(asked);
                Ok(None)
            }
            result => result.map(Some),
        }
    }

    fn be_content(&self, asked: &Asked) {
        asked.is_content.set(true);
        self.count(ClientCounter::SoftRevalidation);
    }

    /// Requests attributes that were known, and perhaps those of other objects in the same directory.
    fn ask_again(&self, asked: &Asked, inode: &Arc<Inode>, beside: Beside) -> Result<(), Errno> {
        match beside {
            Beside::IfWorthIt if self.refresh_home(asked, inode)? => Ok(()),
            Beside::IfWorthIt | Beside::Nothing => self.ask_attributes(asked, inode),
        }
    }

    /// Sends GETATTR.
    pub(crate) fn ask_attributes(&self, asked: &Asked, inode: &Arc<Inode>) -> Result<(), Errno> {
        tell_begin!(
            inode.subject(),
            NfsRevalidateInodeEnter {
                reason: scope::cause(GETATTR).name()
            }
        );
        let answer = self.ask_attributes_untold(asked, inode);
        tell_done!(
            inode.subject(),
            NfsRevalidateInodeExit {
                error: errno::told(&answer)
            }
        );
        answer
    }

    fn ask_attributes_untold(&self, asked: &Asked, inode: &Arc<Inode>) -> Result<(), Errno> {
        let answer = v3::getattr(&self.core.wire, asked.asker(), inode.handle()).map_err(errno::of_call)?;
        match answer.outcome {
            Ok(attributes) => {
                let _ = inode.absorb(&attributes, self.core.moment(answer.sent_at));
                Ok(())
            }
            Err(status) => Err(self.refused(inode, status)),
        }
    }

    /// The errno of a failure that was about `inode`; notes if its handle is stale.
    pub(crate) fn refused(&self, inode: &Inode, status: Status) -> Errno {
        if matches!(status, Status::Stale | Status::Badhandle) {
            inode.mark_stale();
        }
        errno::of_status(status)
    }

    /// Whether the caller may what access(2)'s `mask` says (R_OK 4, W_OK 2, X_OK 1; 0 asks for nothing).
    ///
    /// # Errors
    /// EACCES; those of ACCESS and GETATTR.
    pub fn access(&self, caller: &Caller, id: InodeId, mask: u32) -> Result<(), Errno> {
        if mask & 7 == 0 {
            return Ok(());
        }
        let inode = self.held(id)?;
        let asked = self.asked(caller);
        let kind = inode.facts().state.facts().map(|known| known.kind);
        let kind = match kind {
            Some(kind) => kind,
            None => {
                self.revalidate(&asked, &inode)?;
                inode.facts().state.facts().ok_or(Errno::IO)?.kind
            }
        };
        self.require(&asked, &inode, Rights::from_access_mask(mask, kind))
    }

    /// Makes sure that the caller has `needs` on `inode`.
    pub(crate) fn require(&self, asked: &Asked, inode: &Arc<Inode>, needs: Rights) -> Result<(), Errno> {
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
                    self.ask_access(asked, inode, reason)?;
                    why = Some(reason);
                }
            }
        }
        Err(Errno::IO)
    }

    pub(crate) fn access_decision(
        &self,
        asked: &Asked,
        inode: &Inode,
        needs: Rights,
        is_foreign: bool,
    ) -> AccessDecision {
        let options = self.core.options();
        let now = self.core.now();
        let facts = inode.facts();
        let view = inode.access_view(&facts, &asked.identity, is_foreign, now);
        decide_access(&view, facts.freshness(asked, now, &options), needs, &options)
    }

    /// Sends ACCESS for all rights that could matter.
    pub(crate) fn ask_access(&self, asked: &Asked, inode: &Inode, why: AskWhy) -> Result<(), Errno> {
        let kind = inode.facts().state.facts().map(|known| known.kind);
        let rights = kind.map_or(Rights::ALL, Rights::worth_asking);
        let _why = scope::because(match why {
            AskWhy::ForeignData | AskWhy::ConfirmDenial => Cause::AccessConfirm,
            AskWhy::Unasked => Cause::Access,
        });
        let answer = v3::access(&self.core.wire, asked.asker(), inode.handle(), rights.bits())
            .map_err(errno::of_call)?;
        let sent_at = self.core.moment(answer.sent_at);
        self.count(ClientCounter::AccessWire);
        match why {
            AskWhy::ForeignData => self.count(ClientCounter::AccessDataCheck),
            AskWhy::ConfirmDenial => self.count_doubted_denial(asked, inode),
            AskWhy::Unasked => {}
        }
        if let Some(attributes) = &answer.about {
            let _ = inode.absorb(attributes, sent_at);
        }
        match answer.outcome {
            Ok(granted) => {
                inode.absorb_answer(&asked.identity, rights, Rights::from_bits(granted), sent_at);
                Ok(())
            }
            Err(status) => Err(self.refused(inode, status)),
        }
    }

    fn count_doubted_denial(&self, asked: &Asked, inode: &Inode) {
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
    pub(crate) fn count_allowed(&self, asked: &Asked, inode: &Inode, needs: Rights, why: Option<AskWhy>) {
        match why {
            _ if needs.is_empty() => {}
            Some(AskWhy::ConfirmDenial) => self.count(ClientCounter::AccessDenyOverturned),
            Some(AskWhy::Unasked | AskWhy::ForeignData) => {}
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
    pub(crate) fn count_denied(&self, why: Option<AskWhy>) {
        match why {
            Some(AskWhy::ConfirmDenial) => self.count(ClientCounter::AccessDenyConfirmed),
            Some(AskWhy::Unasked | AskWhy::ForeignData) => {}
            None => self.count(ClientCounter::AccessHitNegative),
        }
    }

    /// The server refused the caller an operation on `inode` that takes `rights`.
    pub(crate) fn note_refusal(
        &self,
        asked: &Asked,
        inode: &Inode,
        status: Status,
        rights: Rights,
        sent_at: Moment,
    ) {
        if status != Status::Acces {
            return;
        }
        let view = inode.access_view(&inode.facts(), &asked.identity, false, self.core.now());
        let by_server = view.entry.is_some_and(|entry| entry.granted.contains(rights));
        if by_server || view.local.is_some_and(|bits| bits.contains(rights)) {
            inode.disprove(&asked.identity, rights, sent_at);
        } else {
            inode.absorb_answer(&asked.identity, rights, Rights::NONE, sent_at);
        }
    }
}
