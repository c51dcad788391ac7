//! The names of one reply, close together.
//!
//! Owns their layout: one allocation for all names, 24 bytes beside each. Names never move, so a
//! position in a chunk stays good as long as the chunk is there; a name that this client removed
//! since is marked and passed over.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use curt_proto::nfs3::CookieVerifier;
use curt_types::FileKind;

use super::memory::ListingMemoryCharge;

/// Where the next name is: in which chunk, and which of its names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ListingPosition {
    pub(super) place: usize,
    pub(super) name: usize,
}

/// What the server said of where a listing goes on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ReaddirCookie {
    pub(super) cookie: u64,
    pub(super) verifier: CookieVerifier,
}

/// Bytes that a name takes in the tables that find it, beside its slot.
const INDEX_BYTES: usize = 10;

/// What a name is listed with.
#[derive(Debug)]
struct ChunkEntry {
    cookie: u64,
    fileid: u64,
    /// Where the name ends in the names.
    end: u32,
    kind: Option<FileKind>,
    is_gone: AtomicBool,
}

/// One listed name.
#[derive(Debug, Clone, Copy)]
pub(super) struct ListedEntry<'a> {
    pub(super) name: &'a [u8],
    /// Unique within the mount.
    pub(super) fileid: u64,
    pub(super) kind: Option<FileKind>,
    pub(super) cookie: u64,
    /// This client removed it since it was listed.
    pub(super) is_gone: bool,
}

/// Names being put together.
#[derive(Debug, Default)]
pub(super) struct ChunkBuilder {
    names: Vec<u8>,
    slots: Vec<ChunkEntry>,
}

/// The names of one reply.
#[derive(Debug)]
pub(crate) struct ListingChunk {
    names: Box<[u8]>,
    slots: Box<[ChunkEntry]>,
    used_at: AtomicU64,
    /// What they take of the mount's listing memory.
    charge: ListingMemoryCharge,
}

impl ChunkBuilder {
    pub(super) fn with_capacity(names: usize) -> Self {
        Self {
            names: Vec::with_capacity(names * 16),
            slots: Vec::with_capacity(names),
        }
    }

    pub(super) fn push(&mut self, name: &[u8], fileid: u64, kind: Option<FileKind>, cookie: u64) {
        self.names.extend_from_slice(name);
        let end = u32::try_from(self.names.len()).expect("a reply is shorter than 4 GiB");
        self.slots.push(ChunkEntry {
            cookie,
            fileid,
            end,
            kind,
            is_gone: AtomicBool::new(false),
        });
    }

    /// Bytes that the chunk will take.
    pub(super) fn bytes(&self) -> u64 {
        let bytes = size_of::<ListingChunk>()
            + self.names.len()
            + self.slots.len() * (size_of::<ChunkEntry>() + INDEX_BYTES);
        bytes as u64
    }

    pub(super) fn build(self, used_at: u64, charge: ListingMemoryCharge) -> ListingChunk {
        ListingChunk {
            names: self.names.into(),
            slots: self.slots.into(),
            used_at: AtomicU64::new(used_at),
            charge,
        }
    }
}

impl ListingChunk {
    /// What it takes of the listing memory.
    pub(super) fn bytes(&self) -> u64 {
        self.charge.bytes()
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn entry(&self, index: usize) -> Option<ListedEntry<'_>> {
        let slot = self.slots.get(index)?;
        let start = match index {
            0 => 0,
            _ => self.slots[index - 1].end as usize,
        };
        Some(ListedEntry {
            name: &self.names[start..slot.end as usize],
            fileid: slot.fileid,
            kind: slot.kind,
            cookie: slot.cookie,
            // Relaxed: who reads the old value lists a name that is being removed.
            is_gone: slot.is_gone.load(Relaxed),
        })
    }

    pub(super) fn cookie(&self, index: usize) -> Option<u64> {
        self.slots.get(index).map(|slot| slot.cookie)
    }

    pub(super) fn last_cookie(&self) -> Option<u64> {
        self.slots.last().map(|slot| slot.cookie)
    }

    /// The name was removed; false if it was before.
    pub(super) fn remove(&self, index: usize) -> bool {
        self.slots
            .get(index)
            .is_some_and(|slot| !slot.is_gone.swap(true, Relaxed))
    }

    pub(super) fn mark_used(&self, at: u64) {
        self.used_at.store(at, Relaxed);
    }

    pub(super) fn used_at(&self) -> u64 {
        self.used_at.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_takes_24_bytes_beside_itself() {
        assert_eq!(size_of::<ChunkEntry>(), 24);
    }
}
