//! Removing, renaming and linking names. An object that loses or gets a name changes together with
//! its directory (its ctime and link count). So its lock is taken as well, and the attributes
//! around a concurrent write include only the write.
//!
//! The object of a name is looked up before the locks are taken, which are taken in a fixed order,
//! and must be the same afterwards; otherwise all of this starts again. If no name in the directory
//! was changed through this tree meanwhile, it is the same. Changes by local processes are not
//! prevented by these locks at any time. The object is found by its handle and kept open only if it
//! is large: it is then closed, and its blocks are freed, after the locks are released.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use curt_types::{Attributes, FileKind, PreOpState, Wcc};
use rustix::fs::{AtFlags, CWD};
use rustix::path::Arg;

use super::data::proc_path;
use super::handles::status_of_name;
use super::lookup_cache::NameSource;
use super::stat::status;
use super::{LocalVfs, attributes_of};
use crate::ObjectPermit;
use crate::caller::FsCred;
use crate::error::Error;
use crate::handle::NodeHandle;
use crate::name::check_new_name;
use crate::result::{LinkResult, RenameResult, WccResult};

/// Minimum size of a file that is kept open while its name is removed: freeing its blocks takes
/// time.
const HELD_OPEN_MIN: u64 = 1 << 20;

/// Maximum number of retries of a change while its names change to other objects before their locks
/// are taken.
const NAME_TRIES_MAX: usize = 16;

impl LocalVfs {
    /// The object of a name, for a caller who may search the directory.
    fn resolve_name(&self, fd: BorrowedFd<'_>, directory: &NodeHandle, name: &[u8]) -> Option<NamedObject> {
        let remembered = self.lookup_cache.find(NameSource::Lookup, directory, name).and_then(|known| {
            let seen = status(fd, name).ok()?;
            Some((known.handle(&seen)?, seen.attributes.used >= HELD_OPEN_MIN))
        });
        let handle = match remembered {
            Some((handle, _)) => handle,
            None => name.into_with_c_str(|name| self.handles.handle_of_name(fd, name)).ok()?,
        };
        let is_large = || remembered.map_or_else(|| self.is_large(fd, name), |(_, is_large)| is_large);
        let is_pinned = self.open_caches.pins.contains(&handle);
        let opened = match self.open_caches.opath_cache.find(&handle) {
            None if is_pinned || is_large() => self.open_name(fd, name).ok().map(Arc::new),
            opened => opened,
        };
        if let Some(opened) = opened.as_ref().filter(|_| is_pinned) {
            self.open_caches.pins.keep(&handle, opened);
        }
        Some(NamedObject { handle, _opened: opened })
    }

    fn is_large(&self, directory: BorrowedFd<'_>, name: &[u8]) -> bool {
        let found = name.into_with_c_str(|name| status_of_name(directory, name));
        found.is_ok_and(|status| status.stx_blocks.saturating_mul(512) >= HELD_OPEN_MIN)
    }

    /// The object that a name refers to.
    fn handle_now(&self, directory: BorrowedFd<'_>, name: &[u8]) -> Option<NodeHandle> {
        name.into_with_c_str(|name| self.handles.handle_of_name(directory, name)).ok()
    }

    pub(super) fn remove_name(
        &self,
        caller: &FsCred<'_>,
        directory: &NodeHandle,
        name: &[u8],
        flags: AtFlags,
        permit: &mut ObjectPermit<'_>,
    ) -> WccResult<()> {
        let mut tries = 0..NAME_TRIES_MAX;
        loop {
            let last = tries.next().is_none();
            let turns = self.locks.name_changes(directory);
            // It changes as well, so it is locked too.
            let victim = self.peek(caller, directory, name);
            let others = victim.iter().map(|victim| &victim.handle);
            let (changed, parent) = self.change_with(caller, directory, others, |parent, _| {
                check_new_name(name)?;
                let seen = victim.as_ref().map(|victim| victim.handle);
                let is_same = self.locks.name_changes(directory) == turns;
                let now = if is_same { seen } else { self.handle_now(parent, name) };
                if !last && now != seen {
                    return Ok(false);
                }
                now.map_or(Ok(()), |object| permit(directory, &object))?;
                rustix::fs::unlinkat(parent, name, flags)?;
                Ok(true)
            });
            if matches!(changed.value, Ok(false)) {
                continue;
            }
            let WccResult { before, after, value } = self.made_durable(changed, directory, parent);
            let value = value.map(|_| ());
            if let (Some(victim), Ok(())) = (victim, &value) {
                self.after_unlink(&victim, directory, name);
            }
            return WccResult { before, after, value };
        }
    }

