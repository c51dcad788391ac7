//! The tools' side: finding mounts and servers, and having them run commands.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;

use super::messages::{ControlCommand, ControlReply, MountReport, ReportMount};
use super::mountstats;
use super::server::check_owner;

/// How long a daemon may take to answer.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest answer, in bytes.
const ANSWER_MAX: u64 = 16 << 20;

/// The ending of a mount's socket.
pub const MOUNT_SOCKET: &str = "socket";

/// Why a command was not run.
#[derive(Debug, Error)]
pub enum ControlError {
    /// No daemon of this user serves that directory.
    #[error("{0} is not a Curt mount of this user; 'curt stat' lists the mounts")]
    NotMounted(PathBuf),
    /// The socket failed.
    #[error("the control socket: {0}")]
    Io(#[from] io::Error),
    /// The daemon said no.
    #[error("{0}")]
    Refused(String),
    /// The daemon tried, and failed.
    #[error("{0}")]
    Failed(String),
    /// The answer is not what was asked for.
    #[error("unknown reply from the daemon; is it another version of Curt?")]
    Answer,
}

/// Has whoever listens on a socket run a command.
///
/// # Errors
/// The socket fails, or the command is refused or fails.
pub fn call<C: ControlCommand>(socket: &Path, command: &C) -> Result<C::Reply, ControlError> {
    call_keeping_connection(socket, command).map(|(reply, _)| reply)
}

/// The same, with the connection, on which more may follow.
///
/// # Errors
/// As [`call`].
pub fn call_keeping_connection<C: ControlCommand>(
    socket: &Path,
    command: &C,
) -> Result<(C::Reply, BufReader<UnixStream>), ControlError> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
    stream.set_write_timeout(Some(REPLY_TIMEOUT))?;
    let mut question = serde_json::to_value(command).map_err(io::Error::from)?;
    question["ask"] = C::NAME.into();
    stream.write_all(format!("{question}\n").as_bytes())?;
    let mut line = String::new();
    let mut reader = BufReader::new(stream);
    reader.by_ref().take(ANSWER_MAX).read_line(&mut line)?;
    match serde_json::from_str(&line).map_err(|_| ControlError::Answer)? {
        ControlReply::Done(reply) => Ok((reply, reader)),
        ControlReply::Refused(why) => Err(ControlError::Refused(why)),
        ControlReply::Failed(why) => Err(ControlError::Failed(why)),
    }
}

/// The replies of all who listen on sockets with this ending in a directory. Sockets that nobody
/// listens on are removed.
///
/// # Errors
/// The directory cannot be read, or others than this user and root can change it. That it is not
/// there only means that nobody listens.
pub fn call_all<C: ControlCommand>(
    directory: &Path,
    ending: &str,
    command: &C,
) -> io::Result<Vec<(PathBuf, C::Reply)>> {
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    // Below /tmp anybody can make a directory of that name, and answer for mounts that are not
    // there.
    check_owner(directory)?;
    let mut replies = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != ending) {
            continue;
        }
        match call(&path, command) {
            Ok(reply) => replies.push((path, reply)),
            Err(ControlError::Io(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                // Its daemon was killed; somebody else may have removed it already.
                let _ = std::fs::remove_file(&path);
            }
            Err(_) => {}
        }
    }
    Ok(replies)
}

/// The mounts of a directory of sockets, with their sockets, in order of their mount points. The
/// other files of daemons that were killed are removed, too.
///
/// # Errors
/// As [`call_all`].
pub fn list(directory: &Path) -> io::Result<Vec<(PathBuf, MountReport)>> {
    let mounts = call_all(directory, MOUNT_SOCKET, &ReportMount {})?;
    mountstats::sweep(directory);
    let mut mounts: Vec<_> = mounts.into_iter().map(|(path, report)| (path, *report)).collect();
    mounts.sort_by(|one, other| one.1.mount_point.cmp(&other.1.mount_point));
    Ok(mounts)
}

/// The mount at `mount_point`, with its socket. The path is compared as text, for asking the file
/// system could hang.
///
/// # Errors
/// No daemon in `directory` serves it.
pub fn find(directory: &Path, mount_point: &Path) -> Result<(PathBuf, MountReport), ControlError> {
    let absolute = std::path::absolute(mount_point)?;
    let path: PathBuf = absolute.components().collect();
    list(directory)?
        .into_iter()
        .find(|(_, report)| report.mount_point == path)
        .ok_or_else(|| ControlError::NotMounted(mount_point.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn nobody_is_asked_in_a_directory_that_others_can_change() {
        let place = tempfile::tempdir().expect("a directory");
        let ask = || list(place.path()).map(|mounts| mounts.len());
        assert_eq!(ask().map_err(|error| error.kind()), Ok(0));
        std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o777)).expect("its mode");
        assert_eq!(
            ask().map_err(|error| error.kind()),
            Err(io::ErrorKind::PermissionDenied)
        );
        let missing = list(&place.path().join("none"));
        assert!(missing.expect("nothing is mounted").is_empty());
    }
}
