//! The locks of NFSv3: requests of the Network Lock Manager, version 4 (RFC 1813 appendix II).
//!
//! [`NlmClient`] owns the connection to the server's lock manager, which is made when the first
//! lock is requested: most mounts never lock. A server without NLM refuses locks with ENOLCK, as in
//! Linux. Which requests are sent is decided by [`crate::locks`].

use std::{
    fmt, io,
    net::IpAddr,
    num::NonZeroU8,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use curt_policy::locks::{LockError, LockReply};
use curt_proto::nlm4::{
    self, NetObj, NlmCancelArguments, NlmLock, NlmLockArguments, NlmProcedure, NlmResult, NlmStat4,
    NlmTestArguments, NlmTestReply, NlmTestResult, NlmUnlockArguments, PROGRAM, REPEATED_COOKIE, VERSION,
    offset_and_length,
};
use curt_proto::nsm::{self, NsmProcedure, StateChange};
use curt_rpc::auth::RpcCredential;
use curt_rpc::client::{
    CallArguments, CallError, CallReply, Interrupt, NoTransportEvents, PortSource, RecoveryMode, RpcRequest,
    ServerName, TcpOptions, TcpTransport, Transport, TransportEvents,
};
use curt_rpc::message::ProcedureId;
use curt_types::{ByteRange, Fault, FileHandle, LockType};
use curt_xdr::{Decode, DecodeError, Opaque, decode_all};
use parking_lot::Mutex;

use super::portmap;
use crate::protocol::{
    LOCK_OWNERS_MAX, LockAnswer, LockEvents, LockMode, LockTestReply, RemoteLock, RpcCaller, RpcClient,
    WireLock, WireOwner,
    mounting::{MountError, ServiceKind, first_of},
    rpc_client::CallSpec,
};

/// Longest results: a cookie, a status and a holder with an owner, in bytes.
const RESULTS_MAX: usize = 2 * (nlm4::NETOBJ_MAX + 4) + 32;

/// Cookies are numbers of this size in bytes, so a result has its status behind that.
const COOKIE_BYTES: usize = 8;
const STATUS_AT: usize = 4 + COOKIE_BYTES;

/// The reply to a request if the server has no NLM, or this mount no number for an owner.
const MISSING: LockReply = LockReply::Refused(LockError::NoLocks);

/// Notices of a restart (SM_NOTIFY) may not arrive: nothing listens here or rpcbind does not run,
/// a firewall drops them, the server may not send from a reserved port. So the server is looked at,
/// three times within the default grace period of Linux's lockd, which is 50 s.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_secs(15);

/// Tests for locks of this mount.
const TESTER: WireOwner = WireOwner(LOCK_OWNERS_MAX);

/// State and services that the lock managers of one network namespace share: see
/// [`NlmClient::new`].
pub trait NlmHost: Send + Sync + fmt::Debug {
    /// Locks are about to be requested or tested at this address of the server, always the same
    /// one: from now on this mount has numbers for their owners, and the server is monitored.
    fn prepare(&self, server: IpAddr) -> LockReadiness;

    /// The first `svid` of this mount, after [`NlmHost::prepare`];
    /// [`crate::protocol::LOCK_OWNERS_MAX`] follow.
    fn first_svid(&self) -> i32;

    /// Whether a server can call back now (GRANTED).
    fn can_be_called(&self) -> bool;

    /// The state number of this host's NSM.
    fn nsm_state(&self) -> i32;

    /// Locks of an owner on a file may be at the server from now on.
    fn note_lock(&self, _file: &FileHandle, _owner: WireOwner, _credential: &RpcCredential) {}

    /// A LOCK of such an owner may be blocked at the server from now on.
    fn note_blocked(&self, _file: &FileHandle, _lock: &WireLock) {}

    /// Nothing of a file is locked any more.
    fn forget_file(&self, _file: &FileHandle) {}

    /// Owners have no locks any more.
    fn forget_owners(&self, _owners: &[WireOwner]) {}

    /// Passes callbacks of the server to `events`.
    fn report(&self, events: Weak<dyn LockEvents>);
}

/// Whether locks can be requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockReadiness {
    /// Locks can be requested.
    Ready,
    /// The server has not been notified of a restart of this host yet: the notice would free the
    /// locks.
    NotYet,
    /// There are no numbers for the owners of locks.
    Impossible,
}

