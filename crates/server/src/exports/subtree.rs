//! `subtree_check`: whether a file still lies below its export, in directories that the caller may
//! search.
//!
//! A handle alone does not determine the location of a file: it stays valid when the file is
//! renamed out of the export. With this option a handle, except a directory's, contains the
//! directory in which the file was found. That directory must still contain the file, and its
//! parents must lead to the export's root. This costs a look-up for the file and one for each
//! directory above it. A file that was renamed into another directory is stale, as with knfsd. To
//! find that out, the whole directory is listed once for each of its changes.

use std::ops::ControlFlow;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use curt_sync::ClockCache;
use curt_types::{Access, Fault, FileKind, Timestamp};
use curt_vfs::{FsCred, NodeHandle, ReaddirDetail, Vfs};

/// Maximum number of cached locations. For other files the whole directory is searched.
const NAMES_MAX: usize = 16_384;
/// Maximum number of parent directories in a path to the root.
const DEPTH_MAX: usize = 4096;

/// Age of a directory's change time from which every later change has a different one: some file
/// systems have a resolution of two seconds.
const SETTLED: Duration = Duration::from_secs(3);

/// The result of searching a directory for a file.
#[derive(Clone, Debug, PartialEq, Eq)]
enum CachedSearch {
    /// The file was found with this name: a hint, which is verified.
    Under(Box<[u8]>),
    /// No such file. The directory had this change time, which every later change alters.
    Nothing(Timestamp),
}

struct CachedPlace {
    /// A directory, and a file that was searched for in it.
    at: (NodeHandle, NodeHandle),
    search: CachedSearch,
}

/// Cached results of searches.
pub(crate) struct SubtreeCache(ClockCache<CachedPlace>);

impl Default for SubtreeCache {
    fn default() -> Self {
        Self(ClockCache::new(NAMES_MAX))
    }
}

impl SubtreeCache {
    /// Caches the location of a file.
    pub(crate) fn insert_found(&self, directory: &NodeHandle, node: &NodeHandle, name: &[u8]) {
        self.insert(directory, node, CachedSearch::Under(name.into()));
    }

    fn insert(&self, directory: &NodeHandle, node: &NodeHandle, search: CachedSearch) {
        let at = (*directory, *node);
        let place = CachedPlace { at, search };
        self.0.put(at, |known| known.at == at, place);
    }

    fn cached(&self, directory: &NodeHandle, node: &NodeHandle) -> Option<CachedSearch> {
        let at = (*directory, *node);
        self.0.read(at, |known| known.at == at, |known| known.search.clone())
    }

    /// Whether a directory contains a file, by its cached name, else by a search of all names.
    /// `now` is a time before the search.
    fn contains(
        &self,
        vfs: &dyn Vfs,
        directory: &NodeHandle,
        node: &NodeHandle,
        now: SystemTime,
    ) -> Result<bool, Fault> {
        let is_it = |name: &[u8]| {
            let found = vfs.lookup(&FsCred::ROOT, directory, name).value;
            found.is_ok_and(|found| found.handle == *node)
        };
        let seen = self.cached(directory, node);
        if matches!(&seen, Some(CachedSearch::Under(name)) if is_it(name)) {
            return Ok(true);
        }
        let changed = vfs.attributes(directory)?.ctime;
        if seen == Some(CachedSearch::Nothing(changed)) {
            return Ok(false);
        }
        let fileid = vfs.attributes(node)?.fileid;
        let (mut cookie, mut candidate) = (0, None);
        loop {
            let from = cookie;
            let mut visit = |entry: &curt_vfs::VfsDirEntry<'_>| {
                if candidate.is_some() {
                    return ControlFlow::Break(());
                }
                cookie = entry.cookie;
                if entry.fileid == fileid && entry.name != b"." && entry.name != b".." {
                    candidate = Some(Box::<[u8]>::from(entry.name));
                }
                ControlFlow::Continue(())
            };
            let listed = vfs.read_directory(&FsCred::ROOT, directory, from, ReaddirDetail::Names, &mut visit);
            let ended = listed.value?;
            match candidate.take() {
                Some(name) if is_it(&name) => {
                    self.insert_found(directory, node, &name);
                    return Ok(true);
                }
                // The inode is of another file system that is mounted there, or was renamed
                // meanwhile.
                Some(_) => {}
                None if ended => {
                    if is_settled(changed, now) {
                        self.insert(directory, node, CachedSearch::Nothing(changed));
                    }
                    return Ok(false);
                }
                None => {}
            }
        }
    }
}

