//! The callers of operations: their ids and groups, their credentials, and their numbers as keys of
//! the access cache.
//!
//! [`CallerTable`] reads `/proc/TID/status`, which has the groups that a FUSE request does not
//! carry, and caches them for a short time. A cached entry is used only for the same task: the
//! inode number of `/proc/TID` identifies one start of one task, so a reused thread ID is detected.
//! If the status cannot be read (another PID namespace, the task has exited, no permission), the
//! caller has its uid and gid only, which can only reduce its rights.
//!
//! `CallerInterner` has one identity per uid, gid and set of groups. Invariants: equal callers
//! share one `InternedCaller` while it is in the table; a number is never assigned to two
//! different callers, so a cached right can be lost with its number but never granted to another
//! caller.

use std::{
    collections::HashMap,
    fs::File,
    hash::{Hash, Hasher},
    io::Read,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use curt_rpc::{
    auth::{AuthSysCredential, AuthSysGids, GROUPS_MAX, MachineName, RpcCredential},
    client::Interrupt,
};
use parking_lot::Mutex;

use crate::{protocol::OpenContext, threads::Clock};

/// The credentials and process of an operation's caller.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The user for file access (fsuid).
    pub uid: u32,
    /// The group for file access (fsgid).
    pub gid: u32,
    /// All supplementary groups, in any order; AUTH_SYS carries up to 16 (RFC 5531, appendix A),
    /// which [`RpcSecurity::credential`] selects.
    pub groups: Arc<[u32]>,
    /// The process ID, for log lines only; 0 if there is none.
    pub pid: u32,
    /// Raised when the operation is interrupted.
    pub interrupt: Interrupt,
}

impl Caller {
    /// A caller with these IDs, no process and no interrupt.
    #[must_use]
    pub fn new(uid: u32, gid: u32, groups: &[u32]) -> Self {
        Self { uid, gid, groups: groups.into(), pid: 0, interrupt: Interrupt::never() }
    }
}

/// How long a task's groups are cached.
const GROUPS_LIFETIME: Duration = Duration::from_secs(1);

/// How long a thread ID is assumed to be of the same task without a check. The kernel assigns IDs
/// in sequence, so a reuse takes longer than this by orders of magnitude.
const SAME_TASK: Duration = Duration::from_millis(10);

/// Most tasks cached.
const TASKS_MAX: usize = 4096;

/// Longest status that is read, in bytes: a task may have 65,536 groups of up to 11 bytes each.
const STATUS_MAX: u64 = 1 << 20;

/// The groups of tasks, cached for at most a second.
#[derive(Debug)]
pub struct CallerTable {
    clock: Arc<dyn Clock>,
    tasks: Mutex<HashMap<TaskKey, CachedGroups>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct TaskKey {
    tid: u32,
    uid: u32,
    gid: u32,
}

#[derive(Clone, Debug)]
struct CachedGroups {
    groups: Arc<[u32]>,
    /// Inode number of `/proc/TID`: differs between two tasks that have the same thread ID.
    start: u64,
    read_at: Instant,
    /// When the inode number was last checked.
    seen_at: Instant,
}

impl CallerTable {
    /// An empty table.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, tasks: Mutex::default() }
    }

    /// The time of the clock by which cached groups expire.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// The caller with thread ID `tid`, which acts as `uid` and `gid` by the kernel's request, at
    /// `now`.
    #[must_use]
    pub fn caller(&self, tid: u32, uid: u32, gid: u32, interrupt: Interrupt, now: Instant) -> Caller {
        Caller { uid, gid, groups: self.groups(TaskKey { tid, uid, gid }, now), pid: tid, interrupt }
    }

    fn groups(&self, task: TaskKey, now: Instant) -> Arc<[u32]> {
        let tid = task.tid;
        if tid == 0 {
            return Arc::default();
        }
        let is_fresh = |known: &CachedGroups| now.saturating_duration_since(known.read_at) < GROUPS_LIFETIME;
        let known = self.tasks.lock().get(&task).filter(|known| is_fresh(known)).cloned();
        if let Some(known) = &known
            && now.saturating_duration_since(known.seen_at) < SAME_TASK
        {
            return Arc::clone(&known.groups);
        }
        let Some(start) = start_of(tid) else {
            return Arc::default();
        };
        if let Some(known) = known.filter(|known| known.start == start) {
            if let Some(cached) = self.tasks.lock().get_mut(&task).filter(|cached| cached.start == start) {
                cached.seen_at = now;
            }
            return known.groups;
        }
        let Some(groups) = read_groups(tid) else {
            tracing::debug!(tid, "groups cannot be read: the caller is its uid and gid alone");
            return Arc::default();
        };
        let mut tasks = self.tasks.lock();
        if tasks.len() >= TASKS_MAX {
            tasks.retain(|_, known| is_fresh(known));
        }
        if tasks.len() >= TASKS_MAX {
            tasks.clear();
        }
        tasks.insert(task, CachedGroups { groups: Arc::clone(&groups), start, read_at: now, seen_at: now });
        groups
    }
}

