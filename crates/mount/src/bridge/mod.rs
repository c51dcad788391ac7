//! FUSE request -> client call -> FUSE reply.
//!
//! The bridge owns the numbers of open files, the timeouts of the kernel's caches and their
//! invalidation; the client makes every decision about requests. Invariants: no timeout is longer
//! than that of the client's own cache entry; a change of data that an open detects is notified
//! before the reply to the open, with no lock held; the client alone decides access, never the
//! kernel from cached mode bits.

mod cookie_offsets;
mod fuse_fh;
mod granted_locks;
mod invalidation;
mod locking;
mod revalidation;

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use curt_client::caller::CallerTable;
use curt_client::data::ReadTarget;
use curt_client::{
    ChangeObserver as _, DirEmit, DirEntry, FoundInode, InodeId, InodeStat, LocalLockOwner, LookupResult, Op,
    OpenDirectory, OpenFile, OpenFlags, PageCacheState, RenameMode, Superblock, ops,
};
use curt_fuse::{
    AttrOut, CreateIn, Dirent, DirentBuffer, EntryOut, Filesystem, FuseAttr, FuseContext, FuseFh, FuseTime,
    LkIn, LockKind, LockRange, MknodIn, NodeId, Notifier, OpenIn, OpenOut, ReadIn, ReadReply, ReleaseIn,
    SetattrIn, SetattrTime, SetlkReply, StatfsOut, WriteIn, open_reply,
};
use curt_observe::ClientCounter;
use curt_types::{Attributes, Device, FileKind, SetAttributes, SetTime, Timestamp};
use rustix::io::Errno;

pub use invalidation::InvalidationQueue;
pub use revalidation::OpenFileRevalidation;

use cookie_offsets::CookieOffsets;
use fuse_fh::FuseFhTable;
use granted_locks::GrantedLocks;

use crate::kernel_quirks::names_in_use::NamesInUse;
use crate::kernel_quirks::{direct_write_pages, ignored_sizes, names_in_use, unawaited_release};

/// S_IFREG: mknod(2) creates such a file by CREATE.
const REGULAR: u32 = 0o100_000;
const TYPE: u32 = 0o170_000;

/// Answers the kernel's requests by calls to a client.
pub struct Bridge {
    client: Arc<Superblock>,
    callers: CallerTable,
    files: FuseFhTable<OpenFile>,
    directories: FuseFhTable<FuseOpenDirectory>,
    changes: Arc<InvalidationQueue>,
    notifier: OnceLock<Notifier>,
    granted_locks: Arc<GrantedLocks<SetlkReply>>,
    in_use: OnceLock<NamesInUse>,
    /// The kernel decides fcntl(2) locks.
    has_local_locks: AtomicBool,
    /// The generation of all objects in the kernel's handles: it differs between mounts.
    generation: u32,
    operations: FuseOpcodeCounts,
}

/// A directory that the kernel has open.
struct FuseOpenDirectory {
    open: OpenDirectory,
    offsets: CookieOffsets,
}

impl Bridge {
    /// A bridge to this client, with the client's observer `changes`.
    #[must_use]
    pub fn new(client: Arc<Superblock>, callers: CallerTable, changes: Arc<InvalidationQueue>) -> Self {
        client.set_used_by_kernel();
        Self {
            client,
            callers,
            files: FuseFhTable::default(),
            directories: FuseFhTable::default(),
            changes,
            notifier: OnceLock::new(),
            granted_locks: Arc::default(),
            in_use: OnceLock::new(),
            has_local_locks: AtomicBool::new(false),
            generation: random(),
            operations: FuseOpcodeCounts::default(),
        }
    }

    /// Sets the notifier, which exists only after the session.
    pub fn set_notifier(&self, notifier: Notifier) {
        // A bridge has one session.
        let _ = self.notifier.set(notifier);
    }

    /// Sets the mount's device number, which is needed to find names in use.
    pub fn set_device(&self, device: (u32, u32)) {
        // It is mounted once.
        let _ = self.in_use.set(NamesInUse::new(device));
    }

    /// The kernel decides fcntl(2) locks: no close(2) has to release any here.
    pub fn set_local_locks(&self) {
        self.has_local_locks.store(true, Relaxed);
    }

