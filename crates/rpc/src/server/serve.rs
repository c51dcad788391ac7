//! What a serving thread does with a connection: read calls, have them answered, send the replies of one wake-up together.
//!
//! Invariants: a warm call costs one receive, one send and what the service does, and no memory; a client gets its own
//! replies late, never somebody else's.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use curt_trace::stages::{self, StageTimes};

use super::{
    Limits, Service,
    answering::After,
    connection::Connection,
    crew::{Crew, Work},
    limits::Limit,
    pace::Pace,
    parking::Parking,
    receiving::{Patience, Received, receive_more},
    sending::Sent,
};
use crate::inbox::Inbox;

/// As soon as this much is gathered it is sent.
pub(super) const BATCH_MAX: usize = 64 << 10;

/// Buffers above this size are given back when a connection is left.
const KEPT_MAX: usize = 256 << 10;

/// Once the server stops: how long its main thread sleeps between two checks of what is still in progress.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// What all serving threads share.
pub(super) struct Shared {
    pub(super) service: Arc<dyn Service>,
    pub(super) stages: Arc<StageTimes>,
    pub(super) limits: Limits,
    pub(super) parking: Parking,
    pub(super) crew: Arc<Crew<Job>>,
    /// Threads that wait for the rest of a record. Relaxed: one more or less does no harm.
    pub(super) waiting_for_rest: AtomicUsize,
    /// A thread polls for calls without sleeping. Relaxed: two of them for a moment do no harm.
    pub(super) polling: AtomicBool,
    /// Set once. SeqCst with [`Connection::lingering`].
    pub(super) stopping: AtomicBool,
}

/// A connection to read.
pub(super) struct Job {
    pub(super) connection: Arc<Connection>,
    pub(super) inbox: Inbox,
}

/// A serving thread's buffers.
#[derive(Default)]
pub(super) struct Buffers {
    /// Replies that are ready to be sent together.
    pub(super) batch: Vec<u8>,
    /// The reply that is being made.
    pub(super) reply: Vec<u8>,
}

impl Buffers {
    /// Whether replies wait that can wait a little longer for company: the last calls came with more behind them.
    fn is_worth_waiting(&self, inbox: &Inbox) -> bool {
        inbox.was_filled() && !self.batch.is_empty() && self.batch.len() <= BATCH_MAX
    }
}

impl Work<Buffers> for Shared {
    type Job = Job;

    fn run(self: &Arc<Self>, job: Job, own: &mut Buffers) {
        let Job { connection, inbox } = job;
        let guard = Unread {
            shared: self,
            connection: &connection,
        };
        self.serve(&connection, inbox, own);
        std::mem::forget(guard);
        own.batch.clear();
        own.batch.shrink_to(KEPT_MAX);
        own.reply.clear();
        own.reply.shrink_to(KEPT_MAX);
    }

    fn refuse(self: &Arc<Self>, job: Job) {
        job.connection.close("no thread can be started to serve it");
        self.parking.remove(&job.connection);
    }
}

/// A connection that a thread reads. Dropped by a fault of ours: nobody knows where in the stream of calls and replies it was, so
/// it ends, and the client calls again over another one.
struct Unread<'a> {
    shared: &'a Shared,
    connection: &'a Connection,
}

impl Drop for Unread<'_> {
    fn drop(&mut self) {
        let peer = self.connection.peer;
        tracing::error!("a fault between the calls of {peer}: closing the connection");
        self.connection.close("a fault");
        self.shared.parking.remove(self.connection);
    }
}

impl Shared {
    /// Has a connection read by a thread.
    pub(super) fn dispatch(self: &Arc<Self>, job: Job) {
        let connection = Arc::clone(&job.connection);
        if !self.crew.dispatch(self, job, &connection.seat.client.share) {
            self.parking.everybody.pressing.note(Limit::ThreadsPerClient, || {
                let ip = connection.peer.ip();
                format!(
                    "{ip} has its share of the threads: what more it asks for waits until one of them is free"
                )
            });
        }
    }

    /// Serves until the connection is parked, closed, or read by another thread.
    fn serve(self: &Arc<Self>, connection: &Arc<Connection>, mut inbox: Inbox, own: &mut Buffers) {
        // Half a record that was parked already holds no thread again.
        let mut patience = Patience::new(inbox.is_empty());
        let mut pace = Pace::default();
        loop {
            if connection.has_backlog() {
                self.flush(connection, own);
                if !self.wait_for_room(connection) {
                    return self.park(connection, inbox);
                }
            }
            match inbox.whole(|_| self.limits.record) {
                Ok(Some(whole)) => {
                    match self.execute(connection, &inbox, whole, own) {
                        After::ReadOn => inbox.skip(whole),
                        After::Reclaimed(rest) => inbox = rest,
                        After::HandedOver => return,
                        After::Close => break,
                    }
                    patience = Patience::new(true);
                    pace.called();
                }
                // Replies go together while more calls are there already.
                Ok(None) if own.is_worth_waiting(&inbox) && receive_more(connection, &mut inbox) => {}
                Ok(None) => {
                    if self.flush(connection, own) == Sent::Waits {
                        continue;
                    }
                    match self.receive(connection, &mut inbox, (&mut patience, &mut pace)) {
                        Received::Bytes => {}
                        Received::Nothing => return self.park(connection, inbox),
                        Received::End => break,
                    }
                }
                Err(error) => {
                    connection.complain(&format!("{error}; closing the connection"));
                    break;
                }
            }
        }
        self.flush(connection, own);
        self.parking.remove(connection);
        self.close_at_shutdown(connection);
    }

    pub(super) fn park(&self, connection: &Connection, inbox: Inbox) {
        if self.stopping.load(Ordering::SeqCst) && !connection.has_backlog() {
            self.parking.remove(connection);
            self.close_at_shutdown(connection);
        } else {
            self.parking.park(connection, inbox, &self.limits);
        }
    }

    /// When the server stops, closes a connection in an orderly way, so that its client receives the last replies.
    pub(super) fn close_at_shutdown(&self, connection: &Connection) {
        let stops = self.stopping.load(Ordering::SeqCst);
        if stops && connection.in_flight.load(Ordering::Acquire) == 0 && !connection.has_backlog() {
            connection.close_gracefully();
        }
    }

    fn flush(&self, connection: &Connection, own: &mut Buffers) -> Sent {
        if own.batch.is_empty() {
            return Sent::All;
        }
        let sent = stages::finish(&self.stages, || connection.send([&own.batch, &[]], &self.limits));
        own.batch.clear();
        sent
    }
}
