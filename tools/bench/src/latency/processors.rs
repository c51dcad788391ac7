//! Which processors client and servers may run on.

use anyhow::{Context, Result};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::load::Placement;

/// Keeps what was allowed, to go back to it.
pub(super) struct ProcessorSets {
    all: CpuSet,
    one: CpuSet,
}

impl ProcessorSets {
    /// Those that this thread may use.
    pub(super) fn allowed() -> Result<Self> {
        let all = sched_getaffinity(None)?;
        let first = (0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu));
        let mut one = CpuSet::new();
        one.set(first.context("no processor is allowed")?);
        Ok(Self { all, one })
    }

    /// Puts this thread and all threads of these processes there; those that they start follow.
    pub(super) fn place(&self, placement: Placement, pids: &[u32]) -> Result<()> {
        let set = match placement {
            Placement::Any => &self.all,
            Placement::OneCpu => &self.one,
        };
        sched_setaffinity(None, set).context("this program cannot choose its processor")?;
        for pid in pids {
            // Twice: a thread that was just being started by one that had not been moved yet.
            for _ in 0..2 {
                place_threads(*pid, set).with_context(|| format!("the processors of process {pid}"))?;
            }
        }
        Ok(())
    }
}

impl ProcessorSets {
    /// Lets this thread and a server begin a sample on the same processor, from where the kernel
    /// may move them if they are placed [anywhere](Placement::Any). Without it a server would keep
    /// the place that chance gave it long ago, next to the client or across from it, and that alone
    /// makes a threefold difference.
    pub(super) fn begin(&self, placement: Placement, pid: Option<u32>) -> Result<()> {
        if let (Placement::Any, Some(pid)) = (placement, pid) {
            self.place(Placement::OneCpu, &[pid])?;
            self.place(Placement::Any, &[pid])?;
        }
        Ok(())
    }
}

fn place_threads(pid: u32, set: &CpuSet) -> Result<()> {
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let thread: i32 = thread?.file_name().to_string_lossy().parse()?;
        match sched_setaffinity(Pid::from_raw(thread), set) {
            // It has ended.
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}
