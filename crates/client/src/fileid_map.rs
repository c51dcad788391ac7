//! Inode numbers that are unique within a mount. The server's fileids are unique only within one of
//! its file systems.
//!
//! Fileids of the root's file system are used unchanged. For other file systems, the number
//! consists of the highest bit, 15 bits for the file system, and the server's fileid if it fits
//! into 48 bits. All others (and fileids of the root's file system that have the highest bit set)
//! get sequential numbers. Invariants: different objects never have the same number; an object
//! keeps its number for the life of the mount, a sequential number as long as the table of those is
//! not full.

use std::collections::HashMap;

use parking_lot::Mutex;

const FOREIGN: u64 = 1 << 63;
const FILEID_BITS: u32 = 48;
/// The file system index of sequential numbers.
const COUNTED: u64 = 0x7fff;
/// Most sequential numbers kept: beyond it an object may get a second number.
const COUNTED_MAX: usize = 1 << 20;

/// The numbering of one mount.
#[derive(Debug)]
pub(crate) struct FileidMap {
    root_fsid: u64,
    foreign: Mutex<ForeignFileids>,
}

#[derive(Debug, Default)]
struct ForeignFileids {
    file_systems: HashMap<u64, u64>,
    counted: HashMap<(u64, u64), u64>,
    last: u64,
}

impl FileidMap {
    pub(crate) fn new(root_fsid: u64) -> Self {
        Self { root_fsid, foreign: Mutex::default() }
    }

    /// The inode number within the mount for fileid `fileid` of file system `fsid`.
    pub(crate) fn number(&self, fsid: u64, fileid: u64) -> u64 {
        if fsid == self.root_fsid && fileid & FOREIGN == 0 {
            return fileid;
        }
        self.foreign.lock().number(fsid, fileid)
    }
}

impl ForeignFileids {
    fn number(&mut self, fsid: u64, fileid: u64) -> u64 {
        if fileid >> FILEID_BITS == 0 {
            let count = self.file_systems.len() as u64;
            let known = self.file_systems.get(&fsid).copied();
            let file_system = known.or_else(|| {
                (count < COUNTED).then(|| {
                    self.file_systems.insert(fsid, count);
                    count
                })
            });
            if let Some(file_system) = file_system {
                return FOREIGN | (file_system << FILEID_BITS) | fileid;
            }
        }
        if let Some(number) = self.counted.get(&(fsid, fileid)) {
            return *number;
        }
        if self.counted.len() >= COUNTED_MAX {
            self.counted.clear();
        }
        self.last = (self.last + 1) & ((1 << FILEID_BITS) - 1);
        let number = FOREIGN | (COUNTED << FILEID_BITS) | self.last;
        self.counted.insert((fsid, fileid), number);
        number
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    // SEMANTICS: attr-7.
    #[test]
    fn numbers_below_a_change_of_file_system_never_collide() {
        let numbering = FileidMap::new(7);
        let fileids = [0, 1, 2, (1 << 48) - 1, 1 << 48, u64::MAX >> 1, 1 << 63, u64::MAX];
        let mut seen = BTreeSet::new();
        for fsid in [7, 8, 9, u64::MAX] {
            for fileid in fileids {
                let number = numbering.number(fsid, fileid);
                assert!(seen.insert(number), "{fsid} {fileid}");
                assert_eq!(numbering.number(fsid, fileid), number, "a number stays");
            }
        }
        assert_eq!(numbering.number(7, 42), 42, "the root's file system keeps its numbers");
    }

    #[test]
    fn objects_of_file_systems_without_an_index_get_sequential_numbers() {
        let numbering = FileidMap::new(0);
        let seen: BTreeSet<u64> = (1..=0x8100).map(|fsid| numbering.number(fsid, 5)).collect();
        assert_eq!(seen.len(), 0x8100);
    }
}
