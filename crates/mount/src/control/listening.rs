//! The daemon's side: a thread that answers one peer after the other.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tracing::{debug, warn};

use super::words::{Answer, MountReport, Question};

/// Longest question, in bytes.
const QUESTION_MAX: u64 = 64 * 1024;

/// How long a peer may take to ask and to listen.
const PATIENCE: Duration = Duration::from_secs(1);

/// What a control socket speaks for.
pub trait Controlled: Send + Sync {
    /// The mount and what it did.
    fn report(&self) -> MountReport;

    /// Changes options while mounted; returns all that are then in force. `table`: /run/mount/utab shows them, too.
    ///
    /// # Errors
    /// Why not. Nothing has changed then.
    fn remount(&self, options: &str, table: bool) -> Result<String, NotRemounted>;
}

/// Why options were not changed: a sentence for the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotRemounted {
    /// An option that cannot change, and what to do instead.
    Refused(String),
    /// The system did not let us.
    Failed(String),
}

/// A control socket that is listened on; dropped, its file is removed.
#[derive(Debug)]
pub struct Listening {
    path: PathBuf,
}

impl Drop for Listening {
    fn drop(&mut self) {
        // Who finds the file after us gets "connection refused" and removes it.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Opens this process's control socket in `directory` and answers on it until the process ends.
///
/// # Errors
/// The directory or socket cannot be made, or no thread be started.
pub fn listen(directory: &Path, mount: Arc<dyn Controlled>) -> io::Result<Listening> {
    let path = directory.join(format!("{}.socket", std::process::id()));
    listen_at(path, EVERYBODY, move |line, peer| answer(line, peer, &*mount))
}

/// Who may reach a mount's socket.
const EVERYBODY: u32 = 0o666;

/// Opens a socket that those may reach whom `mode` names, and answers each line on it with one, until the process ends. What
/// was left there by another process is replaced.
///
/// # Errors
/// The directory or socket cannot be made, or no thread be started.
pub fn listen_at<A: Serialize>(
    path: PathBuf,
    mode: u32,
    answer: impl Fn(&str, &UnixStream) -> io::Result<A> + Send + 'static,
) -> io::Result<Listening> {
    if let Some(directory) = path.parent() {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(directory)?;
    }
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&path)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode))?;
    let listening = Listening { path };
    std::thread::Builder::new()
        .name("control".to_owned())
        .stack_size(256 * 1024)
        .spawn(move || {
            for peer in listener.incoming() {
                match peer {
                    Ok(peer) => {
                        if let Err(error) = serve(&peer, &answer) {
                            debug!(%error, "a peer of the control socket was cut off");
                        }
                    }
                    Err(error) => {
                        warn!(%error, "the control socket cannot accept");
                        std::thread::sleep(PATIENCE);
                    }
                }
            }
        })?;
    Ok(listening)
}

fn serve<A: Serialize>(
    mut peer: &UnixStream,
    answer: impl Fn(&str, &UnixStream) -> io::Result<A>,
) -> io::Result<()> {
    peer.set_read_timeout(Some(PATIENCE))?;
    peer.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new(peer.take(QUESTION_MAX)).read_line(&mut line)?;
    let mut text = serde_json::to_string(&answer(&line, peer)?)?;
    text.push('\n');
    peer.write_all(text.as_bytes())
}

fn answer(line: &str, peer: &UnixStream, mount: &dyn Controlled) -> io::Result<Answer> {
    Ok(match serde_json::from_str(line) {
        Ok(Question::Report) => Answer::Report(Box::new(mount.report())),
        Ok(Question::Remount { options, table }) if may_change(peer)? => match mount.remount(&options, table)
        {
            Ok(options) => Answer::Remounted(options),
            Err(NotRemounted::Refused(why)) => Answer::Refused(why),
            Err(NotRemounted::Failed(why)) => Answer::Failed(why),
        },
        Ok(Question::Remount { .. }) => {
            Answer::Refused("only root and the user who mounted may remount".to_owned())
        }
        Err(error) => Answer::Refused(format!("the question is not understood: {error}")),
    })
}

fn may_change(peer: &UnixStream) -> io::Result<bool> {
    let user = rustix::net::sockopt::socket_peercred(peer)?.uid;
    Ok(user.is_root() || user == rustix::process::geteuid())
}
