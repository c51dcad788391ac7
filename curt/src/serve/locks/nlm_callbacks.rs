//! The threads that call lock managers of other hosts.
//!
//! Callbacks to one host are made one after another, by one thread at a time, over a connection
//! that is kept. The results of asynchronous requests are sent in the same way, over another
//! connection, and without waiting for a reply: most hosts send none. Each call is bounded in time.
//! A host that cannot be called is not tried again for a while, in which its callbacks fail at
//! once. Half of the threads are for hosts that could be called last time, and one of the others
//! for callbacks to hosts that were not called yet. Results never use that thread, because the
//! addresses of such hosts may be forged.
//!
//! One thread always waits for calls. It starts others, because threads that a serving thread
//! started would have its restrictions.
//!
//! A call is sent at most once. The lock table sends a GRANTED again, and so knows whether a host
//! may have received several copies: Linux refuses the second copy of a GRANTED that it accepted.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock, Weak, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use curt_client::protocol::LockCallbackId;
use curt_mount::lock_service::{CallbackReceiver as _, Grant, GrantReply, ServerLockService};
use curt_proto::nlm4::{self, NlmProcedure};
use curt_proto::portmap::IpProtocol;
use curt_rpc::auth::RpcCredential;
use curt_rpc::client::{CallError, LocalAddress, SingleCalls};
use curt_rpc::message::ProcedureId;
use curt_server::{GrantId, GrantedCallOutcome, GrantedLock, LockPeers, NfsService, PeerCall, PeerCallKind};
use curt_xdr::Encoded;
use parking_lot::{Condvar, Mutex};

use super::monitor::MonitorThread;
use super::ports::{Peer, Program};

/// The threads.
const THREADS: usize = 4;

/// The threads that may call hosts that were not called yet, or make calls that are expected to be
/// slow.
const THREADS_FOR_OTHERS: usize = THREADS / 2;

/// The threads that may make calls that are expected to be slow.
const THREADS_FOR_SLOW: usize = THREADS_FOR_OTHERS - 1;

/// Results of asynchronous requests that wait for one host. Callbacks are bounded by the number of
/// waiters.
const RESULTS_MAX: usize = 256;

/// Results that wait for all hosts. A forged datagram can have one sent to any address.
const RESULTS_ALL_MAX: usize = 1024;

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
    monitor: OnceLock<MonitorThread>,
    queue: Mutex<PeerQueue>,
    changed: Condvar,
    /// Bounded by the serving threads, each of which waits for its job, and by the number of hosts.
    jobs: mpsc::Sender<Job>,
}

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct PeerQueue {
    hosts: HashMap<PeerKey, PeerHost>,
    /// Hosts with calls, none of which is being made.
    ready: VecDeque<PeerKey>,
    /// Threads that call hosts that were not called yet, and that make calls that are expected to
    /// be slow.
    new: usize,
    slow: usize,
    /// Results that wait.
    results: usize,
    /// All threads, and those that wait for a call.
    threads: usize,
    waiting: usize,
}

/// A host and the kind of calls to it: callbacks, or results. Calls of one kind do not wait for
/// those of the other, and have a connection of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct PeerKey {
    address: IpAddr,
    are_results: bool,
}

impl PeerKey {
    const fn of(call: &PeerCall) -> Self {
        Self { address: call.peer, are_results: call.is_result() }
    }
}

#[derive(Default)]
struct PeerHost {
    calls: VecDeque<PeerCall>,
    /// The GRANTED among them.
    grants: HashSet<GrantId>,
    is_called: bool,
    state: HostState,
}

/// The host's state that the calling thread needs.
#[derive(Default)]
struct HostState {
    connection: Option<SingleCalls>,
    local: Option<IpAddr>,
    /// Consecutive failed calls.
    failures: u32,
    retry_at: Option<Instant>,
    last_call: Option<Instant>,
}

