//! The processes of a command.
//!
//! A process belongs to the command if it descends from the process that explains. (That process is
//! a subreaper, so that orphans of the command still belong to it.) The kernel reports the thread
//! of each request; information about a thread is cached together with a value that distinguishes
//! it from a later thread with the same id.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Maximum number of cached threads.
const THREADS_MAX: usize = 8192;
/// Maximum number of generations to follow.
const GENERATIONS_MAX: usize = 128;
/// The time for which a thread id refers to the same thread without a check: ids are assigned in
/// order.
const SAME_THREAD: Duration = Duration::from_millis(10);

/// A process of the command.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProcessName {
    /// Its process id.
    pub pid: u32,
    /// Its name (comm).
    pub name: String,
}

/// The descendants of a process.
#[derive(Debug)]
pub struct ProcessTree {
    head: u32,
    threads: HashMap<u32, CachedThread>,
}

#[derive(Clone, Debug)]
struct CachedThread {
    member: Option<ProcessName>,
    /// Inode of `/proc/TID`.
    start: u64,
    seen_at: Instant,
}

impl ProcessTree {
    /// The descendants of `head`, and `head` itself.
    pub fn new(head: u32) -> Self {
        Self { head, threads: HashMap::new() }
    }

    /// Whether `head` still exists.
    pub fn has_head(&self) -> bool {
        start_of(self.head).is_some()
    }

    /// The process of a thread, if it belongs to the command.
    pub fn member(&mut self, thread: u32) -> Option<ProcessName> {
        if thread == 0 {
            return None;
        }
        let now = Instant::now();
        let cached = self.threads.get_mut(&thread);
        let start = match &cached {
            Some(cached) if now.duration_since(cached.seen_at) < SAME_THREAD => return cached.member.clone(),
            Some(_) | None => start_of(thread),
        };
        match (cached, start) {
            // It has ended; its last requests are still its own.
            (Some(cached), None) => return cached.member.clone(),
            (Some(cached), Some(start)) if cached.start == start => {
                cached.seen_at = now;
                return cached.member.clone();
            }
            (None, None) => return None,
            (_, Some(_)) => {}
        }
        let member = self.look(thread);
        if self.threads.len() >= THREADS_MAX {
            self.threads.clear();
        }
        let cached = CachedThread { member: member.clone(), start: start.unwrap_or(0), seen_at: now };
        self.threads.insert(thread, cached);
        member
    }

    fn look(&self, thread: u32) -> Option<ProcessName> {
        let status = ProcStatus::of(thread)?;
        let (mut process, mut parent) = (status.process.pid, status.parent);
        for _ in 0..GENERATIONS_MAX {
            if process == self.head {
                return Some(status.process);
            }
            if parent == 0 {
                return None;
            }
            process = parent;
            parent = ProcStatus::of(process)?.parent;
        }
        None
    }
}

fn start_of(thread: u32) -> Option<u64> {
    rustix::fs::stat(format!("/proc/{thread}")).ok().map(|stat| stat.st_ino)
}

/// The fields of a thread's status in /proc.
pub(crate) struct ProcStatus {
    pub(crate) process: ProcessName,
    parent: u32,
}

impl ProcStatus {
    pub(crate) fn of(thread: u32) -> Option<Self> {
        Self::parse(&std::fs::read(format!("/proc/{thread}/status")).ok()?)
    }

    fn parse(text: &[u8]) -> Option<Self> {
        let text = String::from_utf8_lossy(text);
        let word = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            Some(line.trim().to_owned())
        };
        Some(Self {
            process: ProcessName { pid: word("Tgid:")?.parse().ok()?, name: word("Name:")? },
            parent: word("PPid:")?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may end in a panic")]

    use super::*;

    #[test]
    fn children_and_their_children_belong_and_parents_do_not() {
        let mut family = ProcessTree::new(std::process::id());
        let mut child = std::process::Command::new("sh")
            .args(["-c", "sleep 60 & echo $!; wait"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let out = child.stdout.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).unwrap();
        let grandchild: u32 = line.trim().parse().unwrap();
        assert_eq!(family.member(child.id()).unwrap().pid, child.id());
        assert_eq!(family.member(grandchild).unwrap().pid, grandchild);
        assert!(family.member(std::process::id()).is_some());
        assert_eq!(family.member(std::os::unix::process::parent_id()), None);
        assert_eq!(family.member(0), None);
        let pid = rustix::process::Pid::from_raw(i32::try_from(grandchild).unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        child.wait().unwrap();
        assert!(family.member(child.id()).is_some(), "its last requests are its own");
    }

    #[test]
    fn a_thread_belongs_to_its_process() {
        let mut family = ProcessTree::new(std::process::id());
        let thread = std::thread::spawn(|| rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs());
        let _ = thread.join().unwrap();
        let me = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        assert_eq!(family.member(me).unwrap().pid, std::process::id());
    }

    #[test]
    fn nonsense_is_no_status() {
        assert!(ProcStatus::parse(b"Name:\tx\nTgid:\t7\n").is_none());
        let status = ProcStatus::parse(b"Name:\ta b\nTgid:\t7\nPPid:\t1\n").unwrap();
        let (name, pid) = (status.process.name.as_str(), status.process.pid);
        assert_eq!((name, pid, status.parent), ("a b", 7, 1));
    }
}
