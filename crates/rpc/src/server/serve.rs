//! What a serving thread does with a connection: read calls, have them answered, send the replies of one wake-up together.
//!
//! Invariants: a warm call costs one receive, one send and what the service does, and no memory; a client gets its own
//! replies late, never somebody else's.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use curt_trace::stages::{self, StageTimes};

use super::{
    CallFailure, Context, Limits, Service,
    connection::{Connection, Reading},
    context::Turn,
    crew::{Crew, Pressure, Work},
    limits::Limit,
    pace::Pace,
    parking::Parking,
    piece::FilePiece,
    receiving::{Patience, Received, receive_more},
    sending::Sent,
};
use crate::{
    inbox::{Inbox, Whole},
    message::{self, AcceptStatus, Call, CallDefect, Denial},
    record,
};

/// Replies up to this size are gathered, longer ones sent from where they are.
const GATHERED_MAX: usize = 8 << 10;

/// As soon as this much is gathered it is sent.
const BATCH_MAX: usize = 64 << 10;

/// Buffers above this size are given back when a connection is left.
const KEPT_MAX: usize = 256 << 10;

/// What all serving threads share.
pub(super) struct Hall {
    pub(super) service: Arc<dyn Service>,
    pub(super) stages: Arc<StageTimes>,
    pub(super) limits: Limits,
    pub(super) parking: Parking,
    pub(super) crew: Arc<Crew<Job>>,
    /// Threads that wait for the rest of a record. Relaxed: one more or less does no harm.
    pub(super) waiting_for_rest: AtomicUsize,
    /// A thread looks out for calls without sleeping. Relaxed: two of them for a moment do no harm.
    pub(super) looks_out: AtomicBool,
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
    batch: Vec<u8>,
    /// The reply that is being made.
    reply: Vec<u8>,
}

impl Buffers {
    /// Whether replies wait that can wait a little longer for company: the last calls came with more behind them.
    fn is_worth_waiting(&self, inbox: &Inbox) -> bool {
        inbox.was_filled() && !self.batch.is_empty() && self.batch.len() <= BATCH_MAX
    }
}

/// What comes after a call.
enum After {
    /// This thread reads on.
    ReadOn,
    /// This thread reads on, with what follows the record in another inbox.
    Reclaimed(Inbox),
    /// Another thread reads the connection.
    HandedOver,
    /// The connection is to be closed.
    Close,
}

impl Work<Buffers> for Hall {
    type Job = Job;

    fn run(self: &Arc<Self>, job: Job, own: &mut Buffers) {
        let Job { connection, inbox } = job;
        let guard = Unread {
            hall: self,
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
    hall: &'a Hall,
    connection: &'a Connection,
}

impl Drop for Unread<'_> {
    fn drop(&mut self) {
        let peer = self.connection.peer;
        tracing::error!("a fault between the calls of {peer}: closing the connection");
        self.connection.close("a fault");
        self.hall.parking.remove(self.connection);
    }
}

impl Hall {
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
            match inbox.whole(|beginning| self.limits.records.limit(beginning)) {
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
        self.bow(connection);
    }

    pub(super) fn park(&self, connection: &Connection, inbox: Inbox) {
        if self.stopping.load(Ordering::SeqCst) && !connection.has_backlog() {
            self.parking.remove(connection);
            self.bow(connection);
        } else {
            self.parking.park(connection, inbox, &self.limits);
        }
    }

