//! The service that receives the calls of servers for all mounts of a network namespace.
//!
//! Programs 100021 and 100024 exist once per host. The first mount that locks serves them; the
//! others register their owners and servers through a socket. When its process ends, another
//! takes over: the first to lock (flock(2)) a file beside the socket. Both are in the
//! directory of the records, to which this user alone can write, and are named after the network
//! namespace.
//!
//! A server on this host has to serve the programs itself, for all mounts. It sends the line
//! `yield` to the mount that serves them, which gives them up. A second server gets the answer
//! `kept`.
//!
//! Lines from a mount: `join SVID ADDRESS…`, `answer NUMBER 0|1`. Lines from the service:
//! `registered 0|1 STATE` (also later, if its servers can call it now, or cannot any more),
//! `granted NUMBER SVID FIRST LAST r|w HANDLE CALLBACK`, `restarted`.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write as _};
use std::net::{IpAddr, Shutdown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use curt_client::protocol::LockCallbackId;
use curt_client::protocol::v3::nlm;
use curt_types::{ByteRange, LockType};
use parking_lot::{Condvar, Mutex};
use tracing::{debug, info};

use super::callback_server::{LastFailure, NlmCallbackServer, ServerPorts, SystemMonitor};
use super::host_state::HostState;
use super::programs::{CallbackReceiver, Grant, GrantReply};
use super::record::{self, hexadecimal, network_namespace, parse_handle};
use super::registered_mount::RegisteredMount;
use crate::locked_file::{create_directory, open_locked};

/// How long the service waits for a mount's answer to a grant.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Timeout of each of the four steps of notifying a server of this host's restart.
const NOTICE_TIMEOUT: Duration = Duration::from_secs(2);

/// The pause after a notice. rpc.statd (nfs-utils 2.6) replies before it calls its lock manager; a
/// lock that the server grants in between would be freed.
const FREEING_TIME: Duration = Duration::from_secs(1);

/// How long it waits for the first line of a connection.
const JOIN_TIMEOUT: Duration = Duration::from_secs(5);

/// The pause before another attempt to join.
const RETRY: Duration = Duration::from_millis(100);

/// How often the service looks whether it is still registered, and for killed mounts whose server
/// could not be reached.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Minimum interval between two requests that grants from unknown addresses cause.
const UNVERIFIED_INTERVAL: Duration = Duration::from_secs(1);

/// The line by which a server has a mount give up the service.
const YIELD: &str = "yield";

/// The answer of another server.
const KEPT: &str = "kept";

/// The longest line: a handle of 128 bytes in hexadecimal digits, and numbers.
const LINE_MAX: u64 = 1024;

/// Mounts at one time.
const MOUNTS_MAX: usize = 4096;

/// The files of the service of this network namespace.
pub(super) struct ServicePaths {
    socket: PathBuf,
    lock: PathBuf,
}

impl ServicePaths {
    pub(super) fn here() -> Self {
        let directory = record::directory();
        let namespace = network_namespace();
        Self {
            socket: directory.join(format!("service-{namespace}")),
            lock: directory.join(format!("service-{namespace}.lock")),
        }
    }

    /// The right to serve; `None`: another process has it.
    pub(super) fn claim(&self) -> io::Result<Option<File>> {
        create_directory(&record::directory())?;
        open_locked(&self.lock)
    }

    /// Asks the mount that serves to hand over the service. Returns true if another server has it
    /// and refuses.
    pub(super) fn request_handover(&self) -> io::Result<bool> {
        let mut stream = UnixStream::connect(&self.socket)?;
        stream.set_read_timeout(Some(JOIN_TIMEOUT))?;
        writeln!(stream, "{YIELD}")?;
        Ok(LineReader::new(stream).next()?.as_deref() == Some(KEPT))
    }

    /// The socket of the service. Only the holder of the right to serve may call this.
    pub(super) fn listen(&self) -> io::Result<UnixListener> {
        // A service that was killed has left its socket.
        let _ = fs::remove_file(&self.socket);
        UnixListener::bind(&self.socket)
    }

    /// Ends the wait for a connection.
    pub(super) fn wake(&self) {
        let _ = UnixStream::connect(&self.socket);
    }
}

/// Serves, or joins the service of another process, until the mount ends; `joined` gets a
/// message when this is decided for the first time.
pub(super) fn keep(mount: &Weak<RegisteredMount>, joined: &mpsc::Sender<()>) {
    while let Some(this) = mount.upgrade().filter(|this| !this.has_ended()) {
        let place = ServicePaths::here();
        let served = match place.claim() {
            Ok(Some(right)) => serve(&place, right, &this, joined),
            Ok(None) => join(&place, &this, joined),
            Err(error) => Err(error),
        };
        this.can_be_called.store(false, Relaxed);
        if let Err(error) = served {
            debug!(%error, "the lock service cannot be reached");
        }
        let _ = joined.send(());
        if this.has_ended() {
            return;
        }
        drop(this);
        thread::sleep(RETRY);
    }
}

fn join(place: &ServicePaths, mount: &RegisteredMount, joined: &mpsc::Sender<()>) -> io::Result<()> {
    let mut stream = UnixStream::connect(&place.socket)?;
    *mount.connection.lock() = Some(stream.try_clone()?);
    let servers: Vec<_> = mount.servers.iter().map(IpAddr::to_string).collect();
    writeln!(stream, "join {} {}", mount.first_svid, servers.join(" "))?;
    let mut lines = LineReader::new(stream.try_clone()?);
    while let Some(line) = lines.next()?
        && !mount.has_ended()
    {
        let words: Vec<&str> = line.split(' ').collect();
        match words.as_slice() {
            ["registered", is_served, state] => {
                mount.registered(*is_served == "1", state.parse().unwrap_or(0));
                let _ = joined.send(());
            }
            ["granted", number, rest @ ..] => {
                let is_confirmed = parse_grant(rest).is_some_and(|grant| mount.granted(&grant));
                writeln!(stream, "answer {number} {}", u8::from(is_confirmed))?;
            }
            ["restarted"] => mount.restarted(),
            _ => debug!(line, "the lock service says something unknown"),
        }
    }
    Ok(())
}

/// Reads lines of bounded length.
struct LineReader(BufReader<UnixStream>);

impl LineReader {
    fn new(stream: UnixStream) -> Self {
        Self(BufReader::new(stream))
    }

    fn next(&mut self) -> io::Result<Option<String>> {
        let mut line = String::new();
        let length = io::Read::take(&mut self.0, LINE_MAX).read_line(&mut line)?;
        if length > 0 && !line.ends_with('\n') {
            return Err(io::Error::other("a line is too long"));
        }
        Ok((length > 0).then(|| line.trim_end().to_owned()))
    }
}

fn format_grant(grant: &Grant) -> String {
    let Grant { svid, file, range, lock_type, callback } = grant;
    let letter = if *lock_type == LockType::Write { 'w' } else { 'r' };
    format!("{svid} {} {} {letter} {} {}", range.first(), range.last(), hexadecimal(file), callback.0)
}

fn parse_grant(words: &[&str]) -> Option<Grant> {
    let [svid, first, last, letter, handle, callback] = words else { return None };
    Some(Grant {
        svid: svid.parse().ok()?,
        file: parse_handle(handle)?,
        range: ByteRange::new(first.parse().ok()?, last.parse().ok()?)?,
        lock_type: if *letter == "w" { LockType::Write } else { LockType::Read },
        callback: LockCallbackId(callback.parse().ok()?),
    })
}

/// The process that serves.
pub(super) enum ServiceOwner {
    Mount(Arc<RegisteredMount>),
    Server(ServingNfsServer),
}

/// A server that serves the programs of its host.
pub(super) struct ServingNfsServer {
    /// The addresses at which clients on this host had locks when the server ended.
    pub(super) restarted: Vec<IpAddr>,
    pub(super) has_ended: AtomicBool,
}

/// The service's state.
pub(super) struct HostLockService {
    owner: ServiceOwner,
    /// A server wants to serve instead.
    yields: AtomicBool,
    others: Mutex<Vec<Arc<RemoteMount>>>,
    connections: AtomicUsize,
    /// The time of the last request that a grant from an unknown address caused.
    unverified: Mutex<Option<Instant>>,
    state: i32,
    /// The state number of the system's monitor, if it watches the servers; otherwise 0.
    system_state: AtomicI32,
    /// The record of servers to notify of a restart of this host, unless the system's monitor does.
    host: Option<HostState>,
    send_notice: SendNotice,
    /// The ports of the programs, if a server owns this service.
    server: Mutex<Option<ServerPorts>>,
    callbacks: Mutex<Option<NlmCallbackServer>>,
    last_failure: LastFailure,
    can_be_called: AtomicBool,
    is_monitor: AtomicBool,
    progress: (Mutex<ServiceProgress>, Condvar),
    timeouts: ServiceTimeouts,
}

/// How long a service waits for the mounts.
struct ServiceTimeouts {
    /// For the first line of a connection.
    join: Duration,
    /// For the answer to a grant.
    answer: Duration,
}

/// Notifies a server of a restart of this host, with its state number. Returns whether the server
/// has replied.
type SendNotice = Box<dyn Fn(IpAddr, i32) -> bool + Send + Sync>;

/// The locks of a mount when its servers are to be watched.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LocksOfMount {
    /// The mount joins, and locks later.
    NoneYet,
    /// The mount was registered before.
    MayExist,
}

