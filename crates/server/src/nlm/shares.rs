//! Share reservations of DOS programs: what an owner does with a file, and denies others (SHARE and
//! UNSHARE). They concern each other and the opens of NFSv4, but not READ and WRITE, which have no
//! owner in NFSv3.

use std::collections::HashMap;
use std::net::IpAddr;

use crate::state::{FileKey, ShareHolder, ShareMode, ShareTable};

/// Maximum number of reservations of one host.
const SHARES_MAX: usize = 4096;

/// Maximum number of reservations of all hosts: with the largest names about 64 MiB. A host has no
/// more of them than are left for others.
const SHARES_ALL_MAX: usize = 1 << 16;

/// An owner: `oh` at a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ShareOwner {
    pub(super) host: IpAddr,
    pub(super) name: Box<[u8]>,
}

/// A reservation.
#[derive(Debug)]
struct HostShare {
    owner: ShareOwner,
    mode: ShareMode,
    /// The state number in the last LOCK of its host before: SHARE has none.
    state: i32,
}

/// Why there is no reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoShare {
    Conflict,
    TooMany,
    /// The host has given the request up.
    GivenUp,
}

/// The reservations of all hosts. The table of all protocol versions decides.
#[derive(Default)]
pub(super) struct HostShares {
    files: HashMap<FileKey, Vec<HostShare>>,
    counts: HashMap<IpAddr, usize>,
    count: usize,
}

impl HostShares {
    /// Sets the reservation of an owner, in place of the one it has. `state`: the last state number
    /// of its host.
    pub(super) fn share(
        &mut self,
        table: &ShareTable,
        file: FileKey,
        owner: ShareOwner,
        mode: ShareMode,
        state: i32,
    ) -> Result<(), NoShare> {
        let shares = self.files.get_mut(&file);
        let held = shares.and_then(|shares| shares.iter_mut().find(|share| share.owner == owner));
        let replace = |old| table.replace(ShareHolder::Nlm, &file, old, Some(mode), None);
        if let Some(held) = held {
            replace(Some(held.mode)).map_err(|_| NoShare::Conflict)?;
            (held.mode, held.state) = (mode, state);
            return Ok(());
        }
        let own = self.counts.get(&owner.host).copied().unwrap_or(0);
        if own >= SHARES_MAX.min(SHARES_ALL_MAX - self.count) {
            return Err(NoShare::TooMany);
        }
        replace(None).map_err(|_| NoShare::Conflict)?;
        self.counts.insert(owner.host, own + 1);
        self.count += 1;
        self.files.entry(file).or_default().push(HostShare { owner, mode, state });
        Ok(())
    }

    /// Removes the reservation of an owner, if there is one.
    pub(super) fn unshare(&mut self, table: &ShareTable, file: &FileKey, host: IpAddr, name: &[u8]) {
        let Some(shares) = self.files.get_mut(file) else { return };
        let removed = shares.iter().position(|share| share.owner.host == host && *share.owner.name == *name);
        let Some(removed) = removed else { return };
        table.end(ShareHolder::Nlm, file, shares.remove(removed).mode);
        if shares.is_empty() {
            self.files.remove(file);
        }
        self.uncount(host, 1);
    }

    /// Removes the reservations of a host, except those that were made with the state number
    /// `kept`.
    pub(super) fn release_host(&mut self, table: &ShareTable, host: IpAddr, kept: Option<i32>) {
        if !self.has_host(host) {
            return;
        }
        let mut removed = 0;
        self.files.retain(|file, shares| {
            let is_over = |share: &mut HostShare| share.owner.host == host && Some(share.state) != kept;
            for share in shares.extract_if(.., is_over) {
                table.end(ShareHolder::Nlm, file, share.mode);
                removed += 1;
            }
            !shares.is_empty()
        });
        self.uncount(host, removed);
    }

    fn uncount(&mut self, host: IpAddr, removed: usize) {
        self.count -= removed;
        if let Some(count) = self.counts.get_mut(&host) {
            *count -= removed;
            if *count == 0 {
                self.counts.remove(&host);
            }
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
            table.share(&common, file(1), owner(1, "one"), modes(bits), 0).unwrap();
            assert_eq!(table.share(&common, file(1), owner(1, "two"), modes(other), 0), expected);
            table.unshare(&common, &file(1), owner(1, "").host, b"two");
            assert_eq!(
                table.share(&common, file(1), owner(2, "one"), modes(other), 0),
                expected,
                "another host"
            );
            assert_eq!(
                table.share(&common, file(2), owner(2, "one"), modes(other), 0),
                Ok(()),
                "another file"
            );
            table.release_host(&common, owner(2, "").host, None);
            assert_eq!(table.share(&common, file(1), owner(1, "one"), modes(other), 0), Ok(()), "its own");
        }
    }

