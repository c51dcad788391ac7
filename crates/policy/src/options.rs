//! Every mount option that bears on what may be served without asking.
//!
//! Owns their meaning as plain values and their defaults, those of nfs(5) where nfs(5) has the
//! option. Must not know their spelling: the mount crate reads words, this crate reads values.

use core::time::Duration;

use curt_types::FileKind;

/// The least and the most time for which attributes are believed without asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimeoutRange {
    /// Where it starts, and where a change throws it back to.
    pub min: Duration,
    /// Where doubling ends.
    pub max: Duration,
}

/// Who judges whether a caller may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessMode {
    /// `accesscheck`: the server, by ACCESS; its answers are kept for the attributes' lifetime.
    Server,
    /// `noaccesscheck`: mode bits, for everybody but uid 0; the server confirms denials.
    ModeBits,
}

/// Which names may be served from memory (`lookupcache=`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LookupCache {
    /// `all`: present and missing ones.
    All,
    /// `pos`, `positive`: present ones only.
    Positive,
    /// `none`: each look-up asks.
    None,
}

/// What is done about changes that a server's clock is too coarse to tell apart
/// (`neg_racy_guard=`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RacyGuard {
    /// `auto`: names learned while the directory's stamp was young are asked for once more. Names
    /// known before a change of our own in the same directory are believed across it.
    Auto,
    /// `on`: those too are asked for once more.
    On,
    /// `off`: equal stamps mean that nothing changed.
    Off,
}

/// How directories are listed (`rdirplus`, `nordirplus`, `rdirplus=force`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PlusMode {
    /// With attributes from the start, without after many names that nobody asked about.
    Auto,
    /// Never with attributes.
    Never,
    /// Always with attributes.
    Always,
}

/// What a reader in the middle of a directory does when the directory is found changed
/// (`readdir=`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ListingMode {
    /// It goes on where it is.
    Continue,
    /// `restart`: all names are asked for again from the beginning, up to where it was, as clients
    /// used to. A listing that takes longer than the directory stays unchanged never ends; for
    /// comparison.
    Restart,
}

/// Whether a directory may answer for its names (`dirfill=`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FillMode {
    /// `auto`: names and attributes that are wanted may be asked for with those beside them, and a
    /// directory whose names are all known answers for those that it does not have.
    Auto,
    /// `off`: each name, present or missing, and the attributes of each object are asked for by
    /// themselves, but for what listings bring.
    Off,
}

/// Whose requests the kernel lets through to this mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MountUsers {
    /// Those of the user who mounted, alone.
    One,
    /// Several users' (`allow_other`, `allow_root`).
    Many,
}

/// The cache-relevant options of one mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CacheOptions {
    /// `acregmin`, `acregmax`: for everything but directories.
    pub files: TimeoutRange,
    /// `acdirmin`, `acdirmax`.
    pub directories: TimeoutRange,
    /// `ac`; false is `noac`: no attribute is ever served without asking, and `sloppycto` is zero.
    pub attribute_cache: bool,
    /// `cto`; false is `nocto`: open believes fresh attributes.
    pub close_to_open: bool,
    /// `sloppycto=N`: a read-only open of a regular file believes attributes at most this old. Zero
    /// is off.
    pub sloppy_open: Duration,
    /// `accesscheck` or `noaccesscheck`.
    pub access: AccessMode,
    /// `lookupcache=`.
    pub names: LookupCache,
    /// `nametimeo=`: for how long a present name is believed while its directory does not change.
    /// Zero is off.
    pub name_lifetime: Duration,
    /// `negnametimeo=`: the same for missing names. Zero is off, as is `nonegnamecache`.
    pub missing_name_lifetime: Duration,
    /// `neg_racy_guard=`.
    pub racy_guard: RacyGuard,
    /// `rdirplus` and its kin.
    pub plus: PlusMode,
    /// `readdir=`.
    pub listing: ListingMode,
    /// `dirfill=`.
    pub fill: FillMode,
    /// Whether more than one user's requests arrive.
    pub users: MountUsers,
}

impl CacheOptions {
    /// The interval for objects of this kind; zero to zero under `noac`.
    #[must_use]
    pub const fn interval(&self, kind: FileKind) -> TimeoutRange {
        if !self.attribute_cache {
            return TimeoutRange { min: Duration::ZERO, max: Duration::ZERO };
        }
        match kind {
            FileKind::Directory => self.directories,
            _ => self.files,
        }
    }

    /// The window of `sloppycto`: zero under `noac`, and under `nocto`, which is stronger.
    #[must_use]
    pub const fn sloppy_window(&self) -> Duration {
        if self.attribute_cache && self.close_to_open { self.sloppy_open } else { Duration::ZERO }
    }
}

impl Default for CacheOptions {
    /// The defaults of nfs(5), and of options that nfs(5) does not have those of README.md; one
    /// user.
    fn default() -> Self {
        Self {
            files: TimeoutRange { min: Duration::from_secs(3), max: Duration::from_secs(60) },
            directories: TimeoutRange { min: Duration::from_secs(30), max: Duration::from_secs(60) },
            attribute_cache: true,
            close_to_open: true,
            sloppy_open: Duration::ZERO,
            access: AccessMode::Server,
            names: LookupCache::All,
            name_lifetime: Duration::from_secs(60),
            missing_name_lifetime: Duration::from_secs(60),
            racy_guard: RacyGuard::Auto,
            plus: PlusMode::Auto,
            listing: ListingMode::Continue,
            fill: FillMode::Auto,
            users: MountUsers::One,
        }
    }
}
