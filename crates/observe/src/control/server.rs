//! The daemon's side: a table of commands, and a thread that serves one peer at a time.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::events::RecordedProcess;
use serde_json::Value;
use tracing::{debug, warn};

use super::client::ControlError;
use super::event_stream::EventStream;
use super::messages::{ControlCommand, ControlReply, WatchEvents};

/// Maximum size of a command in bytes.
const QUESTION_MAX: u64 = 64 * 1024;

/// Timeout of a peer to send a command and to receive the reply.
const PEER_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs a command on this value for the process with this id.
type Handler<T> = Box<dyn Fn(&T, u32, Value) -> Result<Value, ControlError> + Send>;

/// The commands of the control socket of a mount or a server.
pub struct ControlCommands<T> {
    target: Arc<T>,
    origin: fn(&T) -> RecordedProcess,
    path: fn(&T, u64) -> Option<Vec<u8>>,
    handlers: Vec<(&'static str, Handler<T>)>,
}

impl<T: Send + Sync + 'static> ControlCommands<T> {
    /// Supports only [`WatchEvents`]: the events of `origin`, with the paths of their objects.
    pub fn new(
        target: Arc<T>,
        origin: fn(&T) -> RecordedProcess,
        path: fn(&T, u64) -> Option<Vec<u8>>,
    ) -> Self {
        Self { target, origin, path, handlers: Vec::new() }
    }

    /// Adds a command. `run` also gets the peer's process id.
    #[must_use]
    pub fn on<C: ControlCommand + 'static>(
        mut self,
        run: fn(&T, u32, C) -> Result<C::Reply, ControlError>,
    ) -> Self {
        let handler = move |target: &T, process, value| {
            let reply = run(target, process, serde_json::from_value(value).map_err(not_understood)?)?;
            serde_json::to_value(reply).map_err(|error| ControlError::Failed(error.to_string()))
        };
        self.handlers.push((C::NAME, Box::new(handler)));
        self
    }

    /// The reply to a line from the process with this id, and the stream of events that follows it.
    #[must_use]
    pub fn answer(&self, line: &str, process: u32) -> (String, Option<EventStream>) {
        let (reply, events) = match self.run(line, process) {
            Ok((value, events)) => (ControlReply::Done(value), events),
            Err(ControlError::Refused(why)) => (ControlReply::Refused(why), None),
            Err(error) => (ControlReply::Failed(error.to_string()), None),
        };
        let text = serde_json::to_string(&reply).expect("a value is JSON");
        (text + "\n", events)
    }

    fn run(&self, line: &str, process: u32) -> Result<(Value, Option<EventStream>), ControlError> {
        let value: Value = serde_json::from_str(line).map_err(not_understood)?;
        let name = value["ask"].as_str().unwrap_or_default();
        if name == WatchEvents::NAME {
            let command: WatchEvents = serde_json::from_value(value).map_err(not_understood)?;
            let (target, path) = (Arc::clone(&self.target), self.path);
            let path = Box::new(move |object| path(&target, object));
            let events = EventStream::begin(&command.patterns, (self.origin)(&self.target), path);
            return Ok((Value::Null, Some(events.map_err(ControlError::Refused)?)));
        }
        let handler = self.handlers.iter().find(|(command, _)| *command == name);
        let (_, handler) =
            handler.ok_or_else(|| ControlError::Refused(format!("there is no command {name:?} here")))?;
        Ok((handler(&self.target, process, value)?, None))
    }

    /// Opens a socket for this process's user and root, and serves it until this process ends. A
    /// socket that another process left is replaced.
    ///
    /// # Errors
    /// The directory or socket cannot be created, the directory belongs to another user, or no
    /// thread can be started.
    pub fn listen(self, path: PathBuf) -> io::Result<ControlSocket> {
        listen_at(path, move |peer| serve(peer, &self))
    }
}

fn not_understood(error: serde_json::Error) -> ControlError {
    ControlError::Refused(format!("the command is not understood: {error}"))
}

