//! The mount point, and its mount namespace.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use curt_fuse::mountinfo::mounted_at;

use crate::helper::{ExitStatus, MountFailure};

/// The file system type in mountinfo.
pub const TYPE: &str = "fuse.curt";

/// The mount point without symbolic links and `..`, if it can be used.
///
/// # Errors
/// In the phrases of mount.nfs: it does not exist, is not a directory, or the same source is
/// already mounted there.
pub(super) fn mount_point(target: &Path, source: &str) -> Result<PathBuf, MountFailure> {
    let shown = target.display();
    let failed = |what: String, advice: &str| MountFailure::lasting(ExitStatus::Failed, what, advice);
    let unusable = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => failed(
            format!("mount point {shown} does not exist"),
            "create the directory first, or use -o X-mount.mkdir",
        ),
        io::ErrorKind::NotConnected => failed(
            format!("mount point {shown}: the daemon of an earlier mount is gone"),
            "remove that mount first: umount",
        ),
        _ => failed(format!("mount point {shown}: {error}"), ""),
    };
    let path = std::fs::canonicalize(target).map_err(unusable)?;
    // A mount without a daemon is on the path; its own error does not show this.
    if !std::fs::metadata(&path).map_err(unusable)?.is_dir() {
        return Err(failed(format!("mount point {shown} is not a directory"), ""));
    }
    let there = mounted_at(&path).map_err(|error| failed(format!("/proc/self/mountinfo: {error}"), ""))?;
    if there.is_some_and(|mounted| mounted.source == source && mounted.kind == TYPE) {
        return Err(failed(format!("{shown} is busy or already mounted"), "see: curt stat"));
    }
    Ok(path)
}

/// Enters the mount namespace of a process id, or the one at a path. Must be called before threads
/// are started.
pub(super) fn enter_namespace(namespace: &str) -> Result<(), MountFailure> {
    let path = match namespace.parse::<u32>() {
        Ok(pid) => PathBuf::from(format!("/proc/{pid}/ns/mnt")),
        Err(_) => PathBuf::from(namespace),
    };
    let entered = File::open(&path).and_then(|file| {
        let kind = Some(rustix::thread::LinkNameSpaceType::Mount);
        rustix::thread::move_into_link_name_space(std::os::fd::AsFd::as_fd(&file), kind)
            .map_err(io::Error::from)
    });
    entered.map_err(|error| {
        MountFailure::lasting(ExitStatus::Failed, format!("mount namespace {}: {error}", path.display()), "")
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that fails may panic")]
mod tests {
    use std::path::Path;

    use super::mount_point;

    #[test]
    fn a_mount_point_must_be_a_directory_that_is_there() {
        let missing = mount_point(Path::new("/does/not/exist"), "nas:/").unwrap_err();
        assert_eq!(missing.what, "mount point /does/not/exist does not exist");
        assert_eq!(missing.status as u8, 32);
        let file = mount_point(Path::new("/proc/self/mountinfo"), "nas:/").unwrap_err();
        assert!(file.what.ends_with("is not a directory"), "{}", file.what);
        assert_eq!(mount_point(Path::new("/proc/../proc"), "nas:/").unwrap(), Path::new("/proc"));
    }
}
