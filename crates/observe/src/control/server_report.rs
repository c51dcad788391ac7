//! The statistics of a server.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::ServerSnapshot;
use crate::stages::StageReport;
use serde::{Deserialize, Serialize};

use super::difference::counted_since;

/// A server, and its statistics since its start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerReport {
    /// Process id.
    pub pid: u32,
    /// Version of Curt.
    pub curt: String,
    /// Time since its start, in seconds.
    pub age_seconds: f64,
    /// The state directory.
    pub state: Option<PathBuf>,
    /// The exported paths.
    pub exports: Vec<String>,
    /// Counters of requests and caches.
    pub counters: ServerSnapshot,
    /// The nine lines of Linux's file cache, summed over all exports.
    pub file_cache: BTreeMap<String, u64>,
    /// Requests for which the file was not open yet.
    pub file_cache_misses: u64,
    /// Times of the stages.
    pub stages: StageReport,
    /// Calls of NLM and NSM that occurred.
    #[serde(default)]
    pub lock_calls: BTreeMap<String, u64>,
    /// How often each limit was reached, by its option.
    #[serde(default)]
    pub limits: BTreeMap<String, u64>,
}

/// The lines of the file cache that are current values; the others are counters.
pub const FILE_CACHE_MOMENTS: [&str; 4] = ["total inodes", "hash buckets", "lru entries", "mean age (ms)"];

impl ServerReport {
    /// The statistics of the time between `earlier` and this: counters are differences, and the age
    /// is the time in between. Other values, and the times of stages, are current.
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
            lock_calls: counted_since(&self.lock_calls, &earlier.lock_calls),
            limits: counted_since(&self.limits, &earlier.limits),
            file_cache_misses: self.file_cache_misses.saturating_sub(earlier.file_cache_misses),
            ..self.clone()
        }
    }
}