/// How far a service is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ServiceProgress {
    Starts,
    /// The callback program is registered, or cannot be, and the status monitor is known.
    Serves,
    HasEnded,
}

/// A mount in another process.
struct RemoteMount {
    mount: RegisteredMount,
    stream: Mutex<UnixStream>,
    answers: Mutex<HashMap<u64, mpsc::Sender<bool>>>,
    last: AtomicU64,
}

/// Serves until the mount ends, or accepting fails. `_right` ends with it.
fn serve(
    place: &ServicePaths,
    _right: File,
    own: &Arc<RegisteredMount>,
    joined: &mpsc::Sender<()>,
) -> io::Result<()> {
    let listener = place.listen()?;
    let service = HostLockService::start(ServiceOwner::Mount(Arc::clone(own)));
    service.serve_callbacks(None);
    let _ = joined.send(());
    let accepted = service.accept(&listener);
    service.end();
    accepted
}

impl HostLockService {
    pub(super) fn start(owner: ServiceOwner) -> Arc<Self> {
        let first_number = boot_state();
        let host = HostState::open(first_number);
        let service = Arc::new(Self {
            owner,
            yields: AtomicBool::new(false),
            others: Mutex::default(),
            connections: AtomicUsize::new(0),
            unverified: Mutex::default(),
            state: host.as_ref().map_or(first_number, HostState::number),
            system_state: AtomicI32::new(0),
            host,
            send_notice: Box::new(send_notice),
            server: Mutex::default(),
            callbacks: Mutex::default(),
            last_failure: LastFailure::default(),
            can_be_called: AtomicBool::new(false),
            is_monitor: AtomicBool::new(false),
            progress: (Mutex::new(ServiceProgress::Starts), Condvar::new()),
            timeouts: ServiceTimeouts { join: JOIN_TIMEOUT, answer: ANSWER_TIMEOUT },
        });
        // The service before may have been killed.
        record::begin_to_unlock_abandoned();
        let checked = Arc::clone(&service);
        let check = move || checked.check_often();
        if let Err(error) = thread::Builder::new().name("curt-lock-check".into()).spawn(check) {
            debug!(%error, "no thread for the checks of the lock service");
        }
        service
    }