/// Whether each change from `now` on results in a change time other than this.
fn is_settled(changed: Timestamp, now: SystemTime) -> bool {
    let since = now.duration_since(UNIX_EPOCH).ok();
    let limit = since.and_then(|since| since.checked_sub(SETTLED));
    limit.is_some_and(|limit| {
        let seconds = i64::try_from(limit.as_secs()).unwrap_or(i64::MAX);
        (changed.seconds(), changed.nanoseconds()) <= (seconds, limit.subsec_nanos())
    })
}

/// Checks whether a file may be used. `parent` is the directory in its handle.
///
/// # Errors
/// `NFS3ERR_STALE`: the file is elsewhere, or the caller may not search a directory above it; other
/// errors of the file system.
pub(crate) fn check(
    vfs: &dyn Vfs,
    places: &SubtreeCache,
    caller: &FsCred<'_>,
    node: &NodeHandle,
    parent: Option<&NodeHandle>,
    now: SystemTime,
) -> Result<(), Fault> {
    let root = vfs.root();
    if *node == root {
        return Ok(());
    }
    let kind = vfs.attributes(node)?.kind;
    let mut at = if kind == FileKind::Directory {
        up(vfs, node)?
    } else {
        let parent = parent.ok_or(Fault::Stale)?;
        if !places.contains(vfs, parent, node, now)? {
            return Err(Fault::Stale);
        }
        *parent
    };
    for _ in 0..DEPTH_MAX {
        let may_search = vfs.access(caller, &at, Access::LOOKUP).value?;
        if !may_search.contains(Access::LOOKUP) {
            return Err(Fault::Stale);
        }
        if at == root {
            return Ok(());
        }
        at = up(vfs, &at)?;
    }
    Err(Fault::Stale)
}