    /// As [`LocalVfs::resolve_name`], before any lock is taken.
    fn peek(&self, caller: &FsCred<'_>, directory: &NodeHandle, name: &[u8]) -> Option<NamedObject> {
        check_new_name(name).ok()?;
        let parent = self.resolve(directory).ok()?;
        self.identity.switch_to(caller).ok()?;
        self.resolve_name(parent.as_fd(), directory, name)
    }

    /// Releases cached state of an object that had this name.
    fn after_unlink(&self, victim: &NamedObject, directory: &NodeHandle, name: &[u8]) {
        self.handles.forget(&victim.handle, directory, name);
        self.open_caches.file_cache.release(&victim.handle);
        let cached = [
            self.open_caches.opath_cache.find(&victim.handle),
            self.open_caches.unstable_files.watched(&victim.handle),
        ];
        // Other errors do not prove that it is gone: cached descriptors serve callers that use
        // another name of it.
        let is_gone = |fd: &Arc<OwnedFd>| attributes_of(fd.as_fd()) == Err(Error::STALE);
        if cached.iter().flatten().next().is_some_and(is_gone) {
            self.open_caches.opath_cache.release(&victim.handle);
            if !self.open_caches.pins.contains(&victim.handle) {
                self.open_caches.unstable_files.forget(&victim.handle);
            }
        }
    }

    pub(super) fn link_name(
        &self,
        caller: &FsCred<'_>,
        node: &NodeHandle,
        directory: &NodeHandle,
        name: &[u8],
    ) -> LinkResult {
        let object = self.resolve(node);
        let (changed, parent) = self.change_with(caller, directory, [node], |parent, _| {
            check_new_name(name)?;
            let object = as_found(&object)?;
            attributes_of(object.as_fd())?;
            // By /proc: AT_EMPTY_PATH would need CAP_DAC_READ_SEARCH. The object itself is linked.
            let path = proc_path(object.as_fd());
            rustix::fs::linkat(CWD, path.as_str(), parent, name, AtFlags::SYMLINK_FOLLOW)?;
            Ok(())
        });
        let changed = self.recorded(changed, |()| *node, directory, name);
        let changed = self.made_durable(changed, directory, parent);
        let attributes = object.ok().and_then(|object| attributes_of(object.as_fd()).ok());
        LinkResult { node: attributes, directory: changed }
    }

    pub(super) fn rename_name(
        &self,
        caller: &FsCred<'_>,
        from: &NodeHandle,
        from_name: &[u8],
        to: &NodeHandle,
        to_name: &[u8],
        permit: &mut ObjectPermit<'_>,
    ) -> RenameResult {
        let (source, target) = (self.resolve(from), self.resolve(to));
        let assumed = self.identity.switch_to(caller).map_err(Error::from);
        let mut tries = 0..NAME_TRIES_MAX;
        let (before, value, after) = loop {
            let last = tries.next().is_none();
            let turns = [from, to].map(|directory| self.locks.name_changes(directory));
            let moved = self.peek(caller, from, from_name);
            let replaced = self.peek(caller, to, to_name);
            let others = moved.iter().chain(&replaced).map(|named| &named.handle);
            let opened = self.locks.hold_all([from, to].into_iter().chain(others));
            let before = [(from, &source), (to, &target)]
                .map(|(handle, directory)| self.getattr(handle, as_found(directory)?));
            // A removed object that is still open counts as removed, whatever the kernel's first
            // error would be.
            let are_there = before.iter().try_for_each(|found| as_found(found).map(|_| ()));
            let value = are_there.and(assumed).and_then(|()| {
                let (source, target) = (as_found(&source)?, as_found(&target)?);
                check_new_name(from_name)?;
                check_new_name(to_name)?;
                let seen = [&moved, &replaced].map(|named| named.as_ref().map(|named| named.handle));
                let is_same = [from, to].map(|directory| self.locks.name_changes(directory)) == turns;
                let handles = || {
                    [(source, from_name), (target, to_name)]
                        .map(|(fd, name)| self.handle_now(fd.as_fd(), name))
                };
                let now = if is_same { seen } else { handles() };
                if !last && now != seen {
                    return Ok(None);
                }
                permit_both([(from, now[0]), (to, now[1])], permit)?;
                // If something failed above, the kernel returns the same error, in its own order.
                rustix::fs::renameat(source, from_name, target, to_name)?;
                let moved = moved.or_else(|| self.resolve_name(target.as_fd(), to, to_name));
                Ok(Some((moved, replaced)))
            });
            let after = [&source, &target].map(attributes_if_open);
            drop(opened);
            if let Some(value) = value.transpose() {
                break (before, value, after);
            }
        };
        let value = value.and_then(|(moved, replaced)| {
            self.after_rename(moved, replaced, from, from_name, to, to_name)?;
            in_order_of_syncs(from, to).try_for_each(|handle| {
                let directory = if handle == to { &target } else { &source };
                match directory {
                    Ok(directory) => self.make_durable(handle, directory.as_fd(), FileKind::Directory),
                    Err(_) => Ok(()),
                }
            })
        });
        let wcc = |before: Result<Attributes, Error>, after| Wcc {
            before: before.ok().as_ref().map(PreOpState::from),
            after,
        };
        let [from_before, to_before] = before;
        let [from_after, to_after] = after;
        RenameResult { from: wcc(from_before, from_after), to: wcc(to_before, to_after), value }
    }