    /// Begins to serve the programs if servers can call them, and the mounts. `server`: the ports
    /// of the programs, if a server owns this service.
    pub(super) fn serve_callbacks(self: &Arc<Self>, server: Option<ServerPorts>) {
        *self.server.lock() = server;
        let callbacks = self.callbacks();
        if callbacks.is_none() {
            info!("servers cannot call back: locks of other machines are polled for");
        }
        self.can_be_called.store(callbacks.is_some(), Relaxed);
        let is_monitor = callbacks.as_ref().is_some_and(NlmCallbackServer::is_monitor);
        self.is_monitor.store(is_monitor, Relaxed);
        *self.callbacks.lock() = callbacks;
        if let Some(own) = self.own() {
            self.watch(own, LocksOfMount::NoneYet);
        }
        self.set_progress(ServiceProgress::Serves);
        self.notify_all_mounts();
        let service = Arc::clone(self);
        let tell = move || service.tell_restart();
        if let Err(error) = thread::Builder::new().name("curt-lock-notices".into()).spawn(tell) {
            debug!(%error, "servers are told later of the restart of this host");
        }
    }

    /// The programs, if they can be registered, or are registered by their server.
    fn callbacks(self: &Arc<Self>) -> Option<NlmCallbackServer> {
        match &self.owner {
            ServiceOwner::Mount(own) => {
                self.last_failure.unless_refused(|| NlmCallbackServer::start(self, own.callback_ports))
            }
            ServiceOwner::Server(_) => self.server.lock().and_then(NlmCallbackServer::of_server),
        }
    }

    fn set_progress(&self, to: ServiceProgress) {
        let (progress, changed) = &self.progress;
        *progress.lock() = to;
        changed.notify_all();
    }

    pub(super) const fn owner(&self) -> &ServiceOwner {
        &self.owner
    }

    fn own(&self) -> Option<&Arc<RegisteredMount>> {
        match &self.owner {
            ServiceOwner::Mount(own) => Some(own),
            ServiceOwner::Server(_) => None,
        }
    }

    fn has_ended(&self) -> bool {
        let has_ended = match &self.owner {
            ServiceOwner::Mount(own) => own.has_ended(),
            ServiceOwner::Server(server) => server.has_ended.load(Relaxed),
        };
        has_ended || self.yields.load(Relaxed)
    }

    /// Whether the servers of a mount can call it: the programs are registered for IPv4, and a
    /// server in this process calls directly.
    fn is_callable(&self, mount: &RegisteredMount) -> bool {
        let is_here = |address: &IpAddr| std::net::UdpSocket::bind((*address, 0)).is_ok();
        match &self.owner {
            ServiceOwner::Server(_) if mount.servers.first().is_some_and(is_here) => true,
            _ => self.can_be_called.load(Relaxed) && mount.servers.first().is_some_and(IpAddr::is_ipv4),
        }
    }

    fn notify_all_mounts(&self) {
        if let Some(own) = self.own() {
            own.registered(self.is_callable(own), self.state_of_mounts());
        }
        for other in self.others() {
            // An error: its process has ended.
            let _ = other.registered(self.is_callable(&other.mount), self.state_of_mounts());
        }
    }

    /// Has the servers of a mount watched.
    fn watch(&self, mount: &RegisteredMount, locks: LocksOfMount) {
        let monitor = self.callbacks.lock().as_ref().and_then(NlmCallbackServer::system_monitor);
        self.watch_by(monitor, mount, locks);
    }

