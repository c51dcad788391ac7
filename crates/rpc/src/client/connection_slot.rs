//! One of a transport's connections: established, lost, or being established.
//!
//! The connection is established by a thread that exists only for this time, so that no caller is
//! blocked in a resolver. Invariant: while a caller waits and the transport is open, there is a
//! connection or a thread that is connecting.

use std::{
    io,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use curt_observe::{events::ShortText, probe};
use curt_sync::{Interrupt, Wake};
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::{
    connect::{PACE, connect, jittered},
    connection::ClientConnection,
    options::PortSource,
    statistics::{ConnectStatistics, ConnectionStatistics},
    tcp::TcpTransportInner,
    timer::{CallTimeout, RetransmitTimer},
};
use crate::connection::request::CallError;
use crate::{clock::TimeSource, connection::waiter::CallWaiter};

/// The pause after the first failure; each further failure doubles it.
const PAUSE_MIN: Duration = Duration::from_millis(50);

/// The longest pause between two attempts at a server that refuses them.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Stack of a connecting thread, for a few system calls and the resolver.
const STACK_SIZE: usize = 256 << 10;

#[derive(Default)]
pub(super) struct ConnectionSlot {
    pub(super) state: Mutex<ConnectionSlotState>,
    /// Notified when the transport is closed, to end a pause.
    closing: Condvar,
    outstanding: AtomicUsize,
}

#[derive(Default)]
pub(super) struct ConnectionSlotState {
    pub(super) connection: Option<Arc<ClientConnection>>,
    /// A thread is connecting, or probing whether the server replies over a new connection.
    pub(super) connecting: bool,
    pub(super) closed: bool,
    /// There was a connection before.
    was_connected: bool,
    /// Failed attempts, and connections that were lost without a reply, since the last reply.
    failures: u32,
    last_failure: Option<io::ErrorKind>,
    /// Successive connections that became silent without a reply to a call, although the server had
    /// replied to NULL on them.
    pub(super) fruitless: u32,
    waiters: Vec<Arc<CallWaiter>>,
    /// Traffic of former connections.
    past_statistics: ConnectionStatistics,
    pub(super) connect_statistics: ConnectStatistics,
}

/// Number of attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectAttempts {
    /// One attempt; a failure ends the wait.
    Once,
    /// Until there is a connection or no caller waits for it.
    UntilConnected,
}

/// A call counted as outstanding on a slot.
pub(super) struct OutstandingCall<'a>(&'a ConnectionSlot);

impl ConnectionSlot {
    pub(super) fn outstanding(&self) -> usize {
        // A hint for the distribution of calls; no ordering is needed.
        self.outstanding.load(Ordering::Relaxed)
    }

