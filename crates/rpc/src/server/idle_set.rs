//! The connections that nobody reads: one epoll set and the one thread that waits on it.
//!
//! Owns the listeners and the registry of connections. A parked connection that becomes ready is
//! given to a serving thread; it costs a descriptor and no thread until then.

use std::{
    collections::HashMap,
    io,
    net::TcpListener,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rustix::{
    event::{Timespec, epoll},
    io::Errno,
    net::{RecvFlags, Shutdown},
};

use super::{
    Limits,
    clients::ClientTable,
    connection::{ReadJob, ReaderState, ServerConnection, TotalUsage},
    limits::ResourceLimit,
};
use crate::{
    clock::TimeSource,
    record::{buffer_pool::BufferPool, receive_buffer::ReceiveBuffer},
};

/// Keys of the epoll set below this are not connections.
const FIRST_ID: u64 = 1 << 16;
pub(super) const STOP: u64 = FIRST_ID - 1;

/// How long a receive waits before the connection is parked.
pub(super) const IDLE_MAX: Duration = Duration::from_secs(1);

pub(super) struct IdleSet {
    pub(super) epoll: OwnedFd,
    pub(super) listeners: Mutex<Vec<TcpListener>>,
    /// Until when nothing is accepted, for want of descriptors or memory. Meanwhile parked
    /// connections are looked after.
    pub(super) accept_paused_until: Mutex<Option<Instant>>,
    pub(super) connections: Mutex<HashMap<u64, Arc<ServerConnection>>>,
    pub(super) next_id: AtomicU64,
    pub(super) clients: Arc<ClientTable<ReadJob>>,
    pub(super) total_usage: Arc<TotalUsage>,
    pub(super) pool: Arc<BufferPool>,
}

/// What a parked connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EpollInterest {
    Nothing,
    Calls,
    /// The client to take replies.
    SendSpace,
}

