//! The listening socket and its connections: one thread, which never waits for one of them alone.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, SocketFlags, accept_with, recv, send, shutdown};
use tracing::{debug, warn};

use super::address::MetricsAddress;
use super::http::{self, HEAD_MAX};

/// How many peers may be connected; one more takes the place of the one that has been there for
/// longest.
pub const PEERS_MAX: usize = 16;

/// How long a peer may take to ask, to take the answer, and to close its end.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(5);
const SEND_TIMEOUT: Duration = Duration::from_secs(10);
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// How long no connection is accepted when the system has no descriptor for it.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// A socket that is listened on and not served yet.
#[derive(Debug)]
pub struct MetricsListener {
    listener: OwnedFd,
    place: MetricsAddress,
    file: SocketFile,
}

/// The file of a unix socket; it goes with this value.
#[derive(Debug)]
struct SocketFile(Option<PathBuf>);

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            // Somebody else may have removed it.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Figures that are being served; dropped, that ends, and a socket's file goes.
#[derive(Debug)]
pub struct MetricsServer {
    stop: Option<UnixStream>,
    thread: Option<thread::JoinHandle<()>>,
    _file: SocketFile,
}

impl MetricsListener {
    /// Listens at `place`. A socket that a program left there when it was killed is replaced, and
    /// nothing else.
    ///
    /// # Errors
    /// The system's; somebody listens there already.
    pub fn bind(place: &MetricsAddress) -> io::Result<Self> {
        let mut file = SocketFile(None);
        let listener = match place {
            MetricsAddress::Port(address) => {
                let listener = TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                OwnedFd::from(listener)
            }
            MetricsAddress::Socket(path) => {
                match UnixStream::connect(path) {
                    Ok(_) => return Err(io::ErrorKind::AddrInUse.into()),
                    Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                        use std::os::unix::fs::FileTypeExt as _;
                        if std::fs::symlink_metadata(path)?.file_type().is_socket() {
                            std::fs::remove_file(path)?;
                        }
                    }
                    Err(_) => {}
                }
                let listener = UnixListener::bind(path)?;
                file.0 = Some(path.clone());
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
                listener.set_nonblocking(true)?;
                OwnedFd::from(listener)
            }
        };
        let place = match place {
            // The system chose the port.
            MetricsAddress::Port(address) if address.port() == 0 => {
                let bound = rustix::net::getsockname(&listener)?;
                MetricsAddress::Port(bound.try_into().unwrap_or(*address))
            }
            place => place.clone(),
        };
        Ok(Self {
            listener,
            place,
            file,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn place(&self) -> &MetricsAddress {
        &self.place
    }

    /// Serves what `text` gives, on a thread that first does `begin`; nothing is served if that
    /// fails.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn serve(
        self,
        begin: impl FnOnce() -> io::Result<()> + Send + 'static,
        text: impl Fn() -> String + Send + 'static,
    ) -> io::Result<MetricsServer> {
        let (stop, stopped) = UnixStream::pair()?;
        let Self { listener, file, .. } = self;
        let thread = thread::Builder::new()
            .name("metrics".to_owned())
            .stack_size(256 * 1024)
            .spawn(move || match begin() {
                Ok(()) => serve(listener.as_fd(), stopped.as_fd(), &text),
                Err(error) => warn!(%error, "no figures are served"),
            })?;
        Ok(MetricsServer {
            stop: Some(stop),
            thread: Some(thread),
            _file: file,
        })
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It has no more to say than that it had a fault.
            let _ = thread.join();
        }
    }
}

