//! What some work costs: how long it takes, and how much processor time it takes of all who take part in it.
//!
//! Where other work shares the machine the second is the steadier measure.

use std::time::Instant;

use anyhow::{Context, Result};

/// What was spent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spent {
    /// From beginning to end.
    pub(super) seconds: f64,
    /// User and system time of all processes together.
    pub(super) processor_seconds: f64,
}

/// Does `work`. Part in it have this process, the children that end meanwhile, and the processes `others`.
pub(super) fn measure(others: &[u32], work: impl FnOnce() -> Result<()>) -> Result<Spent> {
    let own = std::process::id();
    let all = || -> Result<f64> {
        others
            .iter()
            .chain([&own])
            .map(|pid| processor_seconds(*pid))
            .sum()
    };
    let before = all()?;
    let start = Instant::now();
    work()?;
    let seconds = start.elapsed().as_secs_f64();
    Ok(Spent {
        seconds,
        processor_seconds: all()? - before,
    })
}

/// User and system time of a process and of its children that have ended.
fn processor_seconds(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let line = std::fs::read_to_string(&path).with_context(|| path.clone())?;
    let ticks = ticks(&line).with_context(|| format!("{path} is not as proc(5) says: {line}"))?;
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Fields 14 to 17 of proc(5)'s stat: utime, stime, cutime, cstime. The name before them may have anything in it.
fn ticks(line: &str) -> Option<u64> {
    const BEFORE: usize = 11;
    let (_, fields) = line.rsplit_once(") ")?;
    let times = fields.split(' ').skip(BEFORE).take(4);
    let parsed: Vec<u64> = times.map(str::parse).collect::<Result<_, _>>().ok()?;
    (parsed.len() == 4).then(|| parsed.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_four_times_are_found_behind_any_name() {
        let line = "7 (a b) c) S 1 2 3 4 5 6 7 8 9 10 100 20 3 4 20 0 1";
        assert_eq!(ticks(line), Some(127));
        assert_eq!(ticks("7 (a) S 1 2"), None);
    }

    #[test]
    fn work_takes_processor_time() {
        let spent = measure(&[], || {
            let start = Instant::now();
            while start.elapsed().as_millis() < 200 {}
            Ok(())
        });
        let spent = spent.expect("this process has a stat");
        assert!(spent.seconds >= 0.2 && spent.processor_seconds > 0.0, "{spent:?}");
    }
}