fn up(vfs: &dyn Vfs, directory: &NodeHandle) -> Result<NodeHandle, Fault> {
    let parent = vfs.lookup(&FsCred::ROOT, directory, b"..").value;
    Ok(parent?.handle)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use curt_vfs::{CreateMode, LocalOptions, LocalVfs, MemoryOptions, MemoryVfs, NewNode};

    use curt_types::SetAttributes;

    use super::*;

    fn directory(vfs: &dyn Vfs, parent: &NodeHandle, name: &str, mode: u32) -> NodeHandle {
        let set = SetAttributes::with_mode(mode);
        let made = vfs.make(&FsCred::ROOT, parent, name.as_bytes(), NewNode::Directory(&set));
        made.value.unwrap().node.handle
    }

    fn file(vfs: &dyn Vfs, parent: &NodeHandle, name: &str) -> NodeHandle {
        let set = SetAttributes::with_mode(0o666);
        let made = vfs.create(&FsCred::ROOT, parent, name.as_bytes(), CreateMode::Guarded(&set));
        made.value.unwrap().node.handle
    }

    #[test]
    fn subtree_check_serves_a_file_in_its_directory_to_callers_that_may_search_the_path() {
        let vfs = MemoryVfs::new(MemoryOptions { root_mode: 0o755, ..MemoryOptions::default() });
        let (open, closed) =
            (directory(&vfs, &vfs.root(), "o", 0o755), directory(&vfs, &vfs.root(), "c", 0o700));
        let (seen, hidden) = (file(&vfs, &open, "f"), file(&vfs, &closed, "f"));
        let below = directory(&vfs, &closed, "d", 0o777);
        let places = SubtreeCache::default();
        let checked = |uid, node: &NodeHandle, parent: Option<&NodeHandle>| {
            check(&vfs, &places, &FsCred::new(uid, uid, &[]), node, parent, SystemTime::now())
        };
        assert_eq!(checked(1000, &vfs.root(), None), Ok(()));
        assert_eq!(checked(1000, &open, None), Ok(()));
        for _ in 0..2 {
            assert_eq!(checked(1000, &seen, Some(&open)), Ok(()), "by listing, then by name");
        }
        assert_eq!(checked(1000, &seen, None), Err(Fault::Stale), "no parent in the handle");
        assert_eq!(checked(1000, &seen, Some(&closed)), Err(Fault::Stale), "another's parent");
        assert_eq!(checked(1000, &hidden, Some(&closed)), Err(Fault::Stale), "the way is closed");
        assert_eq!(checked(1000, &below, None), Err(Fault::Stale), "the way is closed");
        assert_eq!(checked(0, &hidden, Some(&closed)), Ok(()));
        let moved = vfs.rename(&FsCred::ROOT, &open, b"f", &open, b"g");
        moved.value.unwrap();
        assert_eq!(checked(1000, &seen, Some(&open)), Ok(()), "renamed where it is");
        vfs.rename(&FsCred::ROOT, &open, b"g", &vfs.root(), b"g").value.unwrap();
        assert_eq!(checked(1000, &seen, Some(&open)), Err(Fault::Stale), "moved elsewhere");
    }

    // SEMANTICS: export-5.
    #[test]
    fn what_was_moved_out_of_the_export_is_stale() {
        let top = tempfile::tempdir().unwrap();
        for name in ["export", "export/d", "outside"] {
            std::fs::create_dir(top.path().join(name)).unwrap();
        }
        std::fs::write(top.path().join("export/d/f"), "text").unwrap();
        let options = LocalOptions { table: Some(top.path().join("table")), ..LocalOptions::default() };
        let vfs = LocalVfs::open(&top.path().join("export"), &options).unwrap();
        let find = |at: &NodeHandle, name: &str| {
            let found = vfs.lookup(&FsCred::ROOT, at, name.as_bytes());
            found.value.unwrap().handle
        };
        let d = find(&vfs.root(), "d");
        let f = find(&d, "f");
        let places = SubtreeCache::default();
        let checked = |node, parent| check(&vfs, &places, &FsCred::ROOT, node, parent, SystemTime::now());
        assert_eq!((checked(&d, None), checked(&f, Some(&d))), (Ok(()), Ok(())));
        std::fs::rename(top.path().join("export/d"), top.path().join("outside/d")).unwrap();
        assert!(checked(&d, None).is_err() && checked(&f, Some(&d)).is_err());
        std::fs::rename(top.path().join("outside/d"), top.path().join("export/e")).unwrap();
        assert_eq!((checked(&d, None), checked(&f, Some(&d))), (Ok(()), Ok(())));
        std::fs::rename(top.path().join("export/e/f"), top.path().join("outside/f")).unwrap();
        assert_eq!(checked(&f, Some(&d)), Err(Fault::Stale));
    }

    #[test]
    fn a_file_that_is_elsewhere_is_looked_for_once_until_the_directory_changes() {
        let vfs = MemoryVfs::new(MemoryOptions::default());
        let (from, to) =
            (directory(&vfs, &vfs.root(), "from", 0o755), directory(&vfs, &vfs.root(), "to", 0o755));
        let node = file(&vfs, &from, "f");
        let places = SubtreeCache::default();
        let move_it = |from, to| {
            let moved = vfs.rename(&FsCred::ROOT, from, b"f", to, b"f");
            moved.value.unwrap();
        };
        // A time long after the test, and the time of the last change.
        let later = SystemTime::now() + Duration::from_secs(3600);
        let changed = || vfs.attributes(&from).unwrap().ctime;
        let at_once = || {
            let since = Duration::new(u64::try_from(changed().seconds()).unwrap(), changed().nanoseconds());
            SystemTime::UNIX_EPOCH + since
        };
        let has = |now| places.contains(&vfs, &from, &node, now);
        let is_remembered = || matches!(places.cached(&from, &node), Some(CachedSearch::Nothing(_)));
        assert_eq!(has(later), Ok(true));
        move_it(&from, &to);
        assert_eq!(has(at_once()), Ok(false));
        assert!(!is_remembered(), "it could come back at once");
        assert_eq!(has(later), Ok(false));
        assert!(is_remembered());
        move_it(&to, &from);
        assert_eq!(has(later), Ok(true), "the directory changed");
        // A cached result is used without a search: here a wrong one, for a file that exists.
        places.insert(&from, &node, CachedSearch::Nothing(changed()));
        assert_eq!(has(later), Ok(false));
        file(&vfs, &from, "other");
        assert_eq!(has(later), Ok(true));
    }

    #[test]
    fn the_number_of_cached_names_is_limited() {
        let places = SubtreeCache::default();
        let node = |at: u32| {
            let bytes = at.to_be_bytes();
            NodeHandle::new(curt_vfs::HandleScheme::Memory, 0, &bytes).unwrap()
        };
        let limit = u32::try_from(NAMES_MAX).unwrap();
        for at in 0..=2 * limit {
            places.insert_found(&node(0), &node(at), b"name");
        }
        assert!(places.0.len() <= NAMES_MAX);
        assert!(places.cached(&node(0), &node(2 * limit)).is_some());
    }
}