    fn after_rename(
        &self,
        moved: Option<NamedObject>,
        replaced: Option<NamedObject>,
        from: &NodeHandle,
        from_name: &[u8],
        to: &NodeHandle,
        to_name: &[u8],
    ) -> Result<(), Error> {
        let is_replaced =
            |moved: &NamedObject| replaced.as_ref().is_some_and(|named| named.handle == moved.handle);
        // If both are names of one file, both remain.
        if moved.as_ref().is_some_and(is_replaced) {
            return Ok(());
        }
        if let Some(replaced) = replaced {
            self.after_unlink(&replaced, to, to_name);
        }
        if let Some(moved) = moved {
            self.handles.record(&moved.handle, to, to_name)?;
            self.handles.forget(&moved.handle, from, from_name);
        }
        Ok(())
    }
}

/// The directories of a rename in the order in which they are made durable: the one with the new
/// name first. If the file system does not write both at once, the object then has two names after
/// a power failure in between, and not none. If both are the same, it is synced once.
fn in_order_of_syncs<'a>(from: &'a NodeHandle, to: &'a NodeHandle) -> impl Iterator<Item = &'a NodeHandle> {
    let other = (from != to).then_some(from);
    [to].into_iter().chain(other)
}

/// Asks for the renamed and the replaced object. The rename has no effect if they are one file.
fn permit_both(
    named: [(&NodeHandle, Option<NodeHandle>); 2],
    permit: &mut ObjectPermit<'_>,
) -> Result<(), Error> {
    let [(_, moved), (_, replaced)] = named;
    if moved == replaced {
        return Ok(());
    }
    let permitted = named.map(|(above, object)| object.map_or(Ok(()), |object| permit(above, &object)));
    permitted.into_iter().collect()
}

/// The object of a name.
struct NamedObject {
    handle: NodeHandle,
    _opened: Option<Arc<OwnedFd>>,
}

fn as_found<T>(found: &Result<T, Error>) -> Result<&T, Error> {
    found.as_ref().map_err(|error| *error)
}

