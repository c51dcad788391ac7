//! Requests to the system's status monitor (rpc.statd). A thread of their own makes them: a monitor
//! that hangs delays no lock.
//!
//! The monitor may be started, be started again at another port, or end. So it is looked for again
//! and again, and one that is found has all hosts watched. It may refuse some of them, such as
//! those with IPv6 addresses.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::net::IpAddr;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use curt_mount::lock_service::{NotWatched, SystemMonitor};

/// Requests that wait; as many as hosts can have locks.
const REQUESTS_MAX: usize = 4096;

/// How often the monitor is looked for.
const INTERVAL: Duration = Duration::from_secs(10);

/// How many hosts a monitor that did not watch them is asked for at each look: a call takes a
/// reserved port for a while.
const REPEATED_MAX: usize = 64;

/// The thread.
pub(super) struct MonitorThread(SyncSender<WatchRequest>);

struct WatchRequest {
    host: IpAddr,
    is_watched: bool,
}

/// A monitor where it was found.
trait StatusMonitor: PartialEq + Send + 'static {
    /// Has a host watched, or not any more.
    fn watch(&self, host: IpAddr, is_watched: bool) -> Result<(), NotWatched>;
}

impl StatusMonitor for SystemMonitor {
    fn watch(&self, host: IpAddr, is_watched: bool) -> Result<(), NotWatched> {
        Self::watch(*self, host, is_watched)
    }
}

/// State of the thread.
struct HostsToWatch<M, F> {
    find: F,
    /// The monitor that watches all hosts but `unwatched`.
    monitor: Option<M>,
    hosts: HashSet<IpAddr>,
    /// The hosts that the monitor is asked for again. One that failed is the last one.
    unwatched: VecDeque<IpAddr>,
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
        let mut all = HostsToWatch { find, monitor: None, hosts, unwatched: VecDeque::new() };
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
    /// Has all hosts watched by another monitor, if there is one, and those again that this one
    /// does not watch.
    fn look(&mut self) {
        let found = (self.find)();
        let is_other = found != self.monitor;
        if is_other {
            self.monitor = found;
            let asked_first: HashSet<_> = self.unwatched.iter().copied().collect();
            self.unwatched.extend(self.hosts.difference(&asked_first));
        }
        let Some(monitor) = &self.monitor else { return };
        let count = if is_other { self.unwatched.len() } else { self.unwatched.len().min(REPEATED_MAX) };
        let mut has_answered = false;
        for _ in 0..count {
            let Some(host) = self.unwatched.pop_front() else { return };
            let watched = monitor.watch(host, true);
            if let Err(error) = watched {
                if is_other {
                    error.warn(host);
                }
                self.unwatched.push_back(host);
            }
            if watched == Err(NotWatched::Unreachable) {
                // One that has answered may be busy, or the reserved ports are in use.
                if !has_answered {
                    self.monitor = None;
                }
                return;
            }
            has_answered = true;
        }
    }

    fn change(&mut self, request: &WatchRequest) {
        let WatchRequest { host, is_watched } = *request;
        if is_watched {
            self.hosts.insert(host);
        } else {
            self.hosts.remove(&host);
        }
        self.unwatched.retain(|other| *other != host);
        let Some(Err(error)) = self.monitor.as_ref().map(|monitor| monitor.watch(host, is_watched)) else {
            return;
        };
        if is_watched {
            error.warn(host);
            self.unwatched.push_back(host);
        }
        if error == NotWatched::Unreachable {
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
        refused: Option<IpAddr>,
        requests: mpsc::Sender<(u16, IpAddr, bool)>,
    }

    impl PartialEq for Monitor {
        fn eq(&self, other: &Self) -> bool {
            self.port == other.port
        }
    }

    impl StatusMonitor for Monitor {
        fn watch(&self, host: IpAddr, is_watched: bool) -> Result<(), NotWatched> {
            self.requests.send((self.port, host, is_watched)).expect("the test ends later");
            match self.refused {
                _ if !self.is_alive => Err(NotWatched::Unreachable),
                Some(refused) if refused == host => Err(NotWatched::Refused),
                _ => Ok(()),
            }
        }
    }

    #[test]
    fn a_host_that_is_refused_stops_no_other() {
        let host = |last| IpAddr::from([10, 0, 0, last]);
        let (sender, requests) = mpsc::channel();
        let asked = || requests.try_iter().collect::<Vec<_>>();
        let at = |port, refused| Some(Monitor { port, is_alive: true, refused, requests: sender.clone() });
        let running = Mutex::new(at(1, Some(host(5))));
        let find = || running.lock().clone();
        let hosts = (1..10).map(host).collect();
        let mut hosts = HostsToWatch { find, monitor: None, hosts, unwatched: VecDeque::new() };
        let all = |port| (1..10).map(|last| (port, host(last), true)).collect::<HashSet<_>>();
        hosts.look();
        assert_eq!(asked().into_iter().collect::<HashSet<_>>(), all(1));
        // It alone is asked for again, and not once it has no locks any more.
        hosts.look();
        hosts.change(&WatchRequest { host: host(6), is_watched: true });
        hosts.look();
        assert_eq!(asked(), [5, 6, 5].map(|last| (1, host(last), true)));
        hosts.change(&WatchRequest { host: host(5), is_watched: false });
        hosts.look();
        assert_eq!(asked(), [(1, host(5), false)]);
        hosts.change(&WatchRequest { host: host(5), is_watched: true });
        assert_eq!(asked(), [(1, host(5), true)]);
        // It is started again.
        *running.lock() = at(2, None);
        hosts.look();
        let again = asked();
        assert_eq!((again.len(), again.into_iter().collect::<HashSet<_>>()), (9, all(2)));
        hosts.look();
        assert_eq!(asked(), []);
    }

    #[test]
    fn a_monitor_that_is_started_later_or_again_watches_all_hosts() {
        let host = |last| IpAddr::from([10, 0, 0, last]);
        let (sender, requests) = mpsc::channel();
        let next = || requests.recv_timeout(Duration::from_secs(60)).expect("a request");
        let at = |port, is_alive| Some(Monitor { port, is_alive, refused: None, requests: sender.clone() });
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
