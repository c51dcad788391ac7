//! One client's connection: who reads it, and what it has not taken yet.
//!
//! Owns the socket. Invariants: at most one thread reads; replies are whole records however many threads answer; while
//! replies wait for the client to take them, nothing more is read from it.

use std::{
    any::Any,
    net::SocketAddr,
    os::fd::OwnedFd,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::{Mutex, MutexGuard};
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    io::Errno,
    net::{RecvFlags, SendFlags, Shutdown},
};

use super::{
    clients::Seat,
    limits::{Limit, Limits, UNSENT_PROGRESS_MIN},
    piece::{FilePiece, Pushed},
    pressing::Pressing,
    serve::Job,
};
use crate::inbox::Inbox;
use curt_trace::{events::Short, probe};

/// How long a connection that is ended in order is held, so that what the client sent last does not cost it the last replies.
const BOW_MAX: Duration = Duration::from_millis(200);

/// How much of what a client still sends is passed over while its connection ends.
const BOW_BYTES_MAX: usize = 4 << 20;

pub(super) struct Connection {
    /// Its key in the registry and in the epoll set.
    pub(super) id: u64,
    pub(super) socket: OwnedFd,
    pub(super) peer: SocketAddr,
    pub(super) local: SocketAddr,
    pub(super) reading: Mutex<Reading>,
    output: Mutex<Backlog>,
    /// The length of the backlog, to be looked at without the lock. Written under the lock; a reader that sees an old value
    /// only reads one call more, or one less, before it notices.
    unsent: AtomicUsize,
    everybody: Arc<Everybody>,
    pub(super) seat: Seat<Job>,
    pub(super) in_flight: AtomicUsize,
    /// Whether a thread waits in a receive for calls that may never come. Pairs with the flag that the server stops: who sets
    /// one looks at the other afterwards.
    pub(super) lingering: AtomicBool,
    /// What the service remembers of this connection.
    pub(super) memory: OnceLock<Box<dyn Any + Send + Sync>>,
    complained: AtomicBool,
}

/// What all connections together take, and what is said when it is too much.
#[derive(Default)]
pub(super) struct Everybody {
    /// Bytes of all backlogs.
    pub(super) unsent: AtomicUsize,
    /// The memory of all parked inboxes; counted by `Reading`'s changes, which happen under its lock.
    pub(super) half_records: AtomicUsize,
    pub(super) pressing: Pressing,
}

/// Who reads a connection.
pub(super) enum Reading {
    /// Nobody: it is in the epoll set, with what was received of half a record.
    Parked { inbox: Inbox, since: Instant },
    /// A thread.
    Busy,
    /// Nobody will any more.
    Closed,
}

/// Bytes that the socket did not take.
#[derive(Default)]
struct Backlog {
    bytes: Vec<u8>,
    sent: usize,
    closed: bool,
    /// Since when bytes wait, or since when the last [`UNSENT_PROGRESS_MIN`] of them were taken.
    since: Option<Instant>,
    /// How many were taken since then.
    taken: usize,
}

/// What became of bytes to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// The socket took all.
    All,
    /// Some wait in the backlog.
    Waits,
    /// The connection is gone.
    Closed,
}

impl Connection {
    pub(super) fn new(
        id: u64,
        socket: OwnedFd,
        (peer, local): (SocketAddr, SocketAddr),
        inbox: Inbox,
        everybody: Arc<Everybody>,
        seat: Seat<Job>,
    ) -> Self {
        Self {
            id,
            socket,
            peer,
            local,
            reading: Mutex::new(Reading::Parked {
                inbox,
                since: Instant::now(),
            }),
            output: Mutex::default(),
            unsent: AtomicUsize::new(0),
            everybody,
            seat,
            in_flight: AtomicUsize::new(0),
            lingering: AtomicBool::new(false),
            memory: OnceLock::new(),
            complained: AtomicBool::new(false),
        }
    }

