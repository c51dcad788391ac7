//! The daemon's side: a thread that answers one peer after the other.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use curt_trace::events::RecordedProcess;
use serde::Serialize;
use tracing::{debug, warn};

use super::event_stream::EventStream;
use super::messages::{MountActivity, MountControlReply, MountControlRequest, MountReport};
use super::request_origins::RequestOrigins;
use crate::explain::ExplainReport;

/// Longest question, in bytes.
const QUESTION_MAX: u64 = 64 * 1024;

/// How long a peer may take to ask and to listen.
const PEER_TIMEOUT: Duration = Duration::from_secs(1);

/// The error if nothing can be explained.
const UNEXPLAINED: &str = "nothing is explained here";

/// What a control socket speaks for.
pub trait ControlTarget: Send + Sync {
    /// The mount's report.
    fn report(&self) -> MountReport;

    /// The processes and paths that have caused requests since somebody began to ask.
    ///
    /// # Errors
    /// Why that is not known.
    fn request_origins(&self) -> Result<RequestOrigins, String> {
        Err("this mount does not tell who causes requests".to_owned())
    }

    /// Changes options while mounted; returns all that are then in force. `table`: /run/mount/utab
    /// shows them, too.
    ///
    /// # Errors
    /// Why not. Nothing has changed then.
    fn remount(&self, options: &str, table: bool) -> Result<String, RemountError>;

    /// From now on explains the requests of process `_head` and its descendants, compared with a
    /// Linux client with these options.
    ///
    /// # Errors
    /// Why not, a sentence for the user.
    fn explain(&self, _head: u32, _linux: &str) -> Result<(), String> {
        Err(UNEXPLAINED.to_owned())
    }

    /// Ends the explanation and returns it, with so many paths for each cause.
    ///
    /// # Errors
    /// Why not, a sentence for the user.
    fn explained(&self, _head: u32, _paths: usize) -> Result<ExplainReport, String> {
        Err(UNEXPLAINED.to_owned())
    }

    /// The process whose events are sent.
    fn origin(&self) -> RecordedProcess;

    /// The path of an object of its events, as far as it is known.
    fn path(&self, _object: u64) -> Option<Vec<u8>> {
        None
    }
}

/// An answer, and what follows it on the connection.
#[derive(Debug)]
pub struct ReplyThenEvents<A> {
    /// The answer.
    pub answer: A,
    /// Events, for as long as the peer wants them.
    pub events: Option<EventStream>,
}

impl<A> From<A> for ReplyThenEvents<A> {
    fn from(answer: A) -> Self {
        Self { answer, events: None }
    }
}

/// Why options were not changed: a sentence for the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RemountError {
    /// An option that cannot change, and what to do instead.
    Refused(String),
    /// The system did not let us.
    Failed(String),
}