/// How the server's lock manager is found.
#[derive(Clone, Debug)]
pub struct NlmOptions {
    /// The transport options of NFS requests, except the port.
    pub transport: TcpOptions,
    /// `lockport=`; `None`: the portmapper is queried for each new connection.
    pub port: Option<u16>,
    /// This host's name.
    pub host_name: Vec<u8>,
    /// Time limit of a query of the portmapper.
    pub timeout: Duration,
}

/// Requests to the lock manager of a server.
///
/// All go to one address, the first one of the server's name that can be reached: a server that is
/// called at another address may take the owners for those of another client, and confirm an UNLOCK
/// that does not unlock.
pub struct NlmClient {
    options: NlmOptions,
    address: OnceLock<IpAddr>,
    host: Arc<dyn NlmHost>,
    transport: Mutex<Option<Arc<dyn Transport>>>,
    cookie: AtomicU64,
    connections: Arc<ConnectionCount>,
    /// How many there were at the last restart of the server.
    connections_seen: AtomicU64,
    /// Requests that were sent more than once. Lock managers keep no replies for them.
    sent_again: AtomicU64,
    /// The lack of NLM at the server was logged.
    is_lack_logged: AtomicBool,
}

/// Counts the connections that were established.
#[derive(Debug, Default)]
struct ConnectionCount(AtomicU64);

impl TransportEvents for ConnectionCount {
    fn sent(&self, _: usize) {}
    fn received(&self, _: usize) {}
    fn retransmitted(&self) {}
    fn connected(&self, _: bool) {
        self.0.fetch_add(1, Relaxed);
    }
    fn not_responding(&self) {}
    fn responding_again(&self) {}
    fn malformed_reply(&self) {}
}

/// Why there is no connection.
enum NoNlm {
    /// The server has no NLM.
    Missing,
    /// The server may have NLM later, or be reachable later.
    NotNow(CallError),
}

impl NlmClient {
    /// A client of the lock manager of a server.
    #[must_use]
    pub fn new(options: NlmOptions, host: Arc<dyn NlmHost>) -> Self {
        Self {
            options,
            address: OnceLock::new(),
            host,
            transport: Mutex::default(),
            cookie: AtomicU64::new(1),
            connections: Arc::default(),
            // The first one is no reconnection.
            connections_seen: AtomicU64::new(1),
            sent_again: AtomicU64::new(0),
            is_lack_logged: AtomicBool::new(false),
        }
    }

    /// A client over a connection that exists (in tests, or within one process).
    #[must_use]
    pub fn over(transport: Arc<dyn Transport>, options: NlmOptions, host: Arc<dyn NlmHost>) -> Self {
        Self { transport: Mutex::new(Some(transport)), ..Self::new(options, host) }
    }

    pub(super) fn host(&self) -> &dyn NlmHost {
        &*self.host
    }

    pub(super) fn report(&self, events: Weak<dyn LockEvents>) {
        self.host.report(events);
    }

    pub(super) fn sent_again(&self) -> u64 {
        // Relaxed: it counts for the thread that made the request.
        self.sent_again.load(Relaxed)
    }

