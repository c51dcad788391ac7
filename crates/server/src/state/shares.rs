//! Share reservations (RFC 8881 section 9.7; NLM's SHARE): which access the opens of a file have,
//! and which access they deny to others.
//!
//! The table counts the opens of a file by access and denial. It does not know owners: each owner
//! stores its own mode, and replaces it. So a check takes the same time with one open and with
//! 100,000.

use std::{
    any::Any,
    collections::HashMap,
    hash::{BuildHasher as _, RandomState},
    sync::Arc,
    sync::atomic::{AtomicUsize, Ordering},
};

use curt_vfs::NodeHandle;
use parking_lot::Mutex;

use super::{ChangeKind, StateFault};
use crate::file_handle::FileSystemId;

/// Number of shards: as many as threads that contend for locks on machines of today.
const SHARDS: usize = 64;

/// A file, the same through any export and protocol version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileKey {
    /// Its file system.
    pub(crate) file_system: FileSystemId,
    /// Its identity in the file system.
    pub(crate) node: NodeHandle,
}

impl FileKey {
    /// The file `node` of the file system with this number.
    #[must_use]
    pub const fn new(file_system: u32, node: NodeHandle) -> Self {
        Self { file_system: FileSystemId(file_system), node }
    }
}

/// Reading, writing, both or none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ShareBits(u8);

impl ShareBits {
    /// Neither.
    pub(crate) const NONE: Self = Self(0);
    /// Reading.
    pub(crate) const READ: Self = Self(1);
    /// Writing.
    pub(crate) const WRITE: Self = Self(2);
    /// Both.
    pub(crate) const BOTH: Self = Self(3);

    /// The bits of `OPEN4_SHARE_ACCESS_*` or `OPEN4_SHARE_DENY_*` without other flags.
    pub(crate) const fn from_wire(bits: u32) -> Option<Self> {
        match bits {
            0 => Some(Self::NONE),
            1 => Some(Self::READ),
            2 => Some(Self::WRITE),
            3 => Some(Self::BOTH),
            _ => None,
        }
    }

    /// Whether all bits of `other` are included.
    pub(crate) const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The access of an open, and the access that it denies to others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ShareMode {
    /// The access.
    pub(crate) access: ShareBits,
    /// The access of others that is denied.
    pub(crate) deny: ShareBits,
}

impl ShareMode {
    /// The union of both.
    pub(crate) const fn and(self, other: Self) -> Self {
        Self { access: self.access.and(other.access), deny: self.deny.and(other.deny) }
    }

    /// The part of the file that an open of this mode may change for those who read it under a
    /// delegation. They do not know of a denial either. `None`: it changes nothing.
    pub(crate) fn change(self) -> Option<ChangeKind> {
        if self.access.contains(ShareBits::WRITE) {
            Some(ChangeKind::Data)
        } else {
            self.deny.contains(ShareBits::READ).then_some(ChangeKind::Attributes)
        }
    }

    /// A bit that no other mode has.
    pub(super) const fn bit(self) -> u16 {
        1 << (self.access.0 * 4 + self.deny.0)
    }

    /// Whether one of both denies what the other has.
    const fn conflicts(self, other: Self) -> bool {
        self.deny.0 & other.access.0 != 0 || self.access.0 & other.deny.0 != 0
    }

    /// Whether `other` is a part of it.
    pub(crate) const fn contains(self, other: Self) -> bool {
        self.access.contains(other.access) && self.deny.contains(other.deny)
    }
}

/// The owner of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShareHolder {
    /// An open of NFSv4. What it denies is denied to all I/O of others.
    Nfs4,
    /// A reservation of NLM. It does not deny I/O: NFSv3 cannot distinguish that of its owner from
    /// that of others.
    Nlm,
}

impl ShareHolder {
    const fn denied_io(self, mode: ShareMode) -> ShareBits {
        match self {
            Self::Nfs4 => mode.deny,
            Self::Nlm => ShareBits::NONE,
        }
    }
}

/// The direction of I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IoDirection {
    /// The operation reads data.
    Read,
    /// The operation writes data, or sets the size.
    Write,
}

