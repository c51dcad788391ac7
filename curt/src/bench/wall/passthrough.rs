//! A bare FUSE loop over a directory of this machine: what a mount would cost if its file system
//! decided nothing, kept nothing and sent nothing.
//!
//! The kernel may cache names, attributes and pages as long as on a mount of Curt with default
//! options. Each request becomes the same system call on the directory.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use curt_fuse::{
    AttrOut, CreateIn, Dirent, DirentBuffer, EntryOut, Filesystem, FuseAttr, FuseContext, FuseFh, FuseMount,
    FuseSession, FuseSessionOptions, FuseTime, Interruption, MountFlags, MountOptions, NodeId, OpenIn,
    OpenOut, ReadIn, ReadReply, ReleaseIn, SetattrIn, SetattrTime, StatfsOut, WriteIn, open_reply,
};
use parking_lot::RwLock;
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, RenameFlags, Stat, Timespec, Timestamps, UTIME_NOW,
    UTIME_OMIT, Uid,
};
use rustix::io::Errno;

/// How long the kernel may cache names: as on a mount of Curt with default options (kernelnames).
const NAME_LIFETIME: Duration = Duration::from_secs(1);
/// How long the kernel may cache attributes: as on a mount of Curt with default options (acregmin).
const ATTRIBUTE_LIFETIME: Duration = Duration::from_secs(3);
/// As a mount of Curt has it.
const READ_AHEAD_KIB: u32 = 2048;

/// A directory through a bare FUSE loop, until this ends.
#[derive(Debug)]
pub(super) struct BareLoop {
    mount: FuseMount,
    session: FuseSession<Passthrough>,
    requests: Arc<AtomicU64>,
}

impl BareLoop {
    /// Mounts `source` at `target`.
    pub(super) fn start(source: &Path, target: &Path) -> Result<Self> {
        let options = MountOptions {
            source: "curt-loop".to_owned(),
            subtype: "curt-loop".to_owned(),
            flags: MountFlags { nosuid: true, nodev: true, ..MountFlags::default() },
            allow_other: rustix::process::geteuid().is_root(),
        };
        let requests = Arc::new(AtomicU64::new(0));
        let passthrough = Passthrough::new(source, Arc::clone(&requests))?;
        let (mount, device) = FuseMount::new(target, &options)?;
        let session = FuseSession::start(device, Arc::new(passthrough), &FuseSessionOptions::default())?;
        // Only root may set it.
        let _ = mount.set_read_ahead(READ_AHEAD_KIB);
        Ok(Self { mount, session, requests })
    }

    /// Requests of the kernel so far.
    pub(super) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Unmounts it.
    pub(super) fn end(self) -> Result<()> {
        let detached = self.mount.detach();
        self.session.interrupt_all();
        detached.context("cannot unmount the bare FUSE loop")
    }
}

/// Nothing waits here for long, so nothing is interrupted.
#[derive(Debug, Default)]
struct Uninterrupted;

impl Interruption for Uninterrupted {
    fn raise(&self) {}

    fn is_raised(&self) -> bool {
        false
    }
}

type LoopContext<'a> = FuseContext<'a, Uninterrupted>;

/// An object that the kernel knows.
#[derive(Debug)]
struct LoopNode {
    /// Opened with O_PATH.
    file: OwnedFd,
    lookups: AtomicU64,
}

/// Answers each request by the same system call below one directory, which is of one file system:
/// a node's number is that of its inode, and 1 for the directory itself.
#[derive(Debug)]
struct Passthrough {
    root: u64,
    nodes: RwLock<HashMap<u64, Arc<LoopNode>>>,
    open: RwLock<HashMap<u64, Arc<OwnedFd>>>,
    requests: Arc<AtomicU64>,
}

