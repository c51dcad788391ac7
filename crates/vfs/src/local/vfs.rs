//! The [`Vfs`] of a local tree: each operation finds its object, takes on the caller's identity, and calls its module.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::names::Reach;
use super::{FileCacheCounters, LocalVfs, limits, names, stat};
use crate::answer::{
    Access, Changed, Created, Entry, Fetch, Fetched, Limits, Linked, Node, Outcome, Read, Renamed, Space,
    Visit, Written,
};
use crate::attributes::{Attributes, FileKind, SetAttributes, Time};
use crate::caller::Caller;
use crate::error::Error;
use crate::handle::{HandleScheme, NodeHandle};
use crate::name::check_name;
use crate::{CreateMode, Special, Stability, Vfs, Waits, Wanted};

impl Vfs for LocalVfs {
    fn root(&self) -> NodeHandle {
        self.root_handle
    }

    fn identity(&self) -> u64 {
        limits::file_system_id(self.root.as_fd()).unwrap_or(self.root_fsid)
    }

    fn attributes(&self, node: &NodeHandle) -> Result<Attributes, Error> {
        self.look(node, &*self.resolve(node)?)
    }

    fn set_attributes(
        &self,
        caller: &Caller<'_>,
        node: &NodeHandle,
        set: &SetAttributes,
        guard: Option<Time>,
    ) -> Changed<()> {
        let changed = self.change_durably(caller, node, |fd, before| {
            if guard.is_some_and(|guard| guard != before.ctime) {
                return Err(Error::NotSync);
            }
            self.set(caller, fd, before, set)
        });
        // Whatever became of it: some of it may have been done.
        let rights = set.mode.is_some() || set.uid.is_some() || set.gid.is_some() || set.size.is_some();
        if rights {
            self.kept.files.release(node);
        }
        changed
    }

    fn lookup(&self, caller: &Caller<'_>, directory: &NodeHandle, name: &[u8]) -> Outcome<Node> {
        self.ask(caller, directory, |fd, attributes| {
            check_name(name)?;
            self.find(fd, directory, attributes, name)
        })
    }

    fn lookup_at_hand(
        &self,
        caller: &Caller<'_>,
        directory: &NodeHandle,
        name: &[u8],
    ) -> Option<Outcome<Node>> {
        match self.pace.waits {
            // The table's file may be on a disk, wherever the tree is.
            _ if self.handle_scheme() == HandleScheme::Table => None,
            Waits::Never => Some(self.lookup(caller, directory, name)),
            Waits::Always => None,
            Waits::Data if name == b".." || !self.is_at_hand(directory) => None,
            Waits::Data => {
                let found = self.ask(caller, directory, |fd, attributes| {
                    check_name(name)?;
                    if attributes.kind != FileKind::Directory || name == b"." {
                        return self.find(fd, directory, attributes, name);
                    }
                    self.find_child(fd, directory, name, Reach::Memory)
                });
                let unknown = matches!(found.value, Err(Error::Os(Errno::AGAIN)));
                (!unknown).then_some(found)
            }
        }
    }

    fn access(&self, caller: &Caller<'_>, node: &NodeHandle, asked: Access) -> Outcome<Access> {
        let found = self.resolve(node).and_then(|fd| Ok((self.look(node, &fd)?, fd)));
        let (attributes, fd) = match found {
            Ok(found) => found,
            Err(error) => {
                return Outcome {
                    attributes: None,
                    value: Err(error),
                };
            }
        };
        let known = self.verdicts.find(caller, node, &attributes, asked);
        let value = match known {
            Some(granted) => Ok(granted),
            None => self.identity.assume(caller).map_err(Error::from).map(|()| {
                let granted = limits::granted(fd.as_fd(), &attributes, asked);
                let verdict = (asked, granted);
                self.verdicts
                    .note((caller, node), &attributes, verdict, stat::now());
                granted
            }),
        };
        Outcome {
            attributes: Some(attributes),
            value,
        }
    }

    fn at_hand(&self, node: &NodeHandle) -> bool {
        self.is_at_hand(node)
    }

    fn read_link(&self, caller: &Caller<'_>, node: &NodeHandle, target: &mut Vec<u8>) -> Outcome<()> {
        self.ask(caller, node, |fd, attributes| {
            if attributes.kind != FileKind::Symlink {
                return Err(Errno::INVAL.into());
            }
            target.extend_from_slice(rustix::fs::readlinkat(fd, c"", Vec::new())?.as_bytes());
            Ok(())
        })
    }

    fn read(
        &self,
        caller: &Caller<'_>,
        node: &NodeHandle,
        offset: u64,
        count: u32,
        data: &mut Vec<u8>,
    ) -> Outcome<Read> {
        self.read_data(caller, node, (offset, count), data)
    }

    fn fetch(
        &self,
        caller: &Caller<'_>,
        node: &NodeHandle,
        range: (u64, u32),
        how: Fetch,
        data: &mut Vec<u8>,
    ) -> Option<Outcome<Fetched>> {
        self.fetch_data(caller, node, range, how, data)
    }