impl IoDirection {
    /// The access that it needs.
    pub(crate) const fn access(self) -> ShareBits {
        match self {
            Self::Read => ShareBits::READ,
            Self::Write => ShareBits::WRITE,
        }
    }
}

/// The access of a file that is requested.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WantedAccess {
    /// To open it.
    Open(ShareMode),
    /// To read or write it.
    Io(IoDirection),
}

impl WantedAccess {
    /// Whether an open of another with this mode is in its way.
    pub(super) const fn is_denied_by(self, mode: ShareMode) -> bool {
        match self {
            Self::Open(wanted) => mode.conflicts(wanted),
            Self::Io(io) => mode.deny.contains(io.access()),
        }
    }
}

/// Something that keeps a file usable while it is open, such as a descriptor.
pub(crate) type FilePin = Arc<dyn Any + Send + Sync>;

/// The opens of one file.
#[derive(Default)]
struct FileShares {
    /// Number of opens.
    opens: u32,
    /// Number of opens with each access.
    access: BitCounts,
    /// Number of opens that deny each access.
    deny: BitCounts,
    /// Number of opens that deny each access and also deny I/O.
    deny_io: BitCounts,
    pin: Option<FilePin>,
}

/// Which conflict prevents a change: that of `mode` with the opens of others than one with `own`.
#[derive(Clone, Copy, Debug, Default)]
struct ShareCheck {
    mode: ShareMode,
    own: ShareMode,
}

/// Number of opens for each bit.
#[derive(Default)]
struct BitCounts {
    read: u32,
    write: u32,
}

impl BitCounts {
    const fn add(&mut self, bits: ShareBits) {
        self.read += bits.contains(ShareBits::READ) as u32;
        self.write += bits.contains(ShareBits::WRITE) as u32;
    }

    const fn remove(&mut self, bits: ShareBits) {
        self.read -= bits.contains(ShareBits::READ) as u32;
        self.write -= bits.contains(ShareBits::WRITE) as u32;
    }

    /// Whether others than one with the bits `own` have one of `bits`.
    const fn others_have(&self, bits: ShareBits, own: ShareBits) -> bool {
        let read = bits.contains(ShareBits::READ) && self.read > own.contains(ShareBits::READ) as u32;
        let write = bits.contains(ShareBits::WRITE) && self.write > own.contains(ShareBits::WRITE) as u32;
        read || write
    }
}

impl FileShares {
    /// Whether an open with `new` is impossible beside the opens of others than one with `own`.
    const fn conflicts(&self, new: ShareMode, own: ShareMode) -> bool {
        self.deny.others_have(new.access, own.deny) || self.access.others_have(new.deny, own.access)
    }

    const fn add(&mut self, holder: ShareHolder, mode: ShareMode) {
        self.opens += 1;
        self.access.add(mode.access);
        self.deny.add(mode.deny);
        self.deny_io.add(holder.denied_io(mode));
    }

    const fn remove(&mut self, holder: ShareHolder, mode: ShareMode) {
        self.opens -= 1;
        self.access.remove(mode.access);
        self.deny.remove(mode.deny);
        self.deny_io.remove(holder.denied_io(mode));
    }
}

/// The share reservations of all files.
pub(crate) struct ShareTable {
    shards: Box<[Mutex<HashMap<FileKey, FileShares>>]>,
    hasher: RandomState,
    /// Number of opens that deny I/O. I/O without an open looks a file up only if there are
    /// any. Relaxed: I/O that runs at the same time as the OPEN may come before or after it.
    denying: AtomicUsize,
}

impl Default for ShareTable {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            denying: AtomicUsize::new(0),
        }
    }
}

impl ShareTable {
    fn shard(&self, file: &FileKey) -> &Mutex<HashMap<FileKey, FileShares>> {
        // The lowest bits are enough.
        let place = usize::try_from(self.hasher.hash_one(file) & 0xffff).unwrap_or_default();
        &self.shards[place % SHARDS]
    }

