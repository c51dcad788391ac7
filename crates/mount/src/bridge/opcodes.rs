//! Counts of the kernel's requests by operation: those that its own caches did not answer.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! operations {
    ($($name:ident $text:literal;)+) => {
        /// An operation of FUSE.
        #[derive(Debug, Clone, Copy)]
        pub(super) enum FuseOpcode {
            $($name,)+
        }

        const NAMES: &[&str] = &[$($text),+];
    };
}

operations! {
    Lookup "LOOKUP"; Forget "FORGET"; Getattr "GETATTR"; Setattr "SETATTR"; Readlink "READLINK"; Symlink "SYMLINK";
    Mknod "MKNOD"; Mkdir "MKDIR"; Unlink "UNLINK"; Rmdir "RMDIR"; Rename "RENAME"; Link "LINK"; Open "OPEN";
    Create "CREATE"; Read "READ"; Write "WRITE"; Statfs "STATFS"; Flush "FLUSH"; Release "RELEASE"; Fsync "FSYNC";
    Opendir "OPENDIR"; Readdir "READDIR"; Readdirplus "READDIRPLUS"; Releasedir "RELEASEDIR"; Access "ACCESS";
}

/// Requests of the kernel, by operation.
#[derive(Debug, Default)]
pub(super) struct FuseOpcodeCounts([AtomicU64; NAMES.len()]);

impl FuseOpcodeCounts {
    pub(super) fn count(&self, operation: FuseOpcode) {
        self.0[operation as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// All numbers, by name.
    pub(super) fn snapshot(&self) -> BTreeMap<String, u64> {
        let numbers = self.0.iter().map(|number| number.load(Ordering::Relaxed));
        NAMES.iter().map(|name| (*name).to_owned()).zip(numbers).collect()
    }
}
