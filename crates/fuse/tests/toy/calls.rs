//! The operations of the test file system.

use std::time::Duration;

use curt_fuse::{
    AttrOut, CreateIn, Dirent, DirentBuffer, EntryOut, Filesystem, FuseContext, FuseFh, LkIn, LockKind,
    LockRange, MknodIn, NodeId, OpenIn, OpenOut, ReadIn, ReadReply, ReleaseIn, SetattrIn, SetlkReply,
    StatfsOut, WriteIn, open_reply,
};
use rustix::io::Errno;

use super::Toy;

const OPENED: OpenOut = OpenOut { fh: FuseFh(7), flags: open_reply::KEEP_CACHE };

impl Filesystem for Toy {
    fn silent_for(&self) -> Option<Duration> {
        self.stuck.silence()
    }

    fn lookup(&self, context: &FuseContext<'_>, parent: NodeId, name: &[u8]) -> Result<EntryOut, Errno> {
        // Unlike readlink, which does not call this.
        context.mark_received();
        self.stuck.pass("lookup", context.interruption())?;
        let mut tree = self.tree.lock();
        match tree.child(parent, name) {
            Ok(id) => self.entry(&mut tree, id),
            Err(Errno::NOENT) if !self.missing_valid.is_zero() => Ok(EntryOut::missing(self.missing_valid)),
            Err(errno) => Err(errno),
        }
    }

    fn forget(&self, node: NodeId, lookups: u64) {
        let mut held = self.lookups.lock();
        let held = held.get_mut(&node.0).expect("only what was looked up is forgotten");
        *held = held.checked_sub(lookups).expect("no more than was looked up is forgotten");
    }

    fn getattr(&self, context: &FuseContext<'_>, node: NodeId, _: Option<FuseFh>) -> Result<AttrOut, Errno> {
        if node == NodeId::ROOT {
            context.give_up_on_silence();
        } else {
            self.stuck.pass("getattr", context.interruption())?;
        }
        self.stat(&mut self.tree.lock(), node)
    }

    fn setattr(&self, context: &FuseContext<'_>, node: NodeId, set: &SetattrIn) -> Result<AttrOut, Errno> {
        self.stuck.pass("setattr", context.interruption())?;
        let mut tree = self.tree.lock();
        tree.set(node, set)?;
        self.stat(&mut tree, node)
    }

    fn readlink(&self, context: &FuseContext<'_>, node: NodeId, target: &mut Vec<u8>) -> Result<(), Errno> {
        self.stuck.pass("readlink", context.interruption())?;
        target.extend_from_slice(&self.tree.lock().node(node)?.data);
        Ok(())
    }

    fn symlink(
        &self,
        context: &FuseContext<'_>,
        parent: NodeId,
        name: &[u8],
        target: &[u8],
    ) -> Result<EntryOut, Errno> {
        self.stuck.pass("symlink", context.interruption())?;
        self.make(parent, name, 0o120_777, target, (context.uid, context.gid))
    }

    fn mknod(
        &self,
        context: &FuseContext<'_>,
        parent: NodeId,
        name: &[u8],
        new: &MknodIn,
    ) -> Result<EntryOut, Errno> {
        self.stuck.pass("mknod", context.interruption())?;
        let entry = self.make(parent, name, new.mode, b"", (context.uid, context.gid))?;
        self.tree.lock().node(entry.node)?.attributes.device = new.device;
        Ok(EntryOut { attributes: curt_fuse::FuseAttr { device: new.device, ..entry.attributes }, ..entry })
    }

    fn mkdir(
        &self,
        context: &FuseContext<'_>,
        parent: NodeId,
        name: &[u8],
        mode: u32,
    ) -> Result<EntryOut, Errno> {
        self.stuck.pass("mkdir", context.interruption())?;
        self.make(parent, name, 0o040_000 | mode, b"", (context.uid, context.gid))
    }

    fn unlink(&self, context: &FuseContext<'_>, parent: NodeId, name: &[u8]) -> Result<(), Errno> {
        self.stuck.pass("unlink", context.interruption())?;
        self.tree.lock().node(parent)?.names.remove(name).map(drop).ok_or(Errno::NOENT)
    }