/// A call that a thread has taken from the queue, with the state of its host.
struct DequeuedCall {
    call: PeerCall,
    state: HostState,
    expected: Expectation,
}

/// The expected result of the next call to a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expectation {
    /// The host answers: it did last time.
    Fast,
    /// A callback to a host that was not called yet. It has waiters, but may be silent.
    Unknown,
    /// The last call failed, or it is a result for an address that was not called yet.
    Slow,
}

/// Why a call has no results.
#[derive(Debug)]
struct Failure {
    error: CallError,
    /// Whether the host's lock manager may have received the call.
    is_sent: bool,
}

impl Failure {
    const fn not_sent(error: CallError) -> Self {
        Self { error, is_sent: false }
    }
}

/// Whether a host is this one: it has connected to the address that it came from.
pub(super) fn is_here(peer: IpAddr, local: Option<IpAddr>) -> bool {
    peer.is_loopback() || Some(peer) == local
}

impl PeerThreads {
    /// Starts the first threads.
    pub(super) fn start(service: &Arc<NfsService>) -> io::Result<Arc<Self>> {
        let (jobs, waiting) = mpsc::channel::<Job>();
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
        peers.queue.lock().threads = 1;
        peers.start_thread()?;
        Ok(peers)
    }

    /// Starts a thread, which is counted already.
    fn start_thread(self: &Arc<Self>) -> io::Result<()> {
        let peers = Arc::clone(self);
        thread::Builder::new().name("curt-lock-calls".into()).spawn(move || peers.work()).map(drop)
    }

    /// The mounts of this host; `None`: this server does not pass callbacks to them.
    pub(super) fn set_mounts(&self, mounts: Option<Arc<ServerLockService>>) {
        let _ = self.mounts.set(mounts);
    }

    /// The thread for the system's monitor.
    pub(super) fn set_monitor(&self, monitor: io::Result<MonitorThread>) {
        match monitor {
            Ok(monitor) => drop(self.monitor.set(monitor)),
            Err(error) => tracing::warn!(%error, "the status monitor is not used: no thread"),
        }
    }

    fn work(self: &Arc<Self>) {
        while let Some(mut taken) = self.take() {
            self.make(&mut taken);
            self.put_back(taken);
        }
    }

    /// Waits for a host that may be called. `None`: there was none for a while, and another thread
    /// waits.
    fn take(self: &Arc<Self>) -> Option<DequeuedCall> {
        let mut queue = self.queue.lock();
        loop {
            if let Some(taken) = queue.take() {
                let needs_thread = queue.waiting == 0 && queue.threads < THREADS;
                queue.threads += usize::from(needs_thread);
                drop(queue);
                if needs_thread && let Err(error) = self.start_thread() {
                    tracing::debug!(%error, "no more threads for lock callbacks");
                    self.queue.lock().threads -= 1;
                }
                return Some(taken);
            }
            queue.waiting += 1;
            let is_idle = self.changed.wait_for(&mut queue, IDLE_MAX).timed_out();
            queue.waiting -= 1;
            if is_idle {
                queue.forget_idle(Instant::now());
                if queue.waiting > 0 {
                    queue.threads -= 1;
                    return None;
                }
            }
        }
    }

    fn put_back(&self, taken: DequeuedCall) {
        self.queue.lock().put_back(taken);
        self.changed.notify_one();
    }

    /// Makes a call, and reports its outcome.
    fn make(&self, taken: &mut DequeuedCall) {
        let (address, local) = (taken.call.peer, taken.call.local);
        match &taken.call.kind {
            PeerCallKind::Granted(granted) => {
                // It may have been cancelled or unlocked while it was queued.
                let Some(service) = self.service.upgrade() else { return };
                if !service.begin_grant(address, granted.id) {
                    return;
                }
                let begun = Instant::now();
                let outcome = match self.grant_here(address, local, granted) {
                    Some(outcome) => {
                        taken.state.last_call = Some(begun);
                        Some(outcome)
                    }
                    None => taken.state.grant(address, local, granted),
                };
                if let Some(outcome) = outcome {
                    service.grant_answered(address, granted.id, outcome, begun.elapsed());
                }
            }
            PeerCallKind::Result { procedure, arguments } => {
                // Most hosts do not reply to it, and those that miss it repeat their request.
                let _ = taken.state.send(address, local, *procedure, arguments);
            }
        }
    }

