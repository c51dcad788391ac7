//! The operations: each converts the request, calls the client, and converts the result.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use curt_client::data::ReadTarget;
use curt_client::{DirEmit, DirEntry, LockOwner, PageCacheState, RenameMode, ops};
use curt_fuse::{
    AttrOut, CreateIn, Dirent, DirentBuffer, EntryOut, Filesystem, FuseContext, FuseFh, LkIn, LockKind,
    LockRange, MknodIn, NodeId, OpenIn, OpenOut, ReadIn, ReadReply, ReleaseIn, SetattrIn, SetlkReply,
    StatfsOut, WriteIn,
};
use curt_observe::ClientCounter;
use rustix::io::Errno;

use super::cookie_offsets::CookieOffsets;
use super::{Bridge, FuseInterrupt, FuseOpcode, FuseOpenDirectory, convert, inode};
use crate::kernel_quirks::{direct_write_pages, names_in_use, unawaited_release};

/// S_IFREG: mknod(2) creates such a file by CREATE.
const REGULAR: u32 = 0o100_000;
const TYPE: u32 = 0o170_000;

type BridgeContext<'a> = FuseContext<'a, FuseInterrupt>;

impl Filesystem for Bridge {
    type Interruption = FuseInterrupt;

    fn silent_for(&self) -> Option<Duration> {
        self.client.wire().transport().silent_for()
    }

    fn lookup(&self, context: &BridgeContext<'_>, parent: NodeId, name: &[u8]) -> Result<EntryOut, Errno> {
        self.operations.count(FuseOpcode::Lookup);
        let op = self.op(context);
        let entry = match name {
            b"." => ops::lookup_id(&op, inode(parent)),
            name => ops::lookup(&op, inode(parent), name),
        };
        Ok(convert::entry(&entry?, self.generation))
    }

    fn refused_lookup(&self, parent: NodeId, name: &[u8], refusal: Errno) -> Errno {
        let must_stay = !names_in_use::may_drop(refusal)
            && self.client.may_be_cached(inode(parent), name)
            && self.in_use.get().is_some_and(|names| names.may_contain(name));
        if must_stay { Errno::NOMEM } else { refusal }
    }

    fn forget(&self, node: NodeId, lookups: u64) {
        self.operations.count(FuseOpcode::Forget);
        self.client.forget(inode(node), lookups);
    }

    fn getattr(
        &self,
        context: &BridgeContext<'_>,
        node: NodeId,
        _: Option<FuseFh>,
    ) -> Result<AttrOut, Errno> {
        self.operations.count(FuseOpcode::Getattr);
        // umount(8) calls this for the root first: a silent server must not block it.
        if node == NodeId::ROOT {
            context.give_up_on_silence();
        }
        let _answering = self.changes.answering(inode(node));
        match ops::getattr(&self.op(context), inode(node)) {
            Ok(stat) => Ok(self.stat(node, &stat)),
            Err(Errno::INTR) if node == NodeId::ROOT => {
                self.client.last_attributes(inode(node)).map(|stat| convert::stat(&stat)).ok_or(Errno::INTR)
            }
            Err(error) => Err(error),
        }
    }

    fn setattr(&self, context: &BridgeContext<'_>, node: NodeId, set: &SetattrIn) -> Result<AttrOut, Errno> {
        self.operations.count(FuseOpcode::Setattr);
        if set.size.is_some() {
            self.client.live_counters().count(ClientCounter::SetSize);
        }
        let (op, wanted) = (self.op(context), convert::set_attributes(set));
        // The kernel passes an open file for ftruncate(2), and none for truncate(2).
        let stat = match set.fh {
            Some(fh) => ops::setattr_open(&op, &*self.files.get(fh)?, &wanted)?,
            None => ops::setattr(&op, inode(node), &wanted)?,
        };
        Ok(self.stat(node, &stat))
    }

    fn readlink(&self, context: &BridgeContext<'_>, node: NodeId, target: &mut Vec<u8>) -> Result<(), Errno> {
        self.operations.count(FuseOpcode::Readlink);
        target.extend_from_slice(&ops::readlink(&self.op(context), inode(node))?);
        Ok(())
    }

    fn symlink(
        &self,
        context: &BridgeContext<'_>,
        parent: NodeId,
        name: &[u8],
        target: &[u8],
    ) -> Result<EntryOut, Errno> {
        self.operations.count(FuseOpcode::Symlink);
        let made = ops::symlink(&self.op(context), inode(parent), name, target)?;
        Ok(self.found(&made))
    }

