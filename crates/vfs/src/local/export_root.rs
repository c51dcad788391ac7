//! Opening a directory to serve it.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::OpenTreeFlags;

use super::access_check_cache::AccessCheckCache;
use super::change_locks::ChangeLocks;
use super::credentials::FsIdentity;
use super::file_cache::FileCache;
use super::handles::HandleSource;
use super::lookup_cache::NameLookupCache;
use super::opath_cache::OPathCache;
use super::options::{FileCaching, LocalError, LocalOptions, MetadataDurability, OPathCaching};
use super::pins::PinnedObjects;
use super::read::ReadSupport;
use super::shared_sync::SharedSync;
use super::sweeper::{OpenCaches, Sweeper};
use super::unstable::UnstableFiles;
use super::write_latency::WriteLatency;
use super::write_losses::LossCounters;
use super::{LocalVfs, data, limits, stat};
use crate::MayBlock;
use crate::caller::FsCred;

impl LocalVfs {
    /// Opens a directory to serve it, and determines the source of handles (kernel or table) and
    /// the possible credentials (any, or only this process's user). Does not change the calling
    /// thread's ids and capabilities.
    pub fn open(path: &Path, options: &LocalOptions) -> Result<Self, LocalError> {
        std::thread::scope(|scope| scope.spawn(|| Self::open_here(path, options)).join())
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Runs on a new thread, because testing handles changes the thread's credentials.
    fn open_here(path: &Path, options: &LocalOptions) -> Result<Self, LocalError> {
        let failed = |source| LocalError::Open { path: path.to_owned(), source };
        let identity = FsIdentity::of_process();
        if identity == FsIdentity::Anybody {
            // The thread that started this one may have had other credentials.
            identity.switch_to(&FsCred::ROOT).map_err(failed)?;
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let given = rustix::fs::open(path, flags, Mode::empty()).map_err(failed)?;
        let root = without_mounts(&given).map_err(failed)?;
        let reopened = data::reopen(root.as_fd(), OFlags::RDONLY | OFlags::DIRECTORY);
        reopened.map_err(|errno| match errno {
            Errno::NOENT => LocalError::NoProc(errno),
            // It exists, but this process may not read it.
            other => failed(other),
        })?;
        let handles = HandleSource::choose(path, root.as_fd(), identity, options)?;
        let root_handle = handles.of(root.as_fd()).map_err(failed)?;
        let attributes = stat::attributes(&rustix::fs::fstat(&root).map_err(failed)?);
        let waits = limits::waits(root.as_fd()).map_err(failed)?;
        let stable_metadata = options.metadata == MetadataDurability::Stable && waits != MayBlock::Never;
        let room = match options.opath_caching {
            OPathCaching::On => OPathCache::room(),
            OPathCaching::Off => 0,
        };
        let open_caches = Arc::new(OpenCaches {
            opath_cache: OPathCache::new(room),
            file_cache: FileCache::new(options.file_caching == FileCaching::On),
            unstable_files: UnstableFiles::new(OPathCache::room() / 4),
            pins: Arc::new(PinnedObjects::new(OPathCache::room())),
        });
        let sweeper = Sweeper::start(&open_caches);
        Ok(Self {
            _given: given,
            mount: stat::mount_of(root.as_fd()),
            root: Arc::new(root),
            root_handle,
            root_fileid: attributes.fileid,
            root_fsid: attributes.fsid,
            identity,
            handles,
            locks: ChangeLocks::new(),
            syncing: ChangeLocks::new(),
            read_support: ReadSupport::new(),
            lookup_cache: NameLookupCache::new(),
            access_checks: AccessCheckCache::new(),
            open_caches,
            sweeper,
            stable_metadata: AtomicBool::new(stable_metadata),
            write_latency: WriteLatency::new(waits),
            losses: LossCounters::new(),
            syncs: SharedSync::default(),
        })
    }
}

/// The directory in a private mount without other mounts on it, if permitted.
fn without_mounts(given: &OwnedFd) -> Result<OwnedFd, Errno> {
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    match rustix::mount::open_tree(given, c"", flags) {
        Ok(tree) => Ok(tree),
        Err(errno) => {
            tracing::debug!(%errno, "mount points below the root will be refused");
            rustix::io::fcntl_dupfd_cloexec(given, 0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HandleChoice;

    #[test]
    fn what_cannot_be_served_is_refused_by_name() {
        let Err(error) = LocalVfs::open(Path::new("/nowhere/at/all"), &LocalOptions::default()) else {
            panic!("there is no such directory");
        };
        assert!(error.to_string().starts_with("/nowhere/at/all: "), "{error}");
        let options = LocalOptions { handles: HandleChoice::Kernel, ..LocalOptions::default() };
        let Err(error) = LocalVfs::open(Path::new("/proc"), &options) else {
            panic!("proc has no handles");
        };
        assert!(error.to_string().starts_with("/proc: no file handles: "), "{error}");
    }
}