/// A peer, and what the thread waits for.
struct HttpConnection {
    socket: OwnedFd,
    request: Vec<u8>,
    answer: Vec<u8>,
    sent: usize,
    stage: HttpConnectionState,
    deadline: Instant,
    since: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum HttpConnectionState {
    Receiving,
    Sending,
    Closing,
    Closed,
}

fn serve(listener: BorrowedFd<'_>, stopped: BorrowedFd<'_>, text: &dyn Fn() -> String) {
    let mut peers: Vec<HttpConnection> = Vec::new();
    let mut paused_until: Option<Instant> = None;
    loop {
        let now = Instant::now();
        peers.retain(|peer| peer.stage != HttpConnectionState::Closed && peer.deadline > now);
        if paused_until.is_some_and(|until| until <= now) {
            paused_until = None;
        }
        let ready = match wait(listener, stopped, &peers, paused_until, now) {
            Ok(ready) => ready,
            Err(Errno::INTR) => continue,
            Err(error) => return warn!(%error, "figures are not served any more"),
        };
        if ready[0] {
            return;
        }
        for (peer, is_ready) in peers.iter_mut().zip(&ready[2..]) {
            if *is_ready {
                peer.advance(text);
            }
        }
        if ready[1] {
            match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => admit(&mut peers, socket),
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
                Err(error) => {
                    debug!(%error, "nobody can connect for figures");
                    paused_until = Some(Instant::now() + ACCEPT_PAUSE);
                }
            }
        }
    }
}

/// Which descriptors are ready: the stop signal, the listener, each peer.
fn wait(
    listener: BorrowedFd<'_>,
    stopped: BorrowedFd<'_>,
    peers: &[HttpConnection],
    paused_until: Option<Instant>,
    now: Instant,
) -> Result<Vec<bool>, Errno> {
    let listening = if paused_until.is_some() {
        PollFlags::empty()
    } else {
        PollFlags::IN
    };
    let mut all = vec![
        PollFd::from_borrowed_fd(stopped, PollFlags::IN),
        PollFd::from_borrowed_fd(listener, listening),
    ];
    all.extend(peers.iter().map(|peer| {
        let wanted = match peer.stage {
            HttpConnectionState::Sending => PollFlags::OUT,
            HttpConnectionState::Receiving | HttpConnectionState::Closing | HttpConnectionState::Closed => {
                PollFlags::IN
            }
        };
        PollFd::new(&peer.socket, wanted)
    }));
    let next = peers.iter().map(|peer| peer.deadline).chain(paused_until).min();
    // A little later than the moment, so that it has come.
    let timeout = next.map(|next| next.saturating_duration_since(now) + Duration::from_millis(1));
    let timeout = timeout.map(|timeout| Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    });
    poll(&mut all, timeout.as_ref())?;
    Ok(all.iter().map(|one| !one.revents().is_empty()).collect())
}

fn admit(peers: &mut Vec<HttpConnection>, socket: OwnedFd) {
    let oldest = (0..peers.len()).min_by_key(|place| peers[*place].since);
    if let Some(oldest) = oldest.filter(|_| peers.len() >= PEERS_MAX) {
        peers.swap_remove(oldest);
    }
    let now = Instant::now();
    peers.push(HttpConnection {
        socket,
        request: Vec::new(),
        answer: Vec::new(),
        sent: 0,
        stage: HttpConnectionState::Receiving,
        deadline: now + RECEIVE_TIMEOUT,
        since: now,
    });
}

impl HttpConnection {
    /// Does what can be done without waiting.
    fn advance(&mut self, text: &dyn Fn() -> String) {
        if self.stage == HttpConnectionState::Receiving {
            self.receive(text);
        }
        if self.stage == HttpConnectionState::Sending {
            self.send_answer();
        } else if self.stage == HttpConnectionState::Closing {
            self.discard_input();
        }
    }

