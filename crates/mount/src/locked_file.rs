//! Files in the control directory that a process has locked (flock(2)) as long as it lives, and
//! that others find unlocked if it was killed.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

/// Creates a file that is locked; `None`: there is one already.
pub(crate) fn create_locked(path: &Path) -> io::Result<Option<File>> {
    match OpenOptions::new().create_new(true).read(true).write(true).mode(0o600).open(path) {
        // A process that looks for the files of killed mounts may have locked it first, and
        // removes it.
        Ok(file) => Ok((file.try_lock().is_ok() && is_at(&file, path)).then_some(file)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
        Err(error) => Err(error),
    }
}

/// Opens a file, or creates it, and locks it; `None`: it is locked already. Whoever has it locked
/// may remove it.
pub(crate) fn open_locked(path: &Path) -> io::Result<Option<File>> {
    loop {
        let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)?;
        match file.try_lock() {
            Ok(()) if is_at(&file, path) => return Ok(Some(file)),
            // It was removed meanwhile.
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}

/// Whether a path still leads to an open file.
pub(crate) fn is_at(file: &File, path: &Path) -> bool {
    let (open, there) = (file.metadata(), fs::symlink_metadata(path));
    open.and_then(|open| Ok((open.dev(), open.ino()) == there.map(|there| (there.dev(), there.ino()))?))
        .unwrap_or(false)
}

/// Creates a directory that this user alone can use, in one that this user alone can write to.
pub(crate) fn create_directory(directory: &Path) -> io::Result<()> {
    let user = rustix::process::geteuid().as_raw();
    for (path, mode) in [(directory.parent(), 0o755), (Some(directory), 0o700)] {
        let Some(path) = path else { continue };
        DirBuilder::new().recursive(true).mode(mode).create(path)?;
        let found = fs::symlink_metadata(path)?;
        if !found.is_dir() || found.uid() != user || found.mode() & 0o022 != 0 {
            let error = format!("{} belongs to other users, or they can write to it", path.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, error));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    #[test]
    fn the_control_directory_can_be_entered_whoever_creates_it() {
        let run = tempfile::tempdir().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        create_directory(&run.path().join("curt/clients")).unwrap();
        // As that of the sockets is created.
        DirBuilder::new().mode(0o755).create(run.path().join("sockets")).unwrap();
        assert_eq!(mode(&run.path().join("curt")), mode(&run.path().join("sockets")));
        assert_eq!(mode(&run.path().join("curt/clients")), 0o700);
    }
}