    /// Has the servers of a mount watched by `monitor`. The notice of an earlier restart of this
    /// host frees its locks at a server. So a server gets it before the first mount locks there, or
    /// never. The system's monitor sends it, if there is one.
    fn watch_by(&self, monitor: Option<SystemMonitor>, mount: &RegisteredMount, locks: LocksOfMount) {
        if let Some(host) = &self.host {
            let may_notify = locks == LocksOfMount::NoneYet && self.is_monitor.load(Relaxed);
            let tell = |server, number| monitor.is_some() || may_notify && (self.send_notice)(server, number);
            host.note(&mount.servers, tell);
        }
        let Some(monitor) = monitor else { return self.system_state.store(0, Relaxed) };
        for server in &mount.servers {
            match monitor.monitor(*server) {
                Ok(state) => self.system_state.store(state, Relaxed),
                Err(not_watched) => not_watched.warn(*server),
            }
        }
    }

    /// Has the servers of all mounts watched by another monitor.
    fn watch_all_by(&self, monitor: Option<SystemMonitor>) {
        self.own().into_iter().for_each(|own| self.watch_by(monitor, own, LocksOfMount::MayExist));
        self.others().iter().for_each(|other| self.watch_by(monitor, &other.mount, LocksOfMount::MayExist));
    }

    /// The state number in the locks of mounts. It belongs to the monitor that notifies their
    /// servers of a restart: the system's, or this service.
    fn state_of_mounts(&self) -> i32 {
        match self.system_state.load(Relaxed) {
            0 => self.state,
            state => state,
        }
    }

    /// Notifies servers of a restart of this host, unless another lock manager of this host may
    /// have locks there, or its monitor does it.
    fn tell_restart(&self) {
        if let Some(host) = self.host.as_ref().filter(|_| self.is_monitor.load(Relaxed)) {
            host.tell_restart(&self.send_notice);
        }
    }

    pub(super) fn accept(self: &Arc<Self>, listener: &UnixListener) -> io::Result<()> {
        loop {
            let (stream, _) = listener.accept()?;
            if self.has_ended() {
                return Ok(());
            }
            if self.connections.fetch_add(1, Relaxed) >= MOUNTS_MAX {
                self.connections.fetch_sub(1, Relaxed);
                continue;
            }
            let service = Arc::clone(self);
            let serve = move || {
                if let Err(error) = service.serve_connection(stream) {
                    debug!(%error, "a connection to the lock service ended");
                }
                service.connections.fetch_sub(1, Relaxed);
                // Its process may have been killed.
                record::begin_to_unlock_abandoned();
            };
            thread::Builder::new().name("curt-lock-peer".into()).spawn(serve)?;
        }
    }

    /// Serves a mount until its process ends.
    fn serve_connection(&self, stream: UnixStream) -> io::Result<()> {
        stream.set_read_timeout(Some(self.timeouts.join))?;
        stream.set_write_timeout(Some(self.timeouts.answer))?;
        let mut lines = LineReader::new(stream.try_clone()?);
        let Some(line) = lines.next()? else { return Ok(()) };
        match &self.owner {
            ServiceOwner::Mount(_) if line == YIELD => {
                self.yields.store(true, Relaxed);
                ServicePaths::here().wake();
            }
            ServiceOwner::Server(_) if line == YIELD => return writeln!(&stream, "{KEPT}"),
            ServiceOwner::Mount(_) | ServiceOwner::Server(_) => {}
        }
        let Some(mount) = parse_join(&line) else { return Ok(()) };
        stream.set_read_timeout(None)?;
        let (progress, changed) = &self.progress;
        changed.wait_while(&mut progress.lock(), |progress| *progress == ServiceProgress::Starts);
        self.watch(&mount, LocksOfMount::NoneYet);
        let remote = Arc::new(RemoteMount {
            mount,
            stream: Mutex::new(stream),
            answers: Mutex::default(),
            last: AtomicU64::new(0),
        });
        self.others.lock().push(Arc::clone(&remote));
        let served = self.notify_registered(&remote).and_then(|()| remote.read_answers(lines));
        self.others.lock().retain(|other| !Arc::ptr_eq(other, &remote));
        served
    }

    fn notify_registered(&self, remote: &RemoteMount) -> io::Result<()> {
        remote.registered(self.is_callable(&remote.mount), self.state_of_mounts())?;
        match &self.owner {
            // Its mount finds out whether it has locks of the time before.
            ServiceOwner::Server(server)
                if server.restarted.iter().any(|address| remote.mount.servers.contains(address)) =>
            {
                writeln!(remote.stream.lock(), "restarted")
            }
            _ => Ok(()),
        }
    }

