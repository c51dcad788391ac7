//! Retransmission timeouts and the final timeout of a call (nfs(5), `timeo` and `retrans`).

use std::time::{Duration, Instant};

use super::options::TcpOptions;

/// The schedule of one call. Pure: the current time is an argument.
#[derive(Clone, Copy, Debug)]
pub(super) struct RetransmitTimer {
    step: Duration,
    major_timeout: Duration,
    cycle_start: Instant,
    interval: Duration,
    retry_at: Instant,
}

/// The timeout that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallTimeout {
    /// Nothing yet.
    NotYet,
    /// One interval has passed: the call may be sent again.
    Minor,
    /// All retries have timed out.
    Major,
}

impl RetransmitTimer {
    pub(super) fn new(options: &TcpOptions, now: Instant) -> Self {
        let step = options.timeout.clamp(Duration::from_millis(1), TcpOptions::INTERVAL_MAX);
        Self {
            step,
            major_timeout: major_timeout(options),
            cycle_start: now,
            interval: step,
            retry_at: now + step,
        }
    }

    /// The time of the next timeout.
    pub(super) fn deadline(&self) -> Instant {
        self.retry_at.min(self.cycle_start + self.major_timeout)
    }

    /// The time until [`CallTimeout::Major`].
    pub(super) const fn major_timeout(&self) -> Duration {
        self.major_timeout
    }

    /// The timeout that is due at `now`; advances the schedule.
    pub(super) fn due(&mut self, now: Instant) -> CallTimeout {
        if now >= self.cycle_start + self.major_timeout {
            self.cycle_start = now;
            self.interval = self.step;
            self.retry_at = now + self.step;
            return CallTimeout::Major;
        }
        if now < self.retry_at {
            return CallTimeout::NotYet;
        }
        self.interval = (self.interval + self.step).min(TcpOptions::INTERVAL_MAX);
        self.retry_at = now + self.interval;
        CallTimeout::Minor
    }
}

/// The time until an outage is reported, or a soft call fails.
pub(super) fn major_timeout(options: &TcpOptions) -> Duration {
    let step = options.timeout.clamp(Duration::from_millis(1), TcpOptions::INTERVAL_MAX);
    step.saturating_mul(options.retrans.saturating_add(1)).min(TcpOptions::INTERVAL_MAX)
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::{super::options::*, *};

    fn schedule(timeout: u64, retrans: u32, count: usize) -> Vec<(u64, CallTimeout)> {
        let mut options =
            TcpOptions::new(ServerName::Address(IpAddr::V4(Ipv4Addr::LOCALHOST)), PortSource::Fixed(2049));
        options.timeout = Duration::from_secs(timeout);
        options.retrans = retrans;
        let start = Instant::now();
        let mut timer = RetransmitTimer::new(&options, start);
        (0..count)
            .map(|_| {
                let at = timer.deadline();
                assert_eq!(timer.due(at - Duration::from_nanos(1)), CallTimeout::NotYet);
                ((at - start).as_secs(), timer.due(at))
            })
            .collect()
    }

    #[test]
    fn intervals_grow_linearly_and_patience_is_timeo_times_tries() {
        use CallTimeout::{Major, Minor};
        assert_eq!(schedule(60, 2, 4), [(60, Minor), (180, Major), (240, Minor), (360, Major)]);
        assert_eq!(schedule(10, 5, 4), [(10, Minor), (30, Minor), (60, Major), (70, Minor)]);
        assert_eq!(schedule(5, 0, 2), [(5, Major), (10, Major)]);
    }

    #[test]
    fn no_interval_is_above_600_seconds() {
        assert_eq!(schedule(3600, 2, 2), [(600, CallTimeout::Major), (1200, CallTimeout::Major)]);
    }
}
