//! The listening socket and its connections: one thread per connection, so that none waits for
//! another.

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use tracing::{debug, warn};

use super::address::MetricsAddress;
use super::http::{self, HEAD_MAX};

/// Maximum number of connected peers; a further one replaces the oldest.
pub const PEERS_MAX: usize = 16;

/// Timeouts of a peer: to send the request, and to receive the response and close its end.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(5);
const SEND_TIMEOUT: Duration = Duration::from_secs(10);
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Pause of accepting when the system has no descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// Returns the current metrics.
type MetricsText = dyn Fn() -> String + Send + Sync;

/// A listening socket that is not served yet.
#[derive(Debug)]
pub struct MetricsListener {
    listener: OwnedFd,
    place: MetricsAddress,
    file: SocketFile,
}

/// The file of a unix socket; removed when dropped.
#[derive(Debug)]
struct SocketFile(Option<PathBuf>);

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            // Another process may have removed it.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Metrics that are being served; ends, and removes a socket's file, when dropped.
#[derive(Debug)]
pub struct MetricsServer {
    stop: Option<UnixStream>,
    thread: Option<thread::JoinHandle<()>>,
    _file: SocketFile,
}

impl MetricsListener {
    /// Listens at `place`. A socket that a killed program left there is replaced; other files are
    /// not.
    ///
    /// # Errors
    /// The system's; another process listens there.
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
        Ok(Self { listener, place, file })
    }

    /// The listening address.
    #[must_use]
    pub fn address(&self) -> &MetricsAddress {
        &self.place
    }

    /// Serves the result of `text`, on a thread that first calls `begin`; nothing is served if that
    /// fails.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn serve(
        self,
        begin: impl FnOnce() -> io::Result<()> + Send + 'static,
        text: impl Fn() -> String + Send + Sync + 'static,
    ) -> io::Result<MetricsServer> {
        let (stop, stopped) = UnixStream::pair()?;
        let Self { listener, file, .. } = self;
        let text: Arc<MetricsText> = Arc::new(text);
        let thread =
            thread::Builder::new().name("metrics".to_owned()).stack_size(256 * 1024).spawn(move || {
                match begin() {
                    Ok(()) => serve(&listener, &stopped, &text),
                    Err(error) => warn!(%error, "no figures are served"),
                }
            })?;
        Ok(MetricsServer { stop: Some(stop), thread: Some(thread), _file: file })
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic was reported already.
            let _ = thread.join();
        }
    }
}

/// A peer, and its thread.
struct HttpConnection {
    socket: UnixStream,
    thread: thread::JoinHandle<()>,
}

impl HttpConnection {
    /// Closes the connection, which ends its thread.
    fn cut(&self) {
        // It may have ended already.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

fn serve(listener: &OwnedFd, stopped: &UnixStream, text: &Arc<MetricsText>) {
    let mut peers: VecDeque<HttpConnection> = VecDeque::new();
    loop {
        let mut ready = [PollFd::new(stopped, PollFlags::IN), PollFd::new(listener, PollFlags::IN)];
        match poll(&mut ready, None) {
            Err(Errno::INTR) => continue,
            Err(error) => return warn!(%error, "figures are not served any more"),
            Ok(_) if !ready[0].revents().is_empty() => break,
            Ok(_) => {}
        }
        peers.retain(|peer| !peer.thread.is_finished());
        match accept_with(listener, SocketFlags::CLOEXEC)
            .map_err(Into::into)
            .and_then(|socket| admit(socket, text))
        {
            Ok(peer) => peers.push_back(peer),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                debug!(%error, "connections for metrics cannot be accepted");
                thread::sleep(ACCEPT_PAUSE);
            }
        }
        if peers.len() > PEERS_MAX
            && let Some(oldest) = peers.pop_front()
        {
            oldest.cut();
        }
    }
    for peer in peers {
        peer.cut();
        // A panic was reported already.
        let _ = peer.thread.join();
    }
}

fn admit(socket: OwnedFd, text: &Arc<MetricsText>) -> io::Result<HttpConnection> {
    // Whatever its family is: the operations are the same.
    let socket = UnixStream::from(socket);
    let (peer, text) = (socket.try_clone()?, Arc::clone(text));
    let thread = thread::Builder::new().name("metrics-peer".to_owned()).stack_size(256 * 1024);
    let thread = thread.spawn(move || {
        if let Err(error) = answer(&peer, &*text) {
            debug!(%error, "figures were not taken");
        }
        let _ = peer.shutdown(Shutdown::Both);
    })?;
    Ok(HttpConnection { socket, thread })
}

/// Handles a request, within the timeout of each step.
fn answer(mut peer: &UnixStream, text: &MetricsText) -> io::Result<()> {
    let mut request = Vec::new();
    let deadline = Instant::now() + RECEIVE_TIMEOUT;
    let answer = loop {
        let mut bytes = [0; 1024];
        let room = bytes.len().min(HEAD_MAX - request.len());
        // A timeout of zero would mean none.
        let left = deadline.saturating_duration_since(Instant::now());
        peer.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        match peer.read(&mut bytes[..room])? {
            0 => return Ok(()),
            count => request.extend_from_slice(&bytes[..count]),
        }
        if let Some(answer) = http::answer(&request, text) {
            break answer;
        }
    };
    let deadline = Instant::now() + SEND_TIMEOUT;
    let mut rest = &answer[..];
    while !rest.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        peer.set_write_timeout(Some(left.max(Duration::from_millis(1))))?;
        rest = &rest[peer.write(rest)?..];
    }
    // With an immediate close, later bytes of the peer would reset the connection and drop the
    // response.
    peer.shutdown(Shutdown::Write)?;
    peer.set_read_timeout(Some(CLOSE_TIMEOUT))?;
    let deadline = Instant::now() + CLOSE_TIMEOUT;
    while peer.read(&mut [0; 1024])? > 0 && Instant::now() < deadline {}
    Ok(())
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
        let MetricsAddress::Port(address) = *metrics.address() else { panic!("a port was asked for") };
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
    fn silent_and_slow_peers_delay_no_other_peer() {
        // More than any socket buffer holds.
        const SIZE: usize = 16 << 20;
        let (serving, address) = serving(SIZE);
        let mut others: Vec<TcpStream> =
            (0..3 * PEERS_MAX).map(|_| TcpStream::connect(address).unwrap()).collect();
        for slow in others.iter_mut().skip(1).step_by(2) {
            // A replaced peer gets an error.
            let _ = slow.write_all(REQUEST);
        }
        let began = Instant::now();
        let text = scrape(address);
        assert!(text.ends_with("xxx") && text.len() > SIZE);
        // One after the other they would take minutes, until their timeouts.
        assert!(began.elapsed() < Duration::from_secs(60), "it waited for others");
        drop(serving);
        assert!(TcpStream::connect(address).is_err(), "nobody listens any more");
    }

    #[test]
    fn what_follows_a_request_does_not_take_its_answer_away() {
        let (_serving, address) = serving(100_000);
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(&[REQUEST, &[b'y'; 20_000]].concat()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert!(text.starts_with("HTTP/1.1 200") && text.ends_with("xxx"));
    }

    #[test]
    fn a_socket_is_its_owners_and_goes_with_the_server() {
        let path = std::env::temp_dir().join(format!("curt-metrics-{}.socket", std::process::id()));
        let place = MetricsAddress::Socket(path.clone());
        // As left by a killed program.
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
