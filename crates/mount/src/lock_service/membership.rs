//! The service that receives the calls of servers for all mounts of a network namespace.
//!
//! Programs 100021 and 100024 exist once per host. The first mount that locks serves them; the
//! others tell it by a socket which owners and servers are theirs. When its process ends, another
//! takes over. The socket has a name in the abstract namespace, which exists once per network
//! namespace, as do the programs' ports. Members and service trust root and their own user alone.
//!
//! Lines from a member: `join SVID ADDRESS…`, `answer NUMBER 0|1`. Lines from the service: `welcome
//! 0|1 STATE`, `granted NUMBER SVID FIRST LAST r|w HANDLE`, `restarted`.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Write as _};
use std::net::{IpAddr, Ipv4Addr, TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak, mpsc};
use std::thread;
use std::time::Duration;

use curt_client::protocol::v3::nlm::OWNERS_MAX;
use curt_client::protocol::{LockEvents, WireLock, WireOwner};
use curt_proto::nsm::{self, MonArguments, MonResult, MonitorCallback, MonitorId, NsmProcedure};
use curt_proto::{nlm4, portmap};
use curt_rpc::server::{DatagramServer, Limits, RpcServer};
use curt_types::{ByteRange, LockType};
use curt_xdr::Opaque;
use parking_lot::Mutex;
use tracing::{debug, info, warn};

use super::programs::{CallbackPrograms, CallbackReceiver, Grant, MONITOR_CALLBACK, record_of};
use super::record::{self, hexadecimal, parse_handle};
use super::registration::{self, LocalPortmapper};

/// The name of the socket.
const NAME: &str = "curt/lock-service";

/// How long the service waits for a member's answer to a grant.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// The pause before another attempt to join.
const RETRY: Duration = Duration::from_millis(100);

/// The longest line: a handle of 128 bytes in hexadecimal digits, and numbers.
const LINE_MAX: u64 = 1024;

/// Members at one time.
const MEMBERS_MAX: usize = 4096;

/// A mount that receives callbacks.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) first_svid: i32,
    pub(super) servers: Vec<IpAddr>,
    pub(super) events: Mutex<Option<Weak<dyn LockEvents>>>,
    pub(super) can_be_called: AtomicBool,
    pub(super) state: AtomicI32,
}

impl Member {
    fn events(&self) -> Option<Arc<dyn LockEvents>> {
        self.events.lock().as_ref().and_then(Weak::upgrade)
    }

    fn owns(&self, svid: i32) -> bool {
        i64::from(svid) - i64::from(self.first_svid) < i64::from(OWNERS_MAX) && svid >= self.first_svid
    }

    fn granted(&self, grant: &Grant) -> bool {
        let Grant { svid, file, range, lock_type } = grant;
        let owner = WireOwner((svid - self.first_svid).cast_unsigned());
        let lock = WireLock { owner, range: *range, lock_type: *lock_type };
        self.events().is_some_and(|events| events.granted(file, &lock))
    }

    fn restarted(&self) {
        if let Some(events) = self.events() {
            events.server_restarted();
        }
    }

    fn welcome(&self, is_served: bool, state: i32) {
        self.state.store(state, Relaxed);
        // The programs are registered for IPv4.
        self.can_be_called.store(is_served && self.servers.iter().all(IpAddr::is_ipv4), Relaxed);
    }
}

/// Serves, or joins the service of another process, as long as the mount exists; `joined` is told
/// when this is decided for the first time.
pub(super) fn keep(member: &Weak<Member>, joined: &mpsc::Sender<()>) {
    while let Some(this) = member.upgrade() {
        let served = match UnixListener::bind_addr(&address()) {
            Ok(listener) => serve(listener, &this, joined),
            Err(_) => join(&this, joined),
        };
        this.can_be_called.store(false, Relaxed);
        if let Err(error) = served {
            debug!(%error, "the lock service cannot be reached");
        }
        let _ = joined.send(());
        drop(this);
        thread::sleep(RETRY);
    }
}

fn address() -> SocketAddr {
    SocketAddr::from_abstract_name(NAME).expect("the name is short")
}

