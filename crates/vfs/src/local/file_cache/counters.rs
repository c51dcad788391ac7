//! Counters of the file cache: the lines of Linux's /proc/fs/nfsd/filecache, and additional ones.

/// State of a tree's file cache, and counts of events since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileCacheCounters {
    /// Files with an open descriptor (`total inodes`).
    pub inodes: u64,
    /// Number of hash buckets (`hash buckets`).
    pub buckets: u64,
    /// Cached descriptors (`lru entries`).
    pub entries: u64,
    /// Requests for which the file was open (`cache hits`).
    pub hits: u64,
    /// Descriptors that were opened and cached (`allocations`).
    pub allocations: u64,
    /// Descriptors removed from the cache (`releases`).
    pub releases: u64,
    /// Descriptors among these that were idle, or whose space was needed (`evictions`).
    pub evictions: u64,
    /// The sum of the ages of the removed descriptors in milliseconds.
    pub age_ms: u64,
    /// Requests that had to open their file.
    pub misses: u64,
    /// Files that were opened and not cached, because of few free descriptors or because the cache
    /// is off.
    pub uncached: u64,
}

impl FileCacheCounters {
    /// Linux's nine lines: names and values, in its order.
    #[must_use]
    pub fn lines(&self) -> [(&'static str, u64); 9] {
        [
            ("total inodes", self.inodes),
            ("hash buckets", self.buckets),
            ("lru entries", self.entries),
            ("cache hits", self.hits),
            ("acquisitions", self.hits + self.misses),
            ("allocations", self.allocations),
            ("releases", self.releases),
            ("evictions", self.evictions),
            ("mean age (ms)", self.mean_age()),
        ]
    }

    /// The mean age of the removed descriptors in milliseconds.
    fn mean_age(&self) -> u64 {
        self.age_ms.checked_div(self.releases).unwrap_or(0)
    }

    /// The sum of two caches.
    #[must_use]
    pub const fn and(&self, other: &Self) -> Self {
        Self {
            inodes: self.inodes + other.inodes,
            buckets: self.buckets + other.buckets,
            entries: self.entries + other.entries,
            hits: self.hits + other.hits,
            allocations: self.allocations + other.allocations,
            releases: self.releases + other.releases,
            evictions: self.evictions + other.evictions,
            age_ms: self.age_ms + other.age_ms,
            misses: self.misses + other.misses,
            uncached: self.uncached + other.uncached,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_age_of_two_is_weighed_by_what_each_released() {
        let one = FileCacheCounters { releases: 3, age_ms: 300, ..FileCacheCounters::default() };
        let other = FileCacheCounters { releases: 1, age_ms: 500, ..FileCacheCounters::default() };
        assert_eq!((one.and(&other).mean_age(), one.and(&other).releases), (200, 4));
        let none = FileCacheCounters::default();
        assert_eq!(none.and(&none).mean_age(), 0);
    }
}
