//! Bytes of received calls that no thread executes: of incomplete records, of complete ones that
//! wait for a thread, and of deferred calls. They count towards [`Limits::half_records`].

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use super::{
    clients::{ClientUsage, TotalUsage},
    limits::{Limits, ResourceLimit},
};

/// Bytes that are counted until this is dropped.
pub(super) struct ReceivedBytes<J> {
    count: usize,
    total_usage: Arc<TotalUsage>,
    client: Arc<ClientUsage<J>>,
}

impl<J> ReceivedBytes<J> {
    /// Counts bytes that a connection has received; none if there are none. Returns the limit that
    /// they would exceed.
    pub(super) fn of_connection(
        total_usage: &Arc<TotalUsage>,
        client: &Arc<ClientUsage<J>>,
        count: usize,
        limits: &Limits,
    ) -> Result<Option<Self>, ResourceLimit> {
        Self::within(total_usage, client, count, limits.half_records_per_client, limits.half_records)
    }

    /// Counts bytes of a ready connection that waits for a thread, whatever the limits. Nothing
    /// more is received for such connections while [`Self::are_many`], so they exceed half of the
    /// limits by at most a record.
    pub(super) fn of_ready(
        total_usage: &Arc<TotalUsage>,
        client: &Arc<ClientUsage<J>>,
        count: usize,
    ) -> Option<Self> {
        Self::within(total_usage, client, count, usize::MAX, usize::MAX).ok().flatten()
    }

    /// Whether more than half of a limit is used.
    pub(super) fn are_many(total_usage: &TotalUsage, client: &ClientUsage<J>, limits: &Limits) -> bool {
        client.half_records.load(Ordering::Relaxed) > limits.half_records_per_client / 2
            || total_usage.half_records.load(Ordering::Relaxed) > limits.half_records / 2
    }

    /// As [`Self::of_connection`], for bytes that can be refused without closing the connection.
    /// These leave half of the limits to calls that are being received, which otherwise cost their
    /// connection.
    pub(super) fn within_half(
        total_usage: &Arc<TotalUsage>,
        client: &Arc<ClientUsage<J>>,
        count: usize,
        limits: &Limits,
    ) -> Result<Option<Self>, ResourceLimit> {
        Self::within(total_usage, client, count, limits.half_records_per_client / 2, limits.half_records / 2)
    }

    fn within(
        total_usage: &Arc<TotalUsage>,
        client: &Arc<ClientUsage<J>>,
        count: usize,
        per_client: usize,
        all: usize,
    ) -> Result<Option<Self>, ResourceLimit> {
        if count == 0 {
            return Ok(None);
        }
        if !reserve(&client.half_records, count, per_client) {
            return Err(ResourceLimit::HalfRecordsPerClient);
        }
        if !reserve(&total_usage.half_records, count, all) {
            client.half_records.fetch_sub(count, Ordering::Relaxed);
            return Err(ResourceLimit::HalfRecords);
        }
        Ok(Some(Self { count, total_usage: Arc::clone(total_usage), client: Arc::clone(client) }))
    }
}

impl<J> Drop for ReceivedBytes<J> {
    fn drop(&mut self) {
        self.total_usage.half_records.fetch_sub(self.count, Ordering::Relaxed);
        self.client.half_records.fetch_sub(self.count, Ordering::Relaxed);
    }
}

/// Adds `more` to `sum` unless the result would exceed `most`.
fn reserve(sum: &AtomicUsize, more: usize, most: usize) -> bool {
    let sum_with = |sum: usize| sum.checked_add(more).filter(|sum| *sum <= most);
    sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum_with).is_ok()
}