/// Whether the process at the other end may be trusted.
fn is_trusted(stream: &UnixStream) -> bool {
    let peer = rustix::net::sockopt::socket_peercred(stream);
    peer.is_ok_and(|peer| peer.uid.is_root() || peer.uid == rustix::process::geteuid())
}

fn join(member: &Member, joined: &mpsc::Sender<()>) -> io::Result<()> {
    let mut stream = UnixStream::connect_addr(&address())?;
    if !is_trusted(&stream) {
        return Err(io::Error::other("it belongs to another user"));
    }
    let servers: Vec<_> = member.servers.iter().map(IpAddr::to_string).collect();
    writeln!(stream, "join {} {}", member.first_svid, servers.join(" "))?;
    let mut lines = Lines::new(stream.try_clone()?);
    while let Some(line) = lines.next()? {
        let words: Vec<&str> = line.split(' ').collect();
        match words.as_slice() {
            ["welcome", is_served, state] => {
                member.welcome(*is_served == "1", state.parse().unwrap_or(0));
                let _ = joined.send(());
            }
            ["granted", number, rest @ ..] => {
                let is_confirmed = parse_grant(rest).is_some_and(|grant| member.granted(&grant));
                writeln!(stream, "answer {number} {}", u8::from(is_confirmed))?;
            }
            ["restarted"] => member.restarted(),
            _ => debug!(line, "the lock service says something unknown"),
        }
    }
    Ok(())
}

/// Lines of bounded length.
struct Lines(BufReader<UnixStream>);

impl Lines {
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
    let Grant { svid, file, range, lock_type } = grant;
    let letter = if *lock_type == LockType::Write { 'w' } else { 'r' };
    format!("{svid} {} {} {letter} {}", range.first(), range.last(), hexadecimal(file))
}

fn parse_grant(words: &[&str]) -> Option<Grant> {
    let [svid, first, last, letter, handle] = words else { return None };
    Some(Grant {
        svid: svid.parse().ok()?,
        file: parse_handle(handle)?,
        range: ByteRange::new(first.parse().ok()?, last.parse().ok()?)?,
        lock_type: if *letter == "w" { LockType::Write } else { LockType::Read },
    })
}

/// The service's state.
struct LockService {
    own: Weak<Member>,
    others: Mutex<Vec<Arc<RemoteMember>>>,
    /// The last state number of each host that has said that it restarted.
    restarts: Mutex<HashMap<IpAddr, i32>>,
    state: i32,
}

/// A member in another process.
struct RemoteMember {
    member: Member,
    stream: Mutex<UnixStream>,
    answers: Mutex<HashMap<u64, mpsc::Sender<bool>>>,
    last: AtomicU64,
}

/// Serves until accepting fails.
fn serve(listener: UnixListener, own: &Arc<Member>, joined: &mpsc::Sender<()>) -> io::Result<()> {
    let service = Arc::new(LockService {
        own: Arc::downgrade(own),
        others: Mutex::default(),
        restarts: Mutex::default(),
        state: boot_state(),
    });
    let monitor = start_programs(&service);
    if monitor.is_none() {
        info!("servers cannot call back: locks of other machines are polled for");
    }
    let welcome = |member: &Member| {
        if let Some(monitor) = &monitor {
            member.servers.iter().for_each(|server| monitor.watch(*server));
        }
        member.welcome(monitor.is_some(), service.state);
    };
    welcome(own);
    let _ = joined.send(());
    // The service before may have been killed.
    record::begin_to_unlock_abandoned();
    loop {
        let (stream, _) = listener.accept()?;
        if !is_trusted(&stream) || service.others.lock().len() >= MEMBERS_MAX {
            continue;
        }
        let mut lines = Lines::new(stream.try_clone()?);
        let Ok(Some(line)) = lines.next() else { continue };
        let Some(member) = parse_join(&line) else { continue };
        welcome(&member);
        let is_served = u8::from(monitor.is_some());
        let remote = Arc::new(RemoteMember {
            member,
            stream: Mutex::new(stream),
            answers: Mutex::default(),
            last: AtomicU64::new(0),
        });
        if writeln!(remote.stream.lock(), "welcome {is_served} {}", service.state).is_err() {
            continue;
        }
        service.others.lock().push(Arc::clone(&remote));
        let service = Arc::clone(&service);
        let attend = move || {
            remote.attend(lines);
            service.others.lock().retain(|other| !Arc::ptr_eq(other, &remote));
            // Its process may have been killed.
            record::begin_to_unlock_abandoned();
        };
        thread::Builder::new().name("curt-lock-peer".into()).spawn(attend)?;
    }
}