    /// The lifetime of the name has begun: nothing may wait until the reply is sent.
    ///
    /// Inode ids are never reused within a mount, so all its objects have one generation, which
    /// distinguishes their handles from those of another mount. The kernel requires 0 for the root.
    fn entry(&self, found: &FoundInode) -> EntryOut {
        EntryOut {
            node: NodeId(found.id.0),
            generation: if found.id == InodeId::ROOT { 0 } else { u64::from(self.generation) },
            entry_valid: found.entry_valid,
            attributes_valid: found.attributes_valid,
            attributes: fuse_attr(&found.attributes),
        }
    }

    /// As [`Self::entry`], for an object whose size the kernel takes from the reply.
    fn found(&self, found: &FoundInode) -> EntryOut {
        if found.attributes.kind != FileKind::Symlink {
            self.changes.note_replied_size(found.id, found.attributes.size);
        }
        self.entry(found)
    }

    fn stat(&self, node: NodeId, stat: &InodeStat) -> AttrOut {
        if stat.attributes.kind == FileKind::Symlink {
            self.changes.await_target_dropped(inode(node));
        } else {
            self.changes.note_replied_size(inode(node), stat.attributes.size);
        }
        attr_out(stat)
    }

    /// The counts of the kernel's requests, by operation.
    #[must_use]
    pub fn operations(&self) -> BTreeMap<String, u64> {
        self.operations.snapshot()
    }

    /// The operation for a request, which is counted. It begins with its only reading of the clock.
    fn op(&self, context: &FuseContext<'_>, operation: FuseOpcode) -> Op<'_> {
        self.operations.count(operation);
        let now = self.callers.now();
        let interrupt = context.interruption().clone();
        let caller = self.callers.caller(context.tid, context.uid, context.gid, interrupt, now);
        self.client.op_since(&caller, now)
    }

    /// An operation on an open file, as its opener. The groups of the caller are not read, which
    /// takes as long as a request.
    fn op_through(&self, context: &FuseContext<'_>, operation: FuseOpcode, file: &OpenFile) -> Op<'_> {
        self.operations.count(operation);
        self.client.op_through(file, context.tid, context.interruption().clone(), self.callers.now())
    }

    /// Adds an opened file, and notifies the kernel of changed data first.
    fn opened(&self, op: &Op<'_>, node: NodeId, opened: curt_client::OpenResult) -> OpenOut {
        let has_pending = self.changes.take_pending(inode(node));
        if has_pending || opened.data == PageCacheState::Changed {
            let drop_copies = || {
                let known = self.client.last_attributes(inode(node));
                if let (Some(notifier), Some(stat)) = (self.notifier.get(), known) {
                    invalidation::renew(notifier, node, stat.attributes.size);
                }
            };
            ops::drop_copies(op, &opened.file, has_pending, drop_copies);
        }
        // Without unwritten data and locks there is nothing to flush.
        let is_flushed = opened.file.flags().write || !self.has_local_locks.load(Relaxed);
        let flush = if is_flushed { 0 } else { open_reply::NOFLUSH };
        OpenOut { fh: self.files.add(opened.file), flags: open_reply::KEEP_CACHE | flush }
    }

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
            mode: entry.kind.map_or(0, type_bits),
        };
        let object = entry.found.as_ref().map(|found| self.found(found));
        if listing.push(&name, object.as_ref()) { DirEmit::Taken } else { DirEmit::Full }
    }
}

impl Filesystem for Bridge {
    fn silent_for(&self) -> Option<Duration> {
        self.client.rpc_client().transport().silent_for()
    }

