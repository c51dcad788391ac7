//! Execution of the server's calls over the client's connection (RFC 8881 section 2.10.3.1).
//!
//! A connection with a service has one thread. While calls of the client wait, their callers read
//! the connection as usual, so that no reply passes through another thread; the thread only
//! executes the calls that they receive. While no call waits, the thread reads the connection
//! itself.
//!
//! Callers do not notify the thread when they begin and end, because this would cost a wake-up for
//! each call. If there were calls since its last check, the thread checks again after
//! [`BUSY_INTERVAL`]. So a call of the server that arrives just after the last reply is received up
//! to this much later.
//!
//! Invariants: calls are executed in the order of their arrival, one at a time. No lock is held
//! during execution, so a service may make calls over this connection. The queue is bounded, and a
//! server that exceeds it loses the connection.

use std::{io, sync::Arc, thread, time::Duration};

use rustix::event::PollFlags;

use super::{
    connection::{ClientConnection, ClientConnectionState},
    outgoing::{OutgoingRecord, RecordWriter},
};
use crate::connection::{
    answer::{Answered, CallHandler},
    context::CallContext,
    waiter::{CallWaiter, PollOutcome, WakeupFd},
};

/// The time between two checks of a connection with recent calls.
const BUSY_INTERVAL: Duration = Duration::from_millis(10);

/// Maximum time of a sleep; all events wake the thread.
const SLEEP_MAX: Duration = Duration::from_secs(60);

/// When this many bytes wait for the writer, replies wait as well.
const PENDING_MAX: usize = 256 << 10;

/// The stack needed in addition to that of the service.
const STACK_SIZE: usize = 1 << 20;

impl ClientConnection {
    /// Has `handler` execute calls of the server until the connection is closed.
    pub(super) fn serve_callbacks(self: &Arc<Self>, handler: CallHandler) -> io::Result<()> {
        let wakeup = Arc::new(WakeupFd::new()?);
        let connection = Arc::clone(self);
        let thread = thread::Builder::new().name("curt-callback".into()).stack_size(STACK_SIZE);
        self.lock().callbacks.open();
        thread.spawn(move || CallbackServer::new(&connection, &handler, &wakeup).run())?;
        Ok(())
    }
}

struct CallbackServer<'a> {
    connection: &'a ClientConnection,
    handler: &'a CallHandler,
    waiter: Arc<CallWaiter>,
    wakeup: &'a Arc<WakeupFd>,
    /// Number of the client's calls at the last check.
    sends_seen: u64,
    reply: Vec<u8>,
}

/// The next step of the thread.
enum CallbackStep {
    End,
    Answer(Vec<u8>),
    /// There is output of callers that have left.
    Write(RecordWriter),
    /// Callers read the connection.
    Pause,
    Watch,
}

impl<'a> CallbackServer<'a> {
    fn new(connection: &'a ClientConnection, handler: &'a CallHandler, wakeup: &'a Arc<WakeupFd>) -> Self {
        let waiter = CallWaiter::current();
        connection.lock().callbacks.set_waiter(Arc::clone(&waiter));
        Self { connection, handler, waiter, wakeup, sends_seen: 0, reply: Vec::new() }
    }

    fn run(mut self) {
        loop {
            let step = self.next_step(&mut self.connection.lock());
            match step {
                CallbackStep::End => return,
                CallbackStep::Answer(call) => self.answer(&call),
                CallbackStep::Write(writer) => self.write(writer),
                CallbackStep::Pause => self.waiter.park(BUSY_INTERVAL),
                CallbackStep::Watch => {
                    let socket = &self.connection.socket;
                    let polled = self.waiter.poll(socket, PollFlags::IN, self.wakeup, SLEEP_MAX);
                    if polled == PollOutcome::Ready {
                        self.read();
                    }
                }
            }
        }
    }

    fn next_step(&mut self, state: &mut ClientConnectionState) -> CallbackStep {
        if state.closed {
            return CallbackStep::End;
        }
        if let Some(call) = state.callbacks.pop() {
            return CallbackStep::Answer(call);
        }
        if !state.writing && !state.pending.is_empty() {
            state.writing = true;
            return CallbackStep::Write(RecordWriter::new(std::mem::take(&mut state.pending), false));
        }
        let sends = state.statistics.sends;
        let was_idle = std::mem::replace(&mut self.sends_seen, sends) == sends;
        if !was_idle || !state.calls.is_empty() {
            return CallbackStep::Pause;
        }
        // Called under the lock: any later change of the state signals the descriptor.
        self.waiter.prepare_poll(self.wakeup);
        CallbackStep::Watch
    }

    /// Receives available bytes, unless callers do.
    fn read(&self) {
        let mut state = self.connection.lock();
        if !state.calls.is_empty() {
            return;
        }
        let Some(mut receive_buffer) = state.receive_buffer.take() else {
            return;
        };
        drop(state);
        self.connection.receive(&mut receive_buffer);
        let mut state = self.connection.lock();
        state.receive_buffer = Some(receive_buffer);
        state.wake_next_owners();
    }

    fn answer(&mut self, call: &[u8]) {
        let connection = self.connection;
        let (Some(peer), Some(local)) = (connection.peer(), connection.local()) else {
            return connection.lost("it has no addresses");
        };
        self.reply.clear();
        let mut context = CallContext::detached(peer, local);
        let log = |what: &str| tracing::warn!("server {peer}: {what}");
        match self.handler.answer(call, &mut context, &mut self.reply, &log) {
            Ok(Answered::Reply(_)) => self.send(),
            Ok(Answered::Nothing) => {}
            Err(defect) => log(&format!("no RPC call: {defect}")),
        }
    }

    /// Sends the reply, or leaves it to the thread that is writing.
    fn send(&mut self) {
        loop {
            let mut state = self.connection.lock();
            if state.closed {
                return;
            }
            if !state.writing {
                state.writing = true;
                let mut bytes = std::mem::take(&mut state.pending);
                drop(state);
                bytes.append(&mut self.reply);
                return self.write(RecordWriter::new(bytes, false));
            }
            if state.pending.len() <= PENDING_MAX {
                state.pending.append(&mut self.reply);
                return;
            }
            drop(state);
            self.waiter.park(BUSY_INTERVAL);
        }
    }

    /// Writes until no output is left. Meanwhile it reads if no caller does: the server may not
    /// receive before its own bytes are read.
    fn write(&self, writer: RecordWriter) {
        let connection = self.connection;
        let nothing = OutgoingRecord::default();
        let mut writer = Some(writer);
        while let Some(current) = &mut writer {
            match current.push(&connection.socket, &nothing) {
                Err(errno) => return connection.lost(&errno.to_string()),
                Ok(true) => writer = connection.lock().next_output(),
                Ok(false) => {
                    let state = connection.lock();
                    if state.closed {
                        return;
                    }
                    let mut events = PollFlags::OUT;
                    events.set(PollFlags::IN, state.calls.is_empty() && state.receive_buffer.is_some());
                    self.waiter.prepare_poll(self.wakeup);
                    drop(state);
                    self.waiter.poll(&connection.socket, events, self.wakeup, BUSY_INTERVAL);
                    if events.contains(PollFlags::IN) {
                        self.read();
                    }
                }
            }
        }
    }
}
