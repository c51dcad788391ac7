//! The configuration of a client.

use std::{sync::Arc, time::Duration};

use curt_policy::CacheOptions;

use crate::{
    api::ChangeObserver,
    data::DataOptions,
    environment::{Background, Clock},
};

/// Bounds of a client's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Positive names, with the attributes and rights of the objects. Beyond it the least recently
    /// used are forgotten. Objects with counted look-ups do not count.
    pub names: usize,
    /// Negative names, of all directories.
    pub missing_names: usize,
    /// Negative names of one directory.
    pub missing_names_per_directory: usize,
    /// Bytes that the names of listed directories take, beside the above. A listing is not hurt by
    /// too few, but what it can do about a server that refuses its own cookies is.
    pub listing_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            names: 1_000_000,
            missing_names: 200_000,
            missing_names_per_directory: 4096,
            listing_bytes: 64 << 20,
        }
    }
}

/// How a client behaves, whatever server it talks to.
///
/// Access times are the server's alone: reading from a cache changes none, whatever `noatime` or
/// `relatime` say.
#[derive(Clone, Debug, Default)]
pub struct ClientOptions {
    /// What is cached, and for how long.
    pub cache: CacheOptions,
    /// How data are read and written.
    pub data: DataOptions,
    /// The bounds of the caches.
    pub limits: Limits,
    /// `softreval`: how long revalidation waits for a silent server before cached data are used
    /// although they are too old; `None`: as long as the transport waits. Without cached data the
    /// operation waits in any case.
    pub soft_revalidation: Option<Duration>,
}

/// What a client gets from outside.
#[derive(Clone)]
pub struct Environment {
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Runs background work.
    pub background: Arc<dyn Background>,
    /// Is notified of changes that the client finds by itself.
    pub observer: Option<Arc<dyn ChangeObserver>>,
}
