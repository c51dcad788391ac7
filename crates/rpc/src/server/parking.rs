//! The connections that nobody reads: one epoll set and the one thread that waits on it.
//!
//! Owns the listeners, the registry of connections, and the limits on their number. A parked connection that becomes ready is
//! given to a serving thread; it costs a descriptor and no thread until then.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr, TcpListener},
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
    net::{RecvFlags, Shutdown, SocketFlags, sockopt},
};

use super::{
    Limits,
    clients::Clients,
    connection::{Connection, Everybody, Reading},
    limits::Limit,
    serve::Job,
};
use crate::{buffer::Pool, inbox::Inbox};
use curt_trace::{events::Short, probe};

/// Keys of the epoll set below this are not connections.
const FIRST_ID: u64 = 1 << 16;
const STOP: u64 = FIRST_ID - 1;

/// How long a receive waits before the connection is parked.
pub(super) const IDLE_MAX: Duration = Duration::from_secs(1);

/// How long a client that takes nothing of a file holds a thread.
const FILE_PATIENCE: Duration = Duration::from_millis(100);

/// How many looks at what nobody takes come before the kernel gives up what nobody acknowledges.
const LOOKS_BEFORE_KERNEL: u32 = 4;

/// How many connections are accepted before others are looked after.
const ACCEPTS_MAX: usize = 64;

/// How long nothing is accepted when the system has no room for more.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

pub(super) struct Parking {
    epoll: OwnedFd,
    listeners: Mutex<Vec<TcpListener>>,
    /// Until when nothing is accepted, for want of descriptors or memory. Meanwhile parked connections are looked after.
    full_until: Mutex<Option<Instant>>,
    pub(super) connections: Mutex<HashMap<u64, Arc<Connection>>>,
    next_id: AtomicU64,
    clients: Arc<Clients<Job>>,
    pub(super) everybody: Arc<Everybody>,
    pub(super) pool: Arc<Pool>,
}

