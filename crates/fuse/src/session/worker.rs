//! What each thread of a session does: read a request, see to it that somebody reads on, answer it.
//!
//! Owns a thread's buffers. Invariant: a reply goes to the descriptor that its request was read from.

use std::{
    os::fd::OwnedFd,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use rustix::io::Errno;

use super::{
    Desk, Ended, REQUEST_BYTES_MAX, Shared,
    pool::Next,
    serve::{Exchange, Reserve},
};
use crate::{
    abi::opcode_name,
    filesystem::Filesystem,
    interrupt::Flight,
    reply,
    request::{self, Operation},
    sys::Buffer,
};

/// The life of a thread. `index` chooses the descriptor: the first thread uses the mount's own, the others a clone if the
/// kernel gives one, so that they do not contend for one queue.
pub(super) fn work<F: Filesystem>(shared: &Arc<Shared<F>>, index: usize) {
    let device = if index == 0 {
        shared.device.shared()
    } else {
        shared.device.cloned()
    };
    let flight = shared.flights.join();
    let desk = shared.desks.join();
    match Buffer::new(REQUEST_BYTES_MAX) {
        Ok(buffer) => Worker {
            shared,
            device,
            flight: flight.clone(),
            desk: desk.clone(),
            buffer,
            reserve: Reserve::default(),
        }
        .run(),
        Err(errno) => tracing::warn!("no memory to read requests with: {errno}"),
    }
    // Somebody may still look at it.
    desk.rests();
    shared.desks.leave(&desk);
    shared.flights.leave(&flight);
    shared.pool.thread_ended();
}

struct Worker<'a, F: Filesystem> {
    shared: &'a Arc<Shared<F>>,
    device: Arc<OwnedFd>,
    flight: Arc<Flight<F::Interruption>>,
    desk: Arc<Desk>,
    buffer: Buffer,
    reserve: Reserve,
}

impl<F: Filesystem> Worker<'_, F> {
    fn run(mut self) {
        loop {
            self.desk.reads();
            match rustix::io::read(&self.device, &mut *self.buffer.bytes()) {
                Ok(length) => {
                    self.desk.carries();
                    self.shared.hand_reading_over();
                    self.answer(length);
                    self.desk.rests();
                    if self.shared.pool.answered() == Next::End {
                        return;
                    }
                }
                // ENOENT: the request was taken back before it could be read.
                Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => {}
                Err(errno) => {
                    self.shared.end(match errno {
                        Errno::NODEV => Ended::Unmounted,
                        Errno::CONNABORTED => Ended::Aborted,
                        other => Ended::Failed(other),
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
            Ok(Operation::Interrupt { unique }) => {
                shared.flights.interrupt(unique);
                return;
            }
            Ok(operation) => operation,
            Err(malformed) => {
                tracing::warn!("{}: {malformed}", opcode_name(header.opcode));
                reply::send_error(&self.device, header.unique, Errno::IO);
                return;
            }
        };
        shared.flights.begin(&self.flight, &header);
        let interruption = self.flight.interruption();
        let exchange = Exchange {
            device: &self.device,
            header,
            flights: &shared.flights,
            flight: &self.flight,
            desk: &self.desk,
            desks: &shared.desks,
            interruption: &interruption,
            only_user: shared.only_user,
        };
        let filesystem = &*shared.filesystem;
        let reserve = &mut self.reserve;
        let served = catch_unwind(AssertUnwindSafe(|| {
            exchange.serve(filesystem, operation, reserve)
        }));
        if served.is_err() {
            tracing::error!(
                "{} ended in a panic and is answered with EIO",
                opcode_name(header.opcode)
            );
            reply::send_error(&self.device, header.unique, Errno::IO);
        }
        shared.flights.end(&self.flight);
    }
}