    fn check_often(self: &Arc<Self>) {
        loop {
            let (progress, changed) = &self.progress;
            let goes_on = |progress: &mut ServiceProgress| *progress != ServiceProgress::HasEnded;
            let mut locked = progress.lock();
            if !changed.wait_while_for(&mut locked, goes_on, CHECK_INTERVAL).timed_out() {
                return;
            }
            let serves = *locked == ServiceProgress::Serves;
            drop(locked);
            if !serves {
                continue;
            }
            self.check_registration();
            record::look_for_abandoned();
            self.tell_restart();
        }
    }

    /// Checks whether another lock manager, such as the kernel's, was registered instead of this
    /// one, or has ended, and whether rpcbind or rpc.statd was started.
    fn check_registration(self: &Arc<Self>) {
        let mut callbacks = self.callbacks.lock();
        if *self.progress.0.lock() != ServiceProgress::Serves {
            return;
        }
        let monitor_before = callbacks.as_ref().and_then(NlmCallbackServer::system_monitor);
        if callbacks.is_none() {
            *callbacks = self.callbacks();
        }
        let can_be_called = callbacks.as_mut().is_some_and(NlmCallbackServer::keep_registered);
        let is_monitor = can_be_called && callbacks.as_ref().is_some_and(NlmCallbackServer::is_monitor);
        let monitor = callbacks.as_ref().and_then(NlmCallbackServer::system_monitor);
        drop(callbacks);
        self.is_monitor.store(is_monitor, Relaxed);
        if monitor != monitor_before {
            info!(is_monitor, "the status monitor of this host has changed");
            self.watch_all_by(monitor);
        }
        let has_changed = self.can_be_called.swap(can_be_called, Relaxed) != can_be_called;
        if has_changed {
            info!(can_be_called, "whether servers can call back has changed");
        }
        if has_changed || monitor != monitor_before {
            self.notify_all_mounts();
        }
    }

    pub(super) fn end(&self) {
        self.set_progress(ServiceProgress::HasEnded);
        if let Some(callbacks) = self.callbacks.lock().take() {
            callbacks.end();
        }
        // Their processes take over.
        for other in self.others() {
            let _ = other.stream.lock().shutdown(Shutdown::Both);
        }
    }

    /// Has `mount`, or the mount of this process, send its blocked requests to the server again,
    /// unless a mount has just done so.
    fn ask_again(&self, mount: Option<&Arc<RemoteMount>>) {
        let mut last = self.unverified.lock();
        if last.is_some_and(|last| last.elapsed() < UNVERIFIED_INTERVAL) {
            return;
        }
        *last = Some(Instant::now());
        drop(last);
        match (mount, self.own()) {
            // An error: its process has ended.
            (Some(other), _) => {
                drop(other.registered(self.is_callable(&other.mount), self.state_of_mounts()))
            }
            (None, Some(own)) => own.registered(self.is_callable(own), self.state_of_mounts()),
            (None, None) => {}
        }
    }

    fn others(&self) -> Vec<Arc<RemoteMount>> {
        self.others.lock().clone()
    }
}

fn parse_join(line: &str) -> Option<RegisteredMount> {
    let mut words = line.strip_prefix("join ")?.split(' ');
    let first_svid = words.next()?.parse().ok()?;
    let servers = words.map(|word| word.parse().ok()).collect::<Option<Vec<_>>>()?;
    Some(RegisteredMount::new(first_svid, servers))
}

impl RemoteMount {
    fn registered(&self, can_be_called: bool, state: i32) -> io::Result<()> {
        writeln!(self.stream.lock(), "registered {} {state}", u8::from(can_be_called))
    }

    /// Reads the mount's answers until its process ends.
    fn read_answers(&self, mut lines: LineReader) -> io::Result<()> {
        while let Some(line) = lines.next()? {
            let mut words = line.split(' ');
            if let (Some("answer"), Some(number), Some(answer)) = (words.next(), words.next(), words.next())
                && let Some(waiting) =
                    number.parse().ok().and_then(|number| self.answers.lock().remove(&number))
            {
                let _ = waiting.send(answer == "1");
            }
        }
        Ok(())
    }

    /// Passes a grant to its mount. A mount that does not reply in time may have accepted the lock.
    fn granted(&self, grant: &Grant, timeout: Duration) -> GrantReply {
        let (answer, answered) = mpsc::channel();
        let number = self.last.fetch_add(1, Relaxed);
        self.answers.lock().insert(number, answer);
        let is_told = writeln!(self.stream.lock(), "granted {number} {}", format_grant(grant)).is_ok();
        let reply = if is_told { answered.recv_timeout(timeout).ok() } else { None };
        self.answers.lock().remove(&number);
        match reply {
            Some(true) => GrantReply::Confirmed,
            Some(false) => GrantReply::Denied,
            None => GrantReply::Unknown,
        }
    }
}

