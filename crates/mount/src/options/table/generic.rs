//! The options of all file systems (mount(8)), and those that FUSE's own helpers pass on.

use super::super::settings::{AllowedUsers, Atime};
use super::row::{OptionRow, flag, ignored, passed, refused};

const NO_LABELS: &str = "security labels are not supported; leave it out";
const NO_INTEREST: &str = "it has no meaning for an NFS mount; leave it out";
const DEFAULT_PERMISSIONS: &str = "the kernel would check permissions by mode bits instead of asking the server; leave it out, or use noaccesscheck";

macro_rules! generic {
    ($name:literal, $($field:ident = $value:expr),+) => {
        flag($name, |s, _| {
            $(s.generic.$field = $value;)+
            Ok(())
        })
    };
}

/// The rows.
pub(super) const ROWS: &[OptionRow] = &[
    generic!("ro", read_only = true),
    generic!("rw", read_only = false),
    generic!("exec", noexec = false),
    generic!("noexec", noexec = true),
    generic!("suid", nosuid = false),
    generic!("nosuid", nosuid = true),
    generic!("dev", nodev = false),
    generic!("nodev", nodev = true),
    generic!("atime", atime = Atime::Relative),
    generic!("noatime", atime = Atime::Never),
    generic!("relatime", atime = Atime::Relative),
    generic!("norelatime", atime = Atime::Strict),
    generic!("strictatime", atime = Atime::Strict),
    generic!("nostrictatime", atime = Atime::Relative),
    generic!("diratime", nodiratime = false),
    generic!("nodiratime", nodiratime = true),
    generic!("sync", sync = true),
    generic!("async", sync = false),
    generic!("dirsync", dirsync = true),
    generic!("allow_other", allow = AllowedUsers::Other),
    generic!("allow_root", allow = AllowedUsers::Root),
    generic!("user", noexec = true, nosuid = true, nodev = true),
    generic!("users", noexec = true, nosuid = true, nodev = true),
    generic!("owner", nosuid = true, nodev = true),
    generic!("group", nosuid = true, nodev = true),
    // As in mount(8), except `dev`, which has to be given.
    generic!("defaults", read_only = false, nosuid = false, noexec = false, sync = false),
    generic!("remount", remount = true),
    passed("nouser"),
    passed("auto"),
    passed("noauto"),
    passed("nofail"),
    passed("_netdev"),
    passed("comment"),
    passed("x-*"),
    passed("X-*"),
    passed("user_id"),
    passed("group_id"),
    passed("fsname"),
    passed("subtype"),
    refused("default_permissions", DEFAULT_PERMISSIONS),
    refused("context", NO_LABELS),
    refused("fscontext", NO_LABELS),
    refused("defcontext", NO_LABELS),
    refused("rootcontext", NO_LABELS),
    refused("seclabel", NO_LABELS),
    refused("iversion", NO_INTEREST),
    ignored("noiversion", "NFS servers keep their own change attributes"),
    refused("lazytime", NO_INTEREST),
    ignored("nolazytime", "the server maintains the times"),
    refused("mand", NO_INTEREST),
    ignored("nomand", "there are no mandatory locks"),
    ignored("silent", "nothing is printed by the kernel"),
    ignored("loud", "nothing is printed by the kernel"),
];
