//! The read delegation of an inode: what it makes valid, and its end.
//!
//! A delegation counts from when the reply that brought it was dealt with: requests of other
//! threads that were sent before may have been executed before the grant. Only what was read in the
//! compound that brought it, behind OPEN, is known to be of the time of the delegation, and is
//! dated so ([`Inode::absorb_opened`]), unless a change of this client came between.

use std::{sync::Arc, time::Instant};

use curt_observe::{ClientCounter, events::handle_hash, probe};
use curt_policy::{MonotonicTime, MutationTicket};
use curt_types::{Attributes, FileHandle};

use super::{Inode, InodeState, TypeState, registry::InodeRegistry, type_state::FileDelegation};
use crate::protocol::{DelegationEnd, DelegationEvents, HeldDelegation};

impl InodeState {
    /// Records that the delegation has saved a request.
    pub(crate) fn note_delegation_use(&self) {
        if let Some(delegation) = self.by_type.file_if_any().and_then(|file| file.delegation.as_ref()) {
            delegation.held.note_use();
        }
    }
}

impl Inode {
    /// The server has delegated the file. While this client changes it, that is of no use.
    pub(crate) fn hold_delegation(&self, held: &Arc<HeldDelegation>) {
        let now = self.core().now();
        let mut locked = self.lock();
        let is_file = !matches!(locked.by_type, TypeState::Directory(_) | TypeState::Link(_));
        let is_written = locked.by_type.file_if_any().is_some_and(|file| file.write_opens > 0);
        if is_file && !is_written && !locked.attributes.is_changing() {
            let file = locked.by_type.file();
            if !file.delegation.as_ref().is_some_and(|known| Arc::ptr_eq(&known.held, held)) {
                file.delegation = Some(FileDelegation { held: Arc::clone(held), since: now });
            }
            return;
        }
        drop(locked);
        self.core().protocol.give_up_delegation(&self.handle);
    }

    /// This client is about to change the file: its delegation is returned with the change.
    pub(crate) fn give_up_delegation(&self) {
        let mut locked = self.lock();
        let delegation = locked.take_delegation();
        drop(locked);
        if delegation {
            self.core().protocol.give_up_delegation(&self.handle);
        }
    }

    /// Applies the attributes of a reply that has brought `delegation`, behind OPEN. `ticket` was
    /// taken before its request was sent. Returns the time of all that is behind OPEN. Another
    /// delegation that the file has now may be later than the reply.
    pub(crate) fn absorb_opened(
        &self,
        attributes: &Attributes,
        sent_at: MonotonicTime,
        ticket: MutationTicket,
        delegation: Option<&Arc<HeldDelegation>>,
    ) -> (bool, MonotonicTime) {
        let (absorbed, dated) = self.absorb_dated(attributes, |locked, now| {
            let is_current = delegation.is_some_and(|brought| locked.is_delegated_by(brought, now));
            if is_current && locked.attributes.is_undisturbed(ticket) { now } else { sent_at }
        });
        (absorbed.adopted, dated)
    }
}

impl InodeState {
    /// Whether this client has a delegation of the file, although the lease may have ended.
    pub(crate) fn has_delegation(&self) -> bool {
        let file = self.by_type.file_if_any();
        file.and_then(|file| file.delegation.as_ref()).is_some_and(|delegation| delegation.held.is_held())
    }

    fn is_delegated_by(&self, delegation: &Arc<HeldDelegation>, now: MonotonicTime) -> bool {
        let known = self.by_type.file_if_any().and_then(|file| file.delegation.as_ref());
        known.is_some_and(|known| Arc::ptr_eq(&known.held, delegation)) && delegation.is_valid(now)
    }

    /// Forgets the delegation; returns whether there was one.
    pub(crate) fn take_delegation(&mut self) -> bool {
        match &mut self.by_type {
            TypeState::File(file) => file.delegation.take().is_some(),
            TypeState::Nothing | TypeState::Directory(_) | TypeState::Link(_) => false,
        }
    }
}

impl DelegationEvents for InodeRegistry {
    fn granted(&self, file: &FileHandle, delegation: &Arc<HeldDelegation>) {
        self.core.count(ClientCounter::DelegationGranted);
        probe!(NfsDelegation { fhandle: handle_hash(file.as_bytes()), reason: "granted" });
        if let Some(inode) = self.find(file) {
            inode.hold_delegation(delegation);
        }
    }

    /// Only what recovers the session is sent meanwhile: no change of this client comes between.
    fn confirmed(
        &self,
        file: &FileHandle,
        delegation: &Arc<HeldDelegation>,
        attributes: &Attributes,
        sent_at: Instant,
    ) {
        if let Some(inode) = self.find(file) {
            let ticket = inode.lock().attributes.ticket();
            let _ = inode.absorb_opened(attributes, self.core.moment(sent_at), ticket, Some(delegation));
        }
    }

    /// Others may change the file after a recall: what is cached here is not used again before it
    /// is confirmed, and a kernel drops the attributes that it has.
    fn ended(&self, file: &FileHandle, why: DelegationEnd) {
        let (counter, reason) = match why {
            DelegationEnd::Recalled => (ClientCounter::DelegationRecalled, "recalled"),
            DelegationEnd::Returned => (ClientCounter::DelegationReturned, "returned"),
            DelegationEnd::Lost => (ClientCounter::DelegationLost, "lost"),
        };
        self.core.count(counter);
        probe!(NfsDelegation { fhandle: handle_hash(file.as_bytes()), reason });
        let Some(inode) = self.find(file) else { return };
        let now = self.core.now();
        {
            let mut locked = inode.lock();
            if let TypeState::File(file) = &mut locked.by_type {
                file.delegation.take_if(|delegation| !delegation.held.is_held());
            }
            if why == DelegationEnd::Returned {
                return;
            }
            locked.attributes.distrust(now);
        }
        if let Some(observer) = &self.core.observer {
            observer.attributes_changed(inode.id());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delegation_that_has_ended_is_none() {
        let mut state = InodeState::default();
        assert!(!state.has_delegation());
        let held = HeldDelegation::new(&Arc::default());
        let since = MonotonicTime::default();
        state.by_type.file().delegation = Some(FileDelegation { held: Arc::clone(&held), since });
        assert!(state.has_delegation());
        held.end();
        assert!(!state.has_delegation(), "another may be asked for");
    }
}