impl CallbackReceiver for HostLockService {
    fn granted(&self, server: IpAddr, grant: &Grant) -> GrantReply {
        let is_server = |mount: &RegisteredMount| mount.servers.contains(&server);
        let others = self.others();
        let owner = others.iter().find(|other| other.mount.owns(grant.svid));
        let own = self.own().filter(|own| own.owns(grant.svid));
        match (owner, own) {
            (None, Some(own)) if is_server(own) => match own.granted(grant) {
                true => GrantReply::Confirmed,
                false => GrantReply::Denied,
            },
            (Some(other), _) if is_server(&other.mount) => other.granted(grant, self.timeouts.answer),
            (None, None) => {
                let is_known = self.own().is_some_and(|own| is_server(own))
                    || others.iter().any(|other| is_server(&other.mount));
                if is_known { GrantReply::Denied } else { GrantReply::Stranger }
            }
            // A server with several addresses may call from any of them, and so may a stranger.
            (owner, _) => {
                self.ask_again(owner);
                GrantReply::Unknown
            }
        }
    }

    fn restarted(&self, host: IpAddr, state: i32) {
        let is_server = |mount: &RegisteredMount| mount.servers.contains(&host);
        let mut others = self.others();
        others.retain(|other| is_server(&other.mount));
        let own = self.own().filter(|own| is_server(own));
        if own.is_none() && others.is_empty() {
            debug!(%host, "a host that serves no mount says that it restarted");
            return;
        }
        // The number is not recorded: a notice may be forged, and the true one has the same number.
        // A mount determines whether the notice is the first of a restart.
        info!(%host, state, "the server is said to have restarted");
        for other in others {
            let _ = writeln!(other.stream.lock(), "restarted");
        }
        if let Some(own) = own {
            own.restarted();
        }
    }

    fn is_monitor(&self) -> bool {
        self.is_monitor.load(Relaxed)
    }

    fn state(&self) -> i32 {
        self.state
    }
}

/// Notifies a server of a restart of this host.
fn send_notice(server: IpAddr, number: i32) -> bool {
    let name = rustix::system::uname().nodename().to_bytes().to_vec();
    let is_notified = nlm::send_restart_notice(server, &name, number, NOTICE_TIMEOUT);
    if is_notified {
        thread::sleep(FREEING_TIME);
    }
    is_notified
}

