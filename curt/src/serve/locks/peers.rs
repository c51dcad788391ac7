//! The threads that call lock managers of other hosts.
//!
//! Calls to one host are made one after another, by one thread at a time, over a connection that is
//! kept. Each call is bounded in time. A host that cannot be called is not tried again for a while,
//! in which its callbacks fail at once; half of the threads are for hosts that could be called last
//! time.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock, Weak, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use curt_mount::lock_service::{CallbackReceiver as _, Grant, GrantReply, ServerLockService, SystemMonitor};
use curt_proto::nlm4::{self, NlmProcedure};
use curt_rpc::auth::RpcCredential;
use curt_rpc::client::{CallError, CallTarget, LocalAddress, SingleCalls};
use curt_server::{GrantOutcome, GrantedLock, LockPeers, NfsService, PeerCall, PeerCallKind};
use curt_xdr::{Encode, put_fixed};
use parking_lot::{Condvar, Mutex};

use super::ports::{Peer, Program, Protocol};

/// The threads.
const THREADS: usize = 4;

/// Those that may call hosts whose last call failed.
const THREADS_FOR_SLOW: usize = THREADS / 2;

/// Results of asynchronous requests that wait for one host. Callbacks are bounded by the number of
/// waiters.
const RESULTS_MAX: usize = 256;

/// Jobs that wait to be run with the privileges of the process. Beyond that, serving threads wait.
const JOBS_MAX: usize = 16;

/// Time limit of a call.
const TIMEOUT: Duration = Duration::from_secs(3);

/// The first pause after a call that failed; each is twice the last one.
const BACKOFF: Duration = Duration::from_millis(500);

/// The longest pause.
const BACKOFF_MAX: Duration = Duration::from_secs(60);

/// After this time without a call a host is forgotten, and its connection closed.
const IDLE_MAX: Duration = Duration::from_secs(60);

const NLM: Program = Program { number: nlm4::PROGRAM, version: nlm4::VERSION };

/// The threads, and what they have to do.
pub(super) struct PeerThreads {
    service: Weak<NfsService>,
    mounts: OnceLock<Option<Arc<ServerLockService>>>,
    monitor: OnceLock<Option<SystemMonitor>>,
    queue: Mutex<PeerQueue>,
    changed: Condvar,
    jobs: mpsc::SyncSender<Job>,
}

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct PeerQueue {
    hosts: HashMap<IpAddr, PeerHost>,
    /// Hosts with calls, none of which is being made.
    ready: VecDeque<IpAddr>,
    /// Threads that call hosts whose last call failed.
    slow: usize,
}

#[derive(Default)]
struct PeerHost {
    calls: VecDeque<PeerCall>,
    is_called: bool,
    state: HostState,
}

/// What the thread that calls a host has to know.
#[derive(Default)]
struct HostState {
    connection: Option<SingleCalls>,
    local: Option<IpAddr>,
    /// Calls in a row that failed.
    failures: u32,
    retry_at: Option<Instant>,
    last_call: Option<Instant>,
}

/// A host that a thread has taken, with a call to it.
struct TakenHost {
    address: IpAddr,
    call: PeerCall,
    state: HostState,
    is_slow: bool,
}

/// Whether a host is this one: it has connected to the address that it came from.
pub(super) fn is_here(peer: IpAddr, local: Option<IpAddr>) -> bool {
    peer.is_loopback() || Some(peer) == local
}

impl PeerThreads {
    /// Starts the threads.
    pub(super) fn start(service: &Arc<NfsService>) -> io::Result<Arc<Self>> {
        let (jobs, waiting) = mpsc::sync_channel::<Job>(JOBS_MAX);
        thread::Builder::new().name("curt-lock-state".into()).spawn(move || {
            waiting.into_iter().for_each(|job| job());
        })?;
        let peers = Arc::new(Self {
            service: Arc::downgrade(service),
            mounts: OnceLock::new(),
            monitor: OnceLock::new(),
            queue: Mutex::default(),
            changed: Condvar::new(),
            jobs,
        });
        for _ in 0..THREADS {
            let peers = Arc::clone(&peers);
            thread::Builder::new().name("curt-lock-calls".into()).spawn(move || peers.work())?;
        }
        Ok(peers)
    }