    /// At the end of a server, lets a client have what was sent to it.
    fn bow(&self, connection: &Connection) {
        let stops = self.stopping.load(Ordering::SeqCst);
        if stops && connection.in_flight.load(Ordering::Acquire) == 0 && !connection.has_backlog() {
            connection.bow();
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

    /// Answers the record at the front of `inbox`.
    fn execute(
        self: &Arc<Self>,
        connection: &Arc<Connection>,
        inbox: &Inbox,
        whole: Whole,
        own: &mut Buffers,
    ) -> After {
        let call = match Call::decode(inbox.body(whole)) {
            Ok(call) => call,
            Err(defect) => return reject(connection, defect, &mut own.batch),
        };
        own.reply.clear();
        let body = record::open(&mut own.reply);
        message::encode_accepted_header(&mut own.reply, call.xid);
        let mut turn = Reader {
            hall: self,
            connection,
            inbox,
            whole,
            batch: &mut own.batch,
            handed_over: false,
        };
        let mut context = Context::of_connection(connection, &mut turn);
        let outcome = self.answer(&call, &mut context, &mut own.reply);
        let mut piece = context.take_piece();
        let handed_over = turn.handed_over;
        if let Err(failure) = outcome {
            piece = None;
            own.reply.truncate(body);
            encode_failure(connection, &call, failure, &mut own.reply);
        }
        if matches!(outcome, Err(CallFailure::NoReply)) {
            own.reply.clear();
        } else {
            let beyond = piece.as_ref().map_or(0, |(_, piece)| piece.length());
            record::close(&mut own.reply, body, beyond);
        }
        // Before the reply is sent: whoever waits for it sends the next call at once, which would wake others.
        let reclaimed = handed_over.then(|| self.parking.reclaim(connection));
        if let Some(None) = reclaimed {
            self.answer_late(connection, &own.reply, piece.as_ref());
            return After::HandedOver;
        }
        if let Some(piece) = &piece {
            stages::finish(&self.stages, || {
                self.send_with_file(connection, [&own.batch, &own.reply], piece)
            });
            own.batch.clear();
        } else if own.reply.len() <= GATHERED_MAX && own.batch.len() <= BATCH_MAX {
            own.batch.extend_from_slice(&own.reply);
            stages::suspend();
        } else {
            stages::finish(&self.stages, || {
                connection.send([&own.batch, &own.reply], &self.limits)
            });
            own.batch.clear();
        }
        match reclaimed.flatten() {
            Some(rest) => {
                connection.in_flight.fetch_sub(1, Ordering::Release);
                After::Reclaimed(rest)
            }
            None => After::ReadOn,
        }
    }

    /// Has the service answer; a fault of its own is an answer too.
    fn answer(
        &self,
        call: &Call<'_>,
        context: &mut Context<'_>,
        reply: &mut Vec<u8>,
    ) -> Result<(), CallFailure> {
        let answered = catch_unwind(AssertUnwindSafe(|| self.service.call(call, context, reply)));
        answered.unwrap_or_else(|_| {
            tracing::error!(
                "a fault in program {} version {} procedure {}: the call from {} is answered with SYSTEM_ERR",
                call.program,
                call.version,
                call.procedure,
                context.peer(),
            );
            Err(CallFailure::SystemError)
        })
    }

    /// Sends what is gathered and a reply that contains a piece of a file. Where threads are scarce nobody waits for a client
    /// to take it.
    fn send_with_file(
        &self,
        connection: &Connection,
        [gathered, reply]: [&[u8]; 2],
        (at, piece): &(usize, FilePiece),
    ) -> Sent {
        let (head, after) = reply.split_at(*at);
        let patient = self.crew.pressure(&connection.seat.client.share) == Pressure::None;
        connection.send_with_file([gathered, head], piece, after, patient, &self.limits)
    }

    /// Sends a reply from a thread that does not read the connection, and does not wait for the client to take it.
    fn answer_late(&self, connection: &Connection, reply: &[u8], piece: Option<&(usize, FilePiece)>) {
        let sent = stages::finish(&self.stages, || match piece {
            Some(piece) => self.send_with_file(connection, [&[], reply], piece),
            None => connection.send([reply, &[]], &self.limits),
        });
        // Pairs with the load in `receive`: whoever finds that nothing is in flight sees what this call left unsent.
        let last = connection.in_flight.fetch_sub(1, Ordering::AcqRel) == 1;
        if sent == Sent::Waits {
            // If a thread reads the connection, it looks for what is unsent before it waits for anything.
            self.parking.arm_for_room(connection);
        } else if last && matches!(*connection.reading.lock(), Reading::Closed) {
            self.bow(connection);
        }
    }
}

/// The reading of a connection, in the hands of the thread that answers one of its calls.
struct Reader<'a> {
    hall: &'a Arc<Hall>,
    connection: &'a Arc<Connection>,
    inbox: &'a Inbox,
    whole: Whole,
    batch: &'a mut Vec<u8>,
    handed_over: bool,
}

impl Turn for Reader<'_> {
    fn hand_over(&mut self) {
        let (hall, connection) = (self.hall, self.connection);
        if !self.batch.is_empty() {
            connection.send([self.batch, &[]], &hall.limits);
            self.batch.clear();
        }
        if hall.stopping.load(Ordering::SeqCst) {
            return;
        }
        if connection.in_flight.load(Ordering::Relaxed) + 1 >= hall.limits.in_flight {
            let pressing = &hall.parking.everybody.pressing;
            pressing.note(Limit::InFlight, String::new);
            return;
        }
        connection.in_flight.fetch_add(1, Ordering::Relaxed);
        self.handed_over = true;
        let mut rest = self.inbox.after(self.whole);
        let more = rest.whole(|beginning| hall.limits.records.limit(beginning));
        if matches!(more, Ok(None)) {
            hall.park(connection, rest);
        } else {
            hall.dispatch(Job {
                connection: Arc::clone(connection),
                inbox: rest,
            });
        }
    }
}

/// Answers what is no call that could be dispatched.
fn reject(connection: &Connection, defect: CallDefect, batch: &mut Vec<u8>) -> After {
    let (xid, denial) = match defect {
        CallDefect::NoCall(_) => {
            connection.complain(&format!("{defect}; closing the connection"));
            return After::Close;
        }
        CallDefect::RpcVersion { xid, .. } => (xid, message::RPC_MISMATCH),
        CallDefect::Authentication { xid, status } => (xid, Denial::Authentication(status)),
    };
    connection.complain(&defect.to_string());
    let body = record::open(batch);
    message::encode_denied(batch, xid, denial);
    record::close(batch, body, 0);
    After::ReadOn
}

fn encode_failure(connection: &Connection, call: &Call<'_>, failure: CallFailure, reply: &mut Vec<u8>) {
    let status = match failure {
        CallFailure::Denied(status) => {
            message::encode_denied(reply, call.xid, Denial::Authentication(status));
            return;
        }
        CallFailure::ProgramUnavailable => AcceptStatus::ProgramUnavailable,
        CallFailure::ProgramMismatch(versions) => AcceptStatus::ProgramMismatch(versions),
        CallFailure::ProcedureUnavailable => AcceptStatus::ProcedureUnavailable,
        CallFailure::GarbageArguments => {
            connection.complain(&format!(
                "the arguments of program {} version {} procedure {} cannot be decoded",
                call.program, call.version, call.procedure
            ));
            AcceptStatus::GarbageArguments
        }
        CallFailure::SystemError => AcceptStatus::SystemError,
        // Nothing of it is sent.
        CallFailure::NoReply => return,
    };
    message::encode_failure(reply, call.xid, status);
}

/// How long the waiting thread sleeps between two looks at what still goes on, once it stops.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_millis(10);