    /// Passes a grant to a mount of this host, if the waiter is one.
    fn grant_here(
        &self,
        address: IpAddr,
        local: Option<IpAddr>,
        granted: &GrantedLock,
    ) -> Option<GrantedCallOutcome> {
        let mounts = self.mounts.get()?.as_ref()?;
        let server = local.filter(|_| is_here(address, local))?;
        let GrantedLock { svid, range, lock_type, .. } = *granted;
        let callback = LockCallbackId::of_cookie(&granted.id.cookie());
        let grant = Grant { svid, file: granted.file.clone(), range, lock_type, callback };
        match mounts.granted(server, &grant) {
            GrantReply::Confirmed => Some(GrantedCallOutcome::Accepted),
            GrantReply::Denied => Some(GrantedCallOutcome::Refused),
            GrantReply::Unknown => Some(GrantedCallOutcome::Unanswered),
            // Not a mount of this program.
            GrantReply::Stranger => None,
        }
    }
}

impl LockPeers for PeerThreads {
    fn call(&self, call: PeerCall) -> bool {
        let is_queued = self.queue.lock().push(call);
        self.changed.notify_one();
        is_queued
    }

    fn run(&self, job: Job) {
        // The thread ends with the process.
        let _ = self.jobs.send(job);
    }

    fn watch(&self, host: IpAddr, is_watched: bool) {
        if let Some(monitor) = self.monitor.get() {
            monitor.watch(host, is_watched);
        }
    }
}

impl PeerQueue {
    /// Queues a call; returns whether there was room. A GRANTED that is queued already is not
    /// queued twice.
    fn push(&mut self, call: PeerCall) -> bool {
        let calls = PeerKey::of(&call);
        if calls.are_results {
            let of_host = self.hosts.get(&calls).map_or(0, |host| host.calls.len());
            if of_host >= RESULTS_MAX || self.results >= RESULTS_ALL_MAX {
                return false;
            }
            self.results += 1;
        }
        let host = self.hosts.entry(calls).or_default();
        if let PeerCallKind::Granted(granted) = &call.kind
            && !host.grants.insert(granted.id)
        {
            return true;
        }
        if host.calls.is_empty() && !host.is_called {
            self.ready.push_back(calls);
        }
        host.calls.push_back(call);
        true
    }

    /// Takes a host that may be called now, with its next call: callbacks first.
    fn take(&mut self) -> Option<DequeuedCall> {
        let has_place = self.new + self.slow < THREADS_FOR_OTHERS;
        let is_possible = |expected: Expectation| match expected {
            Expectation::Fast => true,
            Expectation::Unknown => has_place,
            Expectation::Slow => has_place && self.slow < THREADS_FOR_SLOW,
        };
        let is_next = |calls: &PeerKey, are_results: bool| {
            calls.are_results == are_results
                && self.hosts.get(calls).is_some_and(|host| is_possible(host.expected(*calls)))
        };
        let place = [false, true]
            .into_iter()
            .find_map(|are_results| self.ready.iter().position(|calls| is_next(calls, are_results)))?;
        let calls = self.ready.remove(place)?;
        let host = self.hosts.get_mut(&calls)?;
        let expected = host.expected(calls);
        let call = host.calls.pop_front()?;
        match &call.kind {
            PeerCallKind::Granted(granted) => {
                host.grants.remove(&granted.id);
            }
            PeerCallKind::Result { .. } => self.results -= 1,
        }
        host.is_called = true;
        let state = std::mem::take(&mut host.state);
        self.new += usize::from(expected == Expectation::Unknown);
        self.slow += usize::from(expected == Expectation::Slow);
        Some(DequeuedCall { call, state, expected })
    }

