//! The names in a reply to READDIR and READDIRPLUS.
//!
//! The size of the reply is limited to that of the request. Invariant: each name is complete or
//! absent.

use crate::{
    message_fields::EntryOut,
    reply::{ENTRY_BYTES, entry_bytes},
};

/// Size of `fuse_dirent` without the name.
const DIRENT_BYTES: usize = 24;

/// One name of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dirent<'a> {
    /// Its bytes.
    pub name: &'a [u8],
    /// Inode number (d_ino).
    pub inode: u64,
    /// The offset after this name (d_off). The kernel treats it as signed: it must be below 2^63.
    pub next: u64,
    /// Type as in the upper bits of st_mode (S_IFMT), 0 if unknown.
    pub mode: u32,
}

/// Collects names until the kernel's buffer is full.
#[derive(Debug)]
pub struct DirentBuffer<'a> {
    buffer: &'a mut [u8],
    used: usize,
    plus: bool,
    grants_lifetimes: bool,
}

impl<'a> DirentBuffer<'a> {
    pub(crate) fn new(buffer: &'a mut [u8], plus: bool) -> Self {
        Self { buffer, used: 0, plus, grants_lifetimes: true }
    }

    /// Whether the kernel requests the entries of the names (READDIRPLUS).
    #[must_use]
    pub fn is_plus(&self) -> bool {
        self.plus
    }

    /// Whether no name was added yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Returns further entries with timeouts of zero.
    pub fn clear_lifetimes(&mut self) {
        self.grants_lifetimes = false;
    }

    /// The added names.
    pub fn names(&self) -> impl Iterator<Item = &[u8]> {
        let front = if self.plus { ENTRY_BYTES } else { 0 };
        let mut rest = self.buffer.get(..self.used).unwrap_or_default();
        std::iter::from_fn(move || {
            let dirent = rest.get(front..)?;
            let length = dirent.get(16..20)?.try_into().ok().map(u32::from_ne_bytes)?;
            let end = DIRENT_BYTES.checked_add(usize::try_from(length).ok()?)?;
            let name = dirent.get(DIRENT_BYTES..end)?;
            rest = rest.get((front + end).next_multiple_of(8)..).unwrap_or_default();
            Some(name)
        })
    }

    /// Adds a name, with its entry if known and [`DirentBuffer::is_plus`]; an added entry
    /// increments the look-up count. `.` and `..` never have one. Returns `false` if there is no
    /// room.
    #[must_use]
    pub fn push(&mut self, name: &Dirent<'_>, entry: Option<&EntryOut>) -> bool {
        let front = if self.plus { ENTRY_BYTES } else { 0 };
        let unpadded = front + DIRENT_BYTES + name.name.len();
        let whole = unpadded.next_multiple_of(8);
        let Some(place) = self.buffer.get_mut(self.used..self.used + whole) else {
            return false;
        };
        let (head, dirent) = place.split_at_mut(front);
        if self.plus {
            // Node 0 means that the entry is unknown.
            let unpromised;
            let entry = match entry {
                Some(entry) if !self.grants_lifetimes => {
                    unpromised = entry.without_lifetimes();
                    Some(&unpromised)
                }
                entry => entry,
            };
            head.copy_from_slice(&entry.map_or([0; ENTRY_BYTES], entry_bytes));
        }
        let Ok(length) = u32::try_from(name.name.len()) else {
            return false;
        };
        dirent[..8].copy_from_slice(&name.inode.to_ne_bytes());
        dirent[8..16].copy_from_slice(&name.next.to_ne_bytes());
        dirent[16..20].copy_from_slice(&length.to_ne_bytes());
        // d_type is the upper bits of st_mode.
        dirent[20..24].copy_from_slice(&((name.mode >> 12) & 0xf).to_ne_bytes());
        let (text, padding) = dirent[DIRENT_BYTES..].split_at_mut(name.name.len());
        text.copy_from_slice(name.name);
        padding.fill(0);
        self.used += whole;
        true
    }

    pub(crate) fn bytes(&self) -> usize {
        self.used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn added_names_can_be_read_again_and_have_no_entry_timeout() {
        let names: [&[u8]; 3] = [b"a", b"longer name", b"12345678"];
        let entry = EntryOut {
            node: crate::NodeId(7),
            entry_valid: std::time::Duration::from_secs(9),
            attributes_valid: std::time::Duration::from_secs(9),
            ..EntryOut::missing(std::time::Duration::ZERO)
        };
        for plus in [false, true] {
            let (mut one, mut other) = (vec![0; 4096], vec![0; 4096]);
            for (buffer, entry) in [(&mut one, entry), (&mut other, entry.without_lifetimes())] {
                let mut listing = DirentBuffer::new(buffer, plus);
                listing.clear_lifetimes();
                for name in names {
                    let name = Dirent { name, inode: 9, next: 1, mode: 0o100_644 };
                    assert!(listing.push(&name, Some(&entry)));
                }
                assert_eq!(listing.names().collect::<Vec<_>>(), names);
            }
            assert_eq!(one, other);
        }
    }

    #[test]
    fn entries_are_added_whole_or_not_at_all() {
        let name = Dirent { name: b"abc", inode: 9, next: 1, mode: 0o100_644 };
        for plus in [false, true] {
            let each = if plus { 32 + ENTRY_BYTES } else { 32 };
            for room in [each - 1, each, 2 * each - 1, 2 * each] {
                let mut buffer = vec![0xff; room];
                let mut listing = DirentBuffer::new(&mut buffer, plus);
                let mut taken = 0;
                while listing.push(&name, None) {
                    taken += 1;
                }
                assert_eq!((taken, listing.bytes()), (room / each, taken * each));
            }
        }
    }

    #[test]
    fn a_name_lies_as_the_kernel_reads_it() {
        let mut buffer = [0xff; 32];
        let mut listing = DirentBuffer::new(&mut buffer, false);
        assert!(listing.push(&Dirent { name: b"dir", inode: 9, next: 7, mode: 0o040_755 }, None));
        assert_eq!(buffer[8], 7);
        assert_eq!(buffer[16..20], 3_u32.to_ne_bytes());
        assert_eq!(buffer[20..24], 4_u32.to_ne_bytes());
        assert_eq!(&buffer[24..], b"dir\0\0\0\0\0");
    }
}
