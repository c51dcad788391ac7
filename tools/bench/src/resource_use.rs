//! The cost of some work: elapsed time, and the processor time of all processes that take part.
//!
//! On a shared machine, processor time is the steadier measure.

use std::time::Instant;

use anyhow::{Context, Result};

/// The cost.
#[derive(Clone, Debug)]
pub(super) struct ResourceUse {
    /// Elapsed time.
    pub(super) seconds: f64,
    /// Processor time of each process.
    pub(super) shares: Vec<ProcessorShare>,
}

/// One process's processor time, or a part of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProcessorShare {
    /// The name of the process.
    pub(super) who: &'static str,
    /// Seconds in user mode.
    pub(super) user: f64,
    /// Seconds in the kernel.
    pub(super) system: f64,
}

impl ResourceUse {
    /// User and system time of all processes.
    pub(super) fn processor_seconds(&self) -> f64 {
        self.shares.iter().map(|share| share.user + share.system).sum()
    }
}

/// Runs `work` and measures it: this process with the children that end meanwhile, as `own`, and
/// the processes `others`.
pub(super) fn measure(
    own: &'static str,
    others: &[(&'static str, u32)],
    work: impl FnOnce() -> Result<()>,
) -> Result<ResourceUse> {
    let all: Vec<_> = [(own, std::process::id())].iter().chain(others).copied().collect();
    let now = || -> Result<Vec<ProcessorShare>> { all.iter().map(|(who, pid)| share(who, *pid)).collect() };
    let before = now()?;
    let start = Instant::now();
    work()?;
    let seconds = start.elapsed().as_secs_f64();
    let since = |(after, before): (ProcessorShare, &ProcessorShare)| ProcessorShare {
        user: after.user - before.user,
        system: after.system - before.system,
        ..after
    };
    Ok(ResourceUse { seconds, shares: now()?.into_iter().zip(&before).map(since).collect() })
}

/// User and system time of a process and of its children that have ended.
fn share(who: &'static str, pid: u32) -> Result<ProcessorShare> {
    let path = format!("/proc/{pid}/stat");
    let line = std::fs::read_to_string(&path).with_context(|| path.clone())?;
    let ticks = ticks(&line).with_context(|| format!("{path} is not as proc(5) says: {line}"))?;
    let [user, system] = ticks.map(|ticks| ticks as f64 / rustix::param::clock_ticks_per_second() as f64);
    Ok(ProcessorShare { who, user, system })
}

/// User and system time: fields 14 to 17 of proc(5)'s stat (utime, stime, cutime, cstime). The name
/// before them may contain any bytes.
fn ticks(line: &str) -> Option<[u64; 2]> {
    const BEFORE: usize = 11;
    let (_, fields) = line.rsplit_once(") ")?;
    let times = fields.split(' ').skip(BEFORE).take(4);
    let parsed: Vec<u64> = times.map(str::parse).collect::<Result<_, _>>().ok()?;
    let [user, system, user_of_children, system_of_children] = parsed.try_into().ok()?;
    Some([user + user_of_children, system + system_of_children])
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_four_times_are_found_behind_any_name() {
        let line = "7 (a b) c) S 1 2 3 4 5 6 7 8 9 10 100 20 3 4 20 0 1";
        assert_eq!(ticks(line), Some([103, 24]));
        assert_eq!(ticks("7 (a) S 1 2"), None);
    }

    #[test]
    fn work_takes_processor_time() {
        let processor_time = || {
            let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
            Duration::try_from(now).expect("the time of a process is positive")
        };
        let before = processor_time();
        let spent = measure("this", &[], || {
            // Ticks of the clock are rounded down, and other processes may run meanwhile.
            let start = Instant::now();
            while start.elapsed().as_millis() < 200 || processor_time() - before < Duration::from_millis(50) {
            }
            Ok(())
        });
        let spent = spent.expect("this process has a stat");
        assert!(spent.seconds >= 0.2 && spent.processor_seconds() > 0.0, "{spent:?}");
    }
}
