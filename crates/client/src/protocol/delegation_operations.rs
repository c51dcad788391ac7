//! Read delegations, independent of a protocol version.

use std::{
    fmt,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Instant,
};

use curt_policy::MonotonicTime;
use curt_types::{Attributes, FileHandle};

/// Read delegations. A version without them uses the defaults.
pub trait DelegationOperations {
    /// Reports delegations to `events` from now on. `origin` is that of the mount's moments.
    fn report_delegations(&self, _events: Weak<dyn DelegationEvents>, _origin: Instant) {}

    /// Whether the server is asked for delegations. If not, those that are held are returned.
    fn allow_delegations(&self, _are_allowed: bool) {}

    /// The number of delegations that are held.
    fn delegations(&self) -> usize {
        0
    }

    /// Whether the server is expected to delegate a file that is opened for reading.
    fn expects_delegations(&self) -> bool {
        false
    }

    /// The file is about to be changed by this client: its delegation is returned with the next
    /// request. Sends nothing.
    fn give_up_delegation(&self, _file: &FileHandle) {}
}

/// Until when the server is certain to keep the client's state: the end of the lease.
#[derive(Debug, Default)]
pub struct LeaseEnd {
    /// The origin of the mount's [`MonotonicTime`]s.
    origin: OnceLock<Instant>,
    /// Nanoseconds since then. Zero: the state may be lost.
    end: AtomicU64,
}

impl LeaseEnd {
    /// Times are those of a mount with this origin.
    pub fn begin(&self, origin: Instant) {
        let _ = self.origin.set(origin);
    }

    /// The lease lasts until `end`.
    pub fn extend(&self, end: Instant) {
        let Some(origin) = self.origin.get() else { return };
        let end = MonotonicTime::from_start(end.saturating_duration_since(*origin));
        // Release: pairs with the load below. A reader of the new end sees earlier losses.
        self.end.fetch_max(end.nanoseconds(), Ordering::Release);
    }

    /// The server has lost some state of this client, which is to be determined first.
    pub fn suspend(&self) {
        self.end.store(0, Ordering::Release);
    }

    fn lasts(&self, now: MonotonicTime) -> bool {
        now.nanoseconds() < self.end.load(Ordering::Acquire)
    }
}

/// A read delegation of a file.
pub struct HeldDelegation {
    is_held: AtomicBool,
    was_used: AtomicBool,
    lease: Arc<LeaseEnd>,
}

impl HeldDelegation {
    /// A delegation that is held from now on, as long as the lease lasts.
    #[must_use]
    pub fn new(lease: &Arc<LeaseEnd>) -> Arc<Self> {
        let (is_held, was_used) = (AtomicBool::new(true), AtomicBool::new(true));
        Arc::new(Self { is_held, was_used, lease: Arc::clone(lease) })
    }

    /// Whether what was valid at its grant is still valid.
    #[must_use]
    pub fn is_valid(&self, now: MonotonicTime) -> bool {
        // Acquire: pairs with the end. A reader that sees it held may serve what it covers.
        self.is_held() && self.lease.lasts(now)
    }

    /// Whether it has not ended.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.is_held.load(Ordering::Acquire)
    }

    /// Ends the delegation: no cached state is valid by it any more.
    pub fn end(&self) {
        self.is_held.store(false, Ordering::Release);
    }

    /// Records that the delegation has saved a request. Relaxed: no other data depend on it.
    pub fn note_use(&self) {
        if !self.was_used.load(Ordering::Relaxed) {
            self.was_used.store(true, Ordering::Relaxed);
        }
    }

    /// Whether it was used since this was last asked.
    #[must_use]
    pub fn take_use(&self) -> bool {
        self.was_used.swap(false, Ordering::Relaxed)
    }
}

impl fmt::Debug for HeldDelegation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldDelegation").field("is_held", &self.is_held).finish_non_exhaustive()
    }
}

/// Why a delegation has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DelegationEnd {
    /// The server has recalled it.
    Recalled,
    /// This client has given it back.
    Returned,
    /// The server has revoked or forgotten it.
    Lost,
}

/// Receives what becomes of delegations. Called with no lock of the protocol held. The server has
/// the delegation back after [`Self::ended`] at the earliest.
pub trait DelegationEvents: Send + Sync {
    /// The server has granted a delegation.
    fn granted(&self, file: &FileHandle, delegation: &Arc<HeldDelegation>);

    /// A delegation of before a restart of the server was granted again, and this is the file since
    /// then.
    fn confirmed(
        &self,
        _file: &FileHandle,
        _delegation: &Arc<HeldDelegation>,
        _attributes: &Attributes,
        _sent_at: Instant,
    ) {
    }

    /// A delegation has ended.
    fn ended(&self, file: &FileHandle, why: DelegationEnd);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_delegation_is_valid_until_it_ends_or_the_lease_does() {
        let (lease, origin) = (Arc::<LeaseEnd>::default(), Instant::now());
        lease.extend(origin + Duration::from_secs(9));
        lease.begin(origin);
        let held = HeldDelegation::new(&lease);
        let at = |seconds| MonotonicTime::from_start(Duration::from_secs(seconds));
        assert!(!held.is_valid(at(1)), "no lease is known");
        lease.extend(origin + Duration::from_secs(10));
        lease.extend(origin + Duration::from_secs(5));
        assert!(held.is_valid(at(9)));
        assert!(!held.is_valid(at(10)));
        lease.suspend();
        assert!(!held.is_valid(at(1)));
        lease.extend(origin + Duration::from_secs(10));
        assert!(held.is_valid(at(1)));
        held.end();
        assert!(!held.is_valid(at(1)));
        assert!(held.take_use() && !held.take_use());
        held.note_use();
        assert!(held.take_use());
    }
}