impl Passthrough {
    fn new(source: &Path, requests: Arc<AtomicU64>) -> Result<Self> {
        let file =
            rustix::fs::open(source, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
                .with_context(|| source.display().to_string())?;
        let root = rustix::fs::fstat(&file)?.st_ino;
        let lookups = AtomicU64::new(1);
        let nodes = HashMap::from([(NodeId::ROOT.0, Arc::new(LoopNode { file, lookups }))]);
        Ok(Self { root, nodes: RwLock::new(nodes), open: RwLock::default(), requests })
    }

    fn count(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    fn node(&self, node: NodeId) -> Result<Arc<LoopNode>, Errno> {
        self.nodes.read().get(&node.0).cloned().ok_or(Errno::STALE)
    }

    fn opened(&self, fh: FuseFh) -> Result<Arc<OwnedFd>, Errno> {
        self.open.read().get(&fh.0).cloned().ok_or(Errno::BADF)
    }

    fn keep_open(&self, file: OwnedFd) -> OpenOut {
        let number = u64::from(file.as_raw_fd().unsigned_abs());
        self.open.write().insert(number, Arc::new(file));
        OpenOut { fh: FuseFh(number), flags: open_reply::KEEP_CACHE }
    }

    fn close(&self, fh: FuseFh) {
        self.open.write().remove(&fh.0);
    }

    /// Gives a new object to the caller, if this process may, and finds it.
    fn created(&self, context: &LoopContext<'_>, parent: NodeId, name: &[u8]) -> Result<EntryOut, Errno> {
        if rustix::process::geteuid().is_root() {
            let (uid, gid) = (Uid::from_raw(context.uid), Gid::from_raw(context.gid));
            let directory = self.node(parent)?;
            rustix::fs::chownat(&directory.file, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        self.find(parent, name)
    }

    /// Finds a name, and counts the look-up.
    fn find(&self, parent: NodeId, name: &[u8]) -> Result<EntryOut, Errno> {
        let parent = self.node(parent)?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&parent.file, name, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(EntryOut::missing(NAME_LIFETIME)),
            result => result?,
        };
        let stat = rustix::fs::fstat(&file)?;
        let node = match stat.st_ino {
            number if number == self.root => NodeId::ROOT,
            number => NodeId(number),
        };
        let mut nodes = self.nodes.write();
        let known = nodes.entry(node.0).or_insert_with(|| {
            let lookups = AtomicU64::new(0);
            Arc::new(LoopNode { file, lookups })
        });
        known.lookups.fetch_add(1, Ordering::Relaxed);
        Ok(EntryOut {
            node,
            generation: 0,
            entry_valid: NAME_LIFETIME,
            attributes_valid: ATTRIBUTE_LIFETIME,
            attributes: attributes(&stat),
        })
    }

    /// Opens an object that is known.
    fn reopen(&self, node: NodeId, flags: OFlags) -> Result<OwnedFd, Errno> {
        let node = self.node(node)?;
        let path = proc_path(node.file.as_fd());
        rustix::fs::open(path, (flags - OFlags::NOFOLLOW) | OFlags::CLOEXEC, Mode::empty())
    }
}

fn proc_path(file: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

fn open_flags(bits: u32) -> OFlags {
    OFlags::from_bits_retain(bits)
}

fn attributes(stat: &Stat) -> FuseAttr {
    let time = |seconds: i64, nanoseconds: u64| FuseTime {
        seconds,
        nanoseconds: u32::try_from(nanoseconds).unwrap_or(0),
    };
    FuseAttr {
        inode: stat.st_ino,
        size: stat.st_size.unsigned_abs(),
        blocks: stat.st_blocks.unsigned_abs(),
        atime: time(stat.st_atime, stat.st_atime_nsec),
        mtime: time(stat.st_mtime, stat.st_mtime_nsec),
        ctime: time(stat.st_ctime, stat.st_ctime_nsec),
        mode: stat.st_mode,
        links: u32::try_from(stat.st_nlink).unwrap_or(u32::MAX),
        uid: stat.st_uid,
        gid: stat.st_gid,
        device: 0,
        block_size: 1 << 20,
    }
}

impl Filesystem for Passthrough {
    type Interruption = Uninterrupted;

    fn lookup(&self, _: &LoopContext<'_>, parent: NodeId, name: &[u8]) -> Result<EntryOut, Errno> {
        self.count();
        self.find(parent, name)
    }

    fn forget(&self, node: NodeId, lookups: u64) {
        self.count();
        let mut nodes = self.nodes.write();
        let is_gone = nodes
            .get(&node.0)
            .is_some_and(|known| known.lookups.fetch_sub(lookups, Ordering::Relaxed) <= lookups);
        if is_gone && node != NodeId::ROOT {
            nodes.remove(&node.0);
        }
    }

    fn getattr(&self, _: &LoopContext<'_>, node: NodeId, _: Option<FuseFh>) -> Result<AttrOut, Errno> {
        self.count();
        let stat = rustix::fs::fstat(&self.node(node)?.file)?;
        Ok(AttrOut { attributes: attributes(&stat), valid: ATTRIBUTE_LIFETIME })
    }

    fn setattr(&self, _: &LoopContext<'_>, node: NodeId, set: &SetattrIn) -> Result<AttrOut, Errno> {
        self.count();
        let known = self.node(node)?;
        let path = proc_path(known.file.as_fd());
        if let Some(mode) = set.mode {
            rustix::fs::chmod(path.as_str(), Mode::from_raw_mode(mode))?;
        }
        if set.uid.is_some() || set.gid.is_some() {
            let (uid, gid) = (set.uid.map(Uid::from_raw), set.gid.map(Gid::from_raw));
            rustix::fs::chownat(&known.file, "", uid, gid, AtFlags::EMPTY_PATH)?;
        }
        if let Some(size) = set.size {
            rustix::fs::ftruncate(self.reopen(node, OFlags::WRONLY)?, size)?;
        }
        if set.atime.is_some() || set.mtime.is_some() {
            let time = |to: Option<SetattrTime>| {
                let (tv_sec, tv_nsec) = match to {
                    None => (0, UTIME_OMIT),
                    Some(SetattrTime::Now) => (0, UTIME_NOW),
                    Some(SetattrTime::To(time)) => (time.seconds, time.nanoseconds.into()),
                };
                Timespec { tv_sec, tv_nsec }
            };
            let times = Timestamps { last_access: time(set.atime), last_modification: time(set.mtime) };
            rustix::fs::utimensat(&known.file, "", &times, AtFlags::EMPTY_PATH)?;
        }
        let stat = rustix::fs::fstat(&known.file)?;
        Ok(AttrOut { attributes: attributes(&stat), valid: ATTRIBUTE_LIFETIME })
    }

    fn readlink(&self, _: &LoopContext<'_>, node: NodeId, target: &mut Vec<u8>) -> Result<(), Errno> {
        self.count();
        let known = self.node(node)?;
        target.extend_from_slice(rustix::fs::readlinkat(&known.file, "", Vec::new())?.as_bytes());
        Ok(())
    }

    fn symlink(
        &self,
        context: &LoopContext<'_>,
        parent: NodeId,
        name: &[u8],
        target: &[u8],
    ) -> Result<EntryOut, Errno> {
        self.count();
        rustix::fs::symlinkat(target, &self.node(parent)?.file, name)?;
        self.created(context, parent, name)
    }

    fn mkdir(
        &self,
        context: &LoopContext<'_>,
        parent: NodeId,
        name: &[u8],
        mode: u32,
    ) -> Result<EntryOut, Errno> {
        self.count();
        rustix::fs::mkdirat(&self.node(parent)?.file, name, Mode::from_raw_mode(mode))?;
        self.created(context, parent, name)
    }

    fn unlink(&self, _: &LoopContext<'_>, parent: NodeId, name: &[u8]) -> Result<(), Errno> {
        self.count();
        rustix::fs::unlinkat(&self.node(parent)?.file, name, AtFlags::empty())
    }

    fn rmdir(&self, _: &LoopContext<'_>, parent: NodeId, name: &[u8]) -> Result<(), Errno> {
        self.count();
        rustix::fs::unlinkat(&self.node(parent)?.file, name, AtFlags::REMOVEDIR)
    }

    fn rename(
        &self,
        _: &LoopContext<'_>,
        parent: NodeId,
        name: &[u8],
        new_parent: NodeId,
        new_name: &[u8],
        flags: u32,
    ) -> Result<(), Errno> {
        self.count();
        let (old, new) = (self.node(parent)?, self.node(new_parent)?);
        let flags = RenameFlags::from_bits_retain(flags);
        rustix::fs::renameat_with(&old.file, name, &new.file, new_name, flags)
    }

    fn link(
        &self,
        _: &LoopContext<'_>,
        node: NodeId,
        parent: NodeId,
        name: &[u8],
    ) -> Result<EntryOut, Errno> {
        self.count();
        let path = proc_path(self.node(node)?.file.as_fd());
        rustix::fs::linkat(CWD, path.as_str(), &self.node(parent)?.file, name, AtFlags::SYMLINK_FOLLOW)?;
        self.find(parent, name)
    }

    fn open(&self, _: &LoopContext<'_>, node: NodeId, open: &OpenIn) -> Result<OpenOut, Errno> {
        self.count();
        Ok(self.keep_open(self.reopen(node, open_flags(open.flags))?))
    }

    fn create(
        &self,
        context: &LoopContext<'_>,
        parent: NodeId,
        name: &[u8],
        create: &CreateIn,
    ) -> Result<(EntryOut, OpenOut), Errno> {
        self.count();
        let flags = open_flags(create.flags) | OFlags::CREATE | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(create.mode);
        let file = rustix::fs::openat(&self.node(parent)?.file, name, flags, mode)?;
        Ok((self.created(context, parent, name)?, self.keep_open(file)))
    }

    fn read(&self, _: &LoopContext<'_>, _: NodeId, read: &ReadIn, reply: &ReadReply) -> Result<(), Errno> {
        self.count();
        let file = self.opened(read.fh)?;
        let mut bytes = vec![0; usize::try_from(read.size).unwrap_or(0)];
        let count = rustix::io::pread(&*file, &mut bytes, read.offset)?;
        reply.send([&bytes[..count]]);
        Ok(())
    }

    fn write(&self, _: &LoopContext<'_>, _: NodeId, write: &WriteIn, data: &[u8]) -> Result<u32, Errno> {
        self.count();
        let file = self.opened(write.fh)?;
        let count = rustix::io::pwrite(&*file, data, write.offset)?;
        u32::try_from(count).map_err(|_| Errno::IO)
    }

    fn statfs(&self, _: &LoopContext<'_>, node: NodeId) -> Result<StatfsOut, Errno> {
        self.count();
        let found = rustix::fs::fstatvfs(&self.node(node)?.file)?;
        Ok(StatfsOut {
            blocks: found.f_blocks,
            blocks_free: found.f_bfree,
            blocks_available: found.f_bavail,
            files: found.f_files,
            files_free: found.f_ffree,
            block_size: u32::try_from(found.f_bsize).unwrap_or(4096),
            name_max: 255,
            fragment_size: u32::try_from(found.f_frsize).unwrap_or(4096),
        })
    }

    fn flush(&self, _: &LoopContext<'_>, _: NodeId, _: FuseFh, _: u64) -> Result<(), Errno> {
        self.count();
        Ok(())
    }

    fn release(&self, _: &LoopContext<'_>, _: NodeId, release: &ReleaseIn) {
        self.count();
        self.close(release.fh);
    }

    fn fsync(&self, _: &LoopContext<'_>, _: NodeId, fh: FuseFh, _: bool) -> Result<(), Errno> {
        self.count();
        rustix::fs::fsync(&*self.opened(fh)?)
    }

    fn opendir(&self, _: &LoopContext<'_>, node: NodeId, _: u32) -> Result<OpenOut, Errno> {
        self.count();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let opened = self.keep_open(self.reopen(node, flags)?);
        Ok(OpenOut { flags: 0, ..opened })
    }

    fn readdir(
        &self,
        _: &LoopContext<'_>,
        node: NodeId,
        fh: FuseFh,
        offset: u64,
        listing: &mut DirentBuffer<'_>,
    ) -> Result<(), Errno> {
        self.count();
        let file = self.opened(fh)?;
        rustix::fs::seek(&*file, rustix::fs::SeekFrom::Start(offset))?;
        // A descriptor of its own would have a position of its own; the kernel lists with one at a
        // time.
        let mut directory = Dir::new(file.try_clone().map_err(|_| Errno::MFILE)?)?;
        while let Some(entry) = directory.read() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            let wants_entry = listing.is_plus() && !matches!(name, b"." | b"..");
            let found = if wants_entry { Some(self.find(node, name)?) } else { None };
            let dirent = Dirent {
                name,
                inode: entry.ino(),
                next: entry.offset().unsigned_abs(),
                mode: mode_of(entry.file_type()),
            };
            if !listing.push(&dirent, found.as_ref()) {
                if let Some(found) = found {
                    self.forget(found.node, 1);
                }
                break;
            }
        }
        Ok(())
    }

    fn releasedir(&self, _: &LoopContext<'_>, _: NodeId, fh: FuseFh) {
        self.count();
        self.close(fh);
    }

    fn access(&self, _: &LoopContext<'_>, _: NodeId, _: u32) -> Result<(), Errno> {
        self.count();
        Ok(())
    }
}

fn mode_of(kind: FileType) -> u32 {
    kind.as_raw_mode()
}