    /// Whether replies wait for the client to take them.
    pub(super) fn has_backlog(&self) -> bool {
        self.unsent.load(Ordering::Relaxed) > 0
    }

    /// Sends whole records, or keeps what the socket does not take, within `limits`.
    pub(super) fn send(&self, parts: [&[u8]; 2], limits: &Limits) -> Sent {
        let output = self.output.lock();
        if output.closed {
            return Sent::Closed;
        }
        let mut skip = 0;
        let total = parts[0].len() + parts[1].len();
        if output.bytes.is_empty() {
            match push(&self.socket, parts, SendFlags::empty()) {
                Ok(sent) if sent == total => return Sent::All,
                Ok(sent) => skip = sent,
                Err(errno) => {
                    drop(output);
                    self.close(&errno.to_string());
                    return Sent::Closed;
                }
            }
        }
        self.keep(output, total - skip, limits, |bytes| {
            for part in parts {
                let skipped = skip.min(part.len());
                bytes.extend_from_slice(&part[skipped..]);
                skip -= skipped;
            }
            Ok(())
        })
    }

    /// As [`Connection::send`] for records of which the last has a piece of a file before its last bytes, `after`. Someone who
    /// is `patient` waits for the client to take the piece, for as long as the socket's own timeout says.
    pub(super) fn send_with_file(
        &self,
        before: [&[u8]; 2],
        piece: &FilePiece,
        after: &[u8],
        patient: bool,
        limits: &Limits,
    ) -> Sent {
        let output = self.output.lock();
        if output.closed {
            return Sent::Closed;
        }
        let head = before[0].len() + before[1].len();
        let total = head + piece.length() + after.len();
        let pushed = if output.bytes.is_empty() {
            self.push_with_file(before, piece, after, patient)
        } else {
            Ok(0)
        };
        let sent = match pushed {
            Ok(sent) if sent == total => return Sent::All,
            Ok(sent) => sent,
            Err(errno) => {
                drop(output);
                self.close(&errno.to_string());
                return Sent::Closed;
            }
        };
        self.keep(output, total - sent, limits, |bytes| {
            let mut skip = sent;
            for part in before {
                let skipped = skip.min(part.len());
                bytes.extend_from_slice(&part[skipped..]);
                skip -= skipped;
            }
            let skipped = skip.min(piece.length());
            piece.read_rest(skipped, bytes)?;
            bytes.extend_from_slice(&after[skip - skipped..]);
            Ok(())
        })
    }

    /// Sends what the socket takes; how much that was.
    fn push_with_file(
        &self,
        before: [&[u8]; 2],
        piece: &FilePiece,
        after: &[u8],
        patient: bool,
    ) -> Result<usize, Errno> {
        let head = before[0].len() + before[1].len();
        let mut sent = push(&self.socket, before, SendFlags::MORE)?;
        if sent < head || !patient {
            return Ok(sent);
        }
        match piece.push(&self.socket) {
            Pushed::Some(count) => sent += count,
            Pushed::Lost(errno) => return Err(errno),
        }
        if sent == head + piece.length() && !after.is_empty() {
            sent += push(&self.socket, [after, &[]], SendFlags::empty())?;
        }
        Ok(sent)
    }

