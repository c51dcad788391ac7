//! Idle connections: one epoll set, and the one thread that waits on it.
//!
//! It has the listeners and the registry of connections. An idle connection costs a descriptor and
//! no thread; when a call has arrived completely, a serving thread takes the connection.

use std::{
    collections::{HashMap, VecDeque},
    io,
    net::TcpListener,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
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
    clients::{ClientAddressTable, ClientUsage, TotalUsage},
    connection::{ReaderState, ServerConnection, ServerJob},
    limits::Limits,
    received_bytes::ReceivedBytes,
};
use crate::{
    clock::TimeSource,
    record::{buffer_pool::BufferPool, receive_buffer::ReceiveBuffer},
};

/// Keys of the epoll set below this are not connections.
const FIRST_ID: u64 = 1 << 16;
pub(super) const STOP: u64 = FIRST_ID - 1;

/// Maximum time of a receive before the connection becomes idle.
pub(super) const IDLE_MAX: Duration = Duration::from_secs(1);

/// Maximum number of connections that a search for the oldest returns.
const OLDEST_IDLE_MAX: usize = 256;

pub(super) struct IdleSet {
    pub(super) epoll: OwnedFd,
    pub(super) listeners: Mutex<Vec<TcpListener>>,
    /// Accepting is paused until this time, for lack of descriptors or memory. Idle connections are
    /// still served.
    pub(super) accept_paused_until: Mutex<Option<Instant>>,
    pub(super) connections: Mutex<HashMap<u64, Arc<ServerConnection>>>,
    pub(super) next_id: AtomicU64,
    pub(super) clients: Arc<ClientAddressTable<ServerJob>>,
    pub(super) total_usage: Arc<TotalUsage>,
    pub(super) pool: Arc<BufferPool>,
    /// The result of the last search of all idle connections.
    oldest_idle: Mutex<VecDeque<(Instant, u64)>>,
    #[cfg(test)]
    pub(super) searches: AtomicU64,
}

