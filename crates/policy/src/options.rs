//! The mount options that decide what may be served from the cache.
//!
//! Owns their meaning as plain values and their defaults, those of nfs(5) where nfs(5) has the
//! option. Must not know their spelling, which the mount crate parses.

use core::time::Duration;

/// The minimum and maximum attribute cache timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimeoutRange {
    /// The initial timeout, and that after a change.
    pub min: Duration,
    /// The timeout at which doubling ends.
    pub max: Duration,
}

/// How access is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessMode {
    /// `accesscheck`: by ACCESS; the results are cached for the attributes' lifetime.
    Server,
    /// `noaccesscheck`: by mode bits, except for uid 0; denials are confirmed by the server.
    ModeBits,
}

/// Which names may be served from the cache (`lookupcache=`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LookupCache {
    /// `all`: positive and negative entries.
    All,
    /// `pos`, `positive`: positive entries only.
    Positive,
    /// `none`: each lookup sends a request.
    None,
}

/// The handling of changes that the server's clock is too coarse to distinguish
/// (`neg_racy_guard=`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RacyGuard {
    /// `auto`: names learned while the directory's stamp was recent are looked up once more. Names
    /// cached before a change of this client in the same directory stay valid across it.
    Auto,
    /// `on`: those too are looked up once more.
    On,
    /// `off`: equal stamps mean that nothing changed.
    Off,
}

/// How directories are listed (`rdirplus`, `nordirplus`, `rdirplus=force`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReaddirplusMode {
    /// With attributes at first; without them after many names whose attributes were not used.
    Auto,
    /// Never with attributes.
    Never,
    /// Always with attributes.
    Always,
}

/// How a reader in the middle of a directory continues after the directory has changed
/// (`readdir=`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ListingMode {
    /// The listing continues at its cookie.
    Continue,
    /// `restart`: all names are requested again from the beginning up to its position, as older
    /// clients did. A listing that takes longer than the directory stays unchanged never ends. For
    /// comparison only.
    Restart,
}

/// Whether a directory may answer for its names (`dirfill=`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FillMode {
    /// `auto`: names and attributes may be requested together with others of the directory, and a
    /// directory whose names are all known answers for missing names.
    Auto,
    /// `off`: each name, present or missing, and the attributes of each object are requested
    /// individually, except for those that a listing returns.
    Off,
}

/// Which users' requests the kernel passes to this mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MountUsers {
    /// Only those of this user, who mounted.
    One(u32),
    /// Processes of several users (`allow_other`).
    Many,
    /// All users'; the daemon refuses all but the user who mounted and root (`allow_root`).
    WithRoot,
}

/// The cache-relevant options of one mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CacheOptions {
    /// `acregmin`, `acregmax`: for everything but directories.
    pub files: TimeoutRange,
    /// `acdirmin`, `acdirmax`.
    pub directories: TimeoutRange,
    /// `ac`; false is `noac`: attributes are never served without a request, and `sloppycto` is
    /// zero.
    pub attribute_cache: bool,
    /// `cto`; false is `nocto`: open uses fresh attributes.
    pub close_to_open: bool,
    /// `sloppycto=N`: a read-only open of a regular file uses attributes up to this age. Zero
    /// disables it.
    pub sloppy_open: Duration,
    /// `accesscheck` or `noaccesscheck`.
    pub access: AccessMode,
    /// `lookupcache=`.
    pub names: LookupCache,
    /// `nametimeo=`: the lifetime of a positive entry while its directory does not change. Zero
    /// disables it.
    pub name_lifetime: Duration,
    /// `negnametimeo=`: the same for negative entries. Zero disables it, as does `nonegnamecache`.
    pub missing_name_lifetime: Duration,
    /// `neg_racy_guard=`.
    pub racy_guard: RacyGuard,
    /// `rdirplus` and related options.
    pub plus: ReaddirplusMode,
    /// `readdir=`.
    pub listing: ListingMode,
    /// `dirfill=`.
    pub fill: FillMode,
    /// `kernelnames=`: for how long a kernel may keep a name without asking, at most. Zero is off.
    pub kernel_names: Duration,
    /// `delegations`: the server is asked for read delegations (NFSv4).
    pub delegations: bool,
    /// Whether more than one user's requests arrive.
    pub users: MountUsers,
}

impl CacheOptions {
    /// The maximum age of `sloppycto`: zero under `noac`, and under `nocto`, which includes it.
    #[must_use]
    pub const fn sloppy_window(&self) -> Duration {
        if self.attribute_cache && self.close_to_open { self.sloppy_open } else { Duration::ZERO }
    }
}

impl Default for CacheOptions {
    /// The defaults of nfs(5), and those of README.md for options that nfs(5) does not have;
    /// several users.
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
            plus: ReaddirplusMode::Auto,
            listing: ListingMode::Continue,
            fill: FillMode::Auto,
            kernel_names: Duration::from_secs(1),
            delegations: true,
            users: MountUsers::Many,
        }
    }
}