fn parse_join(line: &str) -> Option<Member> {
    let mut words = line.strip_prefix("join ")?.split(' ');
    let first_svid = words.next()?.parse().ok()?;
    let servers = words.map(|word| word.parse().ok()).collect::<Option<Vec<_>>>()?;
    Some(Member {
        first_svid,
        servers,
        events: Mutex::default(),
        can_be_called: AtomicBool::new(false),
        state: AtomicI32::new(0),
    })
}

impl RemoteMember {
    /// Reads the member's answers until its process ends.
    fn attend(&self, mut lines: Lines) {
        while let Ok(Some(line)) = lines.next() {
            let mut words = line.split(' ');
            if let (Some("answer"), Some(number), Some(answer)) = (words.next(), words.next(), words.next())
                && let Some(waiting) =
                    number.parse().ok().and_then(|number| self.answers.lock().remove(&number))
            {
                let _ = waiting.send(answer == "1");
            }
        }
    }

    fn granted(&self, grant: &Grant) -> bool {
        let (answer, answered) = mpsc::channel();
        let number = self.last.fetch_add(1, Relaxed);
        self.answers.lock().insert(number, answer);
        let is_told = writeln!(self.stream.lock(), "granted {number} {}", format_grant(grant)).is_ok();
        let is_confirmed = is_told && answered.recv_timeout(ANSWER_TIMEOUT).unwrap_or(false);
        self.answers.lock().remove(&number);
        is_confirmed
    }
}

impl LockService {
    fn others(&self) -> Vec<Arc<RemoteMember>> {
        self.others.lock().clone()
    }
}

/// The service as the programs see it.
struct Receiver(Arc<LockService>);

impl CallbackReceiver for Receiver {
    fn granted(&self, server: IpAddr, grant: &Grant) -> bool {
        let is_meant = |member: &Member| member.owns(grant.svid) && member.servers.contains(&server);
        if let Some(own) = self.0.own.upgrade().filter(|own| is_meant(own)) {
            return own.granted(grant);
        }
        let others = self.0.others();
        others.iter().find(|other| is_meant(&other.member)).is_some_and(|other| other.granted(grant))
    }

    fn restarted(&self, host: IpAddr, state: i32) {
        let (own, others) = (self.0.own.upgrade(), self.0.others());
        let own = own.filter(|own| own.servers.contains(&host));
        let others: Vec<_> = others.iter().filter(|other| other.member.servers.contains(&host)).collect();
        if own.is_none() && others.is_empty() {
            debug!(%host, "a host that serves no mount says that it restarted");
            return;
        }
        // A notification is sent until it is answered, and under each name of the host.
        if self.0.restarts.lock().insert(host, state) == Some(state) {
            return;
        }
        info!(%host, state, "the server restarted: locks are reclaimed");
        for other in others {
            let _ = writeln!(other.stream.lock(), "restarted");
        }
        if let Some(own) = own {
            own.restarted();
        }
    }

    fn state(&self) -> i32 {
        self.0.state
    }
}

/// Who tells of restarted servers.
enum Monitor {
    /// The system's status monitor, at this port.
    System(u16),
    /// The servers, as this service is the host's monitor.
    Own,
}