    pub(super) fn begin_call(&self) -> OutstandingCall<'_> {
        self.outstanding.fetch_add(1, Ordering::Relaxed);
        OutstandingCall(self)
    }

    /// The slot's connection. Waits for it as long as `timer`, `patient` and `interrupt` allow.
    pub(super) fn connection(
        self: &Arc<Self>,
        shared: &Arc<TcpTransportInner>,
        waiter: &Arc<CallWaiter>,
        interrupt: &Interrupt,
        timer: &mut RetransmitTimer,
        patient: bool,
        attempts: ConnectAttempts,
    ) -> Result<Arc<ClientConnection>, CallError> {
        let mut attempted = false;
        loop {
            let mut state = self.state.lock();
            forget(&mut state.waiters, waiter);
            if state.closed {
                return Err(CallError::Closed);
            }
            if let Some(connection) = state.usable() {
                return Ok(connection);
            }
            if interrupt.is_raised() {
                return Err(CallError::Interrupted);
            }
            if attempts == ConnectAttempts::Once && attempted && !state.connecting {
                let kind = state.last_failure.unwrap_or(io::ErrorKind::Other);
                return Err(CallError::Unreachable(kind));
            }
            state.waiters.push(Arc::clone(waiter));
            attempted |= self.start(shared, &mut state, attempts);
            // Without a thread there is no wake-up: the caller tries again itself.
            let longest = if state.connecting { Duration::MAX } else { PAUSE_MAX };
            drop(state);
            let clock = &shared.options.clock;
            waiter.park(longest.min(clock.until(timer.deadline())));
            if timer.due(clock.now()) == CallTimeout::Major {
                shared.activity.note_timeout(timer.major_timeout());
                if !patient {
                    forget(&mut self.state.lock().waiters, waiter);
                    return Err(shared.timed_out());
                }
            }
        }
    }

    /// Adds the slot's traffic and connecting times; returns the connection, if there is one.
    pub(super) fn add_statistics(
        &self,
        traffic: &mut ConnectionStatistics,
        made: &mut ConnectStatistics,
    ) -> Option<Arc<ClientConnection>> {
        let state = self.state.lock();
        let connection = state.connection.clone();
        traffic.add(&state.past_statistics);
        made.add(&state.connect_statistics);
        drop(state);
        let connection = connection?;
        let state = connection.lock();
        traffic.add(&state.statistics);
        let is_open = !state.closed;
        drop(state);
        is_open.then_some(connection)
    }

    /// Closes the connection; its waiting callers return.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        let connection = state.connection.take();
        if let Some(connection) = &connection {
            state.past_statistics.add(&connection.lock().statistics);
        }
        state.wake_all();
        self.closing.notify_all();
        drop(state);
        if let Some(connection) = connection {
            connection.close();
        }
    }

    /// Starts a thread that connects, unless one is running. Returns whether it started one.
    fn start(
        self: &Arc<Self>,
        shared: &Arc<TcpTransportInner>,
        state: &mut ConnectionSlotState,
        attempts: ConnectAttempts,
    ) -> bool {
        if state.connecting {
            return false;
        }
        self.spawn(shared, state, move |slot, shared| connect_until_done(slot, shared, attempts));
        true
    }

    /// Starts a thread that establishes a connection by `work`.
    pub(super) fn spawn(
        self: &Arc<Self>,
        shared: &Arc<TcpTransportInner>,
        state: &mut ConnectionSlotState,
        work: impl FnOnce(&Weak<Self>, &Weak<TcpTransportInner>) + Send + 'static,
    ) {
        let (slot, shared) = (Arc::downgrade(self), Arc::downgrade(shared));
        let thread = thread::Builder::new().name("curt-connect".into()).stack_size(STACK_SIZE);
        state.connecting = true;
        if let Err(error) = thread.spawn(move || work(&slot, &shared)) {
            tracing::warn!("no thread to connect with: {error}");
            state.connecting = false;
            state.last_failure = Some(error.kind());
        }
    }

    /// Waits before the next attempt; the returned state is locked.
    pub(super) fn pause<'a>(
        &'a self,
        mut state: MutexGuard<'a, ConnectionSlotState>,
        clock: &TimeSource,
    ) -> MutexGuard<'a, ConnectionSlotState> {
        if state.failures > 0 {
            let doubled = PAUSE_MIN.saturating_mul(1 << (state.failures - 1).min(16));
            let longest =
                if state.last_failure.is_some_and(is_of_network) { jittered(PACE) } else { PAUSE_MAX };
            let end = clock.now() + doubled.min(longest);
            while !state.closed && !self.closing.wait_for(&mut state, clock.until(end)).timed_out() {}
        }
        state
    }
}

/// Whether the network failed and not the server: another attempt then costs the server nothing.
const fn is_of_network(failure: io::ErrorKind) -> bool {
    use io::ErrorKind::{HostUnreachable, NetworkDown, NetworkUnreachable, TimedOut};
    matches!(failure, TimedOut | HostUnreachable | NetworkUnreachable | NetworkDown)
}