    fn waits(&self) -> Waits {
        match (self.pace.waits, self.handle_scheme()) {
            // What is made has to be in the table, whose file is on a disk.
            (Waits::Never, HandleScheme::Table) => Waits::Data,
            (waits, _) => waits,
        }
    }

    fn losses(&self) -> u64 {
        self.losses.of_tree()
    }

    fn release_all(&self) {
        self.kept.release_all();
        self.children.forget_all();
        self.verdicts.forget_all();
    }

    fn file_cache(&self) -> Option<FileCacheCounters> {
        Some(self.kept.files.counters())
    }

    fn write(
        &self,
        caller: &Caller<'_>,
        node: &NodeHandle,
        offset: u64,
        data: &[u8],
        stability: Stability,
    ) -> Changed<Written> {
        self.write_data(caller, node, (offset, data), stability)
    }

    fn write_at_hand(
        &self,
        caller: &Caller<'_>,
        node: &NodeHandle,
        offset: u64,
        data: &[u8],
    ) -> Option<Changed<Written>> {
        self.write_data_at_hand(caller, node, (offset, data))
    }

    fn commit(&self, caller: &Caller<'_>, node: &NodeHandle, _offset: u64, _count: u32) -> Changed<()> {
        self.commit_data(caller, node)
    }

    fn create(
        &self,
        caller: &Caller<'_>,
        directory: &NodeHandle,
        name: &[u8],
        mode: CreateMode<'_>,
    ) -> Changed<Created> {
        self.create_file(caller, directory, name, mode)
    }

    fn make_directory(
        &self,
        caller: &Caller<'_>,
        directory: &NodeHandle,
        name: &[u8],
        set: &SetAttributes,
    ) -> Changed<Created> {
        self.make(caller, directory, name, (FileKind::Directory, set), |parent| {
            rustix::fs::mkdirat(parent, name, names::mode(set))
        })
    }

    fn make_symlink(
        &self,
        caller: &Caller<'_>,
        directory: &NodeHandle,
        name: &[u8],
        target: &[u8],
        set: &SetAttributes,
    ) -> Changed<Created> {
        self.make(caller, directory, name, (FileKind::Symlink, set), |parent| {
            if target.is_empty() || target.contains(&0) {
                return Err(Errno::INVAL);
            }
            rustix::fs::symlinkat(target, parent, name)
        })
    }

    fn make_special(
        &self,
        caller: &Caller<'_>,
        directory: &NodeHandle,
        name: &[u8],
        special: Special,
        set: &SetAttributes,
    ) -> Changed<Created> {
        self.make(caller, directory, name, (names::kind(special), set), |parent| {
            names::mknod(parent, name, special, names::mode(set))
        })
    }

    fn remove(&self, caller: &Caller<'_>, directory: &NodeHandle, name: &[u8]) -> Changed<()> {
        self.remove_name(caller, directory, name, AtFlags::empty())
    }

    fn remove_directory(&self, caller: &Caller<'_>, directory: &NodeHandle, name: &[u8]) -> Changed<()> {
        self.remove_name(caller, directory, name, AtFlags::REMOVEDIR)
    }

    fn rename(
        &self,
        caller: &Caller<'_>,
        from: &NodeHandle,
        from_name: &[u8],
        to: &NodeHandle,
        to_name: &[u8],
    ) -> Renamed {
        self.rename_name(caller, (from, from_name), (to, to_name))
    }

    fn link(&self, caller: &Caller<'_>, node: &NodeHandle, directory: &NodeHandle, name: &[u8]) -> Linked {
        self.link_name(caller, node, directory, name)
    }

    fn read_directory(
        &self,
        caller: &Caller<'_>,
        directory: &NodeHandle,
        cookie: u64,
        wanted: Wanted,
        visit: &mut dyn FnMut(&Entry<'_>) -> Visit,
    ) -> Outcome<bool> {
        self.ask(caller, directory, |fd, attributes| {
            self.list(fd, (directory, attributes), cookie, wanted, visit)
        })
    }

    fn space(&self, node: &NodeHandle) -> Outcome<Space> {
        let space = |fd: Arc<OwnedFd>| {
            let attributes = self.look(node, &fd)?;
            Ok((attributes, limits::space(fd.as_fd())?))
        };
        split(self.resolve(node).and_then(space))
    }

    fn limits(&self, node: &NodeHandle) -> Outcome<Limits> {
        let limits = |fd: Arc<OwnedFd>| {
            let attributes = self.look(node, &fd)?;
            Ok((attributes, limits::limits(fd.as_fd())?))
        };
        split(self.resolve(node).and_then(limits))
    }

    fn sync_all(&self) -> Result<(), Error> {
        let synced = self.sync_file_system();
        if synced.is_ok() {
            self.kept.unstable.forget_all();
        }
        synced
    }
}

fn split<T>(result: Result<(Attributes, T), Error>) -> Outcome<T> {
    match result {
        Ok((attributes, value)) => Outcome {
            attributes: Some(attributes),
            value: Ok(value),
        },
        Err(error) => Outcome {
            attributes: None,
            value: Err(error),
        },
    }
}