/// Serves and registers the programs. `None` if servers cannot call them.
fn start_programs(service: &Arc<LockService>) -> Option<Monitor> {
    let portmapper = LocalPortmapper::find()?;
    let programs = Arc::new(CallbackPrograms(Receiver(Arc::clone(service))));
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    let ports = [listener.local_addr().ok()?.port(), socket.local_addr().ok()?.port()];
    let limits = Limits { connections: 256, threads: 16, threads_per_client: 8, ..Limits::default() };
    let server =
        RpcServer::new(vec![listener], Arc::<CallbackPrograms<Receiver>>::clone(&programs), limits).ok()?;
    thread::Builder::new().name("curt-locks-tcp".into()).spawn(move || server.run()).ok()?;
    let datagrams = DatagramServer::new(socket, programs);
    let serve_datagrams = move || {
        if let Err(error) = datagrams.run() {
            warn!(%error, "calls of servers over UDP are not received any more");
        }
    };
    thread::Builder::new().name("curt-locks-udp".into()).spawn(serve_datagrams).ok()?;
    if !portmapper.register(nlm4::PROGRAM, nlm4::VERSION, ports) {
        return None;
    }
    let monitor = if portmapper.register(nsm::PROGRAM, nsm::VERSION, ports) {
        Monitor::Own
    } else {
        Monitor::System(portmapper.port(nsm::PROGRAM, nsm::VERSION, portmap::PROTOCOL_TCP)?)
    };
    Some(monitor)
}

impl Monitor {
    /// Has a server watched.
    fn watch(&self, server: IpAddr) {
        let Self::System(port) = self else { return };
        let name = server.to_string();
        let text = |text: &'static str| Opaque::new(text.as_bytes()).unwrap_or_default();
        let callback = MonitorCallback {
            name: text("localhost"),
            program: nlm4::PROGRAM,
            version: nlm4::VERSION,
            procedure: MONITOR_CALLBACK,
        };
        let id = MonitorId { name: Opaque::new(name.as_bytes()).unwrap_or_default(), callback };
        let arguments = MonArguments { id, private: record_of(server) };
        let target = (nsm::PROGRAM, nsm::VERSION, NsmProcedure::Mon.number());
        let told = registration::connect(*port)
            .and_then(|transport| registration::call::<MonResult>(&transport, target, &arguments));
        match told {
            Ok(MonResult { result: nsm::MonitorResult::Success, .. }) => {}
            Ok(_) => {
                warn!(%server, "the status monitor does not watch the server: its restart goes unnoticed")
            }
            Err(error) => {
                warn!(%server, %error, "no status monitor watches the server: its restart goes unnoticed");
            }
        }
    }
}

/// The state number of this host: odd, and larger after each boot.
fn boot_state() -> i32 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let booted = stat.lines().find_map(|line| line.strip_prefix("btime "));
    let seconds: i64 = booted.and_then(|seconds| seconds.trim().parse().ok()).unwrap_or(1);
    i32::try_from(seconds & i64::from(i32::MAX)).unwrap_or(1) | 1
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may end in a panic")]

    use curt_types::FileHandle;

    use super::*;

    #[test]
    fn grants_pass_between_processes_unchanged_and_nonsense_is_refused() {
        let grant = Grant {
            svid: 1 << 30,
            file: FileHandle::new(&[0, 1, 0xfe, 0xff]).unwrap(),
            range: ByteRange::new(3, u64::MAX).unwrap(),
            lock_type: LockType::Write,
        };
        let line = format_grant(&grant);
        assert_eq!(parse_grant(&line.split(' ').collect::<Vec<_>>()), Some(grant));
        for bad in ["", "1 2 3 w", "x 2 3 w 00", "1 3 2 w 00", "1 2 3 w 0é", "1 2 3 w zz"] {
            assert_eq!(parse_grant(&bad.split(' ').collect::<Vec<_>>()), None, "{bad}");
        }
        let member = parse_join("join 100 10.0.0.1 ::1").unwrap();
        assert_eq!(member.servers.len(), 2);
        assert!(member.owns(100) && member.owns(100 + OWNERS_MAX.cast_signed() - 1));
        assert!(!member.owns(99) && !member.owns(100 + OWNERS_MAX.cast_signed()) && !member.owns(i32::MIN));
        for bad in ["", "join", "join x", "join 1 nowhere", "welcome 1 2"] {
            assert!(parse_join(bad).is_none(), "{bad}");
        }
        assert_eq!(boot_state() % 2, 1);
    }
}