    /// Replaces the mode of one owner's open: `old` is the present mode, or none; `new` the next
    /// one, or none. The pin is kept until the last open of the file ends.
    ///
    /// The owner's own open does not count: see [`Self::add`] for an OPEN.
    pub(crate) fn replace(
        &self,
        holder: ShareHolder,
        file: &FileKey,
        old: Option<ShareMode>,
        new: Option<ShareMode>,
        pin: Option<FilePin>,
    ) -> Result<(), StateFault> {
        let check = ShareCheck { mode: new.unwrap_or_default(), own: old.unwrap_or_default() };
        self.change(holder, file, old, new, check, pin).map(drop)
    }

    /// An OPEN of an owner that has the file open with the mode `old`, or has not: it gets the
    /// union of both. Its own denials deny it too (RFC 8881 section 9.7).
    pub(crate) fn add(
        &self,
        holder: ShareHolder,
        file: &FileKey,
        old: Option<ShareMode>,
        mode: ShareMode,
        pin: Option<FilePin>,
    ) -> Result<(), StateFault> {
        let check = ShareCheck { mode, own: ShareMode::default() };
        self.change(holder, file, old, Some(old.unwrap_or_default().and(mode)), check, pin).map(drop)
    }

    /// Returns the pin, if the last open of the file has ended.
    fn change(
        &self,
        holder: ShareHolder,
        file: &FileKey,
        old: Option<ShareMode>,
        new: Option<ShareMode>,
        check: ShareCheck,
        pin: Option<FilePin>,
    ) -> Result<Option<FilePin>, StateFault> {
        let mut shard = self.shard(file).lock();
        if let (None, None) = (old, new) {
            return Ok(None);
        }
        let shares = shard.entry(*file).or_default();
        if shares.conflicts(check.mode, check.own) {
            return Err(StateFault::ShareDenied);
        }
        if let Some(old) = old {
            shares.remove(holder, old);
            self.denying.fetch_sub(usize::from(holder.denied_io(old) != ShareBits::NONE), Ordering::Relaxed);
        }
        if let Some(new) = new {
            shares.add(holder, new);
            self.denying.fetch_add(usize::from(holder.denied_io(new) != ShareBits::NONE), Ordering::Relaxed);
        }
        if shares.opens == 0 {
            return Ok(shard.remove(file).and_then(|ended| ended.pin));
        }
        if shares.pin.is_none() {
            shares.pin = pin;
        }
        Ok(None)
    }

    /// Ends an open. Returns the pin, if it was the last one of the file. To drop it may close a
    /// descriptor, which takes time, so no lock should be held then.
    pub(crate) fn end(&self, holder: ShareHolder, file: &FileKey, mode: ShareMode) -> Option<FilePin> {
        // Removing a mode conflicts with nothing.
        self.change(holder, file, Some(mode), None, ShareCheck::default(), None).unwrap_or_default()
    }

    /// Whether the file is open for writing.
    pub(crate) fn is_open_for_writing(&self, file: &FileKey) -> bool {
        self.shard(file).lock().get(file).is_some_and(|shares| shares.access.write > 0)
    }

    /// Whether any open denies I/O.
    pub(crate) fn has_denials(&self) -> bool {
        self.denying.load(Ordering::Relaxed) > 0
    }

    /// Whether an open of another owner denies this I/O. `own` is the mode of the caller's own
    /// open; none for I/O without one, such as that of NFSv3.
    pub(crate) fn denies_io(&self, file: &FileKey, own: Option<ShareMode>, io: IoDirection) -> bool {
        if !self.has_denials() {
            return false;
        }
        let shard = self.shard(file).lock();
        let own = own.unwrap_or_default();
        shard.get(file).is_some_and(|shares| shares.deny_io.others_have(io.access(), own.deny))
    }
}

#[cfg(test)]
impl ShareTable {
    /// Number of opens of `file`.
    pub(crate) fn opens(&self, file: &FileKey) -> u32 {
        self.shard(file).lock().get(file).map_or(0, |shares| shares.opens)
    }

    /// Number of files that are open.
    pub(crate) fn files(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }
}
