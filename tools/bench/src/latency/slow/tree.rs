//! A file system whose data are slow: one file, whose READ and FSYNC take their time. Everything else is answered at once, and
//! nothing is kept by the kernel.

use std::thread::sleep;
use std::time::Duration;

use curt_fuse::{
    Attributes, Context, Entry, FileSystemSizes, Filesystem, FuseFh, Interruption, Listing, NodeId, Open,
    Opened, Read, ReadReply, Release, Stat, Write, open_reply,
};
use rustix::io::Errno;

/// How long its slow operations take.
pub(super) const SLOWNESS: Duration = Duration::from_millis(5);
/// The name of its file.
pub(super) const FILE: &str = "slow";
/// The size of its file, in bytes.
pub(super) const FILE_BYTES: u64 = 1 << 20;

const FILE_NODE: NodeId = NodeId(2);
const DIRECTORY_MODE: u32 = 0o040_777;
const FILE_MODE: u32 = 0o100_666;

pub(super) struct SlowTree;

/// Nobody waits long enough to be interrupted.
#[derive(Default)]
pub(super) struct Never;

impl Interruption for Never {
    fn raise(&self) {}

    fn is_raised(&self) -> bool {
        false
    }
}

fn attributes(node: NodeId) -> Result<Attributes, Errno> {
    let (mode, size, links) = match node {
        NodeId::ROOT => (DIRECTORY_MODE, 0, 2),
        FILE_NODE => (FILE_MODE, FILE_BYTES, 1),
        _ => return Err(Errno::STALE),
    };
    Ok(Attributes {
        inode: node.0,
        size,
        mode,
        links,
        block_size: 4096,
        ..Attributes::default()
    })
}

impl Filesystem for SlowTree {
    type Interruption = Never;

    fn lookup(&self, _: &Context<'_, Never>, parent: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        let node = match name {
            b"." => parent,
            b".." => NodeId::ROOT,
            name if name == FILE.as_bytes() => FILE_NODE,
            _ => return Err(Errno::NOENT),
        };
        Ok(Entry {
            node,
            generation: 1,
            entry_valid: Duration::ZERO,
            attributes_valid: Duration::ZERO,
            attributes: attributes(node)?,
        })
    }

    fn forget(&self, _: NodeId, _: u64) {}

    fn getattr(&self, _: &Context<'_, Never>, node: NodeId, _: Option<FuseFh>) -> Result<Stat, Errno> {
        Ok(Stat {
            attributes: attributes(node)?,
            valid: Duration::ZERO,
        })
    }

    fn open(&self, _: &Context<'_, Never>, node: NodeId, _: &Open) -> Result<Opened, Errno> {
        // Past the page cache: every READ is a cold one.
        Ok(Opened {
            fh: FuseFh(node.0),
            flags: open_reply::DIRECT_IO,
        })
    }

    fn read(&self, _: &Context<'_, Never>, _: NodeId, read: &Read, reply: &ReadReply) -> Result<(), Errno> {
        sleep(SLOWNESS);
        let left = FILE_BYTES.saturating_sub(read.offset);
        let count = usize::try_from(left).unwrap_or(usize::MAX);
        let size = usize::try_from(read.size).unwrap_or(usize::MAX);
        reply.send([&*vec![0; count.min(size)]]);
        Ok(())
    }

    fn write(&self, _: &Context<'_, Never>, _: NodeId, _: &Write, data: &[u8]) -> Result<u32, Errno> {
        u32::try_from(data.len()).map_err(|_| Errno::INVAL)
    }

    fn fsync(&self, _: &Context<'_, Never>, _: NodeId, _: FuseFh, _: bool) -> Result<(), Errno> {
        sleep(SLOWNESS);
        Ok(())
    }

    fn statfs(&self, _: &Context<'_, Never>, _: NodeId) -> Result<FileSystemSizes, Errno> {
        Ok(FileSystemSizes {
            block_size: 4096,
            fragment_size: 4096,
            name_max: 255,
            ..FileSystemSizes::default()
        })
    }

    fn release(&self, _: &Context<'_, Never>, _: NodeId, _: &Release) {}

    fn opendir(&self, _: &Context<'_, Never>, node: NodeId, _: u32) -> Result<Opened, Errno> {
        Ok(Opened {
            fh: FuseFh(node.0),
            flags: 0,
        })
    }

    fn readdir(
        &self,
        _: &Context<'_, Never>,
        _: NodeId,
        _: (FuseFh, u64),
        _: &mut Listing<'_>,
    ) -> Result<(), Errno> {
        Ok(())
    }

    fn releasedir(&self, _: &Context<'_, Never>, _: NodeId, _: FuseFh) {}

    fn access(&self, _: &Context<'_, Never>, _: NodeId, _: u32) -> Result<(), Errno> {
        Ok(())
    }
}