    pub(super) fn lock(
        &self,
        calls: NlmCalls<'_>,
        file: &FileHandle,
        lock: &WireLock,
        mode: LockMode,
    ) -> LockAnswer {
        match self.prepare(calls) {
            Ok(LockReadiness::Ready) => {}
            Ok(LockReadiness::NotYet) => return Ok(LockReply::Grace),
            Ok(LockReadiness::Impossible) | Err(NoNlm::Missing) => return Ok(MISSING),
            Err(NoNlm::NotNow(error)) => return Err(error),
        }
        let block = mode == LockMode::Block && self.host.can_be_called();
        self.host.note_lock(file, lock.owner, calls.caller.credential);
        if block {
            self.host.note_blocked(file, lock);
        }
        let is_reclaim = mode == LockMode::Reclaim;
        let waits = matches!(mode, LockMode::Repeat | LockMode::Block);
        let mut cookie = self.next_cookie();
        if waits {
            // `curt serve` keeps a place in its queue for it. Others would grant the lock without
            // anybody knowing of it until the next poll, or wait for replies that do not come,
            // if it blocked. If it blocks, `curt serve` may know that callbacks do not arrive.
            cookie[..REPEATED_COOKIE.len()].copy_from_slice(&REPEATED_COOKIE);
        }
        let owner = self.owner(lock.owner);
        let arguments = NlmLockArguments {
            cookie: opaque(&cookie),
            block,
            exclusive: lock.lock_type == LockType::Write,
            lock: self.named(file, &owner, lock.range),
            reclaim: is_reclaim,
            state: self.host.nsm_state(),
        };
        // A server that is starting may register its lock manager late.
        let missing = if is_reclaim { LockReply::Unknown(LockError::NoLocks) } else { MISSING };
        let reply = self.change(calls, NlmProcedure::Lock, &arguments, cookie, missing)?;
        Ok(match reply {
            LockReply::Grace if is_reclaim => return self.is_still_held(calls, file, lock),
            LockReply::Blocked if waits && !block => LockReply::Kept,
            LockReply::Denied if block => LockReply::Kept,
            reply => reply,
        })
    }

    pub(super) fn unlock(
        &self,
        calls: NlmCalls<'_>,
        file: &FileHandle,
        owner: WireOwner,
        range: ByteRange,
    ) -> LockAnswer {
        let cookie = self.next_cookie();
        let owner = self.owner(owner);
        let arguments = NlmUnlockArguments { cookie: opaque(&cookie), lock: self.named(file, &owner, range) };
        self.change(calls, NlmProcedure::Unlock, &arguments, cookie, MISSING)
    }

    pub(super) fn cancel(&self, calls: NlmCalls<'_>, file: &FileHandle, lock: &WireLock) -> LockAnswer {
        let cookie = self.next_cookie();
        let owner = self.owner(lock.owner);
        let arguments = NlmCancelArguments {
            cookie: opaque(&cookie),
            block: true,
            exclusive: lock.lock_type == LockType::Write,
            lock: self.named(file, &owner, lock.range),
        };
        self.change(calls, NlmProcedure::Cancel, &arguments, cookie, MISSING)
    }

    pub(super) fn test(
        &self,
        calls: NlmCalls<'_>,
        file: &FileHandle,
        lock: &WireLock,
    ) -> Result<LockTestReply, CallError> {
        match self.prepare(calls) {
            Ok(LockReadiness::Ready) => {}
            Ok(LockReadiness::NotYet) => return Ok(LockTestReply::Grace),
            Ok(LockReadiness::Impossible) | Err(NoNlm::Missing) => {
                return Ok(LockTestReply::Refused(LockError::NoLocks));
            }
            Err(NoNlm::NotNow(error)) => return Err(error),
        }
        self.find_holder(calls, file, lock).map(|(reply, _)| reply)
    }