    /// The mounts of this host; `None`: this server does not pass callbacks to them.
    pub(super) fn set_mounts(&self, mounts: Option<Arc<ServerLockService>>) {
        let _ = self.mounts.set(mounts);
    }

    /// The system's monitor, if there is one.
    pub(super) fn set_monitor(&self, monitor: Option<SystemMonitor>) {
        let _ = self.monitor.set(monitor);
    }

    fn work(&self) {
        loop {
            let mut taken = self.take();
            self.make(&mut taken);
            self.put_back(taken);
        }
    }

    /// Waits for a host that may be called.
    fn take(&self) -> TakenHost {
        let mut queue = self.queue.lock();
        loop {
            if let Some(taken) = queue.take() {
                return taken;
            }
            if self.changed.wait_for(&mut queue, IDLE_MAX).timed_out() {
                queue.forget_idle(Instant::now());
            }
        }
    }

    fn put_back(&self, taken: TakenHost) {
        let mut queue = self.queue.lock();
        queue.slow -= usize::from(taken.is_slow);
        let host = queue.hosts.entry(taken.address).or_default();
        host.is_called = false;
        host.state = taken.state;
        if !host.calls.is_empty() {
            queue.ready.push_back(taken.address);
        }
        drop(queue);
        self.changed.notify_one();
    }

    /// Makes a call, and reports its outcome.
    fn make(&self, taken: &mut TakenHost) {
        let (address, local) = (taken.address, taken.call.local);
        match &taken.call.kind {
            PeerCallKind::Granted(granted) => {
                let begun = Instant::now();
                let outcome = self
                    .grant_here(address, local, granted)
                    .unwrap_or_else(|| taken.state.grant(address, local, granted));
                if let Some(service) = self.service.upgrade() {
                    service.grant_answered(address, granted.id, outcome, begun.elapsed());
                }
            }
            PeerCallKind::Result { procedure, arguments } => {
                // Some hosts do not reply to it, and those that miss it repeat their request.
                let _ = taken.state.call(address, local, *procedure, arguments);
            }
        }
    }

    /// Passes a grant to a mount of this host, if the waiter is one.
    fn grant_here(
        &self,
        address: IpAddr,
        local: Option<IpAddr>,
        granted: &GrantedLock,
    ) -> Option<GrantOutcome> {
        let mounts = self.mounts.get()?.as_ref()?;
        let server = local.filter(|_| is_here(address, local))?;
        let GrantedLock { svid, range, lock_type, .. } = *granted;
        let grant = Grant { svid, file: granted.file.clone(), range, lock_type };
        match mounts.granted(server, &grant) {
            GrantReply::Confirmed => Some(GrantOutcome::Accepted),
            GrantReply::Denied => Some(GrantOutcome::Refused),
            GrantReply::Unknown => Some(GrantOutcome::Unanswered),
            // Not a mount of this program.
            GrantReply::Stranger => None,
        }
    }
}

impl LockPeers for PeerThreads {
    fn call(&self, call: PeerCall) -> bool {
        let mut queue = self.queue.lock();
        let address = call.peer;
        let host = queue.hosts.entry(address).or_default();
        if matches!(call.kind, PeerCallKind::Result { .. }) && host.calls.len() >= RESULTS_MAX {
            return false;
        }
        let is_first = host.calls.is_empty() && !host.is_called;
        host.calls.push_back(call);
        if is_first {
            queue.ready.push_back(address);
        }
        drop(queue);
        self.changed.notify_one();
        true
    }

    fn run(&self, job: Job) {
        // The thread ends with the process.
        let _ = self.jobs.send(job);
    }

    fn watch(&self, host: IpAddr, is_watched: bool) {
        let Some(monitor) = self.monitor.get().copied().flatten() else { return };
        if self.jobs.try_send(Box::new(move || monitor.watch(host, is_watched))).is_err() {
            tracing::warn!(%host, "the status monitor is too slow: the host's restart may go unnoticed");
        }
    }
}

