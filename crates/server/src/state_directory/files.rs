//! Atomic replacement of files: written under another name, made durable, renamed.

use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::{StateError, damaged};

/// Maximum size of a file of the state in bytes. A larger one is refused.
pub(super) const FILE_MAX: u64 = 64 << 20;

/// Creates a directory for its owner alone, unless it exists.
pub(super) fn make_directory(path: &Path) -> Result<(), StateError> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed(path))
}

/// A file's bytes; `None` if there is no such file.
pub(super) fn read(path: &Path) -> Result<Option<Vec<u8>>, StateError> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(failed(path))?,
    };
    let mut bytes = Vec::new();
    let length = file.take(FILE_MAX + 1).read_to_end(&mut bytes).map_err(failed(path))?;
    if u64::try_from(length).is_ok_and(|length| length <= FILE_MAX) {
        Ok(Some(bytes))
    } else {
        Err(damaged(path, format!("it is larger than {} MiB", FILE_MAX >> 20)))
    }
}

/// Replaces the contents of a file (mode 0600) atomically: after a crash it has the old or the new
/// bytes.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> Result<(), StateError> {
    let beside = path.with_extension(format!("{}.new", std::process::id()));
    let written = write_durably(&beside, bytes).and_then(|()| std::fs::rename(&beside, path));
    if let Err(source) = written {
        // Best effort: the first error is returned.
        let _ = std::fs::remove_file(&beside);
        return Err(StateError::Io { path: path.to_owned(), source });
    }
    let directory = path.parent().unwrap_or_else(|| Path::new("."));
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed(directory))
}

fn write_durably(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Excludes other servers from the state until it is dropped.
pub(super) fn lock(directory: &Path) -> Result<File, StateError> {
    let path: PathBuf = directory.join("lock");
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
    let file = file.map_err(failed(&path))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => Err(StateError::InUse(directory.to_owned())),
        Err(errno) => Err(failed(&path)(errno.into())),
    }
}

/// Refuses a directory in which users other than that of this process could read or replace a key.
pub(super) fn check_owner(directory: &Path) -> Result<(), StateError> {
    let status = std::fs::metadata(directory).map_err(failed(directory))?;
    if !status.is_dir() {
        return Err(failed(directory)(io::Error::from(io::ErrorKind::NotADirectory)));
    }
    match own_mode(directory, &status)? {
        mode if mode & 0o022 != 0 => Err(StateError::Open { path: directory.to_owned(), mode }),
        _ => Ok(()),
    }
}

/// Refuses a secret that others than its owner may read or change, for example after it was
/// restored with another mode.
pub(super) fn check_secret(path: &Path) -> Result<(), StateError> {
    let status = match std::fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        status => status.map_err(failed(path))?,
    };
    match own_mode(path, &status)? {
        mode if mode & 0o077 != 0 => Err(StateError::Exposed { path: path.to_owned(), mode }),
        _ => Ok(()),
    }
}

/// The permission bits of what the user of this process owns.
fn own_mode(path: &Path, status: &Metadata) -> Result<u32, StateError> {
    let owner = status.uid();
    if owner != rustix::process::geteuid().as_raw() {
        return Err(StateError::Foreign { path: path.to_owned(), owner });
    }
    Ok(status.mode() & 0o7777)
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> StateError {
    let path = path.to_owned();
    move |source| StateError::Io { path, source }
}