    /// Tests a lock; returns the `svid` of a holder, too.
    fn find_holder(
        &self,
        calls: NlmCalls<'_>,
        file: &FileHandle,
        lock: &WireLock,
    ) -> Result<(LockTestReply, Option<i32>), CallError> {
        let cookie = self.next_cookie();
        let owner = self.owner(lock.owner);
        let arguments = NlmTestArguments {
            cookie: opaque(&cookie),
            exclusive: lock.lock_type == LockType::Write,
            lock: self.named(file, &owner, lock.range),
        };
        let reply = match self.call(calls, NlmProcedure::Test, &arguments) {
            Ok(reply) => reply,
            Err(NoNlm::Missing) => return Ok((LockTestReply::Refused(LockError::NoLocks), None)),
            Err(NoNlm::NotNow(error)) => return Err(error),
        };
        let result: NlmTestResult<'_> = decoded(calls, NlmProcedure::Test, reply.results())?;
        check_cookie(calls, NlmProcedure::Test, result.cookie, cookie)?;
        Ok(match result.reply {
            NlmTestReply::Denied(holder) => {
                let range = ByteRange::of_length(holder.offset, holder.length);
                let to_end = ByteRange::new(holder.offset, u64::MAX).unwrap_or(ByteRange::WHOLE);
                let lock_type = nlm4::lock_type(holder.exclusive);
                let lock = RemoteLock { range: range.unwrap_or(to_end), lock_type };
                (LockTestReply::Held(lock), Some(holder.svid))
            }
            NlmTestReply::Other(NlmStat4::Granted) => (LockTestReply::Free, None),
            NlmTestReply::Other(status) => (LockTestReply::of_refusal(reply_of(status)), None),
        })
    }

    /// The server is in no grace period, so that a lock cannot be reclaimed. It was not restarted,
    /// or that is too long ago. If another owner could have the lock, it is lost. If not, it is
    /// this owner's if the server grants it once more: knfsd does not name the holder. A server
    /// that does would have named this owner of a write lock, so it was another's before. The TEST
    /// of a lock for reading is refused if its user may not write the file (knfsd on a read-only
    /// export, `curt serve`): then only the second LOCK counts.
    fn is_still_held(&self, calls: NlmCalls<'_>, file: &FileHandle, lock: &WireLock) -> LockAnswer {
        let wanted = WireLock { owner: TESTER, lock_type: LockType::Write, ..*lock };
        let lost = LockReply::Refused(LockError::NoLocks);
        let (found, before) = self.find_holder(calls, file, &wanted)?;
        match found {
            LockTestReply::Held(_) if before == Some(self.owner(lock.owner).svid) => {
                return Ok(LockReply::Granted);
            }
            LockTestReply::Held(_) | LockTestReply::Refused(_) => {}
            LockTestReply::Free => return Ok(lost),
            // It is reclaimed once more.
            LockTestReply::Grace => return Ok(LockReply::Grace),
        }
        match self.lock(calls, file, lock, LockMode::Try)? {
            LockReply::Denied | LockReply::Kept | LockReply::Blocked => Ok(lost),
            LockReply::Granted if lock.lock_type == LockType::Write => {
                match self.find_holder(calls, file, &wanted) {
                    Ok((LockTestReply::Held(_), holder)) if holder == before => Ok(LockReply::Granted),
                    Ok((LockTestReply::Grace, _)) => Ok(LockReply::Grace),
                    // Not asked again: this owner would be named now.
                    _ => {
                        let _ = self.unlock(calls, file, lock.owner, lock.range);
                        Ok(lost)
                    }
                }
            }
            reply => Ok(reply),
        }
    }

    fn prepare(&self, calls: NlmCalls<'_>) -> Result<LockReadiness, NoNlm> {
        Ok(self.host.prepare(self.address(calls.caller.interrupt)?))
    }

    /// The address of the server that all requests go to.
    fn address(&self, interrupt: &Interrupt) -> Result<IpAddr, NoNlm> {
        if let Some(address) = self.address.get() {
            return Ok(*address);
        }
        let TcpOptions { server, family, .. } = &self.options.transport;
        let found = match server {
            ServerName::Address(address) => *address,
            ServerName::Name(_) => self.found(first_of(server, *family, |address| {
                match self.options.port {
                    Some(port) => self.try_port(address, port, interrupt),
                    None => ask_port(address, self.options.timeout, interrupt).map(drop),
                }
                .map(|()| address)
            }))?,
        };
        // Another thread may have found another one meanwhile.
        Ok(*self.address.get_or_init(|| found))
    }