/// The state number of this host: odd, and larger after each boot.
fn boot_state() -> i32 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let booted = stat.lines().find_map(|line| line.strip_prefix("btime "));
    let seconds: i64 = booted.and_then(|seconds| seconds.trim().parse().ok()).unwrap_or(1);
    i32::try_from(seconds & i64::from(i32::MAX)).unwrap_or(1) | 1
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may end in a panic")]

    use std::net::{Ipv4Addr, TcpListener, UdpSocket};

    use curt_client::protocol::LOCK_OWNERS_MAX;
    use curt_proto::nsm;
    use curt_types::FileHandle;

    use super::super::callback_server::NotServed;
    use super::super::registration::LocalPortmapper;
    use super::*;
    use crate::options::CallbackPorts;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn grants_pass_between_processes_unchanged_and_nonsense_is_refused() {
        let grant = Grant {
            svid: 1 << 30,
            file: FileHandle::new(&[0, 1, 0xfe, 0xff]).unwrap(),
            range: ByteRange::new(3, u64::MAX).unwrap(),
            lock_type: LockType::Write,
            callback: LockCallbackId(u64::MAX),
        };
        let line = format_grant(&grant);
        assert_eq!(parse_grant(&line.split(' ').collect::<Vec<_>>()), Some(grant));
        for bad in
            ["", "1 2 3 w 00", "x 2 3 w 00 1", "1 3 2 w 00 1", "1 2 3 w 0é 1", "1 2 3 w zz 1", "1 2 3 w 00 x"]
        {
            assert_eq!(parse_grant(&bad.split(' ').collect::<Vec<_>>()), None, "{bad}");
        }
        let mount = parse_join("join 100 10.0.0.1 ::1").unwrap();
        assert_eq!(mount.servers.len(), 2);
        assert!(mount.owns(100) && mount.owns(100 + LOCK_OWNERS_MAX.cast_signed() - 1));
        assert!(!mount.owns(99) && !mount.owns(100 + LOCK_OWNERS_MAX.cast_signed()) && !mount.owns(i32::MIN));
        for bad in ["", "join", "join x", "join 1 nowhere", "registered 1 2"] {
            assert!(parse_join(bad).is_none(), "{bad}");
        }
        assert_eq!(boot_state() % 2, 1);
    }

    /// A status monitor that answers one call with a result and its state number; its port.
    fn monitor(result: u32, state: u32) -> SystemMonitor {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut header = [0; 8];
            io::Read::read_exact(&mut stream, &mut header).unwrap();
            let xid = u32::from_be_bytes(header[4..].try_into().unwrap());
            // REPLY, MSG_ACCEPTED, no verifier, SUCCESS.
            let reply = [0x8000_0020, xid, 1, 0, 0, 0, 0, result, state];
            stream.write_all(&reply.map(u32::to_be_bytes).concat()).unwrap();
            // The rest of the call.
            let _ = io::copy(&mut stream, &mut io::sink());
        });
        SystemMonitor(port)
    }

    /// A portmapper that registers everything, and knows NSM at a port, or at none (0).
    fn portmapper(monitor: u16) -> LocalPortmapper {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut mark = [0; 4];
            while io::Read::read_exact(&mut stream, &mut mark).is_ok() {
                let mut call = vec![0; (u32::from_be_bytes(mark) & 0x7fff_ffff) as usize];
                io::Read::read_exact(&mut stream, &mut call).unwrap();
                let word = |at: usize| u32::from_be_bytes(call[4 * at..4 * at + 4].try_into().unwrap());
                let words = call.len() / 4;
                let (xid, procedure, program) = (word(0), word(5), word(words - 4));
                let result = match procedure {
                    3 if program == nsm::PROGRAM => u32::from(monitor),
                    3 => 0,
                    _ => 1,
                };
                let reply = [0x8000_001c, xid, 1, 0, 0, 0, 0, result];
                stream.write_all(&reply.map(u32::to_be_bytes).concat()).unwrap();
            }
        });
        LocalPortmapper::at(port).unwrap()
    }

    #[test]
    fn a_port_that_is_not_free_is_told_from_a_refusal_and_from_the_port_of_a_monitor() {
        let (service, _, _there) = service();
        let service = Arc::new(service);
        let udp = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        let port = udp.local_addr().unwrap().port();
        let start = |monitor, lock_manager, status_monitor| {
            let wanted = CallbackPorts { lock_manager, status_monitor };
            let started = NlmCallbackServer::start_at(portmapper(monitor), &service, wanted);
            started.map(|server| {
                let monitor = server.system_monitor();
                server.end();
                monitor
            })
        };
        let in_use = |option| Err(NotServed::PortInUse(option, port));
        assert_eq!(start(0, Some(port), None), in_use("lockcallbackport"));
        assert_eq!(start(0, None, Some(port)), in_use("statdport"));
        // The system's monitor has it.
        assert_eq!(start(port, None, Some(port)), Ok(Some(SystemMonitor(port))));
    }

    #[test]
    fn mounts_lock_with_the_number_of_the_monitor_that_watches_their_servers() {
        let (service, remote, _there) = service();
        assert_eq!(service.state_of_mounts(), 1);
        service.watch_by(Some(monitor(0, 77)), &remote.mount, LocksOfMount::NoneYet);
        assert_eq!(service.state_of_mounts(), 77);
        service.watch_by(Some(monitor(1, 79)), &remote.mount, LocksOfMount::NoneYet);
        assert_eq!(service.state_of_mounts(), 77, "it does not watch the server");
        service.watch_by(None, &remote.mount, LocksOfMount::NoneYet);
        assert_eq!(service.state_of_mounts(), 1);
    }

    #[test]
    fn a_server_is_notified_of_a_restart_before_a_mount_locks_there_or_never() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path().join("nsm");
        let open = |boot| HostState::open_in(&directory, boot, 1).unwrap();
        let servers: [IpAddr; 2] = ["10.0.0.1".parse().unwrap(), "10.0.0.9".parse().unwrap()];
        let told = Arc::new(Mutex::new(Vec::new()));
        let restarted = |boots: [&'static str; 2]| {
            servers.into_iter().for_each(|server| open(boots[0]).note(&[server], |_, _| false));
            let (mut service, remote, there) = service();
            let noted = Arc::clone(&told);
            service.host = Some(open(boots[1]));
            service.send_notice = Box::new(move |server, _| {
                noted.lock().push(server);
                true
            });
            (service, remote, there)
        };
        // The system's monitor watches a mount's server, and ends while the mount has locks.
        let (service, remote, _there) = restarted(["a", "b"]);
        service.watch_by(Some(monitor(0, 77)), &remote.mount, LocksOfMount::NoneYet);
        service.watch_all_by(None);
        service.tell_restart();
        assert!(told.lock().is_empty(), "they would free the locks");
        // A mount joins a service that is the monitor.
        let (service, remote, _there) = restarted(["b", "c"]);
        service.watch_by(None, &remote.mount, LocksOfMount::NoneYet);
        assert_eq!(*told.lock(), [servers[0]]);
        service.tell_restart();
        assert_eq!(*told.lock(), servers, "no mount locks at the other one");
        service.watch_by(None, &remote.mount, LocksOfMount::NoneYet);
        assert_eq!(told.lock().len(), 2, "once");
    }

    /// A service whose own mount has other servers, and a mount of a server with the addresses
    /// `10.0.0.1` and `10.0.0.3`, with the other end of its connection.
    fn service() -> (HostLockService, Arc<RemoteMount>, UnixStream) {
        let (here, there) = UnixStream::pair().unwrap();
        let remote = Arc::new(RemoteMount {
            mount: parse_join("join 1000 10.0.0.1 10.0.0.3").unwrap(),
            stream: Mutex::new(here),
            answers: Mutex::default(),
            last: AtomicU64::new(0),
        });
        let service = HostLockService {
            owner: ServiceOwner::Mount(Arc::new(RegisteredMount::new(
                1 << 30,
                vec!["10.0.0.9".parse().unwrap()],
            ))),
            yields: AtomicBool::new(false),
            others: Mutex::new(vec![Arc::clone(&remote)]),
            connections: AtomicUsize::new(0),
            unverified: Mutex::default(),
            state: 1,
            system_state: AtomicI32::new(0),
            host: None,
            send_notice: Box::new(|server, _| panic!("{server} is notified")),
            server: Mutex::default(),
            callbacks: Mutex::default(),
            last_failure: LastFailure::default(),
            can_be_called: AtomicBool::new(true),
            is_monitor: AtomicBool::new(true),
            progress: (Mutex::new(ServiceProgress::Serves), Condvar::new()),
            timeouts: ServiceTimeouts { join: MINUTE, answer: MINUTE },
        };
        (service, remote, there)
    }

    fn grant_to(svid: i32) -> Grant {
        let file = FileHandle::new(&[1]).unwrap();
        Grant { svid, file, range: ByteRange::WHOLE, lock_type: LockType::Write, callback: LockCallbackId(1) }
    }

    #[test]
    fn a_member_that_does_not_reply_in_time_may_have_the_lock() {
        let (mut service, _, _stopped) = service();
        service.timeouts.answer = Duration::from_millis(10);
        let server = "10.0.0.1".parse().unwrap();
        assert_eq!(service.granted(server, &grant_to(1000)), GrantReply::Unknown);
    }

    // SEMANTICS: lock-20.
    #[test]
    fn grants_are_for_the_owners_of_mounts_of_that_server() {
        let (service, remote, there) = service();
        let answering = Arc::clone(&remote);
        let lines = LineReader::new(remote.stream.lock().try_clone().unwrap());
        let answers = thread::spawn(move || answering.read_answers(lines));
        let mount = thread::spawn(move || {
            let (mut lines, mut there) = (LineReader::new(there.try_clone().unwrap()), there);
            for answer in [1, 0, 1] {
                let line = lines.next().unwrap().unwrap();
                let number = line.split(' ').nth(1).unwrap();
                writeln!(there, "answer {number} {answer}").unwrap();
            }
        });
        let server = "10.0.0.1".parse().unwrap();
        assert_eq!(service.granted(server, &grant_to(1000)), GrantReply::Confirmed);
        assert_eq!(service.granted(server, &grant_to(1001)), GrantReply::Denied);
        assert_eq!(service.granted(server, &grant_to(999)), GrantReply::Denied, "nobody's");
        let second = "10.0.0.3".parse().unwrap();
        assert_eq!(service.granted(second, &grant_to(1000)), GrantReply::Confirmed, "its other address");
        let stranger = "10.0.0.2".parse().unwrap();
        assert_eq!(service.granted(stranger, &grant_to(999)), GrantReply::Stranger);
        mount.join().unwrap();
        answers.join().unwrap().unwrap();
        // Its process has ended.
        assert_eq!(service.granted(server, &grant_to(1000)), GrantReply::Unknown);
    }

    #[test]
    fn a_grant_from_an_unknown_address_has_the_server_asked_and_not_too_often() {
        let (service, _, there) = service();
        let stranger = "10.0.0.2".parse().unwrap();
        let begun = Instant::now();
        for _ in 0..1000 {
            assert_eq!(service.granted(stranger, &grant_to(1000)), GrantReply::Unknown);
        }
        assert_eq!(service.granted(stranger, &grant_to(1 << 30)), GrantReply::Unknown, "the own mount's");
        let may_be_asked = 1 + begun.elapsed().as_nanos() / UNVERIFIED_INTERVAL.as_nanos();
        drop(service);
        let mut lines = LineReader::new(there);
        let said: Vec<_> = std::iter::from_fn(|| lines.next().unwrap()).collect();
        assert!(
            (1..=may_be_asked).contains(&(said.len() as u128))
                && said.iter().all(|line| line == "registered 1 1"),
            "{said:?}"
        );
    }

    // SEMANTICS: lock-20.
    #[test]
    fn a_forged_notice_of_a_restart_does_not_hide_the_true_one() {
        let (service, _, there) = service();
        for server in ["10.0.0.1", "10.0.0.3"] {
            service.restarted("10.0.0.2".parse().unwrap(), 7);
            service.restarted(server.parse().unwrap(), 7);
        }
        drop(service);
        let mut lines = LineReader::new(there);
        let said: Vec<_> = std::iter::from_fn(|| lines.next().unwrap()).collect();
        assert_eq!(said, ["restarted", "restarted"]);
    }

    #[test]
    fn a_process_that_joins_and_says_nothing_delays_no_other() {
        let (service, _, _there) = service();
        let service = Arc::new(service);
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        let accepting = Arc::clone(&service);
        thread::spawn(move || accepting.accept(&listener));
        let _silent = UnixStream::connect(&socket).unwrap();
        let mut mount = UnixStream::connect(&socket).unwrap();
        writeln!(mount, "join 5000 10.0.0.1").unwrap();
        let registered = LineReader::new(mount).next().unwrap();
        assert_eq!(registered.as_deref(), Some("registered 1 1"));
    }
}
