//! The client's side of control sockets: finding mounts and servers, and sending commands.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;

use super::messages::{ControlCommand, ControlReply, MountReport, ReportMount};
use super::mountstats;
use super::server::check_owner;

/// Timeout of a daemon's reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum size of a reply in bytes.
const ANSWER_MAX: u64 = 16 << 20;

/// Suffix of a mount's socket.
pub const MOUNT_SOCKET: &str = "socket";

/// Why a command failed.
#[derive(Debug, Error)]
pub enum ControlError {
    /// No daemon of this user serves that directory.
    #[error("{0} is not a Curt mount of this user; 'curt stat' lists the mounts")]
    NotMounted(PathBuf),
    /// The socket failed.
    #[error("the control socket: {0}")]
    Io(#[from] io::Error),
    /// The daemon refused the command.
    #[error("{0}")]
    Refused(String),
    /// The command failed in the daemon.
    #[error("{0}")]
    Failed(String),
    /// The reply cannot be decoded.
    #[error("unknown reply from the daemon; is it another version of Curt?")]
    Answer,
}

/// Sends a command to a socket and returns the reply.
///
/// # Errors
/// The socket fails, or the command is refused or fails.
pub fn call<C: ControlCommand>(socket: &Path, command: &C) -> Result<C::Reply, ControlError> {
    call_keeping_connection(socket, command).map(|(reply, _)| reply)
}

/// As [`call`], and returns the connection, on which more may follow.
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

/// The replies from all sockets with this suffix in a directory. Sockets without a listener are
/// removed.
///
/// # Errors
/// The directory cannot be read, or other users than this one and root can change it. A missing
/// directory is not an error.
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
    // In /tmp any user can create a directory of that name, and reply for mounts that do not exist.
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
                // Its daemon was killed; another process may have removed it already.
                let _ = std::fs::remove_file(&path);
            }
            Err(_) => {}
        }
    }
    Ok(replies)
}

/// The mounts of a directory of sockets, ordered by mount point. Other files of killed daemons are
/// removed, too.
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

/// The mount at `mount_point`, and its socket. Paths are compared as text, because access to the
/// file system could block.
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
    fn no_connection_is_made_in_a_directory_that_others_can_change() {
        let directory = tempfile::tempdir().expect("a directory");
        let ask = || list(directory.path()).map(|mounts| mounts.len());
        assert_eq!(ask().map_err(|error| error.kind()), Ok(0));
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o777)).expect("its mode");
        assert_eq!(ask().map_err(|error| error.kind()), Err(io::ErrorKind::PermissionDenied));
        let missing = list(&directory.path().join("none"));
        assert!(missing.expect("nothing is mounted").is_empty());
    }
}
