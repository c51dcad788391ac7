//! Observers of a client's requests, both sent and saved.
//!
//! This module owns the list of watchers. Without watchers it costs one relaxed load.

use std::sync::Arc;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use curt_proto::Operation;

use crate::client::ClientCounter;
use crate::scope::{self, RequestScope};

/// An observer of requests. It is called on the threads that send them, with no lock of the client
/// held except perhaps an inode's: it must not call the client.
pub trait Watcher: Send + Sync {
    /// A request was answered, or timed out.
    fn sent(&self, operation: Operation, scope: &RequestScope);

    /// A decision was counted.
    fn counted(&self, counter: ClientCounter, scope: &RequestScope);
}

/// The current watchers.
#[derive(Default)]
pub struct Watchers {
    any: AtomicBool,
    all: RwLock<Vec<Arc<dyn Watcher>>>,
}

/// Maximum number of watchers of one client.
pub const WATCHERS_MAX: usize = 8;

impl Watchers {
    /// Adds `watcher`; `false` if there are too many.
    pub fn add(&self, watcher: Arc<dyn Watcher>) -> bool {
        let Ok(mut all) = self.all.write() else {
            return false;
        };
        if all.len() >= WATCHERS_MAX {
            return false;
        }
        all.push(watcher);
        // Relaxed: a request in progress may or may not be reported.
        self.any.store(true, Relaxed);
        true
    }

    /// Removes `watcher`.
    pub fn remove(&self, watcher: &Arc<dyn Watcher>) {
        if let Ok(mut all) = self.all.write() {
            all.retain(|other| !Arc::ptr_eq(other, watcher));
            self.any.store(!all.is_empty(), Relaxed);
        }
    }

    /// Notifies the watchers of a request.
    pub fn sent(&self, operation: Operation) {
        self.notify(|watcher, scope| watcher.sent(operation, scope));
    }

    /// Notifies the watchers of a decision.
    pub fn counted(&self, counter: ClientCounter) {
        self.notify(|watcher, scope| watcher.counted(counter, scope));
    }

    fn notify(&self, tell: impl Fn(&dyn Watcher, &RequestScope)) {
        if !self.any.load(Relaxed) {
            return;
        }
        let scope = scope::current();
        if let Ok(all) = self.all.read() {
            all.iter().for_each(|watcher| tell(&**watcher, &scope));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use curt_proto::nfs3::NfsProcedure;

    use super::*;
    use crate::causes::Cause;

    const GETATTR: Operation = Operation::Nfs3(NfsProcedure::Getattr);

    #[derive(Default)]
    struct Heard(AtomicU64, AtomicU64);

    impl Watcher for Heard {
        fn sent(&self, operation: Operation, scope: &RequestScope) {
            assert_eq!((operation, scope.cause), (GETATTR, Some(Cause::OpenCheck)));
            self.0.fetch_add(1, Relaxed);
        }

        fn counted(&self, _: ClientCounter, _: &RequestScope) {
            self.1.fetch_add(1, Relaxed);
        }
    }

    #[test]
    fn a_watcher_receives_until_it_is_removed_and_their_number_is_limited() {
        let watchers = Watchers::default();
        let heard = Arc::new(Heard::default());
        let watcher: Arc<dyn Watcher> = Arc::<Heard>::clone(&heard);
        let _why = scope::with_cause(Cause::OpenCheck);
        watchers.sent(GETATTR);
        assert!(watchers.add(Arc::clone(&watcher)));
        watchers.sent(GETATTR);
        watchers.counted(ClientCounter::NegHit);
        watchers.remove(&watcher);
        watchers.sent(GETATTR);
        assert_eq!((heard.0.load(Relaxed), heard.1.load(Relaxed)), (1, 1));
        for _ in 0..WATCHERS_MAX {
            assert!(watchers.add(Arc::clone(&watcher)));
        }
        assert!(!watchers.add(watcher));
    }
}