/// The connecting thread. It holds references neither to the slot nor to the transport while it
/// waits for the network, so that both can be dropped.
pub(super) fn connect_until_done(
    slot: &Weak<ConnectionSlot>,
    shared: &Weak<TcpTransportInner>,
    attempts: ConnectAttempts,
) {
    loop {
        let (Some(slot_now), Some(shared_now)) = (slot.upgrade(), shared.upgrade()) else {
            return;
        };
        let mut state = slot_now.state.lock();
        if attempts == ConnectAttempts::UntilConnected {
            state = slot_now.pause(state, &shared_now.options.clock);
        }
        if state.closed || state.waiters.is_empty() {
            state.connecting = false;
            return;
        }
        drop(state);
        let (options, peer) = (shared_now.options.clone(), shared_now.peer());
        drop((slot_now, shared_now));

        let began = options.clock.now();
        let made = connect(&options, peer);
        let time = options.clock.since(began);

        let (Some(slot_now), Some(shared_now)) = (slot.upgrade(), shared.upgrade()) else {
            return;
        };
        let made = made.and_then(|socket| shared_now.adopt(socket));
        let mut state = slot_now.state.lock();
        state.connect_statistics.add(&ConnectStatistics {
            binds: u64::from(peer.is_none() && matches!(options.port, PortSource::Lookup(_))),
            connects: u64::from(made.is_ok()),
            time,
        });
        let over = state.finish(made, &shared_now, attempts);
        if over || attempts == ConnectAttempts::Once {
            state.connecting = false;
            state.wake_all();
            return;
        }
    }
}

impl ConnectionSlotState {
    /// The connection, if it is usable; a lost one is removed.
    fn usable(&mut self) -> Option<Arc<ClientConnection>> {
        let connection = self.connection.take()?;
        if connection.is_closed() {
            self.past_statistics.add(&connection.lock().statistics);
            if connection.has_replied() {
                self.failures = 0;
            } else {
                self.failures = self.failures.saturating_add(1);
            }
            return None;
        }
        self.connection = Some(Arc::clone(&connection));
        Some(connection)
    }

    /// Applies the result of an attempt. Returns whether no further attempt is needed.
    pub(super) fn finish(
        &mut self,
        made: io::Result<Arc<ClientConnection>>,
        shared: &TcpTransportInner,
        attempts: ConnectAttempts,
    ) -> bool {
        match made {
            Ok(connection) if self.closed => {
                connection.close();
                true
            }
            Ok(connection) => {
                shared.activity.events().connected(self.was_connected);
                shared.replacements.fetch_add(u64::from(self.was_connected), Ordering::Relaxed);
                probe!(RpcConnect { server: shared.activity.server(), again: self.was_connected });
                self.was_connected = true;
                // It may replace a connection whose loss was not noticed yet.
                if let Some(lost) = self.connection.replace(connection) {
                    self.past_statistics.add(&lost.lock().statistics);
                }
                true
            }
            Err(error) => {
                probe!(RpcConnectFailed {
                    server: shared.activity.server(),
                    reason: ShortText::of(&error).bytes()
                });
                // With a single attempt, the result is the error.
                if self.failures == 0 && attempts == ConnectAttempts::UntilConnected {
                    tracing::info!("cannot connect to server {}: {error}", shared.activity.server());
                }
                self.failures = self.failures.saturating_add(1);
                self.last_failure = Some(error.kind());
                if error.kind() == io::ErrorKind::ConnectionRefused {
                    shared.activity.note_refusal();
                }
                self.closed
            }
        }
    }

    /// Whether a call waits for a connection.
    pub(super) const fn has_waiters(&self) -> bool {
        !self.waiters.is_empty()
    }

    pub(super) fn wake_all(&self) {
        for waiter in &self.waiters {
            waiter.wake();
        }
    }
}

fn forget(waiters: &mut Vec<Arc<CallWaiter>>, waiter: &Arc<CallWaiter>) {
    if let Some(at) = waiters.iter().position(|other| Arc::ptr_eq(other, waiter)) {
        waiters.swap_remove(at);
    }
}

impl Drop for OutstandingCall<'_> {
    fn drop(&mut self) {
        self.0.outstanding.fetch_sub(1, Ordering::Relaxed);
    }
}
