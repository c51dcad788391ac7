//! When a call that got no reply is tried again, and when it has waited too long (nfs(5), `timeo` and `retrans`).

use std::time::{Duration, Instant};

use super::options::TcpOptions;

/// The schedule of one call. Pure: the present is an argument.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timer {
    step: Duration,
    patience: Duration,
    cycle_start: Instant,
    interval: Duration,
    retry_at: Instant,
}

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// Nothing yet.
    Nothing,
    /// One interval is over: it may be tried again.
    Retry,
    /// All retries are over.
    Patience,
}

impl Timer {
    pub(super) fn new(options: &TcpOptions, now: Instant) -> Self {
        let step = options
            .timeout
            .clamp(Duration::from_millis(1), TcpOptions::INTERVAL_MAX);
        Self {
            step,
            patience: patience(options),
            cycle_start: now,
            interval: step,
            retry_at: now + step,
        }
    }

    /// When [`Timer::due`] will next say something.
    pub(super) fn deadline(&self) -> Instant {
        self.retry_at.min(self.cycle_start + self.patience)
    }

    /// How long the call waits before [`Due::Patience`].
    pub(super) const fn patience(&self) -> Duration {
        self.patience
    }

    /// What is due at `now`; the schedule goes on from there.
    pub(super) fn due(&mut self, now: Instant) -> Due {
        if now >= self.cycle_start + self.patience {
            self.cycle_start = now;
            self.interval = self.step;
            self.retry_at = now + self.step;
            return Due::Patience;
        }
        if now < self.retry_at {
            return Due::Nothing;
        }
        self.interval = (self.interval + self.step).min(TcpOptions::INTERVAL_MAX);
        self.retry_at = now + self.interval;
        Due::Retry
    }
}

/// How long a call waits in all before the outage is told, or the call given up.
pub(super) fn patience(options: &TcpOptions) -> Duration {
    let step = options
        .timeout
        .clamp(Duration::from_millis(1), TcpOptions::INTERVAL_MAX);
    step.saturating_mul(options.retrans.saturating_add(1))
        .min(TcpOptions::INTERVAL_MAX)
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::{super::options::*, *};

    fn schedule(timeout: u64, retrans: u32, count: usize) -> Vec<(u64, Due)> {
        let mut options = TcpOptions::new(
            Server::Address(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            PortSource::Fixed(2049),
        );
        options.timeout = Duration::from_secs(timeout);
        options.retrans = retrans;
        let start = Instant::now();
        let mut timer = Timer::new(&options, start);
        (0..count)
            .map(|_| {
                let at = timer.deadline();
                assert_eq!(timer.due(at - Duration::from_nanos(1)), Due::Nothing);
                ((at - start).as_secs(), timer.due(at))
            })
            .collect()
    }

    #[test]
    fn intervals_grow_linearly_and_patience_is_timeo_times_tries() {
        use Due::{Patience, Retry};
        assert_eq!(
            schedule(60, 2, 4),
            [(60, Retry), (180, Patience), (240, Retry), (360, Patience)]
        );
        assert_eq!(
            schedule(10, 5, 4),
            [(10, Retry), (30, Retry), (60, Patience), (70, Retry)]
        );
        assert_eq!(schedule(5, 0, 2), [(5, Patience), (10, Patience)]);
    }

    #[test]
    fn no_interval_is_above_600_seconds() {
        assert_eq!(
            schedule(3600, 2, 2),
            [(600, Due::Patience), (1200, Due::Patience)]
        );
    }
}
