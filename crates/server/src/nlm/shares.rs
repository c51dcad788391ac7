//! Share reservations of DOS programs: what an owner does with a file, and denies others (SHARE and
//! UNSHARE). They concern each other only, not READ and WRITE.

use std::collections::HashMap;
use std::net::IpAddr;

use crate::state::locks::LockFile;

/// Maximum number of reservations of one host.
pub(super) const SHARES_MAX: usize = 4096;

/// Reading, writing, both or neither.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct ShareBits(u8);

impl ShareBits {
    pub(super) const READ: Self = Self(1);
    pub(super) const WRITE: Self = Self(2);

    /// The set with these bits of `fsh4_mode` or `fsh4_access`; others are dropped.
    pub(super) const fn from_bits(bits: u32) -> Self {
        Self((bits & 3) as u8)
    }

    pub(super) const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// What an owner does with a file, and denies others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ShareModes {
    pub(super) access: ShareBits,
    pub(super) deny: ShareBits,
}

impl ShareModes {
    const fn conflicts(self, other: Self) -> bool {
        self.access.intersects(other.deny) || self.deny.intersects(other.access)
    }
}

/// An owner: `oh` at a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ShareOwner {
    pub(super) host: IpAddr,
    pub(super) name: Box<[u8]>,
}

/// Why there is no reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoShare {
    Conflict,
    TooMany,
}

/// The reservations of all files.
#[derive(Default)]
pub(super) struct ShareTable {
    files: HashMap<LockFile, Vec<(ShareOwner, ShareModes)>>,
    counts: HashMap<IpAddr, usize>,
}

impl ShareTable {
    /// Sets the reservation of an owner, in place of the one it has.
    pub(super) fn share(
        &mut self,
        file: LockFile,
        owner: ShareOwner,
        modes: ShareModes,
    ) -> Result<(), NoShare> {
        let shares = self.files.get(&file).map(Vec::as_slice).unwrap_or_default();
        if shares.iter().any(|(other, held)| *other != owner && held.conflicts(modes)) {
            return Err(NoShare::Conflict);
        }
        if shares.iter().all(|(other, _)| *other != owner) {
            let count = self.counts.entry(owner.host).or_default();
            if *count >= SHARES_MAX {
                return Err(NoShare::TooMany);
            }
            *count += 1;
        }
        let shares = self.files.entry(file).or_default();
        match shares.iter_mut().find(|(other, _)| *other == owner) {
            Some((_, held)) => *held = modes,
            None => shares.push((owner, modes)),
        }
        Ok(())
    }

    /// Removes the reservation of an owner, if there is one.
    pub(super) fn unshare(&mut self, file: &LockFile, host: IpAddr, name: &[u8]) {
        let Some(shares) = self.files.get_mut(file) else { return };
        let before = shares.len();
        shares.retain(|(owner, _)| owner.host != host || *owner.name != *name);
        let removed = before - shares.len();
        if shares.is_empty() {
            self.files.remove(file);
        }
        if let Some(count) = self.counts.get_mut(&host) {
            *count -= removed;
            if *count == 0 {
                self.counts.remove(&host);
            }
        }
    }

    /// Removes the reservations of a host.
    pub(super) fn release_host(&mut self, host: IpAddr) {
        if self.counts.remove(&host).is_some() {
            self.files.retain(|_, shares| {
                shares.retain(|(owner, _)| owner.host != host);
                !shares.is_empty()
            });
        }
    }

    pub(super) fn has_host(&self, host: IpAddr) -> bool {
        self.counts.contains_key(&host)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use curt_vfs::Vfs as _;

    use crate::file_handle::FileSystemId;

    fn file(number: u32) -> LockFile {
        LockFile {
            file_system: FileSystemId(number),
            node: curt_vfs::MemoryVfs::new(curt_vfs::MemoryOptions::default()).root(),
        }
    }

    fn owner(host: u8, name: &str) -> ShareOwner {
        ShareOwner { host: IpAddr::from([10, 0, 0, host]), name: name.as_bytes().into() }
    }

    #[test]
    fn owners_conflict_if_one_does_what_the_other_denies() {
        for (bits, other) in (0..16_u32).flat_map(|bits| (0..16).map(move |other| (bits, other))) {
            let modes = |bits: u32| ShareModes {
                access: ShareBits::from_bits(bits),
                deny: ShareBits::from_bits(bits >> 2),
            };
            let denied =
                |one: u32, two: u32| (one & 1 != 0 && two & 4 != 0) || (one & 2 != 0 && two & 8 != 0);
            let expected =
                if denied(bits, other) || denied(other, bits) { Err(NoShare::Conflict) } else { Ok(()) };
            let mut table = ShareTable::default();
            table.share(file(1), owner(1, "one"), modes(bits)).unwrap();
            assert_eq!(table.share(file(1), owner(1, "two"), modes(other)), expected);
            table.unshare(&file(1), owner(1, "").host, b"two");
            assert_eq!(table.share(file(1), owner(2, "one"), modes(other)), expected, "another host");
            assert_eq!(table.share(file(2), owner(2, "one"), modes(other)), Ok(()), "another file");
            table.release_host(owner(2, "").host);
            assert_eq!(table.share(file(1), owner(1, "one"), modes(other)), Ok(()), "its own");
        }
    }

    #[test]
    fn a_host_has_no_more_than_the_limit_and_what_it_gives_back_is_free() {
        let mut table = ShareTable::default();
        let modes = ShareModes::default();
        for number in 0..SHARES_MAX {
            table.share(file(1), owner(1, &number.to_string()), modes).unwrap();
        }
        assert_eq!(table.share(file(2), owner(1, "more"), modes), Err(NoShare::TooMany));
        table.share(file(1), owner(1, "7"), modes).unwrap();
        table.share(file(2), owner(2, "more"), modes).unwrap();
        table.unshare(&file(1), owner(1, "").host, b"7");
        table.unshare(&file(1), owner(1, "").host, b"7");
        table.share(file(2), owner(1, "more"), modes).unwrap();
        assert!(table.has_host(owner(1, "").host));
        table.release_host(owner(1, "").host);
        assert!(!table.has_host(owner(1, "").host) && table.has_host(owner(2, "").host));
        table.unshare(&file(2), owner(2, "").host, b"more");
        assert!(table.files.is_empty() && table.counts.is_empty());
    }
}
