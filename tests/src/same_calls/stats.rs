//! Whether two results of stat(2) are of the same file in the same state.
//!
//! Inode numbers must correspond one to one. Times are those of another machine: times that were
//! set must be equal, and for others the comparison is whether they changed since the last stat(2).

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};

use crate::test_directory::StatSummary;

/// Times below this, in seconds since 1970, were set by a call and not by a clock.
const SET_BEFORE: i64 = 1_000_000_001;
/// The mode bits that a write clears for unprivileged callers.
const SET_ID: u32 = 0o6000;
/// A directory in memory may be changed twice within this many nanoseconds and have one time: its
/// time is taken from the object that it loses, whose time was not read, so the clock's step is
/// sufficient.
const STEP: i64 = 20_000_000;
/// The names of the times of [`StatSummary`].
const TIMES: [&str; 3] = ["atime", "mtime", "ctime"];

/// A previous result of stat(2).
struct PreviousStat {
    local: StatSummary,
    mount: StatSummary,
    silly_removed: u64,
}

/// The results so far.
#[derive(Default)]
pub(crate) struct StatHistory {
    inodes: HashMap<u64, u64>,
    taken: HashMap<u64, u64>,
    before: HashMap<u64, PreviousStat>,
    /// Inodes, in the local directory, that lost a name while they were open.
    pub(crate) orphans: HashSet<u64>,
    /// Those that ever did, and may still have other names.
    pub(crate) were_orphans: HashSet<u64>,
    /// Inodes that were mapped: a local file in memory then has blocks instead of holes.
    pub(crate) mapped: HashSet<u64>,
    /// Number of removals of silly-renamed files: each changes its directory once more.
    pub(crate) silly_removed: u64,
}

impl StatHistory {
    /// Compares both; returns the difference.
    pub(crate) fn compare(&mut self, local: &StatSummary, mount: &StatSummary) -> Result<(), String> {
        let of = |what: &str, local: &dyn std::fmt::Debug, mount: &dyn std::fmt::Debug| {
            Err(format!("{what} is {local:?} and on the mount {mount:?}"))
        };
        let inode = *self.inodes.entry(local.inode).or_insert(mount.inode);
        let owner = *self.taken.entry(mount.inode).or_insert(local.inode);
        if inode != mount.inode || owner != local.inode {
            return Err(format!("inode {} was {inode} before and is {} now", local.inode, mount.inode));
        }
        // A server's threads never write with the capability to keep these bits.
        let lost = if local.is_regular() { SET_ID } else { 0 };
        if local.mode & !lost != mount.mode & !lost || mount.mode & !local.mode != 0 {
            return of("mode", &format!("{:o}", local.mode), &format!("{:o}", mount.mode));
        }
        if local.owner != mount.owner {
            return of("owner", &local.owner, &mount.owner);
        }
        if local.device != mount.device {
            return of("device", &local.device, &mount.device);
        }
        self.compare_links_and_sizes(local, mount)?;
        if local.is_special() {
            // The kernel reads and writes FIFOs and devices itself, without a request.
            return Ok(());
        }
        self.compare_times(local, mount)
    }

    /// A file that was removed while open has another name until it is closed, which its directory
    /// shows, too.
    fn compare_links_and_sizes(&self, local: &StatSummary, mount: &StatSummary) -> Result<(), String> {
        let links = local.links == mount.links;
        let size = local.size == mount.size;
        let is_orphan = self.orphans.contains(&local.inode);
        let silly = is_orphan && local.links < mount.links;
        if !links && !silly {
            return Err(format!("links: {} and on the mount {}", local.links, mount.links));
        }
        let holds_orphan = local.is_directory() && !self.orphans.is_empty() && local.size < mount.size;
        if !size && !holds_orphan {
            return Err(format!("size is {} and on the mount {}", local.size, mount.size));
        }
        if local.blocks != mount.blocks && !self.mapped.contains(&local.inode) {
            return Err(format!("blocks: {} and on the mount {}", local.blocks, mount.blocks));
        }
        Ok(())
    }

    fn compare_times(&mut self, local: &StatSummary, mount: &StatSummary) -> Result<(), String> {
        let before = self.before.get(&local.inode);
        // The removal, now or later, changes the object and its directory once more.
        let moved_alone = |before: &PreviousStat| {
            let concerned = local.is_directory() || self.were_orphans.contains(&local.inode);
            concerned && (before.silly_removed < self.silly_removed || !self.orphans.is_empty())
        };
        for (which, name) in TIMES.into_iter().enumerate() {
            let (here, there) = (local.times[which], mount.times[which]);
            if here.0 < SET_BEFORE || there.0 < SET_BEFORE {
                let by_removal = local.is_directory() && self.silly_removed > 0 && there.0 >= SET_BEFORE;
                if here != there && !by_removal {
                    return Err(format!("{name} was set to {here:?} and is {there:?} on the mount"));
                }
                continue;
            }
            let Some(before) = before else { continue };
            let by = [since(before.local.times[which], here), since(before.mount.times[which], there)];
            let [here, there] = by.map(|by| by.cmp(&0));
            let alone = here == Ordering::Equal && there == Ordering::Greater && moved_alone(before);
            let in_a_step = local.is_directory() && by.into_iter().all(|by| (0..STEP).contains(&by));
            if here != there && !alone && !in_a_step {
                return Err(format!(
                    "{name} moved {here:?} and on the mount {there:?}: {:?} to {:?}, on the mount {:?} to {:?}",
                    before.local.times[which],
                    local.times[which],
                    before.mount.times[which],
                    mount.times[which]
                ));
            }
        }
        let seen =
            PreviousStat { local: local.clone(), mount: mount.clone(), silly_removed: self.silly_removed };
        self.before.insert(local.inode, seen);
        Ok(())
    }
}

/// Nanoseconds between two times.
fn since(from: (i64, i64), to: (i64, i64)) -> i64 {
    (to.0 - from.0) * 1_000_000_000 + to.1 - from.1
}