    fn rmdir(&self, context: &FuseContext<'_>, parent: NodeId, name: &[u8]) -> Result<(), Errno> {
        self.stuck.pass("rmdir", context.interruption())?;
        let mut tree = self.tree.lock();
        let id = tree.child(parent, name)?;
        if !tree.node(NodeId(id))?.names.is_empty() {
            return Err(Errno::NOTEMPTY);
        }
        tree.node(parent)?.names.remove(name).map(drop).ok_or(Errno::NOENT)
    }

    fn rename(
        &self,
        context: &FuseContext<'_>,
        parent: NodeId,
        name: &[u8],
        new_parent: NodeId,
        new_name: &[u8],
        flags: u32,
    ) -> Result<(), Errno> {
        self.stuck.pass("rename", context.interruption())?;
        let mut tree = self.tree.lock();
        match flags {
            0 => {}
            1 if tree.child(new_parent, new_name).is_ok() => return Err(Errno::EXIST),
            1 => {}
            _ => return Err(Errno::INVAL),
        }
        let id = tree.child(parent, name)?;
        tree.node(parent)?.names.remove(name);
        tree.node(new_parent)?.names.insert(new_name.to_vec(), id);
        Ok(())
    }

    fn link(
        &self,
        context: &FuseContext<'_>,
        node: NodeId,
        parent: NodeId,
        name: &[u8],
    ) -> Result<EntryOut, Errno> {
        self.stuck.pass("link", context.interruption())?;
        let mut tree = self.tree.lock();
        tree.node(node)?.attributes.links += 1;
        tree.node(parent)?.names.insert(name.to_vec(), node.0);
        self.entry(&mut tree, node.0)
    }

    fn open(&self, context: &FuseContext<'_>, node: NodeId, open: &OpenIn) -> Result<OpenOut, Errno> {
        self.stuck.pass("open", context.interruption())?;
        let mut tree = self.tree.lock();
        if open.flags & 0o1000 != 0 {
            tree.resize(node, 0)?;
        }
        tree.node(node).map(|_| OPENED)
    }

    fn create(
        &self,
        context: &FuseContext<'_>,
        parent: NodeId,
        name: &[u8],
        create: &CreateIn,
    ) -> Result<(EntryOut, OpenOut), Errno> {
        self.stuck.pass("create", context.interruption())?;
        Ok((self.make(parent, name, create.mode, b"", (context.uid, context.gid))?, OPENED))
    }

    fn read(
        &self,
        context: &FuseContext<'_>,
        node: NodeId,
        read: &ReadIn,
        reply: &ReadReply,
    ) -> Result<(), Errno> {
        self.stuck.pass("read", context.interruption())?;
        let mut tree = self.tree.lock();
        let data = &tree.node(node)?.data;
        let start = usize::try_from(read.offset).unwrap().min(data.len());
        let end = (start + read.size as usize).min(data.len());
        let mut largest = self.largest.lock();
        largest.1 = largest.1.max(end - start);
        // In two slices, as from a cache of segments.
        let middle = usize::midpoint(start, end);
        reply.send([&data[start..middle], &data[middle..end]]);
        Ok(())
    }

    fn write(
        &self,
        context: &FuseContext<'_>,
        node: NodeId,
        write: &WriteIn,
        data: &[u8],
    ) -> Result<u32, Errno> {
        self.stuck.pass("write", context.interruption())?;
        if write.from_cache {
            self.stuck.pass("write from the cache", context.interruption())?;
        }
        let mut tree = self.tree.lock();
        let start = usize::try_from(write.offset).unwrap();
        let end = start + data.len();
        if tree.node(node)?.data.len() < end {
            tree.resize(node, end as u64)?;
        }
        tree.node(node)?.data[start..end].copy_from_slice(data);
        let mut largest = self.largest.lock();
        largest.0 = largest.0.max(data.len());
        Ok(u32::try_from(data.len()).unwrap())
    }

    fn statfs(&self, context: &FuseContext<'_>, _: NodeId) -> Result<StatfsOut, Errno> {
        self.stuck.pass("statfs", context.interruption())?;
        let sizes = StatfsOut { blocks: 100, blocks_free: 60, blocks_available: 50, ..StatfsOut::default() };
        Ok(StatfsOut {
            files: 9,
            files_free: 8,
            block_size: 4096,
            name_max: 255,
            fragment_size: 4096,
            ..sizes
        })
    }

