//! The limit of FUSE itself: a file system of one file in memory, without a server.
//!
//! It shows how fast a mount could read if the network and the server took no time. As a slow file
//! system, its READ and FSYNC are delayed and the kernel caches nothing. With an echo server, each
//! GETATTR takes a round trip: the difference to a mount is the client's decisions, and the
//! server's work.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use curt_fuse::{
    AttrOut, DirentBuffer, EntryOut, Filesystem, FuseAttr, FuseContext, FuseFh, FuseMount, FuseSession,
    FuseSessionOptions, MountFlags, MountOptions, NodeId, OpenIn, OpenOut, ReadIn, ReadReply, ReleaseIn,
    StatfsOut, open_reply,
};
use rustix::io::Errno;

use crate::latency::echo::{self, EchoTask};

/// The file's name.
pub(super) const FILE: &str = "file";
const NODE: NodeId = NodeId(2);
/// Bytes of a GETATTR call over TCP: record mark, call, AUTH_SYS of root without groups, a file
/// handle of 40 bytes.
const CALL_BYTES: usize = 4 + 24 + 36 + 8 + 44;
/// Size of its reply in bytes: record mark, reply, status, attributes.
const REPLY_BYTES: usize = 4 + 24 + 4 + 84;
const READ_AHEAD_KIB: u32 = 2048;
const FOR_EVER: Duration = Duration::from_secs(3600);

/// The behaviour of the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BareBehaviour {
    /// The file system replies at once, and the kernel caches everything.
    Quick,
    /// READ and FSYNC take this time, and the kernel caches nothing.
    Slow(Duration),
    /// GETATTR waits for this echo server, and the kernel caches no attributes.
    Echo(SocketAddr),
}

/// One file of zeros.
#[derive(Debug)]
struct OneFileFilesystem {
    bytes: u64,
    piece: Vec<u8>,
    slowness: Duration,
    /// How long names and attributes are valid.
    entry_valid: Duration,
    attributes_valid: Duration,
    echo: Option<Mutex<TcpStream>>,
}

/// A mount of it; unmounted when dropped.
#[derive(Debug)]
pub(super) struct BareMount {
    mount: FuseMount,
    session: FuseSession<OneFileFilesystem>,
}

impl BareMount {
    /// Mounts a file of `bytes` at `directory`.
    pub(super) fn new(directory: &Path, bytes: u64, behaviour: BareBehaviour) -> Result<Self> {
        let task = EchoTask { call_bytes: CALL_BYTES, reply: vec![0; REPLY_BYTES], work: None };
        let (slowness, echo) = match behaviour {
            BareBehaviour::Quick => (Duration::ZERO, None),
            BareBehaviour::Slow(slowness) => (slowness, None),
            BareBehaviour::Echo(address) => (Duration::ZERO, Some(echo::connect(address, &task)?)),
        };
        let valid = |is_valid| if is_valid { FOR_EVER } else { Duration::ZERO };
        let options = MountOptions {
            source: "curt-bare".to_owned(),
            subtype: "curt-bare".to_owned(),
            flags: MountFlags { nosuid: true, nodev: true, ..MountFlags::default() },
            // A server exports it.
            allow_other: !slowness.is_zero(),
        };
        let (mount, device) = FuseMount::new(directory, &options)?;
        let piece = vec![0; usize::try_from(curt_fuse::IO_BYTES_MAX)?];
        let bare = OneFileFilesystem {
            bytes,
            piece,
            slowness,
            entry_valid: valid(slowness.is_zero()),
            attributes_valid: valid(behaviour == BareBehaviour::Quick),
            echo: echo.map(Mutex::new),
        };
        let session = FuseSession::start(device, Arc::new(bare), &FuseSessionOptions::default())?;
        // As for a mount of Curt; only root may set it.
        let _ = mount.set_read_ahead(READ_AHEAD_KIB);
        Ok(Self { mount, session })
    }

