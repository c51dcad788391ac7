//! The server's clocks, one for each file system, as far as its replies show them.

use std::{collections::HashMap, time::Duration};

use curt_policy::{
    MonotonicTime, ServerClock,
    retransmitted::{ClockOffset, ExecutionInterval},
};
use curt_types::Timestamp;
use parking_lot::Mutex;

/// Most file systems whose clocks are tracked; names in further ones are always treated as racy.
const FILE_SYSTEMS_MAX: usize = 1024;

/// The clocks of a mount's file systems. Its locks are leaves.
pub(crate) struct ServerClocks {
    clocks: Mutex<HashMap<u64, ServerClock>>,
    /// The offset of each file system's clock from the local one.
    offsets: Mutex<HashMap<u64, ClockOffset>>,
    /// FSINFO's time_delta.
    time_step: Duration,
}

impl ServerClocks {
    pub(crate) fn new(time_step: Duration) -> Self {
        Self { clocks: Mutex::default(), offsets: Mutex::default(), time_step }
    }

    /// The state of the clock of file system `fsid`.
    pub(crate) fn of(&self, fsid: u64) -> ServerClock {
        let clocks = self.clocks.lock();
        clocks.get(&fsid).copied().unwrap_or_else(|| ServerClock::new(self.time_step))
    }

    /// Learns from the ctime in a reply to a request that changed nothing.
    pub(crate) fn learn(&self, fsid: u64, ctime: Timestamp, received_at: MonotonicTime) {
        self.with_clock(fsid, |clock| clock.learn(ctime, received_at));
    }

    /// Learns from the ctime that a change by this client set.
    pub(crate) fn learn_from_change(
        &self,
        fsid: u64,
        ctime: Timestamp,
        sent_at: MonotonicTime,
        received_at: MonotonicTime,
    ) {
        self.with_clock(fsid, |clock| clock.learn_from_change(ctime, sent_at, received_at));
        let step = self.of(fsid).guard() / 2;
        let mut offsets = self.offsets.lock();
        if offsets.len() < FILE_SYSTEMS_MAX || offsets.contains_key(&fsid) {
            let offset = offsets.entry(fsid).or_default();
            offset.learn(ctime, sent_at, received_at, step);
        }
    }

    /// The interval in which a call sent at `sent_at` was executed before `lost_at`, if it was
    /// executed, by the clock of file system `fsid`; `None` if that clock is not known well enough.
    pub(crate) fn execution(
        &self,
        fsid: u64,
        sent_at: MonotonicTime,
        lost_at: MonotonicTime,
    ) -> Option<ExecutionInterval> {
        let slack = self.of(fsid).guard();
        let offset = self.offsets.lock().get(&fsid).copied();
        offset?.execution(sent_at, lost_at, slack)
    }

    /// A cached negative entry was wrong although the directory's timestamps were unchanged: the
    /// file system's timestamps are coarse.
    pub(crate) fn proven_coarse(&self, fsid: u64) {
        self.with_clock(fsid, ServerClock::proven_coarse);
    }

    /// The machine was suspended. Kernels may measure that by a clock that shows seconds, so that
    /// more time seems to have passed than at the servers.
    pub(crate) fn suspended(&self) {
        self.clocks.lock().values_mut().for_each(ServerClock::forget_offset);
        self.offsets.lock().clear();
    }

    fn with_clock(&self, fsid: u64, learn: impl FnOnce(&mut ServerClock)) {
        let mut clocks = self.clocks.lock();
        if clocks.len() < FILE_SYSTEMS_MAX || clocks.contains_key(&fsid) {
            learn(clocks.entry(fsid).or_insert_with(|| ServerClock::new(self.time_step)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_learnt_of_a_servers_time_does_not_count_after_a_suspend() {
        let clocks = ServerClocks::new(Duration::from_nanos(1));
        let at = |seconds| MonotonicTime::from_start(Duration::from_secs(seconds));
        let is_known =
            || clocks.of(1).lower_bound(at(9)).is_some() && clocks.execution(1, at(9), at(9)).is_some();
        clocks.learn_from_change(1, Timestamp::new(1000, 1), at(1), at(2));
        assert!(is_known());
        clocks.suspended();
        assert!(clocks.of(1).lower_bound(at(9)).is_none() && clocks.execution(1, at(9), at(9)).is_none());
        clocks.learn_from_change(1, Timestamp::new(1008, 1), at(9), at(10));
        assert!(is_known());
    }
}