    fn put_back(&mut self, taken: DequeuedCall) {
        self.new -= usize::from(taken.expected == Expectation::Unknown);
        self.slow -= usize::from(taken.expected == Expectation::Slow);
        let calls = PeerKey::of(&taken.call);
        let host = self.hosts.entry(calls).or_default();
        host.is_called = false;
        host.state = taken.state;
        if !host.calls.is_empty() {
            self.ready.push_back(calls);
        }
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

impl PeerHost {
    fn expected(&self, calls: PeerKey) -> Expectation {
        match (self.state.failures, self.state.last_call) {
            (0, Some(_)) => Expectation::Fast,
            (0, None) if !calls.are_results => Expectation::Unknown,
            _ => Expectation::Slow,
        }
    }
}

impl HostState {
    /// `None`: the host answers by GRANTED_RES.
    fn grant(
        &mut self,
        address: IpAddr,
        local: Option<IpAddr>,
        granted: &GrantedLock,
    ) -> Option<GrantedCallOutcome> {
        match self.call(address, local, NlmProcedure::Granted, &granted.arguments) {
            Ok(results) => Some(GrantedCallOutcome::of_results(&results)),
            Err(Failure { error: CallError::ProcedureUnavailable, .. }) => {
                let sent = self.call(address, local, NlmProcedure::GrantedMsg, &granted.arguments);
                sent.is_err_and(|failure| !failure.is_sent).then_some(GrantedCallOutcome::Undelivered)
            }
            Err(failure) if failure.is_sent => Some(GrantedCallOutcome::Unanswered),
            Err(_) => Some(GrantedCallOutcome::Undelivered),
        }
    }

    /// Calls the host, over the connection that is open, or else over a new one. The call is sent
    /// at most once.
    fn call(
        &mut self,
        address: IpAddr,
        local: Option<IpAddr>,
        procedure: NlmProcedure,
        arguments: &[u8],
    ) -> Result<Vec<u8>, Failure> {
        let arguments = Encoded(arguments);
        self.with_connection(address, local, |connection| {
            connection.call_once(target(procedure), &RpcCredential::None, &arguments, TIMEOUT)
        })
    }

    /// Sends a call that has no reply, over a connection for such calls.
    fn send(
        &mut self,
        address: IpAddr,
        local: Option<IpAddr>,
        procedure: NlmProcedure,
        arguments: &[u8],
    ) -> Result<(), Failure> {
        let arguments = Encoded(arguments);
        self.with_connection(address, local, |connection| {
            connection.send_only(target(procedure), &RpcCredential::None, &arguments, TIMEOUT)
        })
    }

    fn with_connection<T>(
        &mut self,
        address: IpAddr,
        local: Option<IpAddr>,
        call: impl FnOnce(&mut SingleCalls) -> Result<T, CallError>,
    ) -> Result<T, Failure> {
        let now = Instant::now();
        if self.retry_at.is_some_and(|at| now < at) {
            return Err(Failure::not_sent(CallError::Unreachable(io::ErrorKind::HostUnreachable)));
        }
        self.last_call = Some(now);
        // The host may have closed it, or restarted.
        if self.local != local || self.connection.as_ref().is_some_and(SingleCalls::is_closed) {
            (self.connection, self.local) = (None, local);
        }
        let reply = self.send_once(address, call);
        self.note_failure(reply.as_ref().err().map(|failure| &failure.error), Instant::now());
        reply
    }

    fn send_once<T>(
        &mut self,
        address: IpAddr,
        call: impl FnOnce(&mut SingleCalls) -> Result<T, CallError>,
    ) -> Result<T, Failure> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            empty @ None => {
                let peer = Peer { address, local: LocalAddress { ip: self.local, is_port_reserved: false } };
                let connected = peer.connect(NLM, [IpProtocol::Tcp, IpProtocol::Udp]);
                empty.insert(connected.map_err(Failure::not_sent)?)
            }
        };
        call(connection).map_err(|error| {
            let (is_sent, is_kept) = match &error {
                CallError::Closed | CallError::TimedOut { .. } | CallError::Malformed(_) => (true, false),
                // A datagram that no socket was there for was not received.
                CallError::Unreachable(_)
                // Another program has the port since the portmapper was asked, or one that takes
                // no calls of this host: RPC refuses the call before the lock manager gets it.
                | CallError::ProgramUnavailable
                | CallError::ProgramMismatch(_)
                | CallError::RpcMismatch(_)
                | CallError::Denied(_) => (false, false),
                CallError::ProcedureUnavailable | CallError::GarbageArguments => (false, true),
                // It may have been executed: SYSTEM_ERR.
                _ => (true, true),
            };
            if !is_kept {
                self.connection = None;
            }
            Failure { error, is_sent }
        })
    }

