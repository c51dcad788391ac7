//! The connections that nobody reads: one epoll set and the one thread that waits on it.
//!
//! Owns the listeners and the registry of connections. A parked connection that becomes ready is given to a serving thread; it
//! costs a descriptor and no thread until then.

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
    clients::Clients,
    connection::{Connection, Everybody, Reading},
    limits::Limit,
    serve::Job,
};
use crate::{buffer::Pool, inbox::Inbox};

/// Keys of the epoll set below this are not connections.
const FIRST_ID: u64 = 1 << 16;
pub(super) const STOP: u64 = FIRST_ID - 1;

/// How long a receive waits before the connection is parked.
pub(super) const IDLE_MAX: Duration = Duration::from_secs(1);

pub(super) struct Parking {
    pub(super) epoll: OwnedFd,
    pub(super) listeners: Mutex<Vec<TcpListener>>,
    /// Until when nothing is accepted, for want of descriptors or memory. Meanwhile parked connections are looked after.
    pub(super) full_until: Mutex<Option<Instant>>,
    pub(super) connections: Mutex<HashMap<u64, Arc<Connection>>>,
    pub(super) next_id: AtomicU64,
    pub(super) clients: Arc<Clients<Job>>,
    pub(super) everybody: Arc<Everybody>,
    pub(super) pool: Arc<Pool>,
}

/// What a parked connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum For {
    Nothing,
    Calls,
    /// The client to take replies.
    Room,
}