    /// Connects to a port of `lockport=`.
    fn try_port(&self, address: IpAddr, port: u16, interrupt: &Interrupt) -> Result<(), MountError> {
        let options = TcpOptions {
            recovery: RecoveryMode::Soft,
            retrans: 0,
            timeout: self.options.timeout,
            connect_timeout: self.options.timeout,
            server: ServerName::Address(address),
            port: PortSource::Fixed(port),
            nconnect: NonZeroU8::MIN,
            ..self.options.transport.clone()
        };
        let failed = |error| MountError::of_call(ServiceKind::LockManager, address.to_string(), port, error);
        TcpTransport::connect(options, Arc::new(NoTransportEvents), interrupt).map(drop).map_err(failed)
    }

    /// Whether the connection to the lock manager was lost since the last restart of the server. A
    /// server that restarts loses its connections; a forged notice of a restart does not end them.
    pub(super) fn has_lost_connection(&self, calls: NlmCalls<'_>) -> bool {
        if self.call(calls, NlmProcedure::Null, &()).is_err() {
            // The next connection is that to the restarted server, of which other notices may come.
            self.connections_seen.store(self.connections.0.load(Relaxed) + 1, Relaxed);
            return true;
        }
        // Relaxed: the call was made after any connection that it used. 0: the transport was given.
        let count = self.connections.0.load(Relaxed);
        count == 0 || self.connections_seen.swap(count, Relaxed) != count
    }

    fn change(
        &self,
        calls: NlmCalls<'_>,
        procedure: NlmProcedure,
        arguments: &dyn CallArguments,
        cookie: [u8; COOKIE_BYTES],
        missing: LockReply,
    ) -> LockAnswer {
        let reply = match self.call(calls, procedure, arguments) {
            Ok(reply) => reply,
            Err(NoNlm::Missing) => return Ok(missing),
            Err(NoNlm::NotNow(error)) => return Err(error),
        };
        let result: NlmResult<'_> = decoded(calls, procedure, reply.results())?;
        check_cookie(calls, procedure, result.cookie, cookie)?;
        Ok(reply_of(result.status))
    }

    fn call(
        &self,
        calls: NlmCalls<'_>,
        procedure: NlmProcedure,
        arguments: &dyn CallArguments,
    ) -> Result<CallReply, NoNlm> {
        let transport = self.transport(calls.caller.interrupt)?;
        let outgoing = CallSpec {
            program: PROGRAM,
            version: VERSION,
            procedure: procedure.number(),
            arguments,
            results_max: RESULTS_MAX,
            jukebox: None,
            status_at: STATUS_AT,
            transport: Some(&*transport),
            operation: None,
            sink: None,
        };
        match calls.rpc.call(calls.caller, outgoing) {
            Ok(result) => {
                self.sent_again.fetch_add(u64::from(result.was_sent_again), Relaxed);
                Ok(result.reply)
            }
            Err(
                error @ (CallError::ProgramUnavailable
                | CallError::ProgramMismatch(_)
                | CallError::ProcedureUnavailable),
            ) => Err(self.missing(&error)),
            Err(error) => Err(NoNlm::NotNow(error)),
        }
    }

    /// The connection to the lock manager; made if there is none.
    fn transport(&self, interrupt: &Interrupt) -> Result<Arc<dyn Transport>, NoNlm> {
        if let Some(transport) = &*self.transport.lock() {
            return Ok(Arc::clone(transport));
        }
        let address = self.address(interrupt)?;
        let port = match self.options.port {
            Some(port) => PortSource::Fixed(port),
            None => {
                let port = self.found(ask_port(address, self.options.timeout, interrupt))?;
                let (first, timeout) = (Mutex::new(Some(port)), self.options.timeout);
                PortSource::Lookup(Arc::new(move |address| {
                    if let Some(port) = first.lock().take() {
                        return Ok(port);
                    }
                    ask_port(address, timeout, &Interrupt::never()).map_err(io::Error::other)
                }))
            }
        };
        let options = TcpOptions {
            server: ServerName::Address(address),
            port,
            nconnect: NonZeroU8::MIN,
            ..self.options.transport.clone()
        };
        let events: Arc<dyn TransportEvents> = Arc::<ConnectionCount>::clone(&self.connections);
        let made: Arc<dyn Transport> = Arc::new(TcpTransport::new(options, events));
        // Another thread may have made one meanwhile.
        Ok(Arc::clone(self.transport.lock().get_or_insert(made)))
    }