    fn note_failure(&mut self, failure: Option<&CallError>, now: Instant) {
        match failure {
            // A portmapper that answers nonsense is as bad as none.
            Some(
                CallError::Closed
                | CallError::Unreachable(_)
                | CallError::TimedOut { .. }
                | CallError::Malformed(_),
            ) => {
                let pause = BACKOFF.saturating_mul(1 << self.failures.min(16)).min(BACKOFF_MAX);
                self.failures = self.failures.saturating_add(1);
                self.retry_at = Some(now + pause);
            }
            _ => (self.failures, self.retry_at) = (0, None),
        }
    }
}

const fn target(procedure: NlmProcedure) -> ProcedureId {
    ProcedureId { program: nlm4::PROGRAM, version: nlm4::VERSION, procedure: procedure.number() }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use curt_types::{ByteRange, FileHandle, LockType};

    use super::*;

    fn call(host: u8) -> PeerCall {
        let kind = PeerCallKind::Result { procedure: NlmProcedure::LockRes, arguments: vec![host] };
        PeerCall { peer: IpAddr::from([10, 0, 0, host]), local: None, kind }
    }

    fn granted(host: u8, id: u64) -> PeerCall {
        let granted = GrantedLock {
            id: GrantId::of_cookie(&id.to_be_bytes()).expect("a cookie"),
            file: FileHandle::new(b"handle").expect("a handle"),
            svid: 1,
            range: ByteRange::WHOLE,
            lock_type: LockType::Write,
            arguments: Vec::new(),
        };
        PeerCall { kind: PeerCallKind::Granted(granted), ..call(host) }
    }

    /// A queue that has called these hosts before.
    fn queue_of(hosts: std::ops::RangeInclusive<u8>) -> PeerQueue {
        let mut queue = PeerQueue::default();
        for host in hosts {
            let state = &mut queue.hosts.entry(PeerKey::of(&call(host))).or_default().state;
            state.last_call = Some(Instant::now());
        }
        queue
    }

    #[test]
    fn results_for_forged_addresses_are_bounded_and_leave_threads_to_callbacks() {
        let mut queue = queue_of(1..=1);
        let forged = |number: u16| {
            let [high, low] = number.to_be_bytes();
            PeerCall { peer: IpAddr::from([10, 1, high, low]), ..call(0) }
        };
        let queued = (0..8000).filter(|number| queue.push(forged(*number))).count();
        assert_eq!((queued, queue.hosts.len()), (RESULTS_ALL_MAX, RESULTS_ALL_MAX + 1));
        let slow = queue.take().expect("a thread may be slow");
        assert!(queue.take().is_none(), "the others are left to callbacks");
        for host in [1, 2] {
            assert!(queue.push(granted(host, 1)));
            let taken = queue.take().expect("known or not");
            assert_eq!(taken.call, granted(host, 1));
            queue.put_back(taken);
        }
        queue.put_back(slow);
        assert_eq!((queue.results, queue.slow), (RESULTS_ALL_MAX - 1, 0));
        assert!(queue.push(call(1)), "there is room again");
    }

    #[test]
    fn a_host_has_one_call_at_a_time_and_hosts_take_turns() {
        let mut queue = queue_of(1..=2);
        for host in [1, 1, 1, 2] {
            assert!(queue.push(call(host)));
        }
        let (one, two) = (queue.take().expect("the first"), queue.take().expect("the other host"));
        assert_eq!((one.call, two.call), (call(1), call(2)));
        assert!(queue.take().is_none(), "both are being called");
        let one = DequeuedCall { call: call(1), ..one };
        queue.put_back(one);
        assert_eq!(queue.take().map(|taken| taken.call), Some(call(1)));
    }

    #[test]
    fn results_and_callbacks_of_a_host_do_not_wait_for_each_other() {
        let mut queue = PeerQueue::default();
        assert!(queue.push(call(1)) && queue.push(granted(1, 1)) && queue.push(call(1)));
        let first = queue.take().expect("the callback");
        let second = queue.take().expect("a result");
        assert_eq!((&first.call, &second.call), (&granted(1, 1), &call(1)));
        assert!(queue.take().is_none());
        queue.put_back(DequeuedCall { state: HostState { failures: 9, ..HostState::default() }, ..second });
        queue.put_back(first);
        assert!(queue.push(granted(1, 2)));
        assert!(queue.take().is_some_and(|taken| taken.state.failures == 0), "of the callbacks");
    }

    #[test]
    fn results_are_sent_to_a_host_that_replies_to_none_or_to_all() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
        let address = listener.local_addr().expect("its address");
        let local = LocalAddress { ip: None, is_port_reserved: false };
        for replies in [false, true] {
            let connection = SingleCalls::tcp(local, address, TIMEOUT).expect("a connection");
            let listener = listener.try_clone().expect("a socket");
            let peer = thread::spawn(move || {
                let (mut stream, _) = listener.accept().expect("the connection");
                for _ in 0..100 {
                    stream.read_exact(&mut [0; 44 + 8]).expect("a result");
                    if replies {
                        stream.write_all(&[0x80, 0, 0, 4, 1, 2, 3, 4]).expect("a reply");
                    }
                }
            });
            let mut host = HostState { connection: Some(connection), ..HostState::default() };
            for _ in 0..100 {
                assert!(host.send(address.ip(), None, NlmProcedure::LockRes, &[0; 8]).is_ok());
                assert_eq!((host.failures, host.retry_at), (0, None));
            }
            peer.join().expect("all have arrived");
        }
    }

    #[test]
    fn hosts_that_cannot_be_called_leave_threads_to_others() {
        let mut queue = queue_of(1..=9);
        let failed = HostState { failures: 1, ..HostState::default() };
        for host in 1..=4 {
            queue.push(call(host));
            queue.hosts.entry(PeerKey::of(&call(host))).or_default().state.failures = failed.failures;
        }
        queue.push(call(9));
        let taken: Vec<_> = std::iter::from_fn(|| queue.take()).collect();
        let hosts: Vec<_> = taken.iter().map(|taken| taken.call.clone()).collect();
        assert_eq!(hosts, [call(1), call(9)]);
        for taken in taken {
            queue.put_back(taken);
        }
        assert_eq!(queue.slow, 0);
        assert_eq!(queue.take().map(|taken| taken.call), Some(call(2)));
    }

    #[test]
    fn hosts_that_were_not_called_yet_leave_threads_to_others() {
        let mut queue = queue_of(1..=2);
        for host in 1..=2 {
            // They have been called back.
            queue.hosts.entry(PeerKey::of(&granted(host, 1))).or_default().state.last_call =
                Some(Instant::now());
        }
        for host in (3..=9).chain(1..=2) {
            assert!(queue.push(granted(host, 1)));
        }
        let mut taken: Vec<_> = std::iter::from_fn(|| queue.take()).collect();
        let hosts: Vec<_> = taken.iter().map(|taken| taken.call.clone()).collect();
        assert_eq!(hosts, [3, 4, 1, 2].map(|host| granted(host, 1)));
        // It did not answer.
        taken[0].state.failures = 1;
        taken.into_iter().for_each(|taken| queue.put_back(taken));
        assert!(queue.push(granted(3, 2)));
        assert_eq!((queue.new, queue.slow), (0, 0));
    }

    #[test]
    fn results_for_one_host_are_bounded() {
        let mut queue = PeerQueue::default();
        for _ in 0..RESULTS_MAX {
            assert!(queue.push(call(1)));
        }
        assert!(!queue.push(call(1)) && queue.push(call(2)));
    }

    #[test]
    fn a_grant_is_queued_once_while_it_waits() {
        let granted = |id| granted(1, id);
        let mut queue = PeerQueue::default();
        for id in [1, 2, 1, 2, 1] {
            assert!(queue.push(granted(id)));
        }
        let first = queue.take().expect("the first");
        assert_eq!(first.call, granted(1));
        // It is being sent: a second transmission may be queued.
        assert!(queue.push(granted(1)));
        queue.put_back(first);
        for expected in [granted(2), granted(1)] {
            let taken = queue.take().expect("another");
            assert_eq!(taken.call, expected);
            queue.put_back(taken);
        }
        assert!(queue.take().is_none());
    }

    #[test]
    fn a_call_whose_connection_ends_is_not_sent_again() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
        let address = listener.local_addr().expect("its address");
        let local = LocalAddress { ip: None, is_port_reserved: false };
        let connection = SingleCalls::tcp(local, address, TIMEOUT).expect("a connection");
        let peer = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("the connection");
            stream.read_exact(&mut [0; 48]).expect("the call");
            drop(stream);
            listener.set_nonblocking(true).expect("an option");
            listener
        });
        let mut host = HostState { connection: Some(connection), ..HostState::default() };
        let sent = host.call(address.ip(), None, NlmProcedure::Granted, &[0; 8]);
        let listener = peer.join().expect("the peer");
        assert!(matches!(sent, Err(Failure { is_sent: true, .. })), "{sent:?}");
        assert!(listener.accept().is_err(), "no second connection");
        // Until the pause is over the host is not called.
        let next = host.call(address.ip(), None, NlmProcedure::Granted, &[0; 8]);
        assert!(matches!(next, Err(Failure { is_sent: false, .. })), "{next:?}");
    }

    /// A host whose lock manager answers each of `calls` calls with these words behind the xid.
    fn answering(answer: &'static [u32], calls: usize) -> (HostState, IpAddr, thread::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
        let address = listener.local_addr().expect("its address");
        let local = LocalAddress { ip: None, is_port_reserved: false };
        let connection = SingleCalls::tcp(local, address, TIMEOUT).expect("a connection");
        let peer = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("the connection");
            for _ in 0..calls {
                let mut call = [0; 4 + 40];
                stream.read_exact(&mut call).expect("the call");
                let length = u32::try_from(4 + 4 * answer.len()).expect("short");
                let mut reply = (1 << 31 | length).to_be_bytes().to_vec();
                reply.extend_from_slice(&call[4..8]);
                reply.extend(answer.iter().flat_map(|word| word.to_be_bytes()));
                stream.write_all(&reply).expect("the reply");
            }
        });
        (HostState { connection: Some(connection), ..HostState::default() }, address.ip(), peer)
    }

    // SEMANTICS: lockd-11.
    #[test]
    fn a_grant_that_rpc_refuses_has_not_reached_the_lock_manager() {
        // Behind the xid: REPLY, accepted or denied, and why (RFC 5531, section 9).
        let refusals: [(&[u32], usize, bool); 7] = [
            // PROG_UNAVAIL, PROG_MISMATCH: the port has another program.
            (&[1, 0, 0, 0, 1], 1, false),
            (&[1, 0, 0, 0, 2, 1, 3], 1, false),
            // RPC_MISMATCH, AUTH_TOOWEAK.
            (&[1, 1, 0, 2, 2], 1, false),
            (&[1, 1, 1, 5], 1, false),
            // PROC_UNAVAIL, of GRANTED and of GRANTED_MSG.
            (&[1, 0, 0, 0, 3], 2, true),
            // GARBAGE_ARGS; SYSTEM_ERR may come after the call was executed.
            (&[1, 0, 0, 0, 4], 1, true),
            (&[1, 0, 0, 0, 5], 1, true),
        ];
        for (answer, calls, is_connected) in refusals {
            let (mut host, address, peer) = answering(answer, calls);
            let PeerCallKind::Granted(granted) = granted(1, 1).kind else { panic!("a GRANTED") };
            let outcome = host.grant(address, None, &granted);
            let is_unknown = answer == [1, 0, 0, 0, 5];
            let expected =
                if is_unknown { GrantedCallOutcome::Unanswered } else { GrantedCallOutcome::Undelivered };
            assert_eq!(outcome, Some(expected), "{answer:?}");
            assert_eq!(host.connection.is_some(), is_connected, "{answer:?}: the portmapper is asked again");
            assert_eq!((host.failures, host.retry_at), (0, None));
            peer.join().expect("the peer");
        }
    }

    #[test]
    fn pauses_after_failures_double_up_to_a_minute_and_end_with_a_reply() {
        let (mut host, now) = (HostState::default(), Instant::now());
        let refused = CallError::Unreachable(io::ErrorKind::ConnectionRefused);
        let pauses: Vec<_> = (0..40)
            .map(|_| {
                host.note_failure(Some(&refused), now);
                host.retry_at.map(|at| at - now).unwrap_or_default().as_millis()
            })
            .collect();
        assert_eq!(pauses[..8], [500, 1000, 2000, 4000, 8000, 16_000, 32_000, 60_000]);
        assert!(pauses[8..].iter().all(|pause| *pause == 60_000));
        // A host that refuses a call can be called.
        host.note_failure(Some(&CallError::ProcedureUnavailable), now);
        assert_eq!((host.failures, host.retry_at), (0, None));
    }

    #[test]
    fn hosts_are_forgotten_when_nothing_was_called_for_a_while() {
        let mut queue = PeerQueue::default();
        let now = Instant::now();
        queue.push(call(1));
        queue.forget_idle(now + IDLE_MAX);
        assert_eq!(queue.hosts.len(), 1, "a call waits");
        let mut taken = queue.take().expect("the call");
        queue.forget_idle(now + IDLE_MAX);
        assert_eq!(queue.hosts.len(), 1, "it is being called");
        taken.state.last_call = Some(now);
        queue.put_back(taken);
        queue.forget_idle(now + IDLE_MAX / 2);
        assert_eq!(queue.hosts.len(), 1);
        queue.forget_idle(now + IDLE_MAX);
        assert!(queue.hosts.is_empty());
    }

    #[test]
    fn a_host_is_here_if_it_has_connected_to_its_own_address() {
        let ip = |text: &str| text.parse().expect("an address");
        for (peer, local, is_it) in [
            ("127.0.0.1", None, true),
            ("::1", Some("::1"), true),
            ("10.0.0.1", Some("10.0.0.1"), true),
            ("10.0.0.1", Some("10.0.0.2"), false),
            ("10.0.0.1", None, false),
        ] {
            assert_eq!(is_here(ip(peer), local.map(ip)), is_it, "{peer} {local:?}");
        }
    }
}
