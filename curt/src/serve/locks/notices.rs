//! Notices to hosts that had locks when the server ended (SM_NOTIFY): they reclaim them.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use curt_mount::lock_service::{CallbackReceiver as _, ServerLockService};
use curt_proto::nsm::{self, NsmProcedure, StateChange};
use curt_proto::portmap::IpProtocol;
use curt_rpc::auth::RpcCredential;
use curt_rpc::client::{CallError, LocalAddress, SingleCalls};
use curt_rpc::message::ProcedureId;
use curt_server::{HostToNotify, NfsService, RestartNotices};
use curt_xdr::Opaque;
use parking_lot::Mutex;
use rustix::thread::CapabilitySet;

use super::nlm_callbacks::is_here;
use super::ports::{Peer, Program};

/// Hosts that are tried for the first time at the same time: datagrams alone, and little time for
/// each, so that hosts that are not there do not keep others from reclaiming their locks.
const FIRST_THREADS_MAX: usize = 128;

/// Hosts that are tried again at the same time.
const THREADS_MAX: usize = 32;

/// Bytes of a thread's stack.
const STACK: usize = 256 << 10;

/// Time limit of a call to a host that is tried for the first time.
const FIRST_TIMEOUT: Duration = Duration::from_secs(1);

/// Time limit of another call.
const TIMEOUT: Duration = Duration::from_secs(3);

/// The first pause before another attempt; each is twice the last one.
const RETRY: Duration = Duration::from_secs(1);

/// The longest pause.
const RETRY_MAX: Duration = Duration::from_secs(60);

/// How long a host is tried to be notified, as by sm-notify(8).
const GIVE_UP_AFTER: Duration = Duration::from_secs(15 * 60);

/// The interval at which the end of a prolonged grace period is looked for.
const GRACE_POLL: Duration = Duration::from_secs(1);

const NSM: Program = Program { number: nsm::PROGRAM, version: nsm::VERSION };

/// The state that the notices need.
pub(super) struct Notices {
    pub(super) service: Arc<NfsService>,
    pub(super) mounts: Option<Arc<ServerLockService>>,
    pub(super) host_name: Vec<u8>,
    pub(super) grace: Duration,
}

/// A notice: from one address of this host, by which the other one knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Notice {
    host: IpAddr,
    local: Option<IpAddr>,
}

/// A notice that is not delivered yet.
#[derive(Debug, PartialEq, Eq)]
struct Retry {
    notice: Notice,
    at: Instant,
    pause: Duration,
}

/// The notices that are tried again, in the order of their times.
#[derive(Default)]
struct RetryQueue {
    retries: BTreeMap<(Instant, u64), Retry>,
    next: u64,
}

impl RetryQueue {
    fn push(&mut self, retry: Retry) {
        self.retries.insert((retry.at, self.next), retry);
        self.next += 1;
    }

    fn pop(&mut self) -> Option<Retry> {
        Some(self.retries.pop_first()?.1)
    }
}

/// The notices to a host: from each address that its requests came to.
fn notices_to(host: HostToNotify) -> impl Iterator<Item = Notice> {
    let HostToNotify { address, locals } = host;
    let by_route = locals.is_empty().then_some(None);
    let locals = by_route.into_iter().chain(locals.into_iter().map(Some));
    locals.map(move |local| Notice { host: address, local })
}

/// Runs `work` on several threads, until all have returned.
fn in_parallel(threads: usize, work: &(impl Fn() + Sync)) {
    thread::scope(|scope| {
        for _ in 1..threads {
            let thread = thread::Builder::new().name("curt-lock-notices".into()).stack_size(STACK);
            // Those that there are do the work of others.
            if let Err(error) = thread.spawn_scoped(scope, work) {
                tracing::debug!(%error, "no more threads for notices");
                break;
            }
        }
        work();
    });
}

/// Clients of NFSv4 may prolong the period beyond its time.
fn wait_for_end_of_grace(service: &NfsService) {
    while service.is_in_grace() {
        thread::sleep(GRACE_POLL);
    }
}

impl Notices {
    /// Starts the threads that notify the hosts.
    pub(super) fn send(self, notices: &RestartNotices) -> io::Result<()> {
        if notices.hosts.is_empty() {
            return Ok(());
        }
        if !may_bind_reserved_ports() {
            tracing::warn!(
                "notices of the restart come from an unreserved port, and Curt's mounts ignore them: \
                 without CAP_NET_BIND_SERVICE they lose their locks without noticing it"
            );
        }
        let (begun, grace, service) = (Instant::now(), self.grace, Arc::clone(&self.service));
        let state = notices.state;
        let hosts: Vec<Notice> = notices.hosts.iter().cloned().flat_map(notices_to).collect();
        let run = move || {
            let count = hosts.len();
            let (first, retries) = (Mutex::new(hosts), Mutex::new(RetryQueue::default()));
            in_parallel(count.min(FIRST_THREADS_MAX), &|| self.notify_first(&first, &retries, state));
            in_parallel(count.min(THREADS_MAX), &|| self.notify_again(&retries, begun, state));
            thread::sleep((begun + grace).saturating_duration_since(Instant::now()));
            wait_for_end_of_grace(&self.service);
            self.service.forget_hosts_without_locks();
        };
        let end_of_grace = move || {
            thread::sleep(grace);
            wait_for_end_of_grace(&service);
            tracing::info!("the grace period for locks is over");
        };
        thread::Builder::new().name("curt-lock-grace".into()).spawn(end_of_grace)?;
        thread::Builder::new().name("curt-lock-notices".into()).spawn(run).map(drop)
    }

