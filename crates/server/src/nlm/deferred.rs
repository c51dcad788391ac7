//! The LOCKs and SHAREs that wait for delegations, and what ends them meanwhile.
//!
//! A host may give up a request that waits: its process was killed, or it restarts. It then sends
//! UNLOCK, CANCEL, UNSHARE, FREE_ALL or a notice, and takes the reply for the end of the request.
//! If the waiting request were executed later, no request would release its lock or reservation. So
//! each of these first marks the waiting requests that it concerns, and then releases what the host
//! has. A request reads its mark with the table of locks or reservations locked: either the request
//! is refused, or its lock is in the table already and is released.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use curt_types::ByteRange;
use parking_lot::Mutex;

use crate::state::FileKey;

/// The lock or reservation that a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WantedFromFile {
    /// A lock of this owner (`svid`).
    Lock { svid: i32, range: ByteRange },
    /// A reservation.
    Share,
}

impl WantedFromFile {
    /// Whether a request for `self` waits for an UNLOCK, CANCEL or UNSHARE of `other`.
    fn is_part_of(self, other: Self) -> bool {
        match (self, other) {
            (Self::Lock { svid, range }, Self::Lock { svid: other, range: released }) => {
                svid == other && range.first() <= released.last() && released.first() <= range.last()
            }
            (Self::Share, Self::Share) => true,
            (Self::Lock { .. }, Self::Share) | (Self::Share, Self::Lock { .. }) => false,
        }
    }
}

/// A request that waits, or is executed again.
#[derive(Debug)]
pub(crate) struct DeferredRequest {
    host: IpAddr,
    /// The name of the owner (`oh`).
    name: Box<[u8]>,
    file: FileKey,
    wanted: WantedFromFile,
    /// Acquire and release: who has marked it has replied to the host since.
    has_ended: AtomicBool,
}

impl DeferredRequest {
    pub(super) fn new(host: IpAddr, name: &[u8], file: FileKey, wanted: WantedFromFile) -> Self {
        Self { host, name: name.into(), file, wanted, has_ended: AtomicBool::new(false) }
    }

    /// Whether the host has given it up.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }
}

/// All of them. Their number is bounded by that of the calls that wait.
#[derive(Debug, Default)]
pub(super) struct DeferredRequests(Mutex<Vec<Weak<DeferredRequest>>>);

impl DeferredRequests {
    /// A request begins to wait. It is known as long as the result exists.
    pub(super) fn insert(&self, request: DeferredRequest) -> Arc<DeferredRequest> {
        let request = Arc::new(request);
        let mut all = self.0.lock();
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&request));
        request
    }

    /// A host releases what an owner wants of a file. Returns whether a request waited for it.
    pub(super) fn end(&self, host: IpAddr, name: &[u8], file: &FileKey, released: WantedFromFile) -> bool {
        self.end_if(|request| {
            request.host == host
                && *request.name == *name
                && request.file == *file
                && request.wanted.is_part_of(released)
        })
    }

    /// A host releases everything.
    pub(super) fn end_all_of(&self, host: IpAddr) {
        self.end_if(|request| request.host == host);
    }

    fn end_if(&self, is_over: impl Fn(&DeferredRequest) -> bool) -> bool {
        let mut has_ended = false;
        self.0.lock().retain(|request| {
            let Some(request) = request.upgrade() else { return false };
            if is_over(&request) {
                request.has_ended.store(true, Ordering::Release);
                has_ended = true;
            }
            true
        });
        has_ended
    }
}