    /// Keeps `count` bytes, which `append` gives, until the client takes them.
    fn keep(
        &self,
        mut output: MutexGuard<'_, Backlog>,
        count: usize,
        limits: &Limits,
        append: impl FnOnce(&mut Vec<u8>) -> Result<(), Errno>,
    ) -> Sent {
        let all = self.everybody.unsent.fetch_add(count, Ordering::Relaxed) + count;
        let own = self.seat.client.unsent.fetch_add(count, Ordering::Relaxed) + count;
        let met = if own > limits.unsent_per_client {
            Some(Limit::UnsentPerClient)
        } else if all > limits.unsent {
            Some(Limit::Unsent)
        } else {
            None
        };
        let before = output.bytes.len();
        let appended = met.map_or_else(|| append(&mut output.bytes), |_| Ok(()));
        if met.is_none() && appended.is_ok() {
            debug_assert_eq!(output.bytes.len() - before, count);
            output.since.get_or_insert_with(Instant::now);
            self.unsent
                .store(output.bytes.len() - output.sent, Ordering::Relaxed);
            return Sent::Waits;
        }
        output.bytes.truncate(before);
        self.forget_unsent(count);
        drop(output);
        if let Some(limit) = met {
            self.close_for(limit, "it does not take its replies");
        }
        if let Err(errno) = appended {
            self.complain(&format!(
                "a file cannot be read in the middle of a reply: {errno}; closing the connection"
            ));
            self.close("a file cannot be read");
        }
        Sent::Closed
    }

    /// Sends of the backlog what the socket takes.
    pub(super) fn drain(&self) -> Sent {
        let mut output = self.output.lock();
        if output.closed {
            return Sent::Closed;
        }
        match push(
            &self.socket,
            [&output.bytes[output.sent..], &[]],
            SendFlags::empty(),
        ) {
            Ok(sent) => {
                output.sent += sent;
                output.taken += sent;
                self.forget_unsent(sent);
                self.unsent.fetch_sub(sent, Ordering::Relaxed);
                if output.sent < output.bytes.len() {
                    if output.taken >= UNSENT_PROGRESS_MIN {
                        output.since = Some(Instant::now());
                        output.taken = 0;
                    }
                    return Sent::Waits;
                }
                // The memory is given back: a backlog is the exception.
                *output = Backlog::default();
                Sent::All
            }
            Err(errno) => {
                drop(output);
                self.close(&errno.to_string());
                Sent::Closed
            }
        }
    }

    fn forget_unsent(&self, count: usize) {
        self.everybody.unsent.fetch_sub(count, Ordering::Relaxed);
        self.seat.client.unsent.fetch_sub(count, Ordering::Relaxed);
    }

    /// Since when replies wait for the client without enough of them being taken. Waits for nobody: who sends a piece of a file
    /// may do so for as long as the client takes for it, and what is left of that is seen next time.
    pub(super) fn unsent_since(&self) -> Option<Instant> {
        self.output.try_lock()?.since
    }

    /// Closes a connection that met a limit, and tells why.
    pub(super) fn close_for(&self, limit: Limit, why: &str) {
        let peer = self.peer;
        self.everybody.pressing.note(limit, || {
            format!(
                "closing the connection from {peer}: {why} (limit {})",
                limit.name()
            )
        });
        self.close(why);
    }

    /// Gives up what was not sent, and makes further sending do nothing. Waits for nobody for long: whoever sends, or waits in a
    /// receive, comes back first.
    pub(super) fn close(&self, why: &str) {
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
        let mut output = self.output.lock();
        if output.closed {
            return;
        }
        tracing::debug!("connection from {} closed: {why}", self.peer);
        self.tell_end(why);
        output.closed = true;
        let unsent = output.bytes.len() - output.sent;
        self.forget_unsent(unsent);
        self.unsent.store(0, Ordering::Relaxed);
        output.bytes = Vec::new();
        output.sent = 0;
        output.since = None;
    }

    fn tell_end(&self, why: &str) {
        probe!(SvcClose {
            peer: Short::of(self.peer).bytes(),
            reason: why
        });
    }