fn attributes_if_open(directory: &Result<Arc<OwnedFd>, Error>) -> Option<Attributes> {
    directory.as_ref().ok().and_then(|fd| attributes_of(fd.as_fd()).ok())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may fail by panic")]
    use std::sync::atomic::{AtomicBool, Ordering};

    use curt_types::SetAttributes;
    use rustix::io::Errno;

    use super::*;
    use crate::handle::HandleScheme;
    use crate::{CreateMode, LocalOptions, MemoryOptions, MemoryVfs, NewNode, RemovedKind, Vfs};

    #[test]
    fn the_directory_that_got_a_name_is_synced_before_the_one_that_lost_it_and_a_common_one_once() {
        let handle = |byte: u8| NodeHandle::new(HandleScheme::Kernel, 1, &[byte; 8]).expect("it is short");
        let (from, to) = (handle(1), handle(2));
        assert!(in_order_of_syncs(&from, &to).eq([&to, &from]));
        assert!(in_order_of_syncs(&from, &from).eq([&from]));
    }
    /// Lets threads end, also if the test has failed.
    struct EndOnDrop<'a>(&'a AtomicBool);

    impl Drop for EndOnDrop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_rename_of_a_file_to_itself_needs_no_permission() {
        let directory = tempfile::tempdir().unwrap();
        let local = LocalVfs::open(directory.path(), &LocalOptions::default()).unwrap();
        let trees: [&dyn Vfs; 2] = [&local, &MemoryVfs::new(MemoryOptions::default())];
        for vfs in trees {
            let (root, caller) = (vfs.root(), &FsCred::ROOT);
            let mode = CreateMode::Guarded(&SetAttributes::with_mode(0o600));
            let file = vfs.create(caller, &root, b"one", mode).value.unwrap().node.handle;
            vfs.link(caller, &file, &root, b"two").directory.value.unwrap();
            let mut refuse = |_: &NodeHandle, _: &NodeHandle| Err(Errno::AGAIN.into());
            for to in [b"one", b"two"] {
                let renamed = vfs.rename_permitted(caller, &root, b"one", &root, to, &mut refuse);
                assert_eq!(renamed.value, Ok(()));
            }
            let names = [b"one", b"two"].map(|name| vfs.lookup(caller, &root, name).value.unwrap().handle);
            assert_eq!(names, [file; 2]);
            let refused = vfs.rename_permitted(caller, &root, b"one", &root, b"three", &mut refuse);
            assert_eq!(refused.value, Err(Errno::AGAIN.into()));
        }
    }

    #[test]
    fn a_creation_that_may_make_no_name_uses_an_existing_file() {
        let directory = tempfile::tempdir().unwrap();
        let local = LocalVfs::open(directory.path(), &LocalOptions::default()).unwrap();
        let trees: [&dyn Vfs; 2] = [&local, &MemoryVfs::new(MemoryOptions::default())];
        for vfs in trees {
            let (root, caller) = (vfs.root(), &FsCred::ROOT);
            let set = SetAttributes::with_mode(0o600);
            let make = |mode, is_permitted: bool| {
                let asked = std::cell::Cell::new(0);
                let permit = &mut |above: &NodeHandle, object: &NodeHandle| {
                    asked.set(asked.get() + 1);
                    assert_eq!((*above, *object), (root, root));
                    if is_permitted { Ok(()) } else { Err(Errno::AGAIN.into()) }
                };
                let made = vfs.make_permitted(caller, &root, b"file", NewNode::File(mode), permit);
                (made.value.map(|made| made.new), asked.get() <= 1)
            };
            let modes =
                [CreateMode::Unchecked(&set), CreateMode::Guarded(&set), CreateMode::Exclusive([1; 8])];
            for mode in modes {
                assert_eq!(make(mode, false), (Err(Errno::AGAIN.into()), true));
                assert!(vfs.lookup(caller, &root, b"file").value.is_err());
            }
            assert_eq!(make(modes[0], true), (Ok(true), true));
            for is_permitted in [false, true] {
                assert_eq!(make(modes[0], is_permitted), (Ok(false), true));
                assert_eq!(make(modes[1], is_permitted), (Err(Errno::EXIST.into()), true));
            }
        }
    }

    /// Others give the name to other files all the time. Those that had it keep another name, so
    /// only those that the operations removed are gone.
    #[test]
    fn what_is_removed_or_replaced_is_the_object_that_was_permitted() {
        let directory = tempfile::tempdir().unwrap();
        let vfs = LocalVfs::open(directory.path(), &LocalOptions::default()).unwrap();
        let (root, caller) = (vfs.root(), &FsCred::ROOT);
        let create = |name: &[u8]| {
            vfs.create(caller, &root, name, CreateMode::Unchecked(&SetAttributes::with_mode(0o600)))
        };
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for number in 0..3_u8 {
                let (is_over, vfs, create) = (&is_over, &vfs, &create);
                scope.spawn(move || {
                    let own = [b'a' + number];
                    for turn in (0..64_u8).cycle() {
                        if is_over.load(Ordering::Relaxed) {
                            break;
                        }
                        create(&own).value.unwrap();
                        let kept = [b'k', b'a' + number, b'0' + turn];
                        // Others may have removed the name.
                        let _ = vfs.rename(caller, &root, b"name", &root, &kept).value;
                        vfs.rename(caller, &root, &own, &root, b"name").value.unwrap();
                    }
                });
            }
            let _end = EndOnDrop(&is_over);
            let mut done = 0;
            while done < 200 {
                let mut asked = Vec::new();
                let mut permit = |above: &NodeHandle, object: &NodeHandle| {
                    assert_eq!(*above, root);
                    asked.push(*object);
                    Ok(())
                };
                let is_removed = if done % 2 == 0 {
                    let kind = RemovedKind::Other;
                    vfs.remove_permitted(caller, &root, b"name", kind, &mut permit).value.is_ok()
                } else {
                    create(b"own").value.unwrap();
                    vfs.rename_permitted(caller, &root, b"own", &root, b"name", &mut permit).value.unwrap();
                    asked.len() > 1
                };
                if is_removed {
                    done += 1;
                    let gone = asked.pop().unwrap();
                    assert_eq!(vfs.attributes(&gone), Err(Error::STALE));
                }
            }
        });
        create(b"name").value.unwrap();
        let mut refuse = |_: &NodeHandle, _: &NodeHandle| Err(Errno::AGAIN.into());
        let refused = vfs.remove_permitted(caller, &root, b"name", RemovedKind::Other, &mut refuse);
        assert_eq!(refused.value, Err(Errno::AGAIN.into()));
        assert!(vfs.lookup(caller, &root, b"name").value.is_ok());
    }
}