impl PeerQueue {
    fn take(&mut self) -> Option<TakenHost> {
        let may_be_slow = self.slow < THREADS_FOR_SLOW;
        let place = self.ready.iter().position(|address| {
            may_be_slow || self.hosts.get(address).is_none_or(|host| host.state.failures == 0)
        })?;
        let address = self.ready.remove(place)?;
        let host = self.hosts.get_mut(&address)?;
        let call = host.calls.pop_front()?;
        host.is_called = true;
        let state = std::mem::take(&mut host.state);
        let is_slow = state.failures > 0;
        self.slow += usize::from(is_slow);
        Some(TakenHost { address, call, state, is_slow })
    }

    fn forget_idle(&mut self, now: Instant) {
        self.hosts.retain(|_, host| {
            let last = host.state.last_call;
            host.is_called
                || !host.calls.is_empty()
                || last.is_some_and(|last| now.saturating_duration_since(last) < IDLE_MAX)
        });
    }
}

impl HostState {
    fn grant(&mut self, address: IpAddr, local: Option<IpAddr>, granted: &GrantedLock) -> GrantOutcome {
        let reply = self.call(address, local, NlmProcedure::Granted, &granted.arguments);
        if matches!(reply, Err(CallError::ProcedureUnavailable)) {
            // It answers by GRANTED_RES.
            let _ = self.call(address, local, NlmProcedure::GrantedMsg, &granted.arguments);
            return GrantOutcome::Unanswered;
        }
        GrantOutcome::of_call(reply.as_deref())
    }

    /// Calls the host, over the connection that is open, or else over a new one.
    fn call(
        &mut self,
        address: IpAddr,
        local: Option<IpAddr>,
        procedure: NlmProcedure,
        arguments: &[u8],
    ) -> Result<Vec<u8>, CallError> {
        let now = Instant::now();
        if self.retry_at.is_some_and(|at| now < at) {
            return Err(CallError::Unreachable(io::ErrorKind::HostUnreachable));
        }
        self.last_call = Some(now);
        if self.local != local {
            (self.connection, self.local) = (None, local);
        }
        if self.connection.is_some() {
            let reply = self.try_once(address, procedure, arguments);
            // The host may have closed it, or restarted.
            if !matches!(reply, Err(CallError::Closed | CallError::Unreachable(_))) {
                return self.note(reply);
            }
        }
        let reply = self.try_once(address, procedure, arguments);
        self.note(reply)
    }

    fn try_once(
        &mut self,
        address: IpAddr,
        procedure: NlmProcedure,
        arguments: &[u8],
    ) -> Result<Vec<u8>, CallError> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            empty @ None => {
                let peer = Peer { address, local: LocalAddress { ip: self.local, is_port_reserved: false } };
                empty.insert(peer.connect(NLM, [Protocol::Tcp, Protocol::Udp])?)
            }
        };
        let target =
            CallTarget { program: nlm4::PROGRAM, version: nlm4::VERSION, procedure: procedure.number() };
        let reply = connection.call(target, &RpcCredential::None, &Encoded(arguments), TIMEOUT);
        if let Err(
            CallError::Closed
            | CallError::Unreachable(_)
            | CallError::TimedOut { .. }
            | CallError::Malformed(_),
        ) = &reply
        {
            self.connection = None;
        }
        reply
    }

    /// Notes whether the host could be called.
    fn note(&mut self, reply: Result<Vec<u8>, CallError>) -> Result<Vec<u8>, CallError> {
        match &reply {
            Err(CallError::Closed | CallError::Unreachable(_) | CallError::TimedOut { .. }) => {
                let pause = BACKOFF.saturating_mul(1 << self.failures.min(16)).min(BACKOFF_MAX);
                self.failures = self.failures.saturating_add(1);
                self.retry_at = Some(Instant::now() + pause);
            }
            _ => (self.failures, self.retry_at) = (0, None),
        }
        reply
    }
}

/// Arguments that are encoded already.
struct Encoded<'a>(&'a [u8]);

impl Encode for Encoded<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        put_fixed(out, self.0);
    }
}
