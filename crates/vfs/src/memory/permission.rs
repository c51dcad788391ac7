//! Permissions by mode bits, as decided by a Linux kernel without access control lists. Pure.

use rustix::io::Errno;

use crate::caller::FsCred;

pub(super) const READ: u32 = 4;
pub(super) const WRITE: u32 = 2;
pub(super) const EXECUTE: u32 = 1;

pub(super) const SET_UID: u32 = 0o4000;
pub(super) const SET_GID: u32 = 0o2000;
const STICKY: u32 = 0o1000;
const GROUP_EXECUTE: u32 = 0o010;

/// An object's owner, group and mode.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ownership {
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) is_directory: bool,
}

impl Ownership {
    /// Whether the caller has all of `wanted` ([`READ`], [`WRITE`], [`EXECUTE`]).
    pub(super) fn allows(self, caller: &FsCred<'_>, wanted: u32) -> bool {
        if caller.privileged {
            return wanted & EXECUTE == 0 || self.is_directory || self.mode & 0o111 != 0;
        }
        let bits = if caller.uid == self.uid {
            self.mode >> 6
        } else if caller.in_group(self.gid) {
            self.mode >> 3
        } else {
            self.mode
        };
        bits & wanted == wanted
    }

    pub(super) fn check(self, caller: &FsCred<'_>, wanted: u32) -> Result<(), Errno> {
        if self.allows(caller, wanted) { Ok(()) } else { Err(Errno::ACCESS) }
    }

    /// For READ: permitted for the owner, and with execute permission.
    pub(super) fn check_read(self, caller: &FsCred<'_>) -> Result<(), Errno> {
        if caller.uid == self.uid || self.allows(caller, EXECUTE) {
            return Ok(());
        }
        self.check(caller, READ)
    }

    /// For WRITE and truncation: permitted for the owner.
    pub(super) fn check_write(self, caller: &FsCred<'_>) -> Result<(), Errno> {
        if caller.uid == self.uid { Ok(()) } else { self.check(caller, WRITE) }
    }

    pub(super) fn check_owner(self, caller: &FsCred<'_>) -> Result<(), Errno> {
        if caller.privileged || caller.uid == self.uid { Ok(()) } else { Err(Errno::PERM) }
    }

    /// For a directory: whether the caller may remove the entry of `victim`.
    pub(super) fn check_remove(self, caller: &FsCred<'_>, victim: Self) -> Result<(), Errno> {
        self.check(caller, WRITE | EXECUTE)?;
        let sticky = self.mode & STICKY != 0;
        if sticky && !caller.privileged && caller.uid != victim.uid && caller.uid != self.uid {
            return Err(Errno::PERM);
        }
        Ok(())
    }

    /// For a directory: the group and the mode of a new object of the caller.
    pub(super) fn inherit(self, caller: &FsCred<'_>, mode: u32, directory: bool) -> (u32, u32) {
        if self.mode & SET_GID == 0 {
            return (caller.gid, mode);
        }
        if directory {
            return (self.gid, mode | SET_GID);
        }
        let privilege = SET_GID | GROUP_EXECUTE;
        let strip = mode & privilege == privilege && !caller.privileged && !caller.in_group(self.gid);
        (self.gid, if strip { mode & !SET_GID } else { mode })
    }

    /// The resulting mode of a chmod to `wanted`: no setgid bit for a group that the caller is not
    /// in.
    pub(super) fn chmod(self, caller: &FsCred<'_>, wanted: u32) -> u32 {
        let keeps = caller.privileged || caller.in_group(self.gid);
        if keeps { wanted & 0o7777 } else { wanted & 0o7777 & !SET_GID }
    }

    /// The resulting mode of a write or a truncation: root has no privileges here either.
    pub(super) fn after_write(self, caller: &FsCred<'_>) -> u32 {
        self.without_privileges(caller.in_group(self.gid))
    }

    /// The resulting mode of a change of owner or group.
    pub(super) fn after_chown(self, caller: &FsCred<'_>) -> u32 {
        self.without_privileges(caller.privileged || caller.in_group(self.gid))
    }

    /// setgid without group execution has another meaning (formerly mandatory locks), and remains
    /// for a caller who could set it.
    fn without_privileges(self, could_set: bool) -> u32 {
        let mode = self.mode & !SET_UID;
        let drop = mode & GROUP_EXECUTE != 0 || !could_set;
        if drop { mode & !SET_GID } else { mode }
    }

    pub(super) fn check_chown(
        self,
        caller: &FsCred<'_>,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<(), Errno> {
        if caller.privileged {
            return Ok(());
        }
        let owner = caller.uid == self.uid;
        let uid_stays = uid.is_none_or(|uid| uid == self.uid);
        let gid_is_own = gid.is_none_or(|gid| gid == self.gid || caller.in_group(gid));
        let changes_owner = uid.is_some() || gid.is_some();
        if !changes_owner || (owner && uid_stays && gid_is_own) { Ok(()) } else { Err(Errno::PERM) }
    }
}