/// The event for which an idle connection waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EpollInterest {
    Nothing,
    Calls,
    /// The socket can accept more bytes of replies.
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
        epoll::add(&epoll, stop, epoll::EventData::new_u64(STOP), epoll::EventFlags::IN)?;
        for (index, listener) in (0..STOP).zip(&listeners) {
            listener.set_nonblocking(true)?;
            epoll::add(&epoll, listener, epoll::EventData::new_u64(index), epoll::EventFlags::IN)?;
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
            oldest_idle: Mutex::default(),
            #[cfg(test)]
            searches: AtomicU64::default(),
        })
    }

    pub(super) fn clock(&self) -> &TimeSource {
        &self.total_usage.clock
    }

    /// Waits for idle connections that become ready, and for new ones; `false` if the server is to
    /// stop.
    pub(super) fn wait(
        &self,
        ready: &mut Vec<(Arc<ServerConnection>, ReceiveBuffer)>,
        limits: &Limits,
        longest: Option<Duration>,
    ) -> bool {
        let mut events =
            [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 64];
        let pause = self.accepts_in();
        let longest =
            longest.map_or(pause, |longest| Some(pause.map_or(longest, |pause| pause.min(longest))));
        let longest = longest.and_then(|duration| Timespec::try_from(duration).ok());
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

    /// Takes a ready connection out of the set, if it is still idle.
    fn take_ready(&self, id: u64) -> Option<(Arc<ServerConnection>, ReceiveBuffer)> {
        let connection = self.connections.lock().get(&id).cloned()?;
        let receive_buffer = connection.reading.lock().take()?;
        Some((connection, receive_buffer))
    }

    /// Adds a connection to the epoll set. Called by the thread that reads it, or by one that finds
    /// it idle.
    pub(super) fn insert(
        &self,
        connection: &ServerConnection,
        mut receive_buffer: ReceiveBuffer,
        limits: &Limits,
    ) {
        receive_buffer.shrink();
        let client = &connection.client_ref.client;
        match ReceivedBytes::of_connection(&self.total_usage, client, receive_buffer.held(), limits) {
            Ok(counted) => self.insert_counted(connection, receive_buffer, counted),
            Err(limit) => {
                connection.close_for(limit, "too many bytes of calls that are incomplete or wait");
                self.remove(connection);
            }
        }
    }

    /// As [`Self::insert`], with bytes that are counted already.
    pub(super) fn insert_counted(
        &self,
        connection: &ServerConnection,
        mut receive_buffer: ReceiveBuffer,
        counted: Option<ReceivedBytes<ServerJob>>,
    ) {
        // Its timeouts start here.
        receive_buffer.incomplete_since(|| self.clock().now());
        let mut reading = connection.reading.lock();
        if matches!(*reading, ReaderState::Closed) {
            return;
        }
        *reading = ReaderState::Idle { receive_buffer, since: self.clock().now(), counted };
        self.arm(connection);
    }

    /// Sets the epoll events of an idle connection. Called under the lock of `reading`.
    fn arm(&self, connection: &ServerConnection) {
        let what = if connection.has_backlog() { EpollInterest::SendSpace } else { EpollInterest::Calls };
        self.set(connection, what);
    }

    fn set(&self, connection: &ServerConnection, what: EpollInterest) {
        let data = epoll::EventData::new_u64(connection.id);
        if let Err(errno) = epoll::modify(&self.epoll, &connection.socket, data, what.flags()) {
            tracing::warn!("connection from {}: cannot wait for it: {errno}", connection.peer);
            connection.close("it cannot be waited for");
        }
    }

    /// Has the epoll set wait for room in the socket of a connection with a backlog, if it is idle.
    pub(super) fn arm_for_room(&self, connection: &ServerConnection) {
        let reading = connection.reading.lock();
        if matches!(*reading, ReaderState::Idle { .. }) {
            self.arm(connection);
        }
    }

    /// Takes back a connection that this thread made idle; `None` if another thread has it now.
    pub(super) fn reclaim(&self, connection: &ServerConnection) -> Option<ReceiveBuffer> {
        let mut reading = connection.reading.lock();
        let receive_buffer = reading.take()?;
        self.set(connection, EpollInterest::Nothing);
        Some(receive_buffer)
    }

    /// Removes a connection. Its descriptor is closed when the last thread that executes one of its
    /// calls is done.
    pub(super) fn remove(&self, connection: &ServerConnection) {
        let mut reading = connection.reading.lock();
        drop(reading.take());
        *reading = ReaderState::Closed;
        drop(reading);
        connection.calls.lock().close();
        let _ = epoll::delete(&self.epoll, &connection.socket);
        self.connections.lock().remove(&connection.id);
    }

    /// Closes the connection that has been idle longest, of a client or of all. A connection with
    /// calls in progress is not idle.
    pub(super) fn evict(&self, of: Option<&Arc<ClientUsage<ServerJob>>>) -> bool {
        let mut oldest = of.map_or(&self.oldest_idle, |client| &client.oldest_idle).lock();
        if self.evict_first(&mut oldest) {
            return true;
        }
        *oldest = self.search_idle(of);
        self.evict_first(&mut oldest)
    }

    /// Closes the first connection of a list that has been idle since.
    fn evict_first(&self, oldest: &mut VecDeque<(Instant, u64)>) -> bool {
        while let Some((since, id)) = oldest.pop_front() {
            let connection = self.connections.lock().get(&id).cloned();
            let Some(connection) = connection.filter(|connection| connection.is_idle_since(since)) else {
                continue;
            };
            if connection.reading.lock().take().is_some() {
                connection.close("room was needed");
                self.remove(&connection);
                return true;
            }
        }
        false
    }

    /// The connections of a client, or of all, that have been idle longest, and since when. Others
    /// are idle later than these, so a flood of new connections searches once for many.
    fn search_idle(&self, of: Option<&Arc<ClientUsage<ServerJob>>>) -> VecDeque<(Instant, u64)> {
        #[cfg(test)]
        self.searches.fetch_add(1, Ordering::Relaxed);
        let connections = self.connections.lock();
        let meant = connections.values().filter(|connection| {
            of.is_none_or(|client| Arc::ptr_eq(client, &connection.client_ref.client))
                && connection.in_flight.load(Ordering::Acquire) == 0
        });
        let idle =
            meant.filter_map(|connection| Some((connection.reading.lock().idle_since()?, connection.id)));
        let mut idle: Vec<_> = idle.collect();
        drop(connections);
        idle.sort_unstable();
        idle.truncate(OLDEST_IDLE_MAX);
        idle.into()
    }

    /// All connections at this moment.
    pub(super) fn all(&self) -> Vec<Arc<ServerConnection>> {
        self.connections.lock().values().cloned().collect()
    }

    /// Stops accepting and reading: idle connections end, and threads that wait for calls see the
    /// end of the stream. Connections from which bytes were received are added to `ready`, to be
    /// closed in order.
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
            let Some(receive_buffer) = connection.reading.lock().take() else {
                continue;
            };
            let peek = RecvFlags::PEEK | RecvFlags::DONTWAIT;
            if rustix::net::recv(&connection.socket, &mut [0; 1][..], peek) == Err(Errno::AGAIN) {
                self.remove(&connection);
            } else {
                ready.push((connection, receive_buffer));
            }
        }
    }

    pub(super) fn connections(&self) -> usize {
        self.connections.lock().len()
    }

    /// Closes all connections with unsent replies.
    pub(super) fn abandon(&self) {
        for connection in self.all() {
            if connection.has_backlog() || connection.reading.lock().idle_since().is_some() {
                connection.close("the server stops");
            }
            let parked = connection.reading.lock().take();
            if parked.is_some() {
                self.remove(&connection);
            }
        }
    }
}

impl ReaderState {
    /// Takes the buffer of an idle connection, which is busy from now on.
    pub(super) fn take(&mut self) -> Option<ReceiveBuffer> {
        if !matches!(self, Self::Idle { .. }) {
            return None;
        }
        match std::mem::replace(self, Self::Busy) {
            Self::Idle { receive_buffer, counted, .. } => {
                drop(counted);
                Some(receive_buffer)
            }
            Self::Busy | Self::Closed => None,
        }
    }

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