/// A control socket that is listened on; dropped, its file is removed.
#[derive(Debug)]
pub struct ControlSocket {
    path: PathBuf,
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        // Who finds the file after us gets "connection refused" and removes it.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Opens this process's control socket in `directory` and answers on it until the process ends.
///
/// # Errors
/// The directory or socket cannot be made, or no thread be started.
pub fn listen(directory: &Path, mount: Arc<dyn ControlTarget>) -> io::Result<ControlSocket> {
    let path = directory.join(format!("{}.socket", std::process::id()));
    listen_at(path, move |line, process| answer(line, process, &mount))
}

/// Only this process's user may reach a socket. Root may anyway.
const OWNER: u32 = 0o600;

/// Opens a socket for this process's user and root. Each line that is received is answered with one
/// line, by `answer`, which also gets the peer's process id, until this process ends. A socket that
/// another process left behind is replaced.
///
/// # Errors
/// The directory or socket cannot be made, the directory is another user's, or no thread can be
/// started.
pub fn listen_at<A: Serialize>(
    path: PathBuf,
    answer: impl Fn(&str, u32) -> ReplyThenEvents<A> + Send + 'static,
) -> io::Result<ControlSocket> {
    if let Some(directory) = path.parent() {
        prepare(directory)?;
    }
    // Whoever finds a socket that does not answer takes it for one that was left there, and removes
    // it: it gets its name once it answers.
    let new = path.with_extension("new");
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&new)?;
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(OWNER))?;
    std::fs::rename(&new, &path)?;
    let listening = ControlSocket { path };
    std::thread::Builder::new()
        .name("control".to_owned())
        .stack_size(256 * 1024)
        .spawn(move || {
            for peer in listener.incoming() {
                match peer {
                    Ok(peer) => {
                        if let Err(error) = serve(peer, &answer) {
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

fn serve<A: Serialize>(
    mut peer: UnixStream,
    answer: impl Fn(&str, u32) -> ReplyThenEvents<A>,
) -> io::Result<()> {
    if !is_ours(&peer)? {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "it is another user's",
        ));
    }
    peer.set_read_timeout(Some(PEER_TIMEOUT))?;
    peer.set_write_timeout(Some(PEER_TIMEOUT))?;
    let mut line = String::new();
    BufReader::new((&peer).take(QUESTION_MAX)).read_line(&mut line)?;
    let said = answer(&line, process(&peer)?);
    let mut text = serde_json::to_string(&said.answer)?;
    text.push('\n');
    peer.write_all(text.as_bytes())?;
    said.events.map_or(Ok(()), |live| live.send_to(peer))
}

/// A mount's answer to a line from the process with this id.
pub fn answer(
    line: &str,
    process: u32,
    mount: &Arc<dyn ControlTarget>,
) -> ReplyThenEvents<MountControlReply> {
    match serde_json::from_str(line) {
        Ok(MountControlRequest::Report) => MountControlReply::Report(Box::new(mount.report())).into(),
        Ok(MountControlRequest::Watch) => match mount.request_origins() {
            Ok(causers) => MountControlReply::Watched(Box::new(MountActivity {
                report: mount.report(),
                causers,
            }))
            .into(),
            Err(why) => MountControlReply::Refused(why).into(),
        },
        Ok(MountControlRequest::Remount { options, table }) => match mount.remount(&options, table) {
            Ok(options) => MountControlReply::Remounted(options).into(),
            Err(RemountError::Refused(why)) => MountControlReply::Refused(why).into(),
            Err(RemountError::Failed(why)) => MountControlReply::Failed(why).into(),
        },
        Ok(MountControlRequest::Explain { linux }) => match mount.explain(process, &linux) {
            Ok(()) => MountControlReply::Explaining.into(),
            Err(why) => MountControlReply::Refused(why).into(),
        },
        Ok(MountControlRequest::Explained { paths }) => match mount.explained(process, paths) {
            Ok(explained) => MountControlReply::Explained(Box::new(explained)).into(),
            Err(why) => MountControlReply::Refused(why).into(),
        },
        Ok(MountControlRequest::Events { patterns }) => {
            let target = Arc::clone(mount);
            let path = Box::new(move |object| target.path(object));
            match EventStream::begin(&patterns, mount.origin(), path) {
                Ok(live) => ReplyThenEvents {
                    answer: MountControlReply::Events,
                    events: Some(live),
                },
                Err(why) => MountControlReply::Refused(why).into(),
            }
        }
        Err(error) => MountControlReply::Refused(format!("the question is not understood: {error}")).into(),
    }
}

/// The peer's process, by the number that it has here.
fn process(peer: &UnixStream) -> io::Result<u32> {
    let pid = rustix::net::sockopt::socket_peercred(peer)?.pid;
    Ok(pid.as_raw_nonzero().get().unsigned_abs())
}

/// The socket's mode says the same; but it has it only a moment after it is there.
fn is_ours(peer: &UnixStream) -> io::Result<bool> {
    let user = rustix::net::sockopt::socket_peercred(peer)?.uid;
    Ok(user.is_root() || user == rustix::process::geteuid())
}

/// Makes the directory of sockets and rings if it is not there.
pub(super) fn prepare(directory: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(directory)?;
    check_owner(directory)
}

/// Checks that nobody else can replace our socket or files.
///
/// # Errors
/// Somebody can, or the directory cannot be examined.
pub fn check_owner(directory: &Path) -> io::Result<()> {
    let found = std::fs::symlink_metadata(directory)?;
    let is_ours = [0, rustix::process::geteuid().as_raw()].contains(&found.uid());
    if found.is_dir() && is_ours && found.mode() & 0o022 == 0 {
        return Ok(());
    }
    let place = directory.display();
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!("{place} is no directory that only this user and root can change"),
    ))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_directory_that_others_can_change_is_not_used() {
        let directory = tempfile::tempdir().expect("a directory");
        let place = directory.path().join("curt");
        let listen = || listen_at(place.join("1.socket"), |_, _| ReplyThenEvents::from(1)).map(drop);
        std::fs::create_dir(&place).expect("a directory");
        for mode in [0o700, 0o755] {
            std::fs::set_permissions(&place, std::fs::Permissions::from_mode(mode)).expect("its mode");
            listen().expect("it is ours alone");
        }
        for mode in [0o777, 0o1777, 0o775] {
            std::fs::set_permissions(&place, std::fs::Permissions::from_mode(mode)).expect("its mode");
            assert_eq!(
                listen().map_err(|error| error.kind()),
                Err(io::ErrorKind::PermissionDenied),
                "{mode:o}"
            );
        }
        std::fs::remove_dir_all(&place).expect("no directory");
        std::fs::create_dir(directory.path().join("other")).expect("a directory");
        symlink(directory.path().join("other"), &place).expect("a link");
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
                    drop(listen_at(path.clone(), |_, _| ReplyThenEvents::from(1)).expect("a socket"));
                }
                is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            });
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                if let Err(error) = UnixStream::connect(&path) {
                    assert_eq!(
                        error.kind(),
                        io::ErrorKind::NotFound,
                        "it is there and does not answer"
                    );
                }
            }
        });
    }

    #[test]
    fn a_socket_is_the_owners_alone() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("1.socket");
        let _listening = listen_at(path.clone(), |_, _| ReplyThenEvents::from(1)).expect("a socket");
        let mode = std::fs::metadata(&path).expect("the socket").mode();
        assert_eq!(mode & 0o777, OWNER);
    }
}