fn start_of(tid: u32) -> Option<u64> {
    rustix::fs::stat(format!("/proc/{tid}")).ok().map(|stat| stat.st_ino)
}

fn read_groups(tid: u32) -> Option<Arc<[u32]>> {
    let mut status = Vec::with_capacity(2048);
    let file = File::open(format!("/proc/{tid}/status")).ok()?;
    file.take(STATUS_MAX).read_to_end(&mut status).ok()?;
    parse_groups(&status)
}

/// The groups in the text of a status file, ascending and without duplicates.
fn parse_groups(status: &[u8]) -> Option<Arc<[u32]>> {
    let line = status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"Groups:"))?;
    let words = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
    let mut groups = words.map(|word| word.parse().ok()).collect::<Option<Vec<u32>>>()?;
    groups.sort_unstable();
    groups.dedup();
    Some(groups.into())
}

/// The security flavour of requests (`sec=`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RpcSecurity {
    /// `sec=sys`: uid, gid and groups, with this host's name.
    Sys(MachineName),
    /// `sec=none`: the server maps every caller to its anonymous user.
    None,
}

impl RpcSecurity {
    /// `sec=sys` with the name of this host.
    #[must_use]
    pub fn sys() -> Self {
        Self::Sys(MachineName::new(rustix::system::uname().nodename().to_bytes()))
    }

    /// The credential of requests for `caller`.
    ///
    /// AUTH_SYS carries 16 groups besides the gid (RFC 5531, appendix A). If the caller has more,
    /// the list omits the gid, which is sent anyway, and contains the 16 lowest of the others, as
    /// other clients do: administrators can give important groups low numbers. Servers that look up
    /// users' groups themselves ignore the list.
    #[must_use]
    pub fn credential(&self, caller: &Caller) -> RpcCredential {
        let machine_name = match self {
            Self::None => return RpcCredential::None,
            Self::Sys(machine_name) => machine_name.clone(),
        };
        let mut sent: Vec<u32> = caller.groups.iter().copied().filter(|group| *group != caller.gid).collect();
        sent.sort_unstable();
        sent.dedup();
        sent.truncate(GROUPS_MAX);
        let groups = AuthSysGids::first_of(&sent);
        RpcCredential::Sys(AuthSysCredential { machine_name, uid: caller.uid, gid: caller.gid, groups })
    }
}

/// Most identities kept; beyond it the table is emptied and identities get new numbers.
const IDENTITIES_MAX: usize = 65_536;

/// A caller as access checks see it.
#[derive(Debug)]
pub(crate) struct InternedCaller {
    /// The key of the access cache.
    pub(crate) number: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Sorted, without duplicates.
    pub(crate) groups: Arc<[u32]>,
    /// The credential of its requests.
    pub(crate) credential: Arc<RpcCredential>,
    /// The server once granted it less than the mode bits do: they no longer decide for it.
    distrusts_mode_bits: AtomicBool,
}

impl InternedCaller {
    /// Its opens.
    pub(crate) fn open_context(&self) -> OpenContext {
        OpenContext { owner: self.number, credential: Arc::clone(&self.credential) }
    }

    /// Whether mode bits may decide for this caller: not for the superuser, whom the server may
    /// squash, not for a caller with more groups than AUTH_SYS carries, and not after the server's
    /// decision has differed from the mode bits.
    pub(crate) fn may_use_mode_bits(&self) -> bool {
        let fits = self.groups.iter().filter(|group| **group != self.gid).count() <= GROUPS_MAX;
        self.uid != 0
            && fits
            && matches!(*self.credential, RpcCredential::Sys(_))
            && !self.distrusts_mode_bits.load(Relaxed)
    }