    fn lookup(&self, context: &FuseContext<'_>, parent: NodeId, name: &[u8]) -> Result<EntryOut, Errno> {
        let op = self.op(context, FuseOpcode::Lookup);
        let entry = match name {
            b"." => ops::lookup_id(&op, inode(parent)),
            name => ops::lookup(&op, inode(parent), name),
        };
        Ok(match entry? {
            LookupResult::Positive(found) => self.entry(&found),
            LookupResult::Negative { entry_valid } => EntryOut::missing(entry_valid),
        })
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

    fn getattr(&self, context: &FuseContext<'_>, node: NodeId, _: Option<FuseFh>) -> Result<AttrOut, Errno> {
        // umount(8) calls this for the root first: a silent server must not block it.
        if node == NodeId::ROOT {
            context.give_up_on_silence();
        }
        let _answering = self.changes.answering(inode(node));
        match ops::getattr(&self.op(context, FuseOpcode::Getattr), inode(node)) {
            Ok(stat) => {
                let renew = |size| {
                    self.notifier.get().into_iter().for_each(|to| invalidation::renew(to, node, size));
                };
                ignored_sizes::raise(&self.client, inode(node), &stat.attributes, renew);
                Ok(self.stat(node, &stat))
            }
            Err(Errno::INTR) if node == NodeId::ROOT => {
                self.client.last_attributes(inode(node)).map(|stat| attr_out(&stat)).ok_or(Errno::INTR)
            }
            Err(error) => Err(error),
        }
    }

    fn setattr(&self, context: &FuseContext<'_>, node: NodeId, set: &SetattrIn) -> Result<AttrOut, Errno> {
        if set.size.is_some() {
            self.client.live_counters().count(ClientCounter::SetSize);
        }
        let (op, wanted) = (self.op(context, FuseOpcode::Setattr), set_attributes(set));
        // The kernel passes an open file for ftruncate(2), and none for truncate(2).
        let stat = match set.fh {
            Some(fh) => ops::setattr_open(&op, &*self.files.get(fh)?, &wanted)?,
            None => ops::setattr(&op, inode(node), &wanted)?,
        };
        Ok(self.stat(node, &stat))
    }

    fn readlink(&self, context: &FuseContext<'_>, node: NodeId, target: &mut Vec<u8>) -> Result<(), Errno> {
        target.extend_from_slice(&ops::readlink(&self.op(context, FuseOpcode::Readlink), inode(node))?);
        Ok(())
    }

    fn symlink(
        &self,
        context: &FuseContext<'_>,
        parent: NodeId,
        name: &[u8],
        target: &[u8],
    ) -> Result<EntryOut, Errno> {
        let made = ops::symlink(&self.op(context, FuseOpcode::Symlink), inode(parent), name, target)?;
        Ok(self.found(&made))
    }

    fn mknod(
        &self,
        context: &FuseContext<'_>,
        parent: NodeId,
        name: &[u8],
        new: &MknodIn,
    ) -> Result<EntryOut, Errno> {
        let op = self.op(context, FuseOpcode::Mknod);
        let parent = inode(parent);
        if new.mode & TYPE == REGULAR || new.mode & TYPE == 0 {
            return Ok(self.found(&ops::make_file(&op, parent, name, new.mode & 0o7777)?));
        }
        let (kind, device) = special_file(new).ok_or(Errno::INVAL)?;
        let made = ops::mknod(&op, parent, name, kind, device, new.mode & 0o7777)?;
        Ok(self.found(&made))
    }

    fn mkdir(
        &self,
        context: &FuseContext<'_>,
        parent: NodeId,
        name: &[u8],
        mode: u32,
    ) -> Result<EntryOut, Errno> {
        let made = ops::mkdir(&self.op(context, FuseOpcode::Mkdir), inode(parent), name, mode & 0o7777)?;
        Ok(self.found(&made))
    }

    fn unlink(&self, context: &FuseContext<'_>, parent: NodeId, name: &[u8]) -> Result<(), Errno> {
        ops::unlink(&self.op(context, FuseOpcode::Unlink), inode(parent), name)
    }

    fn rmdir(&self, context: &FuseContext<'_>, parent: NodeId, name: &[u8]) -> Result<(), Errno> {
        unawaited_release::wait(&self.client, context, inode(parent), name);
        ops::rmdir(&self.op(context, FuseOpcode::Rmdir), inode(parent), name)
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
        ops::rename(&self.op(context, FuseOpcode::Rename), directory, name, new_directory, new_name, mode)
    }

    fn link(
        &self,
        context: &FuseContext<'_>,
        node: NodeId,
        parent: NodeId,
        name: &[u8],
    ) -> Result<EntryOut, Errno> {
        let made = ops::link(&self.op(context, FuseOpcode::Link), inode(node), inode(parent), name)?;
        Ok(self.found(&made))
    }

    fn open(&self, context: &FuseContext<'_>, node: NodeId, open: &OpenIn) -> Result<OpenOut, Errno> {
        let op = self.op(context, FuseOpcode::Open);
        let open = || ops::open(&op, inode(node), open_flags(open.flags));
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
        context: &FuseContext<'_>,
        parent: NodeId,
        name: &[u8],
        create: &CreateIn,
    ) -> Result<(EntryOut, OpenOut), Errno> {
        let flags = open_flags(create.flags);
        let op = self.op(context, FuseOpcode::Create);
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
        context: &FuseContext<'_>,
        _: NodeId,
        read: &ReadIn,
        reply: &ReadReply,
    ) -> Result<(), Errno> {
        let file = self.files.get(read.fh)?;
        let count = usize::try_from(read.size).map_err(|_| Errno::INVAL)?;
        let answer = Arc::new(KernelReadTarget::to(reply));
        let target: Arc<dyn ReadTarget> = Arc::<KernelReadTarget>::clone(&answer);
        ops::read_to(&self.op(context, FuseOpcode::Read), &file, read.offset, count, &target)?;
        self.count_read(answer.bytes.load(Relaxed), file.flags().direct);
        Ok(())
    }

    fn write(
        &self,
        context: &FuseContext<'_>,
        node: NodeId,
        write: &WriteIn,
        data: &[u8],
    ) -> Result<u32, Errno> {
        let file = self.files.get(write.fh)?;
        let op = self.op(context, FuseOpcode::Write);
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

    fn statfs(&self, context: &FuseContext<'_>, node: NodeId) -> Result<StatfsOut, Errno> {
        // umount(8) without a utab entry also calls this, and ignores the result. All other callers
        // need it.
        let is_umount = node == NodeId::ROOT && context.is_called("umount");
        if is_umount {
            context.give_up_on_silence();
        }
        let sizes = match ops::statfs(&self.op(context, FuseOpcode::Statfs), inode(node)) {
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

    fn flush(&self, context: &FuseContext<'_>, _: NodeId, fh: FuseFh, lock_owner: u64) -> Result<(), Errno> {
        let file = self.files.get(fh)?;
        if file.flags().write || file.may_hold_locks() {
            // Data that are not sent when the wait ends are written in the background.
            context.give_up_on_exit();
        }
        let op = self.op_through(context, FuseOpcode::Flush, &file);
        ops::flush_and_unlock(&op, &file, LocalLockOwner::Posix(lock_owner))
    }

    fn release(&self, context: &FuseContext<'_>, _: NodeId, release: &ReleaseIn) {
        self.operations.count(FuseOpcode::Release);
        if let Some(file) = self.files.remove(release.fh) {
            ops::release_noting(&self.client, &file, || context.mark_received());
        }
    }

    fn fsync(&self, context: &FuseContext<'_>, _: NodeId, fh: FuseFh, data_only: bool) -> Result<(), Errno> {
        let file = self.files.get(fh)?;
        ops::fsync(&self.op_through(context, FuseOpcode::Fsync, &file), &file, data_only)
    }

    fn opendir(&self, context: &FuseContext<'_>, node: NodeId, _: u32) -> Result<OpenOut, Errno> {
        let open = ops::opendir(&self.op(context, FuseOpcode::Opendir), inode(node))?;
        let directory = Arc::new(FuseOpenDirectory { open, offsets: CookieOffsets::default() });
        // No flag: the kernel's cache of a listing would hide from the client which names are
        // looked up.
        Ok(OpenOut { fh: self.directories.add(directory), flags: 0 })
    }

    fn readdir(
        &self,
        context: &FuseContext<'_>,
        _: NodeId,
        fh: FuseFh,
        offset: u64,
        listing: &mut DirentBuffer<'_>,
    ) -> Result<(), Errno> {
        let plus = listing.is_plus();
        let op = self.op(context, if plus { FuseOpcode::Readdirplus } else { FuseOpcode::Readdir });
        let directory = self.directories.get(fh)?;
        let cookie = directory.offsets.cookie(offset)?;
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
        ops::readdir(&op, &directory.open, cookie, plus, &mut tell)?;
        if overflowed && listing.is_empty() {
            return Err(Errno::OVERFLOW);
        }
        Ok(())
    }

    fn releasedir(&self, _: &FuseContext<'_>, _: NodeId, fh: FuseFh) {
        self.operations.count(FuseOpcode::Releasedir);
        drop(self.directories.remove(fh));
    }

    fn access(&self, context: &FuseContext<'_>, node: NodeId, mask: u32) -> Result<(), Errno> {
        ops::access(&self.op(context, FuseOpcode::Access), inode(node), mask)
    }

    fn getlk(&self, context: &FuseContext<'_>, _: NodeId, lock: &LkIn) -> Result<LockRange, Errno> {
        let op = self.op(context, FuseOpcode::Getlk);
        let file = self.files.get(lock.fh)?;
        let arguments = locking::lock_arguments(lock, false)?;
        unawaited_release::wait_for_test(&op, context, &file, &arguments);
        let found = ops::test_lock(&op, &file, &arguments)?;
        Ok(locking::lock_range(found.as_ref(), lock.range))
    }

    fn setlk(&self, context: &FuseContext<'_>, node: NodeId, lock: &LkIn, wait: bool, reply: SetlkReply) {
        let arguments = locking::lock_arguments(lock, wait);
        let (file, arguments) = match self.files.get(lock.fh).and_then(|file| Ok((file, arguments?))) {
            Ok(found) => found,
            Err(error) => return reply.send(Err(error)),
        };
        let operation = if wait { FuseOpcode::Setlkw } else { FuseOpcode::Setlk };
        let op = self.op_through(context, operation, &file);
        if lock.range.kind == LockKind::Unlock {
            let done = Box::new(|result| reply.send(result));
            return ops::unlock(&op, &file, arguments.owner, arguments.range, done);
        }
        if !wait {
            unawaited_release::wait_for_lock(&op, context, &file, &arguments);
        }
        let (notifier, granted) = (self.notifier.get().cloned(), Arc::clone(&self.granted_locks));
        let done = Box::new(move |result: Result<(), Errno>| match (result, notifier) {
            // Others may have changed the file. ENOENT: the kernel has no copy. ENODEV: the mount
            // has ended.
            (Ok(()), Some(notifier)) => granted.reply(
                node,
                reply,
                || {
                    let _ = notifier.invalidate_inode(node, 0, 0);
                },
                |reply| reply.send(Ok(())),
            ),
            (result, _) => reply.send(result),
        });
        ops::lock(&op, &file, arguments, done);
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

macro_rules! operations {
    ($($name:ident $text:literal;)+) => {
        /// An operation of FUSE.
        #[derive(Debug, Clone, Copy)]
        enum FuseOpcode {
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
    Getlk "GETLK"; Setlk "SETLK"; Setlkw "SETLKW";
}

/// Counts of the kernel's requests, by operation.
#[derive(Debug, Default)]
struct FuseOpcodeCounts([AtomicU64; NAMES.len()]);

impl FuseOpcodeCounts {
    fn count(&self, operation: FuseOpcode) {
        self.0[operation as usize].fetch_add(1, Relaxed);
    }

    /// All counts, by name.
    fn snapshot(&self) -> BTreeMap<String, u64> {
        let numbers = self.0.iter().map(|number| number.load(Relaxed));
        NAMES.iter().map(|name| (*name).to_owned()).zip(numbers).collect()
    }
}

fn random() -> u32 {
    // Its keys are random.
    let [first, second, third, fourth, ..] = RandomState::new().hash_one(()).to_ne_bytes();
    u32::from_ne_bytes([first, second, third, fourth])
}

fn inode(node: NodeId) -> InodeId {
    InodeId(node.0)
}

/// The block size for stat(2): the preferred size of READ and WRITE.
const BLOCK_SIZE: u32 = 1 << 20;

/// The S_IFMT bits of a kind.
const fn type_bits(kind: FileKind) -> u32 {
    match kind {
        FileKind::Fifo => 0o010_000,
        FileKind::CharacterDevice => 0o020_000,
        FileKind::Directory => 0o040_000,
        FileKind::BlockDevice => 0o060_000,
        FileKind::Regular => 0o100_000,
        FileKind::Symlink => 0o120_000,
        FileKind::Socket => 0o140_000,
    }
}

fn fuse_attr(from: &Attributes) -> FuseAttr {
    FuseAttr {
        inode: from.fileid,
        size: from.size,
        blocks: from.used.div_ceil(512),
        atime: fuse_time(from.atime),
        mtime: fuse_time(from.mtime),
        ctime: fuse_time(from.ctime),
        mode: type_bits(from.kind) | (from.mode & 0o7777),
        links: from.nlink,
        uid: from.uid,
        gid: from.gid,
        device: from.rdev.packed(),
        block_size: BLOCK_SIZE,
    }
}

fn fuse_time(from: Timestamp) -> FuseTime {
    FuseTime { seconds: from.seconds(), nanoseconds: from.nanoseconds() }
}

fn attr_out(from: &InodeStat) -> AttrOut {
    AttrOut { attributes: fuse_attr(&from.attributes), valid: from.valid }
}

/// The attributes to be set; the plan contains those that the protocol can express.
fn set_attributes(from: &SetattrIn) -> SetAttributes {
    SetAttributes {
        mode: from.mode.map(|mode| mode & 0o7777),
        uid: from.uid,
        gid: from.gid,
        size: from.size,
        atime: set_time(from.atime),
        mtime: set_time(from.mtime),
    }
}

fn set_time(from: Option<SetattrTime>) -> SetTime {
    match from {
        None => SetTime::Keep,
        Some(SetattrTime::Now) => SetTime::ServerTime,
        Some(SetattrTime::To(time)) => SetTime::Time(Timestamp::new(time.seconds, time.nanoseconds)),
    }
}

/// The type of object for mknod(2), with device numbers; regular files are not included.
fn special_file(new: &MknodIn) -> Option<(FileKind, Device)> {
    let kind = match new.mode & 0o170_000 {
        0o010_000 => FileKind::Fifo,
        0o020_000 => FileKind::CharacterDevice,
        0o060_000 => FileKind::BlockDevice,
        0o140_000 => FileKind::Socket,
        _ => return None,
    };
    let device = match kind {
        FileKind::CharacterDevice | FileKind::BlockDevice => Device::unpack(new.device),
        _ => Device::default(),
    };
    Some((kind, device))
}

/// The flags of open(2) that a client uses.
fn open_flags(flags: u32) -> OpenFlags {
    const ACCESS_MODE: u32 = 0o3;
    const WRITE_ONLY: u32 = 0o1;
    const READ_WRITE: u32 = 0o2;
    const EXCLUSIVE: u32 = 0o200;
    const TRUNCATE: u32 = 0o1000;
    const APPEND: u32 = 0o2000;
    const DSYNC: u32 = 0o10_000;
    const DIRECT: u32 = 0o40_000;
    /// The kernel's internal flag for an open by execve(2).
    const EXECUTE: u32 = 0x20;
    let has = |flag| flags & flag == flag;
    let mode = flags & ACCESS_MODE;
    OpenFlags {
        read: mode != WRITE_ONLY,
        write: mode == WRITE_ONLY || mode == READ_WRITE,
        truncate: has(TRUNCATE),
        append: has(APPEND),
        exclusive: has(EXCLUSIVE),
        direct: has(DIRECT),
        // O_SYNC contains O_DSYNC.
        sync: has(DSYNC),
        execute: has(EXECUTE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_open_2_are_understood() {
        let read = open_flags(0o100_000);
        assert!(read.read && !read.write && !read.execute);
        assert!(open_flags(0x20).execute);
        let write = open_flags(0o1 | 0o1000 | 0o2000);
        assert!(!write.read && write.write && write.truncate && write.append && !write.sync);
        let both = open_flags(0o2 | 0o4_010_000 | 0o40_000 | 0o200);
        assert!(both.read && both.write && both.sync && both.direct && both.exclusive);
    }

    #[test]
    fn only_what_mknod_makes_is_a_node() {
        let node_of = |mode| special_file(&MknodIn { mode, device: 0x801 });
        assert_eq!(node_of(0o010_644), Some((FileKind::Fifo, Device::default())));
        assert_eq!(node_of(0o060_644), Some((FileKind::BlockDevice, Device { major: 8, minor: 1 })));
        assert_eq!(node_of(0o100_644), None);
    }
}
