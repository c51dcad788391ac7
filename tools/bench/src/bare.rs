//! What FUSE itself allows: a file system of one file that is always in memory, without a server behind it.
//!
//! It shows how fast a mount could read at most if the network and the server took no time.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use curt_fuse::{
    Attributes, Context as Asked, Entry, FileSystemSizes, Filesystem, FuseFh, Interruption, Listing, Mount,
    MountFlags, MountOptions, NodeId, Open, Opened, Read, ReadReply, Release, Session, SessionOptions, Stat,
};
use rustix::io::Errno;

/// The file's name.
pub(super) const FILE: &str = "file";
const NODE: NodeId = NodeId(2);
const READ_AHEAD_KIB: u32 = 2048;
const FOR_EVER: Duration = Duration::from_secs(3600);

/// One file of zeros.
#[derive(Debug)]
struct Bare {
    bytes: u64,
    piece: Vec<u8>,
}

/// Nothing waits here, so nothing is interrupted.
#[derive(Debug, Default)]
pub(super) struct Never(AtomicBool);

impl Interruption for Never {
    fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A mount of it, as long as this lives.
#[derive(Debug)]
pub(super) struct BareMount {
    mount: Mount,
    _session: Session<Bare>,
}

impl BareMount {
    /// Mounts a file of `bytes` at `directory`.
    pub(super) fn new(directory: &Path, bytes: u64) -> Result<Self> {
        let options = MountOptions {
            source: "curt-bare".to_owned(),
            subtype: "curt-bare".to_owned(),
            flags: MountFlags {
                nosuid: true,
                nodev: true,
                ..MountFlags::default()
            },
            allow_other: false,
        };
        let (mount, device) = Mount::new(directory, &options)?;
        let piece = vec![0; usize::try_from(curt_fuse::IO_BYTES_MAX)?];
        let session = Session::start(
            device,
            Arc::new(Bare { bytes, piece }),
            &SessionOptions::default(),
        )?;
        // As a mount of ours has it; only root may set it.
        let _ = mount.set_read_ahead(READ_AHEAD_KIB);
        Ok(Self {
            mount,
            _session: session,
        })
    }

    /// Unmounts it.
    pub(super) fn end(self) -> Result<()> {
        self.mount.detach().context("cannot unmount the bare file system")
    }
}

impl Bare {
    fn attributes(&self, node: NodeId) -> Attributes {
        let (mode, size) = if node == NODE {
            (0o100_444, self.bytes)
        } else {
            (0o040_555, 0)
        };
        Attributes {
            inode: node.0,
            size,
            mode,
            links: 1,
            block_size: 1 << 20,
            ..Attributes::default()
        }
    }
}

impl Filesystem for Bare {
    type Interruption = Never;

    fn lookup(&self, _: &Asked<'_, Never>, _: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        if name != FILE.as_bytes() {
            return Err(Errno::NOENT);
        }
        let attributes = self.attributes(NODE);
        Ok(Entry {
            node: NODE,
            generation: 0,
            entry_valid: FOR_EVER,
            attributes_valid: FOR_EVER,
            attributes,
        })
    }

    fn forget(&self, _: NodeId, _: u64) {}

    fn getattr(&self, _: &Asked<'_, Never>, node: NodeId, _: Option<FuseFh>) -> Result<Stat, Errno> {
        Ok(Stat {
            attributes: self.attributes(node),
            valid: FOR_EVER,
        })
    }

    fn open(&self, _: &Asked<'_, Never>, _: NodeId, _: &Open) -> Result<Opened, Errno> {
        Ok(Opened {
            fh: FuseFh(1),
            flags: 0,
        })
    }

    fn read(&self, _: &Asked<'_, Never>, _: NodeId, read: &Read, reply: &ReadReply) -> Result<(), Errno> {
        let left = self.bytes.saturating_sub(read.offset).min(u64::from(read.size));
        let length = usize::try_from(left).map_or(self.piece.len(), |left| left.min(self.piece.len()));
        reply.send([&self.piece[..length]]);
        Ok(())
    }

    fn statfs(&self, _: &Asked<'_, Never>, _: NodeId) -> Result<FileSystemSizes, Errno> {
        Ok(FileSystemSizes::default())
    }

    fn release(&self, _: &Asked<'_, Never>, _: NodeId, _: &Release) {}

    fn opendir(&self, _: &Asked<'_, Never>, _: NodeId, _: u32) -> Result<Opened, Errno> {
        Ok(Opened {
            fh: FuseFh(1),
            flags: 0,
        })
    }

    fn readdir(
        &self,
        _: &Asked<'_, Never>,
        _: NodeId,
        _: (FuseFh, u64),
        _: &mut Listing<'_>,
    ) -> Result<(), Errno> {
        Ok(())
    }

    fn releasedir(&self, _: &Asked<'_, Never>, _: NodeId, _: FuseFh) {}

    fn access(&self, _: &Asked<'_, Never>, _: NodeId, _: u32) -> Result<(), Errno> {
        Ok(())
    }
}