    fn mknod(
        &self,
        context: &BridgeContext<'_>,
        parent: NodeId,
        name: &[u8],
        new: &MknodIn,
    ) -> Result<EntryOut, Errno> {
        self.operations.count(FuseOpcode::Mknod);
        let op = self.op(context);
        let parent = inode(parent);
        if new.mode & TYPE == REGULAR || new.mode & TYPE == 0 {
            return Ok(self.found(&ops::make_file(&op, parent, name, new.mode & 0o7777)?));
        }
        let (kind, device) = convert::node(new).ok_or(Errno::INVAL)?;
        let made = ops::mknod(&op, parent, name, kind, device, new.mode & 0o7777)?;
        Ok(self.found(&made))
    }

    fn mkdir(
        &self,
        context: &BridgeContext<'_>,
        parent: NodeId,
        name: &[u8],
        mode: u32,
    ) -> Result<EntryOut, Errno> {
        self.operations.count(FuseOpcode::Mkdir);
        let made = ops::mkdir(&self.op(context), inode(parent), name, mode & 0o7777)?;
        Ok(self.found(&made))
    }

    fn unlink(&self, context: &BridgeContext<'_>, parent: NodeId, name: &[u8]) -> Result<(), Errno> {
        self.operations.count(FuseOpcode::Unlink);
        ops::unlink(&self.op(context), inode(parent), name)
    }

    fn rmdir(&self, context: &BridgeContext<'_>, parent: NodeId, name: &[u8]) -> Result<(), Errno> {
        self.operations.count(FuseOpcode::Rmdir);
        unawaited_release::wait(&self.client, context, inode(parent), name);
        ops::rmdir(&self.op(context), inode(parent), name)
    }

    fn rename(
        &self,
        context: &BridgeContext<'_>,
        parent: NodeId,
        name: &[u8],
        new_parent: NodeId,
        new_name: &[u8],
        flags: u32,
    ) -> Result<(), Errno> {
        self.operations.count(FuseOpcode::Rename);
        const NO_REPLACE: u32 = 1;
        const EXCHANGE: u32 = 2;
        let mode = match flags {
            0 => RenameMode::Replace,
            NO_REPLACE => RenameMode::NoReplace,
            EXCHANGE => RenameMode::Exchange,
            _ => return Err(Errno::INVAL),
        };
        let (directory, new_directory) = (inode(parent), inode(new_parent));
        unawaited_release::wait(&self.client, context, new_directory, new_name);
        ops::rename(&self.op(context), directory, name, new_directory, new_name, mode)
    }

    fn link(
        &self,
        context: &BridgeContext<'_>,
        node: NodeId,
        parent: NodeId,
        name: &[u8],
    ) -> Result<EntryOut, Errno> {
        self.operations.count(FuseOpcode::Link);
        let made = ops::link(&self.op(context), inode(node), inode(parent), name)?;
        Ok(self.found(&made))
    }

    fn open(&self, context: &BridgeContext<'_>, node: NodeId, open: &OpenIn) -> Result<OpenOut, Errno> {
        self.operations.count(FuseOpcode::Open);
        let op = self.op(context);
        let open = || ops::open(&op, inode(node), convert::open_flags(open.flags));
        let opened = match open() {
            // knfsd opens without a path, so the kernel does not look the name up and retry.
            // Without a retry here, knfsd's client would get NFS3ERR_STALE.
            Err(Errno::STALE) if context.is_of_kernel() => open()?,
            opened => opened?,
        };
        Ok(self.opened(&op, node, opened))
    }

    fn create(
        &self,
        context: &BridgeContext<'_>,
        parent: NodeId,
        name: &[u8],
        create: &CreateIn,
    ) -> Result<(EntryOut, OpenOut), Errno> {
        self.operations.count(FuseOpcode::Create);
        let flags = convert::open_flags(create.flags);
        let op = self.op(context);
        let (made, opened) = ops::create(&op, inode(parent), name, create.mode & 0o7777, flags)?;
        let mut entry = self.found(&made);
        if opened.data == PageCacheState::Changed {
            // The reply may take a while: the lifetime would begin later than the client believes.
            // The client grants none to a file that existed.
            entry.entry_valid = Duration::ZERO;
        }
        Ok((entry, self.opened(&op, entry.node, opened)))
    }

    fn read(
        &self,
        context: &BridgeContext<'_>,
        _: NodeId,
        read: &ReadIn,
        reply: &ReadReply,
    ) -> Result<(), Errno> {
        self.operations.count(FuseOpcode::Read);
        let file = self.files.get(read.fh)?;
        let count = usize::try_from(read.size).map_err(|_| Errno::INVAL)?;
        let answer = Arc::new(KernelReadTarget::to(reply));
        let target: Arc<dyn ReadTarget> = Arc::<KernelReadTarget>::clone(&answer);
        ops::read_to(&self.op(context), &file, read.offset, count, &target)?;
        self.count_read(answer.bytes.load(Relaxed), file.flags().direct);
        Ok(())
    }