/// What a parked connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum For {
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

    /// Accepts nothing for a while.
    fn pause(&self) {
        *self.full_until.lock() = Some(Instant::now() + ACCEPT_PAUSE);
        self.listen(epoll::EventFlags::empty());
    }

    /// How long it is until new connections are accepted again, if none are; they are once that time has come.
    fn accepts_in(&self) -> Option<Duration> {
        let mut full_until = self.full_until.lock();
        let left = (*full_until)?.saturating_duration_since(Instant::now());
        if left.is_zero() {
            *full_until = None;
            self.listen(epoll::EventFlags::IN);
            return None;
        }
        Some(left)
    }

    /// What the epoll set waits for of the listeners.
    fn listen(&self, what: epoll::EventFlags) {
        for (index, listener) in (0..STOP).zip(&*self.listeners.lock()) {
            let data = epoll::EventData::new_u64(index);
            if let Err(errno) = epoll::modify(&self.epoll, listener, data, what) {
                tracing::error!("cannot wait for new connections: {errno}");
            }
        }
    }

    /// Takes a connection that is ready out of the set, if it is still parked.
    fn claim(&self, id: u64) -> Option<(Arc<Connection>, Inbox)> {
        let connection = self.connections.lock().get(&id).cloned()?;
        let inbox = self.take(&connection, &mut connection.reading.lock())?;
        Some((connection, inbox))
    }

    fn accept(&self, listener: u64, limits: &Limits) {
        for _ in 0..ACCEPTS_MAX {
            let listeners = self.listeners.lock();
            let Some(listener) = usize::try_from(listener)
                .ok()
                .and_then(|index| listeners.get(index))
            else {
                return;
            };
            let flags = SocketFlags::CLOEXEC;
            let accepted = rustix::net::acceptfrom_with(listener, flags);
            drop(listeners);
            match accepted {
                Ok((socket, _)) => {
                    if let Err(error) = self.admit(socket, limits) {
                        tracing::debug!("a connection was lost before it was served: {error}");
                    }
                }
                Err(Errno::AGAIN) => return,
                // The connection went away before it was accepted.
                Err(Errno::CONNABORTED | Errno::INTR | Errno::PROTO) => {}
                Err(errno) => {
                    let told = || format!("cannot accept connections: {errno}; one that is idle makes room");
                    self.everybody.pressing.note(Limit::System, told);
                    // Without descriptors or memory: one that nobody uses makes room.
                    if !self.evict(|_| true) {
                        self.pause();
                    }
                    return;
                }
            }
        }
    }

    fn admit(&self, socket: OwnedFd, limits: &Limits) -> io::Result<()> {
        let peer = canonical(SocketAddr::try_from(
            rustix::net::getpeername(&socket)?.ok_or(Errno::NOTCONN)?,
        )?);
        let seat = self.clients.seat(peer.ip());
        let own = seat.client.connections.load(Ordering::Relaxed);
        let met = if own > limits.connections_per_client {
            Some((Limit::ConnectionsPerClient, limits.connections_per_client))
        } else if self.connections() >= limits.connections {
            Some((Limit::Connections, limits.connections))
        } else {
            None
        };
        if let Some((limit, most)) = met {
            self.everybody.pressing.note(limit, || {
                let name = limit.name();
                format!(
                    "{most} connections, the last from {peer}: what was idle for longest is closed ({name})"
                )
            });
            let of_client = |connection: &Connection| Arc::ptr_eq(&connection.seat.client, &seat.client);
            if !self.evict(|connection| limit == Limit::Connections || of_client(connection)) {
                return Ok(());
            }
        }
        probe!(SvcAccept {
            peer: Short::of(peer).bytes()
        });
        sockopt::set_tcp_nodelay(&socket, true)?;
        sockopt::set_socket_keepalive(&socket, true)?;
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(IDLE_MAX))?;
        // For sendfile(2) alone, which cannot be told to wait for nothing as other ways of sending are.
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(FILE_PATIENCE))?;
        // What the kernel alone still has is its own to give up. Of what waits behind that we are to be first, who tell and count it.
        let looks = LOOKS_BEFORE_KERNEL * limits.look_interval();
        let lost_after = limits.unsent_for.saturating_add(looks);
        let lost_after = u32::try_from(lost_after.as_millis()).unwrap_or(u32::MAX);
        sockopt::set_tcp_user_timeout(&socket, lost_after)?;
        let local = canonical(SocketAddr::try_from(rustix::net::getsockname(&socket)?)?);
        if is_of_this_machine(peer.ip(), local.ip()) {
            // What paces sending for the sake of a network, such as BBR with a timer for each connection, only takes time where
            // there is none. Reno is in every kernel and needs no right; without it all works as well.
            let _slower = sockopt::set_tcp_congestion(&socket, "reno");
        }
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let inbox = Inbox::new(Arc::clone(&self.pool));
        let everybody = Arc::clone(&self.everybody);
        let connection = Arc::new(Connection::new(id, socket, (peer, local), inbox, everybody, seat));
        // In the registry first: its event may come at once.
        self.connections.lock().insert(id, Arc::clone(&connection));
        let added = epoll::add(
            &self.epoll,
            &connection.socket,
            epoll::EventData::new_u64(id),
            For::Calls.flags(),
        );
        if let Err(errno) = added {
            self.connections.lock().remove(&id);
            return Err(errno.into());
        }
        Ok(())
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
        } else if own.load(Ordering::Relaxed) + held > limits.half_records_per_client {
            Some(Limit::HalfRecordsPerClient)
        } else if all.load(Ordering::Relaxed) + held > limits.half_records {
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
            return;
        }
        all.fetch_add(held, Ordering::Relaxed);
        own.fetch_add(held, Ordering::Relaxed);
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
    fn evict(&self, meant: impl Fn(&Connection) -> bool) -> bool {
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

impl Reading {
    pub(super) const fn parked_since(&self) -> Option<Instant> {
        match self {
            Self::Parked { since, .. } => Some(*since),
            Self::Busy | Self::Closed => None,
        }
    }
}

impl For {
    const fn flags(self) -> epoll::EventFlags {
        match self {
            Self::Nothing => epoll::EventFlags::ONESHOT,
            Self::Calls => epoll::EventFlags::ONESHOT.union(epoll::EventFlags::IN),
            Self::Room => epoll::EventFlags::ONESHOT.union(epoll::EventFlags::OUT),
        }
    }
}

/// Whether a connection between these addresses stays on one machine.
fn is_of_this_machine(peer: IpAddr, local: IpAddr) -> bool {
    peer.is_loopback() || peer == local
}

/// An IPv4 client of an IPv6 listener is told as what it is.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn whoever_has_no_room_for_new_connections_looks_after_the_others_meanwhile() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let stop = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
        let parking = Parking::new(vec![listener], &stop, Arc::new(Pool::new(0))).unwrap();
        let (limits, mut ready) = (Limits::default(), Vec::new());
        let mut wait = |longest| {
            parking.wait(&mut ready, &limits, longest);
            (parking.connections(), ready.len())
        };
        let mut known = TcpStream::connect(address).unwrap();
        assert_eq!(wait(None), (1, 0));
        let of_this_machine = parking.all().remove(0);
        let chosen = sockopt::tcp_congestion(&of_this_machine.socket);
        assert_eq!(chosen.as_deref(), Ok("reno"));
        drop(of_this_machine);
        parking.pause();
        let _new = TcpStream::connect(address).unwrap();
        io::Write::write_all(&mut known, &[0]).unwrap();
        // The one that is known is taken up at once, the other one is accepted when it is time.
        assert_eq!(wait(None), (1, 1));
        let (begin, mut connections) = (Instant::now(), 1);
        while connections == 1 {
            (connections, _) = wait(Some(Duration::from_secs(20)));
        }
        assert!(begin.elapsed() < Duration::from_secs(10));
    }
}
