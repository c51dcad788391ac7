//! One client's connection: who reads it, and what it has not taken yet.
//!
//! Owns the socket. Invariants: at most one thread reads; replies are whole records however many threads answer; while
//! replies wait for the client to take them, nothing more is read from it.

use std::{
    net::SocketAddr,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Instant,
};

use parking_lot::{Mutex, MutexGuard};
use rustix::{
    io::Errno,
    net::{SendFlags, Shutdown},
};

use super::piece::{FilePiece, Pushed};
use crate::inbox::Inbox;

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
    /// The backlogs of all connections.
    unsent_by_all: Arc<AtomicUsize>,
    pub(super) in_flight: AtomicUsize,
    complained: AtomicBool,
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
        unsent_by_all: Arc<AtomicUsize>,
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
            unsent_by_all,
            in_flight: AtomicUsize::new(0),
            complained: AtomicBool::new(false),
        }
    }

    /// Whether replies wait for the client to take them.
    pub(super) fn has_backlog(&self) -> bool {
        self.unsent.load(Ordering::Relaxed) > 0
    }

    /// Sends whole records, or keeps what the socket does not take; `unsent_max` bounds what all connections keep.
    pub(super) fn send(&self, parts: [&[u8]; 2], unsent_max: usize) -> Sent {
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
        self.keep(output, total - skip, unsent_max, |bytes| {
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
        unsent_max: usize,
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
        self.keep(output, total - sent, unsent_max, |bytes| {
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
        unsent_max: usize,
        append: impl FnOnce(&mut Vec<u8>) -> Result<(), Errno>,
    ) -> Sent {
        let waits = self.unsent_by_all.fetch_add(count, Ordering::Relaxed) + count;
        let before = output.bytes.len();
        let fits = waits <= unsent_max;
        let appended = if fits { append(&mut output.bytes) } else { Ok(()) };
        if fits && appended.is_ok() {
            debug_assert_eq!(output.bytes.len() - before, count);
            self.unsent
                .store(output.bytes.len() - output.sent, Ordering::Relaxed);
            return Sent::Waits;
        }
        output.bytes.truncate(before);
        self.unsent_by_all.fetch_sub(count, Ordering::Relaxed);
        drop(output);
        match appended {
            Ok(()) => {
                self.complain("too many replies wait for clients to take them");
                self.close("too many replies wait");
            }
            Err(errno) => {
                self.complain(&format!(
                    "a file cannot be read in the middle of a reply: {errno}; closing the connection"
                ));
                self.close("a file cannot be read");
            }
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
                self.unsent_by_all.fetch_sub(sent, Ordering::Relaxed);
                self.unsent.fetch_sub(sent, Ordering::Relaxed);
                if output.sent < output.bytes.len() {
                    return Sent::Waits;
                }
                // The memory is given back: a backlog is the exception.
                output.bytes = Vec::new();
                output.sent = 0;
                Sent::All
            }
            Err(errno) => {
                drop(output);
                self.close(&errno.to_string());
                Sent::Closed
            }
        }
    }

    /// Gives up what was not sent, and makes further sending do nothing.
    pub(super) fn close(&self, why: &str) {
        let mut output = self.output.lock();
        if output.closed {
            return;
        }
        tracing::debug!("connection from {} closed: {why}", self.peer);
        output.closed = true;
        let unsent = output.bytes.len() - output.sent;
        self.unsent_by_all.fetch_sub(unsent, Ordering::Relaxed);
        self.unsent.store(0, Ordering::Relaxed);
        output.bytes = Vec::new();
        output.sent = 0;
        drop(output);
        // Whoever waits in a receive comes back.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
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
        let output = self.output.get_mut();
        self.unsent_by_all
            .fetch_sub(output.bytes.len() - output.sent, Ordering::Relaxed);
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