    #[test]
    fn a_host_has_no_more_than_the_limit_and_what_it_gives_back_is_free() {
        let (mut table, common) = (HostShares::default(), ShareTable::default());
        let modes = ShareMode::default();
        for number in 0..SHARES_MAX {
            table.share(&common, file(1), owner(1, &number.to_string()), modes, 0).unwrap();
        }
        assert_eq!(table.share(&common, file(2), owner(1, "more"), modes, 0), Err(NoShare::TooMany));
        table.share(&common, file(1), owner(1, "7"), modes, 0).unwrap();
        table.share(&common, file(2), owner(2, "more"), modes, 0).unwrap();
        table.unshare(&common, &file(1), owner(1, "").host, b"7");
        table.unshare(&common, &file(1), owner(1, "").host, b"7");
        table.share(&common, file(2), owner(1, "more"), modes, 0).unwrap();
        assert!(table.has_host(owner(1, "").host));
        table.release_host(&common, owner(1, "").host, None);
        assert!(!table.has_host(owner(1, "").host) && table.has_host(owner(2, "").host));
        table.unshare(&common, &file(2), owner(2, "").host, b"more");
        assert!(table.files.is_empty() && table.counts.is_empty() && table.count == 0 && common.files() == 0);
    }

    #[test]
    fn hosts_leave_room_for_each_other() {
        let (mut table, common) = (HostShares::default(), ShareTable::default());
        let mut counts = Vec::new();
        for host in 0..20 {
            let mut names = 0_u32..;
            let mut share = |name: u32| {
                let (owner, file) = (owner(host, &name.to_string()), file(host.into()));
                table.share(&common, file, owner, ShareMode::default(), 0)
            };
            counts.push(names.find(|name| share(*name).is_err()).unwrap());
        }
        assert_eq!((counts[0], counts[10]), (4096, 4096));
        assert!(counts[19] > 0 && counts.iter().sum::<u32>() < 1 << 16, "{counts:?}");
        table.release_host(&common, owner(0, "").host, None);
        assert_eq!(table.share(&common, file(1), owner(19, "more"), ShareMode::default(), 0), Ok(()));
    }

    #[test]
    fn a_restart_frees_what_was_reserved_before_it() {
        let (mut table, common) = (HostShares::default(), ShareTable::default());
        let both = ShareMode { access: ShareBits::BOTH, deny: ShareBits::BOTH };
        table.share(&common, file(1), owner(1, "before"), both, 3).unwrap();
        table.share(&common, file(2), owner(1, "since"), both, 5).unwrap();
        table.share(&common, file(3), owner(2, "other"), both, 3).unwrap();
        table.release_host(&common, owner(1, "").host, Some(5));
        let mut is_free = |number| table.share(&common, file(number), owner(3, "third"), both, 0).is_ok();
        assert_eq!([1, 2, 3].map(&mut is_free), [true, false, false]);
        assert!(table.has_host(owner(1, "").host));
        table.release_host(&common, owner(1, "").host, None);
        assert!(!table.has_host(owner(1, "").host));
    }

    #[test]
    fn a_denial_concerns_the_opens_of_all_versions_and_not_io_without_an_open() {
        let (mut table, common) = (HostShares::default(), ShareTable::default());
        let both = ShareMode { access: ShareBits::BOTH, deny: ShareBits::BOTH };
        table.share(&common, file(1), owner(1, "one"), both, 0).unwrap();
        assert!(!common.denies_io(&file(1), None, IoDirection::Write));
        let open = |old, new| common.replace(ShareHolder::Nfs4, &file(1), old, new, None);
        assert!(open(None, Some(both)).is_err());
        table.release_host(&common, owner(1, "").host, None);
        open(None, Some(both)).unwrap();
        assert!(common.denies_io(&file(1), None, IoDirection::Write));
        assert_eq!(table.share(&common, file(1), owner(1, "one"), both, 0), Err(NoShare::Conflict));
    }
}
