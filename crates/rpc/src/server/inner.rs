//! What the threads of a server share, and what each has of its own.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize},
};

use curt_trace::stages::StageTimes;

use super::{Limits, connection::ReadJob, idle_set::IdleSet, worker_pool::WorkerPool};
use crate::clock::TimeSource;
use crate::connection::CallHandler;
use crate::record::receive_buffer::ReceiveBuffer;

/// As soon as this much is gathered it is sent.
pub(super) const BATCH_MAX: usize = 64 << 10;

/// What all serving threads share.
pub(super) struct RpcServerInner {
    pub(super) handler: CallHandler,
    pub(super) stages: Arc<StageTimes>,
    pub(super) limits: Limits,
    pub(super) clock: TimeSource,
    pub(super) idle_set: IdleSet,
    pub(super) worker_pool: Arc<WorkerPool<ReadJob>>,
    /// Threads that wait for the rest of a record. Relaxed: one more or less does no harm.
    pub(super) waiting_for_rest: AtomicUsize,
    /// A thread polls for calls without sleeping. Relaxed: two of them for a moment do no harm.
    pub(super) polling: AtomicBool,
    /// Set once. SeqCst with [`ServerConnection::lingering`].
    pub(super) stopping: AtomicBool,
}

/// A serving thread's buffers.
#[derive(Default)]
pub(super) struct WorkerBuffers {
    /// Replies that are ready to be sent together.
    pub(super) batch: Vec<u8>,
    /// The reply that is being made.
    pub(super) reply: Vec<u8>,
}

impl WorkerBuffers {
    /// Whether replies wait that can wait a little longer for company: the last calls came with
    /// more behind them.
    pub(super) fn is_worth_waiting(&self, inbox: &ReceiveBuffer) -> bool {
        inbox.was_filled() && !self.batch.is_empty() && self.batch.len() <= BATCH_MAX
    }
}
