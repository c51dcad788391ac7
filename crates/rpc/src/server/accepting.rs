//! Accepting connections: number limits and socket options.
//!
//! The listeners and the registry belong to [`IdleSet`]. Invariant: while no new connections can be
//! accepted, existing ones are served.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::OwnedFd,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use rustix::{
    event::epoll,
    io::Errno,
    net::{SocketFlags, sockopt},
};

use super::{
    connection::ServerConnection,
    idle_set::{EpollInterest, IDLE_MAX, IdleSet, STOP},
    limits::{Limits, ResourceLimit},
};
use crate::record::receive_buffer::ReceiveBuffer;
use curt_observe::{events::ShortText, probe};

/// Maximum time for which a thread waits for a client to receive a range of a file.
const SENDFILE_TIMEOUT: Duration = Duration::from_millis(100);

/// TCP_USER_TIMEOUT exceeds [`Limits::unsent_for`] by this many check intervals.
const LOOKS_BEFORE_KERNEL: u32 = 4;

/// Maximum number of connections accepted before others are served.
const ACCEPTS_MAX: usize = 64;

/// Pause of accepting when the system has no descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

impl IdleSet {
    /// Stops accepting for a while.
    pub(super) fn pause(&self) {
        *self.accept_paused_until.lock() = Some(self.clock().now() + ACCEPT_PAUSE);
        self.listen(epoll::EventFlags::empty());
    }

    /// The time until connections are accepted again, if accepting is paused; ends the pause when
    /// this time has come.
    pub(super) fn accepts_in(&self) -> Option<Duration> {
        let mut full_until = self.accept_paused_until.lock();
        let left = self.clock().until((*full_until)?);
        if left.is_zero() {
            *full_until = None;
            self.listen(epoll::EventFlags::IN);
            return None;
        }
        Some(left)
    }

    /// Sets the epoll events of the listeners.
    fn listen(&self, what: epoll::EventFlags) {
        for (index, listener) in (0..STOP).zip(&*self.listeners.lock()) {
            let data = epoll::EventData::new_u64(index);
            if let Err(errno) = epoll::modify(&self.epoll, listener, data, what) {
                tracing::error!("cannot wait for new connections: {errno}");
            }
        }
    }

    pub(super) fn accept(&self, listener: u64, limits: &Limits) {
        for _ in 0..ACCEPTS_MAX {
            let listeners = self.listeners.lock();
            let Some(listener) = usize::try_from(listener).ok().and_then(|index| listeners.get(index)) else {
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
                // The connection was closed before it was accepted.
                Err(Errno::CONNABORTED | Errno::INTR | Errno::PROTO) => {}
                Err(errno) => {
                    let message =
                        || format!("cannot accept connections: {errno}; one that is idle makes room");
                    self.total_usage.limit_log.note(ResourceLimit::System, message);
                    // Out of descriptors or memory: an idle connection is closed.
                    if !self.evict(None) {
                        self.pause();
                    }
                    return;
                }
            }
        }
    }

    fn admit(&self, socket: OwnedFd, limits: &Limits) -> io::Result<()> {
        let peer =
            canonical(SocketAddr::try_from(rustix::net::getpeername(&socket)?.ok_or(Errno::NOTCONN)?)?);
        let client_ref = self.clients.add_connection(peer.ip());
        let own = client_ref.client.connections.load(Ordering::Relaxed);
        let met = if own > limits.connections_per_client {
            Some((ResourceLimit::ConnectionsPerClient, limits.connections_per_client))
        } else if self.connections() >= limits.connections {
            Some((ResourceLimit::Connections, limits.connections))
        } else {
            None
        };
        if let Some((limit, most)) = met {
            self.total_usage.limit_log.note(limit, || {
                let name = limit.name();
                format!("{most} connections, the last from {peer}: closing the one idle longest ({name})")
            });
            let of = (limit == ResourceLimit::ConnectionsPerClient).then_some(&client_ref.client);
            if !self.evict(of) {
                return Ok(());
            }
        }
        probe!(SvcAccept { peer: ShortText::of(peer).bytes() });
        let local = canonical(SocketAddr::try_from(rustix::net::getsockname(&socket)?)?);
        let socket = open_stream(socket, peer, local, limits)?;
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let receive_buffer = ReceiveBuffer::new(Arc::clone(&self.pool));
        let total_usage = Arc::clone(&self.total_usage);
        let connection =
            Arc::new(ServerConnection::new(id, socket, peer, local, receive_buffer, total_usage, client_ref));
        // Inserted into the registry first: its event may arrive at once.
        self.connections.lock().insert(id, Arc::clone(&connection));
        let added = epoll::add(
            &self.epoll,
            &connection.socket,
            epoll::EventData::new_u64(id),
            EpollInterest::Calls.flags(),
        );
        if let Err(errno) = added {
            self.connections.lock().remove(&id);
            return Err(errno.into());
        }
        Ok(())
    }
}

