//! Requests to the system's status monitor (rpc.statd). A thread of their own makes them: a monitor
//! that hangs delays no lock.
//!
//! The monitor may be started, be started again at another port, or end. So it is looked for again
//! and again, and one that is found has all hosts watched.

use std::collections::HashSet;
use std::io;
use std::net::IpAddr;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use curt_mount::lock_service::SystemMonitor;

/// Requests that wait; as many as hosts can have locks.
const REQUESTS_MAX: usize = 4096;

/// How often the monitor is looked for.
const INTERVAL: Duration = Duration::from_secs(10);

/// The thread.
pub(super) struct MonitorThread(SyncSender<WatchRequest>);

struct WatchRequest {
    host: IpAddr,
    is_watched: bool,
}

/// A monitor where it was found.
trait StatusMonitor: PartialEq + Send + 'static {
    /// Has a host watched, or not any more. Returns whether it is done.
    fn watch(&self, host: IpAddr, is_watched: bool) -> bool;
}

impl StatusMonitor for SystemMonitor {
    fn watch(&self, host: IpAddr, is_watched: bool) -> bool {
        Self::watch(*self, host, is_watched)
    }
}

/// State of the thread.
struct HostsToWatch<M, F> {
    find: F,
    /// The monitor that watches all hosts.
    monitor: Option<M>,
    hosts: HashSet<IpAddr>,
}

impl MonitorThread {
    /// Starts the thread, which has `hosts` watched. It ends with this.
    pub(super) fn start(
        find: impl FnMut() -> Option<SystemMonitor> + Send + 'static,
        hosts: HashSet<IpAddr>,
    ) -> io::Result<Self> {
        Self::start_with(find, hosts, INTERVAL)
    }

    fn start_with<M: StatusMonitor>(
        find: impl FnMut() -> Option<M> + Send + 'static,
        hosts: HashSet<IpAddr>,
        interval: Duration,
    ) -> io::Result<Self> {
        let (requests, waiting) = sync_channel::<WatchRequest>(REQUESTS_MAX);
        let mut all = HostsToWatch { find, monitor: None, hosts };
        let work = move || {
            let mut next_look = Instant::now();
            loop {
                let now = Instant::now();
                if now >= next_look {
                    all.look();
                    next_look = now + interval;
                }
                match waiting.recv_timeout(next_look.saturating_duration_since(now)) {
                    Ok(request) => all.change(&request),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        };
        thread::Builder::new().name("curt-lock-statd".into()).spawn(work)?;
        Ok(Self(requests))
    }

    /// Has a host watched, or not any more, without waiting for that.
    pub(super) fn watch(&self, host: IpAddr, is_watched: bool) {
        if self.0.try_send(WatchRequest { host, is_watched }).is_err() {
            tracing::warn!(%host, "the status monitor is too slow: the host's restart may go unnoticed");
        }
    }
}

impl<M: StatusMonitor, F: FnMut() -> Option<M>> HostsToWatch<M, F> {
    /// Has all hosts watched by another monitor, if there is one.
    fn look(&mut self) {
        let found = (self.find)();
        if found == self.monitor {
            return;
        }
        // One that fails is asked again at the next look.
        let watch_all = |monitor: &M| self.hosts.iter().all(|host| monitor.watch(*host, true));
        self.monitor = found.filter(watch_all);
    }

    fn change(&mut self, request: &WatchRequest) {
        let WatchRequest { host, is_watched } = *request;
        if is_watched {
            self.hosts.insert(host);
        } else {
            self.hosts.remove(&host);
        }
        if self.monitor.as_ref().is_some_and(|monitor| !monitor.watch(host, is_watched)) {
            self.monitor = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc;

    use parking_lot::Mutex;

    use super::*;

    #[derive(Clone)]
    struct Monitor {
        port: u16,
        is_alive: bool,
        requests: mpsc::Sender<(u16, IpAddr, bool)>,
    }

    impl PartialEq for Monitor {
        fn eq(&self, other: &Self) -> bool {
            self.port == other.port
        }
    }

    impl StatusMonitor for Monitor {
        fn watch(&self, host: IpAddr, is_watched: bool) -> bool {
            self.requests.send((self.port, host, is_watched)).expect("the test ends later");
            self.is_alive
        }
    }

    #[test]
    fn a_monitor_that_is_started_later_or_again_watches_all_hosts() {
        let host = |last| IpAddr::from([10, 0, 0, last]);
        let (sender, requests) = mpsc::channel();
        let next = || requests.recv_timeout(Duration::from_secs(60)).expect("a request");
        let at = |port, is_alive| Some(Monitor { port, is_alive, requests: sender.clone() });
        let running = Arc::new(Mutex::new(at(1, true)));
        let found = Arc::clone(&running);
        let interval = Duration::from_millis(1);
        let find = move || found.lock().clone();
        let thread = MonitorThread::start_with(find, HashSet::from([host(1)]), interval).expect("a thread");
        assert_eq!(next(), (1, host(1), true), "a host of the last run");
        thread.watch(host(1), false);
        thread.watch(host(2), true);
        assert_eq!([next(), next()], [(1, host(1), false), (1, host(2), true)]);
        // It is started again at another port, or ends, and another one comes.
        *running.lock() = at(2, true);
        assert_eq!(next(), (2, host(2), true));
        *running.lock() = None;
        thread.watch(host(3), true);
        *running.lock() = at(3, false);
        let mut seen: HashSet<_> = [next(), next()].into();
        while !seen.contains(&(3, host(2), true)) {
            seen.insert(next());
        }
        // It does not answer, and is asked again.
        while next().0 != 3 {}
        *running.lock() = at(4, true);
        let mut seen = HashSet::new();
        while !seen.is_superset(&HashSet::from([(4, host(2), true), (4, host(3), true)])) {
            seen.insert(next());
        }
    }
}