    /// Unmounts it, even if it is in use.
    pub(super) fn end(self) -> Result<()> {
        let detached = self.mount.detach();
        self.session.interrupt_all();
        detached.context("cannot unmount the bare file system")
    }
}

impl OneFileFilesystem {
    fn attributes(&self, node: NodeId) -> FuseAttr {
        let (mode, size) = if node == NODE { (0o100_666, self.bytes) } else { (0o040_777, 0) };
        FuseAttr { inode: node.0, size, mode, links: 1, block_size: 1 << 20, ..FuseAttr::default() }
    }
}

impl Filesystem for OneFileFilesystem {
    fn lookup(&self, _: &FuseContext<'_>, parent: NodeId, name: &[u8]) -> Result<EntryOut, Errno> {
        let node = match name {
            b"." => parent,
            b".." => NodeId::ROOT,
            name if name == FILE.as_bytes() => NODE,
            _ => return Err(Errno::NOENT),
        };
        Ok(EntryOut {
            node,
            generation: 0,
            entry_valid: self.entry_valid,
            attributes_valid: self.attributes_valid,
            attributes: self.attributes(node),
        })
    }

    fn forget(&self, _: NodeId, _: u64) {}

    fn getattr(&self, _: &FuseContext<'_>, node: NodeId, _: Option<FuseFh>) -> Result<AttrOut, Errno> {
        if let Some(echo) = &self.echo {
            let mut echo = echo.lock().unwrap_or_else(PoisonError::into_inner);
            let asked = echo.write_all(&[0; CALL_BYTES]);
            asked.and_then(|()| echo.read_exact(&mut [0; REPLY_BYTES])).map_err(|_| Errno::IO)?;
        }
        Ok(AttrOut { attributes: self.attributes(node), valid: self.attributes_valid })
    }

    fn open(&self, _: &FuseContext<'_>, _: NodeId, _: &OpenIn) -> Result<OpenOut, Errno> {
        // Without the page cache each read is a cold one.
        let flags = if self.slowness.is_zero() { 0 } else { open_reply::DIRECT_IO };
        Ok(OpenOut { fh: FuseFh(1), flags })
    }

    fn read(&self, _: &FuseContext<'_>, _: NodeId, read: &ReadIn, reply: &ReadReply) -> Result<(), Errno> {
        sleep(self.slowness);
        let left = self.bytes.saturating_sub(read.offset).min(u64::from(read.size));
        let length = usize::try_from(left).map_or(self.piece.len(), |left| left.min(self.piece.len()));
        reply.send([&self.piece[..length]]);
        Ok(())
    }

    fn fsync(&self, _: &FuseContext<'_>, _: NodeId, _: FuseFh, _: bool) -> Result<(), Errno> {
        sleep(self.slowness);
        Ok(())
    }

    fn statfs(&self, _: &FuseContext<'_>, _: NodeId) -> Result<StatfsOut, Errno> {
        Ok(StatfsOut { block_size: 4096, fragment_size: 4096, name_max: 255, ..StatfsOut::default() })
    }

    fn release(&self, _: &FuseContext<'_>, _: NodeId, _: &ReleaseIn) {}

    fn opendir(&self, _: &FuseContext<'_>, _: NodeId, _: u32) -> Result<OpenOut, Errno> {
        Ok(OpenOut { fh: FuseFh(1), flags: 0 })
    }

    fn readdir(
        &self,
        _: &FuseContext<'_>,
        _: NodeId,
        _: FuseFh,
        _: u64,
        _: &mut DirentBuffer<'_>,
    ) -> Result<(), Errno> {
        Ok(())
    }

    fn releasedir(&self, _: &FuseContext<'_>, _: NodeId, _: FuseFh) {}

    fn access(&self, _: &FuseContext<'_>, _: NodeId, _: u32) -> Result<(), Errno> {
        Ok(())
    }
}
