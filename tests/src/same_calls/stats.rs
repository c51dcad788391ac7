//! Whether two answers of stat(2) are of the same file in the same state.
//!
//! Inode numbers are held to be one to one. Times are another machine's: those that were set are
//! equal, and of others it is compared whether they moved since the file was looked at last.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};

use crate::test_directory::StatSummary;

/// Seconds since 1970 below which a time was set by a call and not by a clock.
const SET_BEFORE: i64 = 1_000_000_001;
/// The bits of a mode that a write takes away, of whoever may not keep them.
const SET_ID: u32 = 0o6000;
/// A directory in memory may be changed twice within so many nanoseconds and show one time: its
/// time is taken from what it loses, of which nobody knew the time, so that the clock's step is
/// enough for it.
const STEP: i64 = 20_000_000;
/// What the times of [`StatSummary`] are called.
const TIMES: [&str; 3] = ["atime", "mtime", "ctime"];

/// What was seen of a file before.
struct PreviousStat {
    local: StatSummary,
    mount: StatSummary,
    silly_removed: u64,
}

/// What the answers so far said.
#[derive(Default)]
pub(crate) struct StatHistory {
    inodes: HashMap<u64, u64>,
    taken: HashMap<u64, u64>,
    before: HashMap<u64, PreviousStat>,
    /// Inodes, of the local world, that lost a name while they were open.
    pub(crate) orphans: HashSet<u64>,
    /// Those that ever did, and may have other names still.
    pub(crate) were_orphans: HashSet<u64>,
    /// Inodes that were mapped into memory: a local file in memory then has blocks where it had
    /// holes.
    pub(crate) mapped: HashSet<u64>,
    /// How often a file that was kept for those who had it open was removed: that changes its
    /// directory once more.
    pub(crate) silly_removed: u64,
}

impl StatHistory {
    /// Compares; says what differs.
    pub(crate) fn compare(&mut self, local: &StatSummary, mount: &StatSummary) -> Result<(), String> {
        let of = |what: &str, local: &dyn std::fmt::Debug, mount: &dyn std::fmt::Debug| {
            Err(format!("{what} is {local:?} and on the mount {mount:?}"))
        };
        let inode = *self.inodes.entry(local.inode).or_insert(mount.inode);
        let owner = *self.taken.entry(mount.inode).or_insert(local.inode);
        if inode != mount.inode || owner != local.inode {
            return Err(format!(
                "inode {} was {inode} before and is {} now",
                local.inode, mount.inode
            ));
        }
        // A server's threads never write with the right to keep these bits.
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
            // The kernel reads and writes FIFOs and devices by itself, and tells nobody.
            return Ok(());
        }
        self.compare_times(local, mount)
    }

    /// A file that was removed while open has another name, until it is closed, which its directory
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
            return Err(format!(
                "blocks: {} and on the mount {}",
                local.blocks, mount.blocks
            ));
        }
        Ok(())
    }

    fn compare_times(&mut self, local: &StatSummary, mount: &StatSummary) -> Result<(), String> {
        let before = self.before.get(&local.inode);
        // The removal, or what it will be, changes what it is about and its directory once more.
        let moved_alone = |before: &PreviousStat| {
            let concerned = local.is_directory() || self.were_orphans.contains(&local.inode);
            concerned && (before.silly_removed < self.silly_removed || !self.orphans.is_empty())
        };
        for (which, name) in TIMES.into_iter().enumerate() {
            let (here, there) = (local.times[which], mount.times[which]);
            if here.0 < SET_BEFORE || there.0 < SET_BEFORE {
                let by_removal = local.is_directory() && self.silly_removed > 0 && there.0 >= SET_BEFORE;
                if here != there && !by_removal {
                    return Err(format!(
                        "{name} was set to {here:?} and is {there:?} on the mount"
                    ));
                }
                continue;
            }
            let Some(before) = before else { continue };
            let by = [
                since(before.local.times[which], here),
                since(before.mount.times[which], there),
            ];
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
        let seen = PreviousStat {
            local: local.clone(),
            mount: mount.clone(),
            silly_removed: self.silly_removed,
        };
        self.before.insert(local.inode, seen);
        Ok(())
    }
}

/// Nanoseconds from one time to another.
fn since(from: (i64, i64), to: (i64, i64)) -> i64 {
    (to.0 - from.0) * 1_000_000_000 + to.1 - from.1
}
