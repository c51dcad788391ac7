//! The path from a directory to the root of the tree: objects outside the root are never exposed.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use curt_types::Attributes;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;

use super::stat::{self, StatxResult, status};
use super::{LocalVfs, PATH};
use crate::error::Error;

/// A relative path to ancestors: the number of levels that are checked by name.
const UPWARDS: &[u8] = b"../../../../../../../../";

impl LocalVfs {
    /// The parent of a directory; the root's is the root itself.
    pub(super) fn open_parent(
        &self,
        directory: BorrowedFd<'_>,
        attributes: &Attributes,
    ) -> Result<OwnedFd, Error> {
        if self.is_root(attributes) {
            return Ok(rustix::io::fcntl_dupfd_cloexec(directory, 0)?);
        }
        let parent = match rustix::fs::openat(directory, c"..", PATH | OFlags::DIRECTORY, Mode::empty()) {
            // The kernel detects that it is outside of the root's mount.
            Err(Errno::NOENT) => return Err(Error::STALE),
            parent => parent?,
        };
        if self.is_within_root(parent.as_fd())? { Ok(parent) } else { Err(Error::STALE) }
    }

    pub(super) fn is_root(&self, attributes: &Attributes) -> bool {
        attributes.fileid == self.root_fileid && attributes.fsid == self.root_fsid
    }

    /// Whether a directory is the root or below it, independent of search permissions.
    fn is_within_root(&self, directory: BorrowedFd<'_>) -> Result<bool, Errno> {
        self.identity.with_capabilities(CapabilitySet::DAC_READ_SEARCH, || {
            let mut at = rustix::io::fcntl_dupfd_cloexec(directory, 0)?;
            loop {
                let here = stat::attributes(&rustix::fs::fstat(&at)?);
                if self.is_root(&here) {
                    return Ok(true);
                }
                let parent = rustix::fs::openat(&at, c"..", PATH | OFlags::DIRECTORY, Mode::empty())?;
                let above = stat::attributes(&rustix::fs::fstat(&parent)?);
                if (above.fileid, above.fsid) == (here.fileid, here.fsid) {
                    return Ok(false);
                }
                at = parent;
            }
        })?
    }

    /// Whether the parent of a directory, with these attributes, is the root or below it,
    /// checked by name with the caller's permissions. `false` if unknown.
    pub(super) fn has_above(&self, directory: BorrowedFd<'_>, parent: &Attributes) -> bool {
        let mut here = *parent;
        for level in 2.. {
            if self.is_root(&here) {
                return true;
            }
            let above = UPWARDS.get(..level * 3).map(|path| status(directory, path));
            let Some(Ok(StatxResult { attributes, .. })) = above else {
                return false;
            };
            if (attributes.fileid, attributes.fsid) == (here.fileid, here.fsid) {
                return false;
            }
            here = attributes;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use std::fs;

    use super::super::lookup_cache::NameSource;
    use super::*;
    use crate::handle::NodeHandle;
    use crate::{FsCred, LocalOptions, ReaddirDetail, Vfs};
    use std::ops::ControlFlow;

    /// The parent of a directory as returned by a listing.
    fn listed_parent(vfs: &LocalVfs, directory: &NodeHandle) -> Option<NodeHandle> {
        let mut parent = None;
        let listed = vfs.read_directory(&FsCred::ROOT, directory, 0, ReaddirDetail::Nodes, &mut |entry| {
            if entry.name == b".." {
                parent = entry.node.as_ref().map(|node| node.handle);
            }
            ControlFlow::Continue(())
        });
        listed.value.unwrap();
        parent
    }

    #[test]
    fn a_cached_parent_is_valid_only_while_it_is_the_parent_and_in_the_tree() {
        let beside = tempfile::tempdir().unwrap();
        let at = |path: &str| beside.path().join(path);
        for path in ["tree/above/below", "tree/other", "elsewhere"] {
            fs::create_dir_all(at(path)).unwrap();
        }
        let Ok(vfs) = LocalVfs::open(&at("tree"), &LocalOptions::default()) else {
            return;
        };
        let find = |directory: &NodeHandle, name: &[u8]| {
            let found = vfs.lookup(&FsCred::ROOT, directory, name);
            found.value.unwrap().handle
        };
        let above = find(&vfs.root(), b"above");
        let (below, other) = (find(&above, b"below"), find(&vfs.root(), b"other"));
        while vfs.lookup_cache.find(NameSource::Listing, &below, b"..").is_none() {
            assert_eq!(listed_parent(&vfs, &below), Some(above));
        }
        assert_eq!(listed_parent(&vfs, &below), Some(above));
        fs::rename(at("tree/above"), at("elsewhere/above")).unwrap();
        assert_eq!(listed_parent(&vfs, &below), None);
        fs::rename(at("elsewhere/above"), at("tree/above")).unwrap();
        assert_eq!(listed_parent(&vfs, &below), Some(above));
        fs::rename(at("tree/above/below"), at("tree/other/below")).unwrap();
        assert_eq!(listed_parent(&vfs, &below), Some(other));
    }
}