    fn flush(&self, context: &FuseContext<'_>, _: NodeId, _: FuseFh, _: u64) -> Result<(), Errno> {
        context.give_up_on_exit();
        self.stuck.pass("flush", context.interruption())
    }

    fn release(&self, context: &FuseContext<'_>, _: NodeId, _: &ReleaseIn) {
        let _ = self.stuck.pass("release", context.interruption());
    }

    fn fsync(&self, context: &FuseContext<'_>, _: NodeId, _: FuseFh, data_only: bool) -> Result<(), Errno> {
        self.stuck.pass(if data_only { "fdatasync" } else { "fsync" }, context.interruption())
    }

    fn opendir(&self, context: &FuseContext<'_>, _: NodeId, _: u32) -> Result<OpenOut, Errno> {
        self.stuck.pass("opendir", context.interruption())?;
        Ok(OpenOut { fh: FuseFh(8), flags: 0 })
    }

    fn readdir(
        &self,
        context: &FuseContext<'_>,
        node: NodeId,
        _: FuseFh,
        offset: u64,
        listing: &mut DirentBuffer<'_>,
    ) -> Result<(), Errno> {
        self.stuck.pass("readdir", context.interruption())?;
        let mut tree = self.tree.lock();
        let names: Vec<_> = tree.node(node)?.names.clone().into_iter().collect();
        for (index, (name, id)) in names.iter().enumerate().skip(usize::try_from(offset).unwrap()) {
            let attributes = tree.node(NodeId(*id))?.attributes;
            let entry = if listing.is_plus() { Some(self.entry(&mut tree, *id)?) } else { None };
            let dirent =
                Dirent { name, inode: attributes.inode, next: index as u64 + 1, mode: attributes.mode };
            if !listing.push(&dirent, entry.as_ref()) {
                if entry.is_some() {
                    *self.lookups.lock().get_mut(id).unwrap() -= 1;
                }
                break;
            }
        }
        Ok(())
    }

    fn releasedir(&self, context: &FuseContext<'_>, _: NodeId, _: FuseFh) {
        let _ = self.stuck.pass("releasedir", context.interruption());
    }

    fn fsyncdir(&self, context: &FuseContext<'_>, _: NodeId, _: FuseFh) -> Result<(), Errno> {
        self.stuck.pass("fsyncdir", context.interruption())
    }

    fn access(&self, context: &FuseContext<'_>, node: NodeId, mask: u32) -> Result<(), Errno> {
        self.stuck.pass("access", context.interruption())?;
        let mode = self.tree.lock().node(node)?.attributes.mode;
        if context.uid == 0 || mode & mask == mask { Ok(()) } else { Err(Errno::ACCESS) }
    }

    fn getlk(&self, context: &FuseContext<'_>, node: NodeId, lock: &LkIn) -> Result<LockRange, Errno> {
        self.stuck.pass("getlk", context.interruption())?;
        let held = self.locks.lock().get(&node.0).is_some_and(|owner| *owner != lock.owner);
        let kind = if held { LockKind::Write } else { LockKind::Unlock };
        Ok(LockRange { kind, pid: 4321, ..lock.range })
    }

    fn setlk(&self, context: &FuseContext<'_>, node: NodeId, lock: &LkIn, wait: bool, reply: SetlkReply) {
        reply.send(self.set_lock(context, node, lock, wait));
    }
}

impl Toy {
    fn set_lock(
        &self,
        context: &FuseContext<'_>,
        node: NodeId,
        lock: &LkIn,
        wait: bool,
    ) -> Result<(), Errno> {
        self.stuck.pass(if lock.flock { "flock" } else { "fcntl" }, context.interruption())?;
        loop {
            {
                let mut locks = self.locks.lock();
                let owner = locks.get(&node.0).copied();
                if lock.range.kind == LockKind::Unlock {
                    if owner == Some(lock.owner) {
                        locks.remove(&node.0);
                    }
                    return Ok(());
                }
                if owner.is_none_or(|owner| owner == lock.owner) {
                    locks.insert(node.0, lock.owner);
                    return Ok(());
                }
            }
            if !wait {
                return Err(Errno::AGAIN);
            }
            if context.interruption().is_raised() {
                return Err(Errno::INTR);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
