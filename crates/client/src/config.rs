//! What a client is told when it is made.

use std::{sync::Arc, time::Duration};

use curt_policy::CacheOptions;

use crate::{
    api::Observer,
    data::DataOptions,
    environment::{Background, Clock},
};

/// Bounds of a client's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Names that are known to be there, with the attributes and rights of what they lead to. The oldest used are forgotten
    /// beyond it. What somebody holds a look-up of is not counted.
    pub names: usize,
    /// Names that are known to be missing, of all directories.
    pub missing_names: usize,
    /// Names that are known to be missing, of one directory.
    pub missing_names_per_directory: usize,
    /// Bytes that the names of listed directories take, beside the above. A listing is not hurt by too few, but what it can do
    /// about a server that refuses its own cookies is.
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

/// What a client does, apart from whom it talks to.
///
/// Times of last access are the server's alone: reading from a cache changes none, whatever `noatime` or `relatime` say.
#[derive(Clone, Debug, Default)]
pub struct Behaviour {
    /// What is believed, and for how long.
    pub cache: CacheOptions,
    /// How data are moved.
    pub data: DataOptions,
    /// What is remembered at most.
    pub limits: Limits,
    /// `softreval`: how long what is remembered is asked about before it is believed although it is too old, the server being
    /// silent; `None`: as long as the transport waits. What is not remembered is waited for in any case.
    pub soft_revalidation: Option<Duration>,
}

/// What a client is given from outside.
#[derive(Clone)]
pub struct Environment {
    /// Tells the time.
    pub clock: Arc<dyn Clock>,
    /// Runs work that nobody waits for.
    pub background: Arc<dyn Background>,
    /// Is told what the client finds out by itself.
    pub observer: Option<Arc<dyn Observer>>,
}
