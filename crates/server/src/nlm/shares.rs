//! Share reservations of DOS programs: what an owner does with a file, and denies others (SHARE and
//! UNSHARE). They concern each other and the opens of NFSv4, but not READ and WRITE, which have no
//! owner in NFSv3.

use std::collections::HashMap;
use std::net::IpAddr;

use crate::state::{FileKey, ShareHolder, ShareMode, ShareTable};

/// Maximum number of reservations of one host.
pub(super) const SHARES_MAX: usize = 4096;

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

/// The reservations of all hosts. The table of all protocol versions decides.
#[derive(Default)]
pub(super) struct HostShares {
    files: HashMap<FileKey, Vec<(ShareOwner, ShareMode)>>,
    counts: HashMap<IpAddr, usize>,
}

impl HostShares {
    /// Sets the reservation of an owner, in place of the one it has.
    pub(super) fn share(
        &mut self,
        table: &ShareTable,
        file: FileKey,
        owner: ShareOwner,
        mode: ShareMode,
    ) -> Result<(), NoShare> {
        let shares = self.files.get_mut(&file);
        let held = shares.and_then(|shares| shares.iter_mut().find(|(other, _)| *other == owner));
        let replace = |old| table.replace(ShareHolder::Nlm, &file, old, Some(mode), None);
        if let Some((_, held)) = held {
            replace(Some(*held)).map_err(|_| NoShare::Conflict)?;
            *held = mode;
            return Ok(());
        }
        if self.counts.get(&owner.host).is_some_and(|count| *count >= SHARES_MAX) {
            return Err(NoShare::TooMany);
        }
        replace(None).map_err(|_| NoShare::Conflict)?;
        *self.counts.entry(owner.host).or_default() += 1;
        self.files.entry(file).or_default().push((owner, mode));
        Ok(())
    }

    /// Removes the reservation of an owner, if there is one.
    pub(super) fn unshare(&mut self, table: &ShareTable, file: &FileKey, host: IpAddr, name: &[u8]) {
        let Some(shares) = self.files.get_mut(file) else { return };
        let removed = shares.iter().position(|(owner, _)| owner.host == host && *owner.name == *name);
        let Some(removed) = removed else { return };
        table.end(ShareHolder::Nlm, file, shares.remove(removed).1);
        if shares.is_empty() {
            self.files.remove(file);
        }
        if let Some(count) = self.counts.get_mut(&host) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&host);
            }
        }
    }

    /// Removes the reservations of a host.
    pub(super) fn release_host(&mut self, table: &ShareTable, host: IpAddr) {
        if self.counts.remove(&host).is_none() {
            return;
        }
        self.files.retain(|file, shares| {
            for (_, mode) in shares.extract_if(.., |(owner, _)| owner.host == host) {
                table.end(ShareHolder::Nlm, file, mode);
            }
            !shares.is_empty()
        });
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
    use crate::state::{IoDirection, ShareBits};

    fn file(number: u32) -> FileKey {
        FileKey {
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
            let modes = |bits: u32| ShareMode {
                access: ShareBits::from_wire(bits & 3).unwrap(),
                deny: ShareBits::from_wire(bits >> 2).unwrap(),
            };
            let denied =
                |one: u32, two: u32| (one & 1 != 0 && two & 4 != 0) || (one & 2 != 0 && two & 8 != 0);
            let expected =
                if denied(bits, other) || denied(other, bits) { Err(NoShare::Conflict) } else { Ok(()) };
            let (mut table, common) = (HostShares::default(), ShareTable::default());
            table.share(&common, file(1), owner(1, "one"), modes(bits)).unwrap();
            assert_eq!(table.share(&common, file(1), owner(1, "two"), modes(other)), expected);
            table.unshare(&common, &file(1), owner(1, "").host, b"two");
            assert_eq!(
                table.share(&common, file(1), owner(2, "one"), modes(other)),
                expected,
                "another host"
            );
            assert_eq!(table.share(&common, file(2), owner(2, "one"), modes(other)), Ok(()), "another file");
            table.release_host(&common, owner(2, "").host);
            assert_eq!(table.share(&common, file(1), owner(1, "one"), modes(other)), Ok(()), "its own");
        }
    }

    #[test]
    fn a_host_has_no_more_than_the_limit_and_what_it_gives_back_is_free() {
        let (mut table, common) = (HostShares::default(), ShareTable::default());
        let modes = ShareMode::default();
        for number in 0..SHARES_MAX {
            table.share(&common, file(1), owner(1, &number.to_string()), modes).unwrap();
        }
        assert_eq!(table.share(&common, file(2), owner(1, "more"), modes), Err(NoShare::TooMany));
        table.share(&common, file(1), owner(1, "7"), modes).unwrap();
        table.share(&common, file(2), owner(2, "more"), modes).unwrap();
        table.unshare(&common, &file(1), owner(1, "").host, b"7");
        table.unshare(&common, &file(1), owner(1, "").host, b"7");
        table.share(&common, file(2), owner(1, "more"), modes).unwrap();
        assert!(table.has_host(owner(1, "").host));
        table.release_host(&common, owner(1, "").host);
        assert!(!table.has_host(owner(1, "").host) && table.has_host(owner(2, "").host));
        table.unshare(&common, &file(2), owner(2, "").host, b"more");
        assert!(table.files.is_empty() && table.counts.is_empty() && common.files() == 0);
    }

    #[test]
    fn a_denial_concerns_the_opens_of_all_versions_and_not_io_without_an_open() {
        let (mut table, common) = (HostShares::default(), ShareTable::default());
        let both = ShareMode { access: ShareBits::BOTH, deny: ShareBits::BOTH };
        table.share(&common, file(1), owner(1, "one"), both).unwrap();
        assert!(!common.denies_io(&file(1), None, IoDirection::Write));
        let open = |old, new| common.replace(ShareHolder::Nfs4, &file(1), old, new, None);
        assert!(open(None, Some(both)).is_err());
        table.release_host(&common, owner(1, "").host);
        open(None, Some(both)).unwrap();
        assert!(common.denies_io(&file(1), None, IoDirection::Write));
        assert_eq!(table.share(&common, file(1), owner(1, "one"), both), Err(NoShare::Conflict));
    }
}
