//! State that the threads of a server share, and buffers of each thread.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize},
};

use curt_observe::stages::StageTimes;

use super::{connection::ServerJob, idle_set::IdleSet, limits::Limits, worker_pool::WorkerPool};
use crate::clock::TimeSource;
use crate::connection::answer::CallHandler;
use crate::record::receive_buffer::ReceiveBuffer;

/// A batch of this size is sent at once.
pub(super) const BATCH_MAX: usize = 64 << 10;

/// Shared by all serving threads.
pub(super) struct RpcServerInner {
    pub(super) handler: CallHandler,
    pub(super) stages: Arc<StageTimes>,
    pub(super) limits: Limits,
    pub(super) clock: TimeSource,
    pub(super) idle_set: IdleSet,
    pub(super) worker_pool: Arc<WorkerPool<ServerJob>>,
    /// Number of threads that wait for the rest of a record. Relaxed: an error of one is harmless.
    pub(super) waiting_for_rest: AtomicUsize,
    /// Whether a thread polls for calls without sleeping. Relaxed: two for a moment are harmless.
    pub(super) polling: AtomicBool,
    /// Set once. SeqCst with
    /// [`waiting_for_call`](super::connection::ServerConnection::waiting_for_call).
    pub(super) stopping: AtomicBool,
}

/// A serving thread's buffers.
#[derive(Default)]
pub(super) struct WorkerBuffers {
    /// Replies to be sent together.
    pub(super) batch: Vec<u8>,
    /// The current reply.
    pub(super) reply: Vec<u8>,
}

impl WorkerBuffers {
    /// Whether the replies of the batch should wait for further replies: the last calls were
    /// received together with following ones.
    pub(super) fn is_worth_waiting(&self, receive_buffer: &ReceiveBuffer) -> bool {
        receive_buffer.was_filled() && !self.batch.is_empty() && self.batch.len() <= BATCH_MAX
    }
}
