//! Requests to the system's status monitor (rpc.statd). A thread of their own makes them: a monitor
//! that hangs delays no lock.

use std::io;
use std::net::IpAddr;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use curt_mount::lock_service::SystemMonitor;

/// Requests that wait; as many as hosts can have locks.
const REQUESTS_MAX: usize = 4096;

/// The thread.
pub(super) struct MonitorThread(SyncSender<WatchRequest>);

struct WatchRequest {
    host: IpAddr,
    is_watched: bool,
}

impl MonitorThread {
    /// Starts the thread. It ends with this.
    pub(super) fn start(monitor: SystemMonitor) -> io::Result<Self> {
        let (requests, waiting) = sync_channel::<WatchRequest>(REQUESTS_MAX);
        thread::Builder::new().name("curt-lock-statd".into()).spawn(move || {
            for WatchRequest { host, is_watched } in waiting {
                monitor.watch(host, is_watched);
            }
        })?;
        Ok(Self(requests))
    }

    /// Has a host watched, or not any more, without waiting for that.
    pub(super) fn watch(&self, host: IpAddr, is_watched: bool) {
        if self.0.try_send(WatchRequest { host, is_watched }).is_err() {
            tracing::warn!(%host, "the status monitor is too slow: the host's restart may go unnoticed");
        }
    }
}