/// Opens a stream for records on an accepted socket. All later I/O uses the returned socket, so
/// this is the place for a layer between TCP and record marking
/// (`docs/decisions/two-way-connections.md`, TLS). Must not wait for the peer.
fn open_stream(socket: OwnedFd, peer: SocketAddr, local: SocketAddr, limits: &Limits) -> io::Result<OwnedFd> {
    sockopt::set_tcp_nodelay(&socket, true)?;
    sockopt::set_socket_keepalive(&socket, true)?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(IDLE_MAX))?;
    // Only for sendfile(2), which has no flag for non-blocking operation.
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(SENDFILE_TIMEOUT))?;
    // The kernel drops only data that it alone holds. If replies are in the backlog, the server
    // should notice first, because it logs and counts this.
    let looks = LOOKS_BEFORE_KERNEL * limits.look_interval();
    let lost_after = limits.unsent_for.saturating_add(looks);
    let lost_after = u32::try_from(lost_after.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(&socket, lost_after)?;
    if is_of_this_machine(peer.ip(), local.ip()) {
        // Congestion control that paces its output, such as BBR with a timer for each connection,
        // only costs time on one machine. Reno is in each kernel and needs no privilege; if it
        // fails, the connection still works.
        let _slower = sockopt::set_tcp_congestion(&socket, "reno");
    }
    Ok(socket)
}

/// Whether both addresses belong to this machine.
fn is_of_this_machine(peer: IpAddr, local: IpAddr) -> bool {
    peer.is_loopback() || peer == local
}

/// The client's address; an IPv4-mapped IPv6 address becomes IPv4.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::{clock::ScriptedTime, record::buffer_pool::BufferPool};

    #[test]
    fn existing_connections_are_served_while_there_is_no_room_for_new_ones() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let stop = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
        let time = ScriptedTime::new();
        let idle_set =
            IdleSet::new(vec![listener], &stop, Arc::new(BufferPool::new(0)), time.clock()).unwrap();
        let (limits, mut ready) = (Limits::default(), Vec::new());
        let mut wait = |longest| {
            idle_set.wait(&mut ready, &limits, longest);
            (idle_set.connections(), ready.len())
        };
        let mut known = TcpStream::connect(address).unwrap();
        assert_eq!(wait(None), (1, 0));
        let of_this_machine = idle_set.all().remove(0);
        let chosen = sockopt::tcp_congestion(&of_this_machine.socket);
        assert_eq!(chosen.as_deref(), Ok("reno"));
        drop(of_this_machine);
        idle_set.pause();
        let _new = TcpStream::connect(address).unwrap();
        io::Write::write_all(&mut known, &[0]).unwrap();
        // The known connection is served at once, the other one is accepted after the pause.
        assert_eq!(wait(None), (1, 1));
        time.advance(ACCEPT_PAUSE - Duration::from_nanos(1));
        assert_eq!(wait(None), (1, 1));
        time.advance(Duration::from_nanos(1));
        assert_eq!(wait(None), (2, 1));
    }

    #[test]
    fn a_flood_of_connections_searches_for_the_oldest_once_for_many() {
        let each = 50;
        for limits in [
            Limits { connections: each, ..Limits::default() },
            Limits { connections_per_client: each, ..Limits::default() },
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let stop = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
            let pool = Arc::new(BufferPool::new(0));
            let idle_set = IdleSet::new(vec![listener], &stop, pool, ScriptedTime::new().clock()).unwrap();
            let mut clients = std::collections::VecDeque::new();
            for number in 0..5 * each {
                clients.push_back(TcpStream::connect(address).unwrap());
                idle_set.wait(&mut Vec::new(), &limits, None);
                if number >= each {
                    let ended = io::Read::read(&mut clients.pop_front().unwrap(), &mut [0; 1]);
                    assert_eq!(ended.unwrap(), 0, "the oldest has ended");
                }
            }
            assert_eq!(idle_set.connections(), each);
            assert_eq!(idle_set.searches.load(Ordering::Relaxed), 4, "200 were evicted");
        }
    }
}