/// A control socket; its file is removed when it is dropped.
#[derive(Debug)]
pub struct ControlSocket {
    path: PathBuf,
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        // A process that still finds the file gets "connection refused" and removes it.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Only this process's user may access a socket (and root).
const OWNER: u32 = 0o600;

fn listen_at(
    path: PathBuf,
    serve: impl Fn(UnixStream) -> io::Result<()> + Send + 'static,
) -> io::Result<ControlSocket> {
    if let Some(directory) = path.parent() {
        prepare(directory)?;
    }
    // A process that finds a socket without a listener removes it as stale. So the socket gets its
    // name only after it is served.
    let new = path.with_extension("new");
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&new)?;
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(OWNER))?;
    std::fs::rename(&new, &path)?;
    let listening = ControlSocket { path };
    std::thread::Builder::new().name("control".to_owned()).stack_size(256 * 1024).spawn(move || {
        for peer in listener.incoming() {
            match peer {
                Ok(peer) => {
                    if let Err(error) = serve(peer) {
                        debug!(%error, "a peer of the control socket was cut off");
                    }
                }
                Err(error) => {
                    warn!(%error, "the control socket cannot accept");
                    std::thread::sleep(PEER_TIMEOUT);
                }
            }
        }
    })?;
    Ok(listening)
}

fn serve<T: Send + Sync + 'static>(mut peer: UnixStream, commands: &ControlCommands<T>) -> io::Result<()> {
    if !is_ours(&peer)? {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is another user's"));
    }
    peer.set_read_timeout(Some(PEER_TIMEOUT))?;
    peer.set_write_timeout(Some(PEER_TIMEOUT))?;
    let mut line = String::new();
    BufReader::new((&peer).take(QUESTION_MAX)).read_line(&mut line)?;
    let (text, events) = commands.answer(&line, process(&peer)?);
    peer.write_all(text.as_bytes())?;
    events.map_or(Ok(()), |live| live.send_to(peer))
}

/// The peer's process id in this pid namespace.
fn process(peer: &UnixStream) -> io::Result<u32> {
    let pid = rustix::net::sockopt::socket_peercred(peer)?.pid;
    Ok(pid.as_raw_nonzero().get().unsigned_abs())
}

/// The socket's mode has the same effect, but is set only after the socket exists.
fn is_ours(peer: &UnixStream) -> io::Result<bool> {
    let user = rustix::net::sockopt::socket_peercred(peer)?.uid;
    Ok(user.is_root() || user == rustix::process::geteuid())
}

/// Creates the directory of sockets and rings if it does not exist.
pub(super) fn prepare(directory: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o755).create(directory)?;
    check_owner(directory)
}

/// Checks that no other user can replace this user's sockets or files.
///
/// # Errors
/// Another user can, or the directory cannot be checked.
pub(super) fn check_owner(directory: &Path) -> io::Result<()> {
    let found = std::fs::symlink_metadata(directory)?;
    let is_ours = [0, rustix::process::geteuid().as_raw()].contains(&found.uid());
    if found.is_dir() && is_ours && found.mode() & 0o022 == 0 {
        return Ok(());
    }
    let path = directory.display();
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!("{path} is no directory that only this user and root can change"),
    ))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_directory_that_others_can_change_is_not_used() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("curt");
        let listen = || listen_at(path.join("1.socket"), |_| Ok(())).map(drop);
        std::fs::create_dir(&path).expect("a directory");
        for mode in [0o700, 0o755] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("its mode");
            listen().expect("it is ours alone");
        }
        for mode in [0o777, 0o1777, 0o775] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("its mode");
            assert_eq!(
                listen().map_err(|error| error.kind()),
                Err(io::ErrorKind::PermissionDenied),
                "{mode:o}"
            );
        }
        std::fs::remove_dir_all(&path).expect("no directory");
        std::fs::create_dir(directory.path().join("other")).expect("a directory");
        symlink(directory.path().join("other"), &path).expect("a link");
        assert!(listen().is_err());
    }

    #[test]
    fn a_socket_is_never_found_before_it_answers() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("1.socket");
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..100 {
                    drop(listen_at(path.clone(), |_| Ok(())).expect("a socket"));
                }
                is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            });
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                if let Err(error) = UnixStream::connect(&path) {
                    assert_eq!(error.kind(), io::ErrorKind::NotFound, "it is there and does not answer");
                }
            }
        });
    }

    #[test]
    fn a_socket_is_the_owners_alone() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("1.socket");
        let _listening = listen_at(path.clone(), |_| Ok(())).expect("a socket");
        let mode = std::fs::metadata(&path).expect("the socket").mode();
        assert_eq!(mode & 0o777, OWNER);
    }
}
