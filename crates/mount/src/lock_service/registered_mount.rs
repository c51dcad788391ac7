//! The mounts that receive callbacks through the service of their network namespace.

use std::net::{IpAddr, Shutdown};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use curt_client::protocol::{LOCK_OWNERS_MAX, LockEvents, WireLock, WireOwner};
use parking_lot::Mutex;

use super::programs::Grant;
use crate::options::CallbackPorts;

/// A mount that receives callbacks.
#[derive(Debug)]
pub(super) struct RegisteredMount {
    pub(super) first_svid: i32,
    /// The address that its requests go to, and others that its server may call from.
    pub(super) servers: Vec<IpAddr>,
    /// Where servers call, if it serves the programs.
    pub(super) callback_ports: CallbackPorts,
    pub(super) events: Mutex<Option<Weak<dyn LockEvents>>>,
    pub(super) can_be_called: AtomicBool,
    /// A service has registered it: no notice of an earlier restart of this host will reach its
    /// server any more, and free its locks.
    pub(super) is_registered: AtomicBool,
    pub(super) state: AtomicI32,
    has_ended: AtomicBool,
    /// Its connection to the service, if that is another process.
    pub(super) connection: Mutex<Option<UnixStream>>,
}

impl RegisteredMount {
    pub(super) fn new(first_svid: i32, servers: Vec<IpAddr>) -> Self {
        Self {
            first_svid,
            servers,
            callback_ports: CallbackPorts::default(),
            events: Mutex::default(),
            can_be_called: AtomicBool::new(false),
            is_registered: AtomicBool::new(false),
            state: AtomicI32::new(0),
            has_ended: AtomicBool::new(false),
            connection: Mutex::default(),
        }
    }

    fn events(&self) -> Option<Arc<dyn LockEvents>> {
        self.events.lock().as_ref().and_then(Weak::upgrade)
    }

    pub(super) fn owns(&self, svid: i32) -> bool {
        i64::from(svid) - i64::from(self.first_svid) < i64::from(LOCK_OWNERS_MAX) && svid >= self.first_svid
    }

    pub(super) fn granted(&self, grant: &Grant) -> bool {
        let Grant { svid, file, range, lock_type, callback } = grant;
        let owner = WireOwner((svid - self.first_svid).cast_unsigned());
        let lock = WireLock { owner, range: *range, lock_type: *lock_type };
        self.events().is_some_and(|events| events.granted(file, &lock, *callback))
    }

    pub(super) fn restarted(&self) {
        if let Some(events) = self.events() {
            events.server_restarted();
        }
    }

    pub(super) fn registered(&self, can_be_called: bool, state: i32) {
        self.state.store(state, Relaxed);
        self.can_be_called.store(can_be_called, Relaxed);
        self.is_registered.store(true, Relaxed);
        // Earlier calls were not delivered.
        if let Some(events) = self.events() {
            events.callbacks_lost();
        }
    }

    /// The mount ends: it leaves the service, or stops to serve. The caller wakes a service in this
    /// process, which may wait.
    pub(super) fn end(&self) {
        self.has_ended.store(true, Relaxed);
        if let Some(connection) = &*self.connection.lock() {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.load(Relaxed)
    }
}
