//! The loop of each thread of a session: reads a request, makes sure that another thread reads the
//! device, and handles the request.
//!
//! Invariant: a reply goes to the descriptor that its request was read from.

use std::{
    os::fd::OwnedFd,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use rustix::io::Errno;

use super::{
    FuseSessionEnd, FuseSessionShared, REQUEST_BYTES_MAX,
    request_barrier::WorkerStage,
    serve::{ReplyBuffers, RequestHandler},
    worker_pool::FuseWorkerStep,
};
use crate::{
    abi::opcode_name,
    filesystem::Filesystem,
    interrupt::InFlightRequest,
    reply,
    request::{self, RequestBody},
    sys::PageBuffer,
    values::LockKind,
};

/// Runs a thread. The thread with `index` 0 uses the mount's own descriptor, the others a clone if
/// possible, so that they do not contend for one queue.
pub(super) fn work<F: Filesystem>(shared: &Arc<FuseSessionShared<F>>, index: usize) {
    let device = if index == 0 { shared.device.shared() } else { shared.device.cloned() };
    let flight = shared.requests.join();
    let stage = shared.stages.join();
    match PageBuffer::new(REQUEST_BYTES_MAX) {
        Ok(buffer) => FuseWorker {
            shared,
            device,
            request: flight.clone(),
            stage: stage.clone(),
            buffer,
            reply_buffers: ReplyBuffers::default(),
        }
        .run(),
        Err(errno) => tracing::warn!("cannot allocate a request buffer: {errno}"),
    }
    // Another thread may still read it.
    stage.set_idle();
    shared.stages.leave(&stage);
    shared.requests.leave(&flight);
    shared.pool.thread_ended();
}

struct FuseWorker<'a, F: Filesystem> {
    shared: &'a Arc<FuseSessionShared<F>>,
    device: Arc<OwnedFd>,
    request: Arc<InFlightRequest<F::Interruption>>,
    stage: Arc<WorkerStage>,
    buffer: PageBuffer,
    reply_buffers: ReplyBuffers,
}

/// Whether a request waits for a lock. The kernel sends an unlock that may wait (F_SETLKW, or
/// flock(2) without LOCK_NB) with the same opcode.
fn waits_for_lock(operation: &RequestBody<'_>) -> bool {
    matches!(operation, RequestBody::Setlk { lock, wait: true } if lock.range.kind != LockKind::Unlock)
}

impl<F: Filesystem> FuseWorker<'_, F> {
    fn run(mut self) {
        loop {
            self.stage.set_reading();
            match rustix::io::read(&self.device, &mut *self.buffer.bytes()) {
                Ok(length) => {
                    self.stage.set_received();
                    self.shared.hand_reading_over();
                    self.answer(length);
                    self.stage.set_idle();
                    if self.shared.pool.request_answered() == FuseWorkerStep::End {
                        return;
                    }
                }
                // ENOENT: the request was withdrawn before it could be read.
                Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => {}
                Err(errno) => {
                    self.shared.end(match errno {
                        Errno::NODEV => FuseSessionEnd::Unmounted,
                        Errno::CONNABORTED => FuseSessionEnd::Aborted,
                        other => FuseSessionEnd::Failed(other),
                    });
                    return;
                }
            }
        }
    }

    fn answer(&mut self, length: usize) {
        let shared = self.shared;
        let Ok((header, body)) = request::split(&self.buffer.bytes()[..length]) else {
            tracing::warn!("a request of {length} bytes from the kernel has no header; dropped");
            return;
        };
        let operation = match request::parse(&header, body) {
            Ok(RequestBody::Interrupt { unique }) => {
                shared.requests.interrupt(unique);
                return;
            }
            Ok(operation) => operation,
            Err(malformed) => {
                tracing::warn!("{}: {malformed}", opcode_name(header.opcode));
                reply::send_error(&self.device, header.unique, Errno::IO);
                return;
            }
        };
        // The reply to a request for a lock may be sent after this thread has begun another one.
        let may_outlive = matches!(operation, RequestBody::Setlk { .. });
        let request = if may_outlive { shared.requests.join() } else { Arc::clone(&self.request) };
        shared.requests.begin(&request, &header, waits_for_lock(&operation));
        let interruption = request.interruption();
        let exchange = RequestHandler {
            device: &self.device,
            header,
            requests: &shared.requests,
            request: &request,
            stage: &self.stage,
            stages: &shared.stages,
            interruption: &interruption,
            only_user: shared.only_user,
        };
        let filesystem = &*shared.filesystem;
        let reserve = &mut self.reply_buffers;
        let served = catch_unwind(AssertUnwindSafe(|| exchange.serve(filesystem, operation, reserve)));
        if served.is_err() {
            tracing::error!("{} panicked: replying EIO", opcode_name(header.opcode));
        }
        if !may_outlive {
            if served.is_err() {
                reply::send_error(&self.device, header.unique, Errno::IO);
            }
            shared.requests.end(&self.request);
        }
    }
}
