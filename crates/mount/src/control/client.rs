//! The tools' side: finding mounts and asking them.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use super::messages::{MountActivity, MountControlReply, MountControlRequest, MountReport};
use super::mountstats;
use super::server::check_owner;

/// How long a daemon may take to answer.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest answer, in bytes.
const ANSWER_MAX: u64 = 16 << 20;

/// Why a mount could not be asked.
#[derive(Debug, Error)]
pub enum ControlError {
    /// No daemon of this user serves that directory.
    #[error("{0} is not a Curt mount of this user; 'curt stat' lists those that are")]
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
    #[error("the daemon's answer is not understood; is it of another version?")]
    Answer,
}

/// Asks the daemon behind a mount's socket.
///
/// # Errors
/// The socket fails or the answer is no answer.
pub fn ask(socket: &Path, question: &MountControlRequest) -> Result<MountControlReply, ControlError> {
    exchange(socket, question)
}

/// Asks whoever listens on a socket one thing, and takes the answer.
///
/// # Errors
/// The socket fails or the answer is no answer.
pub fn exchange<Q: Serialize, A: DeserializeOwned>(socket: &Path, question: &Q) -> Result<A, ControlError> {
    exchange_keeping_connection(socket, question).map(|(answer, _)| answer)
}

/// The same, with the connection, on which more may follow.
///
/// # Errors
/// As [`exchange`].
pub fn exchange_keeping_connection<Q: Serialize, A: DeserializeOwned>(
    socket: &Path,
    question: &Q,
) -> Result<(A, BufReader<UnixStream>), ControlError> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
    stream.set_write_timeout(Some(REPLY_TIMEOUT))?;
    let mut text = serde_json::to_string(question).map_err(io::Error::from)?;
    text.push('\n');
    stream.write_all(text.as_bytes())?;
    let mut line = String::new();
    let mut reader = BufReader::new(stream);
    reader.by_ref().take(ANSWER_MAX).read_line(&mut line)?;
    let answer = serde_json::from_str(&line).map_err(|_| ControlError::Answer)?;
    Ok((answer, reader))
}

/// A mount's report, and the processes and paths that cause its requests.
///
/// # Errors
/// The socket fails, or the daemon refuses.
pub fn watch(socket: &Path) -> Result<MountActivity, ControlError> {
    match ask(socket, &MountControlRequest::Watch)? {
        MountControlReply::Watched(watched) => Ok(*watched),
        MountControlReply::Refused(why) => Err(ControlError::Refused(why)),
        MountControlReply::Failed(why) => Err(ControlError::Failed(why)),
        _ => Err(ControlError::Answer),
    }
}

/// The mounts of a directory of sockets, with their sockets, in order of their mount points.
/// Sockets that nobody listens on are removed, and so are the other files of daemons that were
/// killed.
///
/// # Errors
/// The directory cannot be read, or others than this user and root can change it. That it is not
/// there only means that nothing is mounted.
pub fn list(directory: &Path) -> io::Result<Vec<(PathBuf, MountReport)>> {
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    // Below /tmp anybody can make a directory of that name, and answer for mounts that are not
    // there.
    check_owner(directory)?;
    let mut mounts = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "socket") {
            continue;
        }
        match ask(&path, &MountControlRequest::Report) {
            Ok(MountControlReply::Report(report)) => mounts.push((path, *report)),
            Err(ControlError::Io(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                // Its daemon was killed; somebody else may have removed it already.
                let _ = std::fs::remove_file(&path);
            }
            Ok(_) | Err(_) => {}
        }
    }
    mountstats::sweep(directory);
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