    /// Converts the result of a search for the lock manager, and remembers failures.
    fn found<T>(&self, found: Result<T, MountError>) -> Result<T, NoNlm> {
        found.map_err(|error| match error {
            MountError::NotRegistered { .. } | MountError::Refused { .. } | MountError::Version { .. } => {
                self.missing(&error)
            }
            MountError::Interrupted => NoNlm::NotNow(CallError::Interrupted),
            MountError::Call { error, .. } => NoNlm::NotNow(error),
            _ => NoNlm::NotNow(CallError::Unreachable(io::ErrorKind::TimedOut)),
        })
    }

    fn missing(&self, error: &dyn fmt::Display) -> NoNlm {
        if !self.is_lack_logged.swap(true, Relaxed) {
            tracing::warn!(
                "the server has no lock manager, locks fail with ENOLCK: {error}; \
                 mount with nolock for locks of this machine alone"
            );
        }
        NoNlm::Missing
    }

    fn next_cookie(&self) -> [u8; COOKIE_BYTES] {
        self.cookie.fetch_add(1, Relaxed).to_be_bytes()
    }

    /// Servers compare `svid` (knfsd), or both (Ganesha).
    fn owner(&self, owner: WireOwner) -> NlmOwner {
        let svid = self.host.first_svid().saturating_add(i32::try_from(owner.0).unwrap_or(i32::MAX));
        NlmOwner { svid, handle: svid.to_be_bytes() }
    }

    fn named<'a>(&'a self, file: &'a FileHandle, owner: &'a NlmOwner, range: ByteRange) -> NlmLock<'a> {
        let (offset, length) = offset_and_length(range);
        NlmLock {
            caller_name: opaque(&self.options.host_name),
            fh: opaque(file.as_bytes()),
            oh: opaque(&owner.handle),
            svid: owner.svid,
            offset,
            length,
        }
    }
}

/// An owner as NLM names it.
struct NlmOwner {
    svid: i32,
    handle: [u8; 4],
}

/// The credential and the statistics of calls.
#[derive(Clone, Copy)]
pub(super) struct NlmCalls<'a> {
    pub(super) rpc: &'a RpcClient,
    pub(super) caller: RpcCaller<'a>,
}

/// Answers GRANTED_MSG of the server at `address` (GRANTED_RES, which has no reply).
pub fn send_granted_result(address: IpAddr, cookie: &[u8], status: NlmStat4, timeout: Duration) {
    let procedure = NlmProcedure::GrantedRes.number();
    let target = ProcedureId { program: PROGRAM, version: VERSION, procedure };
    let result = NlmResult { cookie: opaque(cookie), status };
    if let Err(error) = call_alone(address, ServiceKind::LockManager, target, &result, timeout) {
        tracing::debug!(%address, %error, "GRANTED_RES was not heard: the server calls back again");
    }
}

/// Notifies the status monitor of the server at `address` of a restart of this host (SM_NOTIFY).
/// Returns whether the notice was received, or the server has no monitor.
#[must_use]
pub fn send_restart_notice(address: IpAddr, host_name: &[u8], state: i32, timeout: Duration) -> bool {
    let procedure = NsmProcedure::Notify.number();
    let target = ProcedureId { program: nsm::PROGRAM, version: nsm::VERSION, procedure };
    let change = StateChange { name: opaque(host_name), state };
    match call_alone(address, ServiceKind::StatusMonitor, target, &change, timeout) {
        Ok(()) => true,
        Err(MountError::NotRegistered { .. } | MountError::Version { .. }) => {
            tracing::warn!(%address, "the server has no status monitor: locks from before this host's restart stay");
            true
        }
        Err(error) => {
            tracing::debug!(%address, %error, "a server did not receive the notice of this host's restart");
            false
        }
    }
}