    fn receive(&mut self, text: &dyn Fn() -> String) {
        let mut bytes = [0; 1024];
        let room = bytes.len().min(HEAD_MAX - self.request.len());
        match recv(&self.socket, &mut bytes[..room], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => self.stage = HttpConnectionState::Closed,
            Ok((_, count)) => {
                self.request.extend_from_slice(&bytes[..count]);
                if let Some(answer) = http::answer(&self.request, text) {
                    self.answer = answer;
                    self.enter_state(HttpConnectionState::Sending, SEND_TIMEOUT);
                }
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.stage = HttpConnectionState::Closed,
        }
    }

    fn send_answer(&mut self) {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match send(&self.socket, &self.answer[self.sent..], flags) {
            Ok(count) => {
                self.sent += count;
                if self.sent == self.answer.len() {
                    // Closed at once, what it still says would take the answer away from it.
                    let _ = shutdown(&self.socket, Shutdown::Write);
                    self.answer = Vec::new();
                    self.enter_state(HttpConnectionState::Closing, CLOSE_TIMEOUT);
                }
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.stage = HttpConnectionState::Closed,
        }
    }

    fn discard_input(&mut self) {
        match recv(&self.socket, &mut [0; 1024], RecvFlags::DONTWAIT) {
            Ok((_, count)) if count > 0 => {}
            Err(Errno::AGAIN | Errno::INTR) => {}
            Ok(_) | Err(_) => self.stage = HttpConnectionState::Closed,
        }
    }

    fn enter_state(&mut self, stage: HttpConnectionState, patience: Duration) {
        self.stage = stage;
        self.deadline = Instant::now() + patience;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that fails may panic")]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;

    use super::*;

    const REQUEST: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";

    fn serving(size: usize) -> (MetricsServer, std::net::SocketAddr) {
        let metrics = MetricsListener::bind(&"0".parse().unwrap()).unwrap();
        let MetricsAddress::Port(address) = *metrics.place() else {
            panic!("a port was asked for")
        };
        let serving = metrics.serve(|| Ok(()), move || "x".repeat(size)).unwrap();
        (serving, address)
    }

    fn scrape(address: std::net::SocketAddr) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(REQUEST).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn silent_and_slow_peers_keep_nobody_waiting() {
        // More than any socket takes at once.
        const SIZE: usize = 16 << 20;
        let (serving, address) = serving(SIZE);
        let mut others: Vec<TcpStream> = (0..3 * PEERS_MAX)
            .map(|_| TcpStream::connect(address).unwrap())
            .collect();
        for slow in others.iter_mut().skip(1).step_by(2) {
            // One that was sent away is told by an error.
            let _ = slow.write_all(REQUEST);
        }
        let began = Instant::now();
        let text = scrape(address);
        assert!(text.ends_with("xxx") && text.len() > SIZE);
        assert!(began.elapsed() < RECEIVE_TIMEOUT, "it waited for others");
        drop(serving);
        assert!(TcpStream::connect(address).is_err(), "nobody listens any more");
    }

    #[test]
    fn what_follows_a_request_does_not_take_its_answer_away() {
        let (_serving, address) = serving(100_000);
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(REQUEST).unwrap();
        stream.write_all(&[b'y'; 20_000]).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert!(text.starts_with("HTTP/1.1 200") && text.ends_with("xxx"));
    }

    #[test]
    fn a_socket_is_its_owners_and_goes_with_the_server() {
        let path = std::env::temp_dir().join(format!("curt-metrics-{}.socket", std::process::id()));
        let place = MetricsAddress::Socket(path.clone());
        // As a program leaves it that is killed.
        drop(UnixListener::bind(&path).unwrap());
        let metrics = MetricsListener::bind(&place).unwrap();
        assert_eq!(
            MetricsListener::bind(&place).err().map(|error| error.kind()),
            Some(io::ErrorKind::AddrInUse)
        );
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let serving = metrics.serve(|| Ok(()), || "figures\n".to_owned()).unwrap();
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(REQUEST).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert!(text.ends_with("figures\n"), "{text}");
        drop(serving);
        assert!(!path.exists());
        std::fs::write(&path, "precious").unwrap();
        assert!(MetricsListener::bind(&place).is_err(), "a file is not replaced");
        std::fs::remove_file(&path).unwrap();
    }
}