    fn write(
        &self,
        context: &BridgeContext<'_>,
        node: NodeId,
        write: &WriteIn,
        data: &[u8],
    ) -> Result<u32, Errno> {
        self.operations.count(FuseOpcode::Write);
        let file = self.files.get(write.fh)?;
        let op = self.op(context);
        // Pages are written at their offsets, although the kernel may pass an open file with
        // O_APPEND.
        let taken = if write.from_cache {
            ops::write_at(&op, &file, write.offset, data)
        } else {
            ops::write(&op, &file, write.offset, data)
        };
        if file.flags().direct && !write.from_cache {
            direct_write_pages::drop_pages(self.notifier.get(), node, write.offset, data.len());
        }
        let taken = taken?;
        self.count_write(taken as u64, file.flags().direct, write.from_cache);
        u32::try_from(taken).map_err(|_| Errno::OVERFLOW)
    }

    fn statfs(&self, context: &BridgeContext<'_>, node: NodeId) -> Result<StatfsOut, Errno> {
        self.operations.count(FuseOpcode::Statfs);
        // umount(8) without a utab entry also calls this, and ignores the result. All other callers
        // need it.
        let is_umount = node == NodeId::ROOT && context.is_called("umount");
        if is_umount {
            context.give_up_on_silence();
        }
        let sizes = match ops::statfs(&self.op(context), inode(node)) {
            Err(Errno::INTR) if is_umount => self.client.last_statistics(inode(node)),
            other => other?,
        };
        Ok(StatfsOut {
            blocks: sizes.blocks,
            blocks_free: sizes.blocks_free,
            blocks_available: sizes.blocks_available,
            files: sizes.files,
            files_free: sizes.files_free,
            block_size: sizes.block_size,
            name_max: sizes.name_max,
            fragment_size: sizes.block_size,
        })
    }

    fn flush(
        &self,
        context: &BridgeContext<'_>,
        _: NodeId,
        fh: FuseFh,
        lock_owner: u64,
    ) -> Result<(), Errno> {
        self.operations.count(FuseOpcode::Flush);
        let file = self.files.get(fh)?;
        if file.flags().write || file.may_hold_locks() {
            // Data that are not sent when the wait ends are written in the background.
            context.give_up_on_exit();
        }
        ops::flush_and_unlock(&self.op(context), &file, LockOwner::Posix(lock_owner))
    }

    fn release(&self, context: &BridgeContext<'_>, _: NodeId, release: &ReleaseIn) {
        self.operations.count(FuseOpcode::Release);
        if let Some(file) = self.files.remove(release.fh) {
            ops::release_noting(&self.client, &file, || context.mark_received());
        }
    }

    fn fsync(
        &self,
        context: &BridgeContext<'_>,
        _: NodeId,
        fh: FuseFh,
        data_only: bool,
    ) -> Result<(), Errno> {
        self.operations.count(FuseOpcode::Fsync);
        ops::fsync(&self.op(context), &*self.files.get(fh)?, data_only)
    }

    fn opendir(&self, context: &BridgeContext<'_>, node: NodeId, _: u32) -> Result<OpenOut, Errno> {
        self.operations.count(FuseOpcode::Opendir);
        let open = ops::opendir(&self.op(context), inode(node))?;
        let directory = Arc::new(FuseOpenDirectory { open, offsets: CookieOffsets::default() });
        // No flag: the kernel's cache of a listing would hide from the client which names are
        // looked up.
        Ok(OpenOut { fh: self.directories.add(directory), flags: 0 })
    }

