//! The configuration of a client.

use std::{sync::Arc, time::Duration};

use curt_policy::{CacheOptions, locks::LockOptions};

use crate::{
    api::ChangeObserver,
    data::DataOptions,
    threads::{Background, Clock},
};

/// Limits of a client's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Positive names, with the attributes and access rights of the objects. Beyond it the least
    /// recently used are dropped. Objects that the kernel has looked up do not count.
    pub names: usize,
    /// Negative names, of all directories together.
    pub missing_names: usize,
    /// Negative names of one directory. Probing names in one does not remove those of others.
    pub missing_names_per_directory: usize,
    /// Bytes for the names of listed directories, besides the above. With fewer bytes listings are
    /// still complete, but the client recovers less often from a server that rejects its own
    /// cookies.
    pub listing_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            names: 1_000_000,
            missing_names: 200_000,
            missing_names_per_directory: 16_384,
            listing_bytes: 64 << 20,
        }
    }
}

/// The behaviour of a client, independent of the server.
///
/// Access times are the server's: a read from a cache does not change them, whatever `noatime` or
/// `relatime` say.
#[derive(Clone, Debug, Default)]
pub struct ClientOptions {
    /// The cache options: contents and lifetimes.
    pub cache: CacheOptions,
    /// How data are read and written.
    pub data: DataOptions,
    /// The bounds of the caches.
    pub limits: Limits,
    /// `softreval`: how long revalidation waits for a server that does not respond before expired
    /// cached data are used; `None`: as long as the transport waits. An operation without cached
    /// data always waits for the transport.
    pub soft_revalidation: Option<Duration>,
    /// Where and how locks are decided.
    pub locks: LockOptions,
}

/// The services that a client receives from its user.
#[derive(Clone)]
pub struct Environment {
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Runs background work.
    pub background: Arc<dyn Background>,
    /// Receives notifications of changes that the client detects.
    pub observer: Option<Arc<dyn ChangeObserver>>,
}