    /// Ends a connection to whose client nothing more will be said. A socket that is closed with bytes of the client unread is
    /// reset, and replies that are on their way are lost with it; so they are read first, for a moment.
    pub(super) fn bow(&self) {
        if rustix::net::shutdown(&self.socket, Shutdown::Write).is_err() {
            return;
        }
        let end = Instant::now() + BOW_MAX;
        let mut passed_over = 0;
        let bytes = &mut [0; 4096];
        while passed_over < BOW_BYTES_MAX {
            match rustix::net::recv(&self.socket, &mut bytes[..], RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return,
                Ok((_, count)) => passed_over += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let left = end.saturating_duration_since(Instant::now());
                    let Ok(left) = Timespec::try_from(left) else {
                        return;
                    };
                    let more = &mut [PollFd::new(&self.socket, PollFlags::IN)];
                    if rustix::event::poll(more, Some(&left)) == Ok(0) {
                        return;
                    }
                }
                Err(_) => return,
            }
        }
    }

    /// Says once what is wrong with this client.
    pub(super) fn complain(&self, what: &str) {
        if self.complained.swap(true, Ordering::Relaxed) {
            tracing::debug!("client {}: {what}", self.peer);
        } else {
            tracing::warn!("client {}: {what}", self.peer);
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if !self.output.get_mut().closed {
            self.tell_end("ended");
        }
        let output = self.output.get_mut();
        let unsent = output.bytes.len() - output.sent;
        self.forget_unsent(unsent);
    }
}

/// Writes what the socket takes without waiting; how much that was.
fn push(socket: &OwnedFd, [first, second]: [&[u8]; 2], more: SendFlags) -> Result<usize, Errno> {
    let total = first.len() + second.len();
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT | more;
    let mut done = 0;
    while done < total {
        let sent = if done >= first.len() {
            rustix::net::send(socket, &second[done - first.len()..], flags)
        } else if second.is_empty() {
            rustix::net::send(socket, &first[done..], flags)
        } else {
            let parts = [&first[done..], second].map(std::io::IoSlice::new);
            rustix::net::sendmsg(socket, &parts, &mut Default::default(), flags)
        };
        match sent {
            Ok(sent) => done += sent,
            Err(Errno::AGAIN) => break,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use std::{net::Ipv4Addr, sync::mpsc, thread};

    use super::*;
    use crate::{buffer::Pool, server::clients::Clients};

    /// A connection, and its client's end.
    fn connected() -> (Connection, OwnedFd) {
        let flags = rustix::net::SocketFlags::CLOEXEC;
        let (family, kind) = (rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM);
        let (socket, client) = rustix::net::socketpair(family, kind, flags, None).expect("two sockets");
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let seat = Arc::new(Clients::default()).seat(address.ip());
        let inbox = Inbox::new(Arc::new(Pool::new(0)));
        let connection = Connection::new(1, socket, (address, address), inbox, Arc::default(), seat);
        (connection, client)
    }

    #[test]
    fn whoever_closes_a_connection_waits_for_nobody_who_sends_a_file() {
        let (connection, _client) = connected();
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let file = rustix::fs::memfd_create(c"piece", flags).expect("a file");
        rustix::fs::ftruncate(&file, 64 << 20).expect("it may have holes");
        let piece = FilePiece {
            file: Arc::new(file),
            offset: 0,
            length: 64 << 20,
            failed: Arc::default(),
        };
        thread::scope(|scope| {
            let sending =
                scope.spawn(|| connection.send_with_file([&[1], &[]], &piece, &[], true, &Limits::default()));
            // It has the lock, and waits for the client without end.
            while connection.output.try_lock().is_some() {
                thread::yield_now();
            }
            thread::sleep(Duration::from_millis(20));
            connection.close("the test wants it");
            assert_eq!(sending.join().ok(), Some(Sent::Closed));
        });
    }

    #[test]
    fn whoever_looks_for_slow_clients_waits_for_nobody_who_sends() {
        let (connection, _client) = connected();
        let (tell, told) = mpsc::channel();
        thread::scope(|scope| {
            let sending = connection.output.lock();
            scope.spawn(|| tell.send(connection.unsent_since()));
            let seen = told.recv_timeout(Duration::from_secs(20));
            drop(sending);
            assert_eq!(seen, Ok(None));
        });
    }
}
