//! The names of one reply: one allocation for all names, and 24 bytes for each. They never move. A
//! name that this client removed is marked.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use curt_types::FileKind;

use super::memory::ListingMemoryCharge;

/// Bytes per name in the index tables.
const INDEX_BYTES: usize = 10;

/// Maximum number of names that this client adds to one listing.
pub(super) const LOCAL_NAMES_MAX: usize = 1024;

/// The first of the cookies of these names. If the server itself uses such cookies, no name is
/// added.
pub(super) const LOCAL_COOKIE_FIRST: u64 = u64::MAX - LOCAL_NAMES_MAX as u64;

#[derive(Debug)]
struct ChunkEntry {
    cookie: u64,
    fileid: u64,
    /// The end of the name in the chunk's names.
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
    /// This client has removed it since it was listed.
    pub(super) is_gone: bool,
}

/// Builder of a chunk.
#[derive(Debug, Default)]
pub(super) struct ChunkBuilder {
    names: Vec<u8>,
    entries: Vec<ChunkEntry>,
}

/// The names of one reply.
#[derive(Debug)]
pub(crate) struct ListingChunk {
    names: Box<[u8]>,
    entries: Box<[ChunkEntry]>,
    /// See [`ListingMemory::next_use`](super::memory::ListingMemory::next_use).
    pub(super) used_at: AtomicU64,
    pub(super) charge: ListingMemoryCharge,
}

impl ChunkBuilder {
    pub(super) fn push(&mut self, name: &[u8], fileid: u64, kind: Option<FileKind>, cookie: u64) {
        self.names.extend_from_slice(name);
        self.entries.push(ChunkEntry {
            cookie,
            fileid,
            end: u32::try_from(self.names.len()).expect("a reply is shorter than 4 GiB"),
            kind,
            is_gone: AtomicBool::new(false),
        });
    }

    /// The memory that the chunk will take, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        let entries = self.entries.len() * (size_of::<ChunkEntry>() + INDEX_BYTES);
        (size_of::<ListingChunk>() + self.names.len() + entries) as u64
    }

    pub(super) fn build(self, used_at: u64, charge: ListingMemoryCharge) -> ListingChunk {
        ListingChunk {
            names: self.names.into(),
            entries: self.entries.into(),
            used_at: AtomicU64::new(used_at),
            charge,
        }
    }
}

impl ListingChunk {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn entry(&self, index: usize) -> Option<ListedEntry<'_>> {
        let entry = self.entries.get(index)?;
        let start = index.checked_sub(1).map_or(0, |before| self.entries[before].end);
        Some(ListedEntry {
            name: &self.names[start as usize..entry.end as usize],
            fileid: entry.fileid,
            kind: entry.kind,
            cookie: entry.cookie,
            // Relaxed: a reader of the old value lists a name whose removal is in progress.
            is_gone: entry.is_gone.load(Relaxed),
        })
    }

    pub(super) fn cookie(&self, index: usize) -> Option<u64> {
        self.entries.get(index).map(|entry| entry.cookie)
    }

    pub(super) fn cookies(&self) -> impl DoubleEndedIterator<Item = u64> + ExactSizeIterator {
        self.entries.iter().map(|entry| entry.cookie)
    }

    /// Marks the name as removed; false if it is removed already.
    pub(super) fn remove(&self, index: usize) -> bool {
        !self.entries[index].is_gone.swap(true, Relaxed)
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