impl IdleSet {
    pub(super) fn new(
        listeners: Vec<TcpListener>,
        stop: &OwnedFd,
        pool: Arc<BufferPool>,
        clock: TimeSource,
    ) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(
            &epoll,
            stop,
            epoll::EventData::new_u64(STOP),
            epoll::EventFlags::IN,
        )?;
        for (index, listener) in (0..STOP).zip(&listeners) {
            listener.set_nonblocking(true)?;
            epoll::add(
                &epoll,
                listener,
                epoll::EventData::new_u64(index),
                epoll::EventFlags::IN,
            )?;
        }
        Ok(Self {
            epoll,
            listeners: Mutex::new(listeners),
            accept_paused_until: Mutex::default(),
            connections: Mutex::default(),
            next_id: AtomicU64::new(FIRST_ID),
            clients: Arc::default(),
            total_usage: Arc::new(TotalUsage::new(clock)),
            pool,
        })
    }

    pub(super) fn clock(&self) -> &TimeSource {
        &self.total_usage.clock
    }

    /// Waits for parked connections that have work, and for new ones; `false` once the server is to
    /// stop.
    pub(super) fn wait(
        &self,
        ready: &mut Vec<(Arc<ServerConnection>, ReceiveBuffer)>,
        limits: &Limits,
        longest: Option<Duration>,
    ) -> bool {
        let mut events = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }; 64];
        let pause = self.accepts_in();
        let longest = longest.map_or(pause, |longest| {
            Some(pause.map_or(longest, |pause| pause.min(longest)))
        });
        let longest = longest.map(|duration| Timespec {
            tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(duration.subsec_nanos()),
        });
        let count = match epoll::wait(&self.epoll, &mut events[..], longest.as_ref()) {
            Ok(count) => count,
            Err(Errno::INTR) => 0,
            Err(errno) => {
                tracing::error!("cannot wait for connections: {errno}");
                return false;
            }
        };
        let mut stop = false;
        for event in &events[..count] {
            match event.data.u64() {
                STOP => stop = true,
                id if id >= FIRST_ID => ready.extend(self.take_ready(id)),
                listener => self.accept(listener, limits),
            }
        }
        !stop
    }

    /// Takes a connection that is ready out of the set, if it is still parked.
    fn take_ready(&self, id: u64) -> Option<(Arc<ServerConnection>, ReceiveBuffer)> {
        let connection = self.connections.lock().get(&id).cloned()?;
        let inbox = self.take(&connection, &mut connection.reading.lock())?;
        Some((connection, inbox))
    }

    /// Leaves a connection to the epoll set. For the thread that reads it, or one that finds it
    /// parked.
    pub(super) fn insert(&self, connection: &ServerConnection, mut inbox: ReceiveBuffer, limits: &Limits) {
        inbox.shrink();
        // From here on its time runs.
        inbox.incomplete_since(|| self.clock().now());
        let held = inbox.held();
        let (all, own) = (
            &self.total_usage.half_records,
            &connection.client_ref.client.half_records,
        );
        let met = if held == 0 {
            None
        } else if !reserve(own, held, limits.half_records_per_client) {
            Some(ResourceLimit::HalfRecordsPerClient)
        } else if !reserve(all, held, limits.half_records) {
            own.fetch_sub(held, Ordering::Relaxed);
            Some(ResourceLimit::HalfRecords)
        } else {
            None
        };
        if let Some(limit) = met {
            connection.close_for(limit, "too many bytes of incomplete records");
            return self.remove(connection);
        }
        let mut reading = connection.reading.lock();
        if matches!(*reading, ReaderState::Closed) {
            all.fetch_sub(held, Ordering::Relaxed);
            own.fetch_sub(held, Ordering::Relaxed);
            return;
        }
        *reading = ReaderState::Idle {
            inbox,
            since: self.clock().now(),
        };
        self.arm(connection);
    }

    /// Has the epoll set wait for what `connection`, which is parked, waits for now. Under the lock
    /// of `reading`.
    fn arm(&self, connection: &ServerConnection) {
        let what = if connection.has_backlog() {
            EpollInterest::SendSpace
        } else {
            EpollInterest::Calls
        };
        self.set(connection, what);
    }

    fn set(&self, connection: &ServerConnection, what: EpollInterest) {
        let data = epoll::EventData::new_u64(connection.id);
        if let Err(errno) = epoll::modify(&self.epoll, &connection.socket, data, what.flags()) {
            tracing::warn!("connection from {}: cannot wait for it: {errno}", connection.peer);
            connection.close("it cannot be waited for");
        }
    }

    /// Tells the epoll set that a connection has a backlog, if it is parked.
    pub(super) fn arm_for_room(&self, connection: &ServerConnection) {
        let reading = connection.reading.lock();
        if matches!(*reading, ReaderState::Idle { .. }) {
            self.arm(connection);
        }
    }

    /// Takes a connection back that this thread parked a moment ago; `None` if another has it now.
    pub(super) fn reclaim(&self, connection: &ServerConnection) -> Option<ReceiveBuffer> {
        let mut reading = connection.reading.lock();
        let inbox = self.take(connection, &mut reading)?;
        self.set(connection, EpollInterest::Nothing);
        Some(inbox)
    }

    /// Forgets a connection. Its descriptor is closed when the last thread that answers on it is
    /// done.
    pub(super) fn remove(&self, connection: &ServerConnection) {
        let mut reading = connection.reading.lock();
        drop(self.take(connection, &mut reading));
        *reading = ReaderState::Closed;
        drop(reading);
        connection.calls.lock().close();
        let _ = epoll::delete(&self.epoll, &connection.socket);
        self.connections.lock().remove(&connection.id);
    }

    /// Closes the connection that was parked for longest, of those that are `meant`. Not one whose
    /// calls are being executed: it only seems idle.
    pub(super) fn evict(&self, meant: impl Fn(&ServerConnection) -> bool) -> bool {
        let oldest = self
            .connections
            .lock()
            .values()
            .filter(|connection| meant(connection) && connection.in_flight.load(Ordering::Acquire) == 0)
            .filter_map(|connection| Some((connection.reading.lock().idle_since()?, Arc::clone(connection))))
            .min_by_key(|(since, _)| *since);
        let Some((_, connection)) = oldest else {
            return false;
        };
        if self.take(&connection, &mut connection.reading.lock()).is_none() {
            return false;
        }
        connection.close("room was needed");
        self.remove(&connection);
        true
    }

    /// Takes a parked connection over.
    pub(super) fn take(
        &self,
        connection: &ServerConnection,
        reading: &mut ReaderState,
    ) -> Option<ReceiveBuffer> {
        if !matches!(reading, ReaderState::Idle { .. }) {
            return None;
        }
        match std::mem::replace(reading, ReaderState::Busy) {
            ReaderState::Idle { inbox, .. } => {
                let held = inbox.held();
                self.total_usage.half_records.fetch_sub(held, Ordering::Relaxed);
                let own = &connection.client_ref.client.half_records;
                own.fetch_sub(held, Ordering::Relaxed);
                Some(inbox)
            }
            ReaderState::Busy | ReaderState::Closed => None,
        }
    }

    /// All connections at this moment.
    pub(super) fn all(&self) -> Vec<Arc<ServerConnection>> {
        self.connections.lock().values().cloned().collect()
    }

    /// Accepts nothing any more and reads nothing more from anybody: idle connections end, and
    /// whoever waits for calls sees the end of them. Those that something was received from are
    /// `ready`, to be ended in order.
    pub(super) fn begin_stopping(
        &self,
        stop: &OwnedFd,
        ready: &mut Vec<(Arc<ServerConnection>, ReceiveBuffer)>,
    ) {
        let _ = epoll::delete(&self.epoll, stop.as_fd());
        self.listeners.lock().clear();
        for connection in self.all() {
            if connection.waiting_for_call.load(Ordering::SeqCst) {
                let _ = rustix::net::shutdown(&connection.socket, Shutdown::Read);
            }
            if connection.in_flight.load(Ordering::Acquire) > 0 || connection.has_backlog() {
                continue;
            }
            let Some(inbox) = self.take(&connection, &mut connection.reading.lock()) else {
                continue;
            };
            let peek = RecvFlags::PEEK | RecvFlags::DONTWAIT;
            if rustix::net::recv(&connection.socket, &mut [0; 1][..], peek) == Err(Errno::AGAIN) {
                self.remove(&connection);
            } else {
                ready.push((connection, inbox));
            }
        }
    }

    pub(super) fn connections(&self) -> usize {
        self.connections.lock().len()
    }

    /// Gives up on every client that has not taken its replies.
    pub(super) fn abandon(&self) {
        for connection in self.all() {
            if connection.has_backlog() || connection.reading.lock().idle_since().is_some() {
                connection.close("the server stops");
            }
            let parked = self.take(&connection, &mut connection.reading.lock());
            if parked.is_some() {
                self.remove(&connection);
            }
        }
    }
}

/// Adds `more` to `sum` unless that is above `most` then, whoever else adds meanwhile.
fn reserve(sum: &AtomicUsize, more: usize, most: usize) -> bool {
    let sum_with = |sum: usize| sum.checked_add(more).filter(|sum| *sum <= most);
    sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum_with)
        .is_ok()
}

impl ReaderState {
    pub(super) const fn idle_since(&self) -> Option<Instant> {
        match self {
            Self::Idle { since, .. } => Some(*since),
            Self::Busy | Self::Closed => None,
        }
    }
}

impl EpollInterest {
    pub(super) const fn flags(self) -> epoll::EventFlags {
        match self {
            Self::Nothing => epoll::EventFlags::ONESHOT,
            Self::Calls => epoll::EventFlags::ONESHOT.union(epoll::EventFlags::IN),
            Self::SendSpace => epoll::EventFlags::ONESHOT.union(epoll::EventFlags::OUT),
        }
    }
}
