//! The figures of a server.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::ServerSnapshot;
use crate::stages::StageReport;
use serde::{Deserialize, Serialize};

use super::difference::counted_since;

/// A server, and what it did since it began.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerReport {
    /// Process id.
    pub pid: u32,
    /// Version of Curt.
    pub curt: String,
    /// How long it serves, in seconds.
    pub age_seconds: f64,
    /// Where it keeps what outlives it.
    pub state: Option<PathBuf>,
    /// Paths of what it exports.
    pub exports: Vec<String>,
    /// What was asked and remembered.
    pub counters: ServerSnapshot,
    /// Linux's nine lines of its file cache, all exports together.
    pub file_cache: BTreeMap<String, u64>,
    /// How often a file was not open yet.
    pub file_cache_misses: u64,
    /// Where the time went.
    pub stages: StageReport,
    /// How often each limit was met, by the option that sets it.
    #[serde(default)]
    pub limits: BTreeMap<String, u64>,
}

/// The lines of the file cache that tell of a moment; the others are sums.
pub const FILE_CACHE_MOMENTS: [&str; 4] = ["total inodes", "hash buckets", "lru entries", "mean age (ms)"];

impl ServerReport {
    /// What was done between `earlier` and this: sums are differences, and the age is the time
    /// between. What is no sum, and the times of stages, are as they are now.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut file_cache = counted_since(&self.file_cache, &earlier.file_cache);
        let moments = FILE_CACHE_MOMENTS.map(|name| self.file_cache.get_key_value(name));
        let moments = moments.into_iter().flatten();
        file_cache.extend(moments.map(|(name, now)| (name.clone(), *now)));
        Self {
            age_seconds: (self.age_seconds - earlier.age_seconds).max(0.0),
            counters: self.counters.since(&earlier.counters),
            file_cache,
            limits: counted_since(&self.limits, &earlier.limits),
            file_cache_misses: self.file_cache_misses.saturating_sub(earlier.file_cache_misses),
            ..self.clone()
        }
    }
}