    fn readdir(
        &self,
        context: &BridgeContext<'_>,
        _: NodeId,
        fh: FuseFh,
        offset: u64,
        listing: &mut DirentBuffer<'_>,
    ) -> Result<(), Errno> {
        self.operations.count(if listing.is_plus() { FuseOpcode::Readdirplus } else { FuseOpcode::Readdir });
        let directory = self.directories.get(fh)?;
        let cookie = directory.offsets.cookie(offset)?;
        let plus = listing.is_plus();
        // In the middle of a directory, the kernel requests this only if it has looked up names
        // that it got before, perhaps in its own cache, which the client does not see.
        if plus && offset != 0 {
            ops::names_are_used(&directory.open);
        }
        let mut overflowed = false;
        let mut tell = |entry: &DirEntry<'_>| match directory.offsets.offset(entry.cookie) {
            Some(offset) => self.emit(offset, listing, entry),
            None => {
                overflowed = true;
                DirEmit::Full
            }
        };
        ops::readdir(&self.op(context), &directory.open, cookie, plus, &mut tell)?;
        if overflowed && listing.is_empty() {
            return Err(Errno::OVERFLOW);
        }
        Ok(())
    }

    fn releasedir(&self, _: &BridgeContext<'_>, _: NodeId, fh: FuseFh) {
        self.operations.count(FuseOpcode::Releasedir);
        drop(self.directories.remove(fh));
    }

    fn access(&self, context: &BridgeContext<'_>, node: NodeId, mask: u32) -> Result<(), Errno> {
        self.operations.count(FuseOpcode::Access);
        // F_OK: the preceding look-up has answered it.
        if mask == 0 {
            return Ok(());
        }
        ops::access(&self.op(context), inode(node), mask)
    }

    fn getlk(&self, context: &BridgeContext<'_>, _: NodeId, lock: &LkIn) -> Result<LockRange, Errno> {
        self.operations.count(FuseOpcode::Getlk);
        let file = self.files.get(lock.fh)?;
        let arguments = convert::lock_arguments(lock, false)?;
        let op = self.op(context);
        unawaited_release::wait_for_lock(&op, context, &file, &arguments);
        let found = ops::test_lock(&op, &file, &arguments)?;
        Ok(convert::lock_range(found.as_ref(), lock.range))
    }

    fn setlk(&self, context: &BridgeContext<'_>, node: NodeId, lock: &LkIn, wait: bool, reply: SetlkReply) {
        self.operations.count(if wait { FuseOpcode::Setlkw } else { FuseOpcode::Setlk });
        let arguments = convert::lock_arguments(lock, wait);
        let (file, arguments) = match self.files.get(lock.fh).and_then(|file| Ok((file, arguments?))) {
            Ok(found) => found,
            Err(error) => return reply.send(Err(error)),
        };
        let op = self.op(context);
        if lock.range.kind == LockKind::Unlock {
            let done = Box::new(|result| reply.send(result));
            return ops::unlock(&op, &file, arguments.owner, arguments.range, done);
        }
        if !wait {
            unawaited_release::wait_for_lock(&op, context, &file, &arguments);
        }
        let notifier = self.notifier.get().cloned();
        ops::lock(
            &op,
            &file,
            arguments,
            Box::new(move |result| {
                if let (Ok(()), Some(notifier)) = (result, notifier) {
                    // Others may have changed the file. ENOENT: the kernel has no copy. ENODEV: the
                    // mount has ended.
                    let _ = notifier.invalidate_inode(node, 0, 0);
                }
                reply.send(result);
            }),
        );
    }
}

/// The reply to the kernel's READ, from the client's result.
struct KernelReadTarget {
    reply: ReadReply,
    bytes: AtomicU64,
}

impl KernelReadTarget {
    fn to(reply: &ReadReply) -> Self {
        Self { reply: reply.clone(), bytes: AtomicU64::new(0) }
    }
}

impl ReadTarget for KernelReadTarget {
    fn put(&self, pieces: &[&[u8]]) {
        let bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
        self.bytes.store(bytes as u64, Relaxed);
        self.reply.send(pieces.iter().copied());
    }
}

impl Bridge {
    fn count_read(&self, bytes: u64, is_direct: bool) {
        let counters = self.client.live_counters();
        counters.add(ClientCounter::KernelReadBytes, bytes);
        if is_direct {
            counters.add(ClientCounter::KernelReadDirectBytes, bytes);
        }
    }

    fn count_write(&self, bytes: u64, is_direct: bool, from_cache: bool) {
        let counters = self.client.live_counters();
        counters.add(ClientCounter::KernelWriteBytes, bytes);
        if is_direct {
            counters.add(ClientCounter::KernelWriteDirectBytes, bytes);
        }
        if from_cache {
            counters.count(ClientCounter::KernelWriteBack);
        }
    }

    fn emit(&self, offset: u64, listing: &mut DirentBuffer<'_>, entry: &DirEntry<'_>) -> DirEmit {
        let name = Dirent {
            name: entry.name,
            inode: entry.fileid,
            next: offset,
            mode: entry.kind.map_or(0, convert::type_bits),
        };
        let object = entry.found.as_ref().map(|found| self.found(found));
        if listing.push(&name, object.as_ref()) { DirEmit::Taken } else { DirEmit::Full }
    }
}