/// Makes one call on a connection of its own.
fn call_alone(
    address: IpAddr,
    kind: ServiceKind,
    target: ProcedureId,
    arguments: &dyn CallArguments,
    timeout: Duration,
) -> Result<(), MountError> {
    let never = Interrupt::never();
    let ProcedureId { program, version, procedure } = target;
    let port = portmap::ask(address, kind, program, version, timeout, &never)?;
    let failed = |error| MountError::of_call(kind, address.to_string(), port, error);
    let connect = |reserved_port| {
        let options = TcpOptions {
            timeout,
            retrans: 0,
            recovery: RecoveryMode::Soft,
            connect_timeout: timeout,
            reserved_port,
            ..TcpOptions::new(ServerName::Address(address), PortSource::Fixed(port))
        };
        TcpTransport::connect(options, Arc::new(NoTransportEvents), &never)
    };
    // Other users could free this host's locks, so servers may ignore notices from other ports.
    // Each connection occupies its port for a minute, so nothing else uses these. Root in a
    // container may not be allowed to.
    let is_reserved = kind == ServiceKind::StatusMonitor && rustix::process::geteuid().is_root();
    let connected = match connect(is_reserved) {
        Err(_) if is_reserved => connect(false),
        connected => connected,
    };
    let transport = connected.map_err(failed)?;
    let credential = &RpcCredential::None;
    let request = RpcRequest { program, version, procedure, credential, arguments, results_max: 0 };
    transport.call(&request, &never).map(drop).map_err(failed)
}

fn ask_port(address: IpAddr, timeout: Duration, interrupt: &Interrupt) -> Result<u16, MountError> {
    portmap::ask(address, ServiceKind::LockManager, PROGRAM, VERSION, timeout, interrupt)
}

fn opaque<const MAX: usize>(bytes: &[u8]) -> Opaque<'_, MAX> {
    Opaque::new(bytes).unwrap_or_default()
}

fn decoded<'a, T: Decode<'a>>(
    calls: NlmCalls<'_>,
    procedure: NlmProcedure,
    results: &'a [u8],
) -> Result<T, CallError> {
    decode_all(results).map_err(|error| calls.rpc.malformed(procedure.name(), error))
}

/// Checks that a result belongs to its call.
fn check_cookie(
    calls: NlmCalls<'_>,
    procedure: NlmProcedure,
    found: NetObj<'_>,
    sent: [u8; COOKIE_BYTES],
) -> Result<(), CallError> {
    if found.bytes() == sent {
        return Ok(());
    }
    let first = found.bytes().first_chunk().map_or(0, |first| u32::from_be_bytes(*first));
    let error = DecodeError::BadValue { name: "a cookie of this call", value: first };
    Err(calls.rpc.malformed(procedure.name(), error))
}

/// Maps a status to a reply. The errors are those of Linux's client.
const fn reply_of(status: NlmStat4) -> LockReply {
    match status {
        NlmStat4::Granted => LockReply::Granted,
        NlmStat4::Denied => LockReply::Denied,
        NlmStat4::Blocked => LockReply::Blocked,
        NlmStat4::DeniedGracePeriod => LockReply::Grace,
        NlmStat4::DeniedNolocks | NlmStat4::Failed => LockReply::Refused(LockError::NoLocks),
        NlmStat4::Deadlck => LockReply::Refused(LockError::Deadlock),
        NlmStat4::Rofs => LockReply::Refused(LockError::Failed(Fault::Rofs)),
        NlmStat4::StaleFh => LockReply::Refused(LockError::Failed(Fault::Stale)),
        NlmStat4::Fbig => LockReply::Refused(LockError::Failed(Fault::Fbig)),
    }
}

impl fmt::Debug for NlmClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NlmClient").field("host", &self.host).finish_non_exhaustive()
    }
}
