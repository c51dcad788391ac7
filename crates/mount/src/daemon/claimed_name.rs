//! The claim of a mount's name at NFSv4 servers: a file that is locked in a directory that this
//! user alone can write to. Other users cannot take the name away.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use curt_observe::control;

use crate::locked_file::{create_directory, is_at, open_locked};

/// A name that no other mount of this user gets as long as this exists. Mounts with different
/// control directories do not see each other's claims, as those of a login session and of a service
/// without `XDG_RUNTIME_DIR`. A directory that is removed, as at the last logout, has no claims.
#[derive(Debug)]
pub(super) struct ClaimedName {
    path: PathBuf,
    /// Locked.
    file: File,
}

impl ClaimedName {
    /// Claims the name with this hash; `None`: another mount has it.
    ///
    /// # Errors
    /// The directory cannot be used, or belongs to others.
    pub(super) fn claim(hash: u64) -> io::Result<Option<Self>> {
        Self::claim_in(&control::directory().join("clients"), hash)
    }

    fn claim_in(directory: &Path, hash: u64) -> io::Result<Option<Self>> {
        create_directory(directory)?;
        let path = directory.join(format!("{hash:016x}"));
        Ok(open_locked(&path)?.map(|file| Self { path, file }))
    }
}

impl Drop for ClaimedName {
    fn drop(&mut self) {
        // It may have been removed, and another mount have claimed the name since. That of a mount
        // that ends without this stays, for the next mount at its place.
        if is_at(&self.file, &self.path) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    // SEMANTICS: sessions-23.
    #[test]
    fn a_name_is_one_mounts_until_it_ends_or_is_killed_and_never_another_users() {
        let run = tempfile::tempdir().unwrap();
        let directory = run.path().join("clients");
        let claim = |hash| ClaimedName::claim_in(&directory, hash);
        let first = claim(1).unwrap().unwrap();
        assert!(claim(1).unwrap().is_none() && claim(2).unwrap().is_some());
        drop(first);
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 0, "nothing is left");
        // By a mount that was killed.
        fs::write(directory.join("0000000000000001"), "").unwrap();
        assert!(claim(1).unwrap().is_some());
        // Its directory was removed meanwhile.
        let before = claim(1).unwrap().unwrap();
        fs::remove_dir_all(&directory).unwrap();
        let _since = claim(1).unwrap().unwrap();
        drop(before);
        assert!(claim(1).unwrap().is_none(), "it is the next mount's");
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(claim(1).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }
}