    /// Tries each host once.
    fn notify_first(&self, notices: &Mutex<Vec<Notice>>, retries: &Mutex<RetryQueue>, state: i32) {
        loop {
            let next = notices.lock().pop();
            let Some(notice) = next else { return };
            let connect = |peer: Peer| peer.connect_by_datagrams(NSM, FIRST_TIMEOUT);
            let result = self.notify(notice, state, connect, FIRST_TIMEOUT);
            note(notice, &result);
            if result.is_err() {
                let retry = Retry { notice, at: Instant::now() + RETRY, pause: RETRY * 2 };
                retries.lock().push(retry);
            }
        }
    }

    /// Tries hosts again, each until it is notified or has been given up.
    fn notify_again(&self, retries: &Mutex<RetryQueue>, begun: Instant, state: i32) {
        loop {
            let next = retries.lock().pop();
            let Some(Retry { notice, at, pause }) = next else { return };
            thread::sleep(at.saturating_duration_since(Instant::now()));
            let connect = |peer: Peer| peer.connect(NSM, [IpProtocol::Udp, IpProtocol::Tcp]);
            let result = self.notify(notice, state, connect, TIMEOUT);
            note(notice, &result);
            match result {
                Ok(()) => {}
                Err(error) if begun.elapsed() >= GIVE_UP_AFTER => {
                    let host = notice.host;
                    tracing::warn!(%host, %error, "not notified of the restart: its locks are lost");
                }
                Err(_) => {
                    let at = Instant::now() + pause;
                    retries.lock().push(Retry { notice, at, pause: (pause * 2).min(RETRY_MAX) });
                }
            }
        }
    }

    fn notify(
        &self,
        notice: Notice,
        state: i32,
        connect: impl FnOnce(Peer) -> Result<SingleCalls, CallError>,
        timeout: Duration,
    ) -> Result<(), CallError> {
        let Notice { host, local } = notice;
        // Mounts that have not joined yet get it when they do.
        if let (Some(mounts), Some(local)) = (&self.mounts, local.filter(|local| is_here(host, Some(*local))))
        {
            mounts.restarted(local, state);
            return Ok(());
        }
        let local = LocalAddress { ip: local, is_port_reserved: may_bind_reserved_ports() };
        let change = StateChange { name: Opaque::new(&self.host_name).unwrap_or_default(), state };
        let target = ProcedureId {
            program: nsm::PROGRAM,
            version: nsm::VERSION,
            procedure: NsmProcedure::Notify.number(),
        };
        let mut calls = connect(Peer { address: host, local })?;
        calls.call(target, &RpcCredential::None, &change, timeout).map(drop)
    }
}

/// Whether this process may bind ports below 1024. Lock managers accept a notice from such a port
/// only, since any user can send from others.
fn may_bind_reserved_ports() -> bool {
    let sets = rustix::thread::capabilities(None);
    sets.is_ok_and(|sets| sets.effective.contains(CapabilitySet::NET_BIND_SERVICE))
}

fn note(notice: Notice, result: &Result<(), CallError>) {
    let host = notice.host;
    match result {
        Ok(()) => tracing::info!(%host, "notified of the restart"),
        Err(error) => tracing::debug!(%host, %error, "not notified yet of the restart"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_notified_from_each_address_that_it_knows_or_by_the_route() {
        let [host, one, two] = [1, 2, 3].map(|last| IpAddr::from([10, 0, 0, last]));
        let to = |locals| notices_to(HostToNotify { address: host, locals }).collect::<Vec<_>>();
        let from = |local| Notice { host, local };
        assert_eq!(to(vec![one, two]), [from(Some(one)), from(Some(two))]);
        assert_eq!(to(Vec::new()), [from(None)]);
    }

    #[test]
    fn retries_come_in_the_order_of_their_times() {
        let (mut queue, now) = (RetryQueue::default(), Instant::now());
        let notice = |last| Notice { host: IpAddr::from([10, 0, 0, last]), local: None };
        for (last, seconds) in [(1, 60), (2, 1), (3, 60), (4, 2)] {
            let pause = Duration::from_secs(seconds);
            queue.push(Retry { notice: notice(last), at: now + pause, pause });
        }
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).map(|retry| retry.notice).collect();
        assert_eq!(order, [2, 4, 1, 3].map(notice));
    }
}