    /// Stops mode bits from deciding for this caller; returns whether they did before.
    pub(crate) fn distrust_mode_bits(&self) -> bool {
        !self.distrusts_mode_bits.swap(true, Relaxed)
    }
}

/// A caller's ids as received, equal whatever the order of the groups.
#[derive(Debug, Clone, PartialEq, Eq)]
struct CallerKey {
    uid: u32,
    gid: u32,
    groups: Arc<[u32]>,
}

impl Hash for CallerKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.uid, self.gid, &*self.groups).hash(state);
    }
}

#[derive(Debug, Default)]
struct CallerIndex {
    by_ids: HashMap<CallerKey, Arc<InternedCaller>>,
    last: u32,
}

/// All identities of one mount.
#[derive(Debug)]
pub(crate) struct CallerInterner {
    security: RpcSecurity,
    index: Mutex<CallerIndex>,
}

impl CallerInterner {
    pub(crate) fn new(security: RpcSecurity) -> Self {
        Self { security, index: Mutex::default() }
    }

    /// The identity of `caller`.
    pub(crate) fn of(&self, caller: &Caller) -> Arc<InternedCaller> {
        let asked = CallerKey { uid: caller.uid, gid: caller.gid, groups: Arc::clone(&caller.groups) };
        let mut known = self.index.lock();
        if let Some(identity) = known.by_ids.get(&asked) {
            return Arc::clone(identity);
        }
        let mut groups = caller.groups.to_vec();
        groups.sort_unstable();
        groups.dedup();
        let sorted = CallerKey { groups: groups.into(), ..asked.clone() };
        if known.by_ids.len() >= IDENTITIES_MAX {
            known.by_ids.clear();
        }
        if let Some(identity) = known.by_ids.get(&sorted).map(Arc::clone) {
            known.by_ids.insert(asked, Arc::clone(&identity));
            return identity;
        }
        // A number is reused only after 2^32 different callers on one mount.
        known.last = known.last.wrapping_add(1);
        let identity = Arc::new(InternedCaller {
            number: known.last,
            uid: caller.uid,
            gid: caller.gid,
            groups: Arc::clone(&sorted.groups),
            credential: Arc::new(self.security.credential(caller)),
            distrusts_mode_bits: AtomicBool::new(false),
        });
        known.by_ids.insert(asked, Arc::clone(&identity));
        known.by_ids.insert(sorted, Arc::clone(&identity));
        identity
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may end in a panic")]

    use super::*;

    #[derive(Debug)]
    struct Stopped(Mutex<Instant>);

    impl Clock for Stopped {
        fn now(&self) -> Instant {
            *self.0.lock()
        }

        fn pause(&self, duration: Duration, _: &Interrupt) {
            *self.0.lock() += duration;
        }
    }

    fn sent(caller: &Caller) -> Vec<u32> {
        match RpcSecurity::sys().credential(caller) {
            RpcCredential::Sys(sys) => sys.groups.to_vec(),
            RpcCredential::None | RpcCredential::Context(_) => panic!("sec=sys was asked for"),
        }
    }

    #[test]
    fn groups_are_those_of_the_calling_thread() {
        let table = CallerTable::new(Arc::new(Stopped(Mutex::new(Instant::now()))));
        let tid = u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
        let mut expected: Vec<u32> =
            rustix::process::getgroups().unwrap().iter().map(|gid| gid.as_raw()).collect();
        expected.sort_unstable();
        expected.dedup();
        assert_eq!(table.caller(tid, 1, 2, Interrupt::never(), table.now()).groups.to_vec(), expected);
    }

    #[test]
    fn a_task_whose_status_is_unreadable_has_no_groups() {
        let table = CallerTable::new(Arc::new(Stopped(Mutex::new(Instant::now()))));
        for tid in [0, u32::MAX] {
            assert!(table.caller(tid, 1000, 1000, Interrupt::never(), table.now()).groups.is_empty());
        }
    }

    // SEMANTICS: perm-3.
    #[test]
    fn groups_are_cached_for_a_second_and_for_the_same_task_only() {
        let clock = Arc::new(Stopped(Mutex::new(Instant::now())));
        let table = CallerTable::new(clock.clone());
        let tid = std::process::id();
        let start = start_of(tid).unwrap();
        let planted: Arc<[u32]> = [77].into();
        let plant = |uid, gid, groups: &Arc<[u32]>, start| {
            let (read_at, seen_at) = (clock.now(), clock.now());
            let groups = Arc::clone(groups);
            let remembered = CachedGroups { groups, start, read_at, seen_at };
            table.tasks.lock().insert(TaskKey { tid, uid, gid }, remembered);
        };
        plant(1, 2, &planted, start);
        plant(3, 4, &planted, start.wrapping_add(1));
        let groups = |uid, gid| table.caller(tid, uid, gid, Interrupt::never(), table.now()).groups;
        clock.pause(SAME_TASK - Duration::from_millis(1), &Interrupt::never());
        assert_eq!(groups(3, 4), planted, "nothing is looked at within 10 ms");
        clock.pause(GROUPS_LIFETIME - SAME_TASK, &Interrupt::never());
        assert_eq!(groups(1, 2), planted);
        assert_ne!(groups(3, 4), planted);
        clock.pause(Duration::from_millis(1), &Interrupt::never());
        assert_ne!(groups(1, 2), planted);
    }

    #[test]
    fn the_table_is_bounded() {
        let clock = Arc::new(Stopped(Mutex::new(Instant::now())));
        let table = CallerTable::new(clock);
        for uid in 0..u32::try_from(TASKS_MAX).unwrap() + 10 {
            drop(table.caller(std::process::id(), uid, 0, Interrupt::never(), table.now()));
        }
        assert!(table.tasks.lock().len() <= TASKS_MAX);
    }

    #[test]
    fn status_is_parsed_and_malformed_text_is_refused() {
        let parse = |text: &str| parse_groups(text.as_bytes()).map(|groups| groups.to_vec());
        assert_eq!(parse("Name:\tx\nGroups:\t24 4 24 \nNStgid:\t1\n"), Some(vec![4, 24]));
        assert_eq!(parse("Groups:\t\n"), Some(vec![]));
        assert_eq!(parse("Groups:\t4 x\n"), None);
        assert_eq!(parse("Name:\tGroups:\n"), None);
    }

    #[test]
    fn the_lowest_sixteen_groups_are_sent_without_the_gid() {
        let all: Vec<u32> = (100..130).rev().collect();
        let caller = Caller::new(1, 103, &all);
        let expected: Vec<u32> = (100..117).filter(|group| *group != 103).collect();
        assert_eq!(sent(&caller), expected);
        assert_eq!(sent(&Caller::new(1, 5, &[9, 5, 7])), [7, 9]);
        assert_eq!(RpcSecurity::None.credential(&caller), RpcCredential::None);
    }

    #[test]
    fn the_order_of_groups_makes_no_difference_and_their_set_does() {
        let identities = CallerInterner::new(RpcSecurity::sys());
        let number = |groups: &[u32]| identities.of(&Caller::new(1, 2, groups)).number;
        assert_eq!(number(&[3, 4, 4]), number(&[4, 3]));
        assert_ne!(number(&[3, 4]), number(&[3]));
        assert_ne!(identities.of(&Caller::new(9, 2, &[3])).number, number(&[3]));
    }

    #[test]
    fn numbers_are_not_reused_after_the_table_was_emptied() {
        let identities = CallerInterner::new(RpcSecurity::sys());
        let first = identities.of(&Caller::new(0, 0, &[])).number;
        for uid in 1..=u32::try_from(IDENTITIES_MAX).expect("a small number") {
            assert_ne!(identities.of(&Caller::new(uid, 0, &[])).number, first);
        }
        assert_ne!(identities.of(&Caller::new(0, 0, &[])).number, first, "it was forgotten meanwhile");
        assert!(identities.index.lock().by_ids.len() <= IDENTITIES_MAX);
    }

    #[test]
    fn mode_bits_do_not_decide_for_root_or_for_callers_with_many_groups() {
        let identities = CallerInterner::new(RpcSecurity::sys());
        let judged = |uid, groups: &[u32]| identities.of(&Caller::new(uid, 7, groups)).may_use_mode_bits();
        let seventeen: Vec<u32> = (100..117).collect();
        assert!(judged(1, &seventeen[..16]));
        assert!(!judged(1, &seventeen));
        assert!(!judged(0, &[]));
        let nameless = CallerInterner::new(RpcSecurity::None);
        assert!(!nameless.of(&Caller::new(1, 1, &[])).may_use_mode_bits());
    }
}