impl Parking {
    pub(super) fn new(listeners: Vec<TcpListener>, stop: &OwnedFd, pool: Arc<Pool>) -> io::Result<Self> {
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
            full_until: Mutex::default(),
            connections: Mutex::default(),
            next_id: AtomicU64::new(FIRST_ID),
            clients: Arc::default(),
            everybody: Arc::default(),
            pool,
        })
    }

    /// Waits for parked connections that have work, and for new ones; `false` once the server is to stop.
    pub(super) fn wait(
        &self,
        ready: &mut Vec<(Arc<Connection>, Inbox)>,
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
                id if id >= FIRST_ID => ready.extend(self.claim(id)),
                listener => self.accept(listener, limits),
            }
        }
        !stop
    }

    /// Takes a connection that is ready out of the set, if it is still parked.
    fn claim(&self, id: u64) -> Option<(Arc<Connection>, Inbox)> {
        let connection = self.connections.lock().get(&id).cloned()?;
        let inbox = self.take(&connection, &mut connection.reading.lock())?;
        Some((connection, inbox))
    }

    /// Leaves a connection to the epoll set. For the thread that reads it, or one that finds it parked.
    pub(super) fn park(&self, connection: &Connection, mut inbox: Inbox, limits: &Limits) {
        inbox.shrink();
        // From here on its time runs.
        inbox.incomplete_since(Instant::now);
        let held = inbox.held();
        let (all, own) = (&self.everybody.half_records, &connection.seat.client.half_records);
        let met = if held == 0 {
            None
        } else if !reserve(own, held, limits.half_records_per_client) {
            Some(Limit::HalfRecordsPerClient)
        } else if !reserve(all, held, limits.half_records) {
            own.fetch_sub(held, Ordering::Relaxed);
            Some(Limit::HalfRecords)
        } else {
            None
        };
        if let Some(limit) = met {
            connection.close_for(limit, "too many bytes of incomplete records");
            return self.remove(connection);
        }
        let mut reading = connection.reading.lock();
        if matches!(*reading, Reading::Closed) {
            all.fetch_sub(held, Ordering::Relaxed);
            own.fetch_sub(held, Ordering::Relaxed);
            return;
        }
        *reading = Reading::Parked {
            inbox,
            since: Instant::now(),
        };
        self.arm(connection);
    }

    /// Has the epoll set wait for what `connection`, which is parked, waits for now. Under the lock of `reading`.
    fn arm(&self, connection: &Connection) {
        let what = if connection.has_backlog() {
            For::Room
        } else {
            For::Calls
        };
        self.set(connection, what);
    }

    fn set(&self, connection: &Connection, what: For) {
        let data = epoll::EventData::new_u64(connection.id);
        if let Err(errno) = epoll::modify(&self.epoll, &connection.socket, data, what.flags()) {
            tracing::warn!("connection from {}: cannot wait for it: {errno}", connection.peer);
            connection.close("it cannot be waited for");
        }
    }

    /// Tells the epoll set that a connection has a backlog, if it is parked.
    pub(super) fn arm_for_room(&self, connection: &Connection) {
        let reading = connection.reading.lock();
        if matches!(*reading, Reading::Parked { .. }) {
            self.arm(connection);
        }
    }

    /// Takes a connection back that this thread parked a moment ago; `None` if another has it now.
    pub(super) fn reclaim(&self, connection: &Connection) -> Option<Inbox> {
        let mut reading = connection.reading.lock();
        let inbox = self.take(connection, &mut reading)?;
        self.set(connection, For::Nothing);
        Some(inbox)
    }

    /// Forgets a connection. Its descriptor is closed when the last thread that answers on it is done.
    pub(super) fn remove(&self, connection: &Connection) {
        let mut reading = connection.reading.lock();
        drop(self.take(connection, &mut reading));
        *reading = Reading::Closed;
        drop(reading);
        let _ = epoll::delete(&self.epoll, &connection.socket);
        self.connections.lock().remove(&connection.id);
    }

    /// Closes the connection that was parked for longest, of those that are `meant`. Not one whose calls are being executed:
    /// it only seems idle.
    pub(super) fn evict(&self, meant: impl Fn(&Connection) -> bool) -> bool {
        let oldest = self
            .connections
            .lock()
            .values()
            .filter(|connection| meant(connection) && connection.in_flight.load(Ordering::Acquire) == 0)
            .filter_map(|connection| {
                Some((connection.reading.lock().parked_since()?, Arc::clone(connection)))
            })
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
    pub(super) fn take(&self, connection: &Connection, reading: &mut Reading) -> Option<Inbox> {
        if !matches!(reading, Reading::Parked { .. }) {
            return None;
        }
        match std::mem::replace(reading, Reading::Busy) {
            Reading::Parked { inbox, .. } => {
                let held = inbox.held();
                self.everybody.half_records.fetch_sub(held, Ordering::Relaxed);
                let own = &connection.seat.client.half_records;
                own.fetch_sub(held, Ordering::Relaxed);
                Some(inbox)
            }
            Reading::Busy | Reading::Closed => None,
        }
    }

    /// All connections at this moment.
    pub(super) fn all(&self) -> Vec<Arc<Connection>> {
        self.connections.lock().values().cloned().collect()
    }

    /// Accepts nothing any more and reads nothing more from anybody: idle connections end, and whoever waits for calls sees
    /// the end of them. Those that something was received from are `ready`, to be ended in order.
    pub(super) fn begin_stopping(&self, stop: &OwnedFd, ready: &mut Vec<(Arc<Connection>, Inbox)>) {
        let _ = epoll::delete(&self.epoll, stop.as_fd());
        self.listeners.lock().clear();
        for connection in self.all() {
            if connection.lingering.load(Ordering::SeqCst) {
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
            if connection.has_backlog() || connection.reading.lock().parked_since().is_some() {
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

impl Reading {
    pub(super) const fn parked_since(&self) -> Option<Instant> {
        match self {
            Self::Parked { since, .. } => Some(*since),
            Self::Busy | Self::Closed => None,
        }
    }
}

impl For {
    pub(super) const fn flags(self) -> epoll::EventFlags {
        match self {
            Self::Nothing => epoll::EventFlags::ONESHOT,
            Self::Calls => epoll::EventFlags::ONESHOT.union(epoll::EventFlags::IN),
            Self::Room => epoll::EventFlags::ONESHOT.union(epoll::EventFlags::OUT),
        }
    }
}
