//! One client's connection: its reader and its unsent replies.
//!
//! Invariants: at most one thread reads; replies are complete records even if several threads send
//! them; while replies are unsent, no further calls are read.

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

use parking_lot::Mutex;
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    io::Errno,
    net::{RecvFlags, Shutdown},
};

use super::{
    clients::{ClientRef, TotalUsage},
    limits::ResourceLimit,
    received_bytes::ReceivedBytes,
    sending::SendBacklog,
};
use crate::{connection::pending_call::PendingCalls, record::receive_buffer::ReceiveBuffer};
use curt_observe::{events::ShortText, probe};

/// Maximum wait of an orderly close for the client's last bytes: if they were unread, the kernel
/// would reset the connection and drop the replies.
const CLOSE_WAIT_MAX: Duration = Duration::from_millis(200);

/// Maximum number of bytes that an orderly close discards.
const CLOSE_BYTES_MAX: usize = 4 << 20;

pub(super) struct ServerConnection {
    /// Its key in the registry and in the epoll set.
    pub(super) id: u64,
    pub(super) socket: OwnedFd,
    pub(super) peer: SocketAddr,
    pub(super) local: SocketAddr,
    pub(super) reading: Mutex<ReaderState>,
    pub(super) output: Mutex<SendBacklog>,
    /// The length of the backlog, readable without the lock. Written under the lock; a reader that
    /// sees an old value reads one call more, or one less, before it notices.
    pub(super) unsent: AtomicUsize,
    pub(super) total_usage: Arc<TotalUsage>,
    pub(super) client_ref: ClientRef<ServerJob>,
    pub(super) in_flight: AtomicUsize,
    /// Whether a thread waits in a receive for a call that may never arrive. Pairs with the
    /// server's flag `stopping`: each side sets its flag and then reads the other's.
    pub(super) waiting_for_call: AtomicBool,
    /// The service's data of this connection.
    pub(super) service_data: OnceLock<Box<dyn Any + Send + Sync>>,
    /// The server's own calls to this client.
    pub(super) calls: Mutex<PendingCalls>,
    warned: AtomicBool,
}

/// The work of a thread.
pub(super) enum ServerJob {
    /// The thread reads a connection.
    Read(ReadJob),
    /// The thread executes a call that was deferred.
    Resume(ResumedCall),
}

/// A call that is to be executed again.
pub(super) struct ResumedCall {
    pub(super) call: CountedCall,
    pub(super) state: Box<dyn Any + Send>,
}

/// A message that counts as a call in progress of its connection.
pub(super) struct CountedCall {
    pub(super) connection: Arc<ServerConnection>,
    pub(super) message: Arc<DeferredMessage>,
}

/// The message of a deferred call.
pub(super) struct DeferredMessage {
    pub(super) bytes: Box<[u8]>,
    pub(super) _counted: Option<ReceivedBytes<ServerJob>>,
}

impl CountedCall {
    pub(super) fn new(connection: &Arc<ServerConnection>, message: Arc<DeferredMessage>) -> Self {
        connection.in_flight.fetch_add(1, Ordering::Relaxed);
        Self { connection: Arc::clone(connection), message }
    }
}

impl Drop for CountedCall {
    fn drop(&mut self) {
        self.connection.in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}

impl ResumedCall {
    pub(super) fn connection(&self) -> &Arc<ServerConnection> {
        &self.call.connection
    }
}

/// A connection to read.
pub(super) struct ReadJob {
    pub(super) connection: Arc<ServerConnection>,
    pub(super) receive_buffer: ReceiveBuffer,
    /// The received bytes, until a thread reads the connection.
    pub(super) counted: Option<ReceivedBytes<ServerJob>>,
}

/// The reader of a connection.
pub(super) enum ReaderState {
    /// No thread: it is in the epoll set, with the received bytes of an incomplete record.
    Idle { receive_buffer: ReceiveBuffer, since: Instant, counted: Option<ReceivedBytes<ServerJob>> },
    /// A thread.
    Busy,
    /// The connection is closed.
    Closed,
}

impl ServerConnection {
    pub(super) fn new(
        id: u64,
        socket: OwnedFd,
        peer: SocketAddr,
        local: SocketAddr,
        receive_buffer: ReceiveBuffer,
        total_usage: Arc<TotalUsage>,
        client_ref: ClientRef<ServerJob>,
    ) -> Self {
        Self {
            id,
            socket,
            peer,
            local,
            reading: Mutex::new(ReaderState::Idle {
                receive_buffer,
                since: total_usage.clock.now(),
                counted: None,
            }),
            output: Mutex::default(),
            unsent: AtomicUsize::new(0),
            total_usage,
            client_ref,
            in_flight: AtomicUsize::new(0),
            waiting_for_call: AtomicBool::new(false),
            service_data: OnceLock::new(),
            calls: Mutex::default(),
            warned: AtomicBool::new(false),
        }
    }

    /// Whether replies are unsent.
    pub(super) fn has_backlog(&self) -> bool {
        self.unsent.load(Ordering::Relaxed) > 0
    }

    /// Whether it has been idle since then, without calls in progress.
    pub(super) fn is_idle_since(&self, since: Instant) -> bool {
        self.in_flight.load(Ordering::Acquire) == 0 && self.reading.lock().idle_since() == Some(since)
    }

    pub(super) fn forget_unsent(&self, count: usize) {
        self.total_usage.unsent.fetch_sub(count, Ordering::Relaxed);
        self.client_ref.client.unsent.fetch_sub(count, Ordering::Relaxed);
    }

    /// Closes a connection that reached a limit, and logs the reason.
    pub(super) fn close_for(&self, limit: ResourceLimit, why: &str) {
        let peer = self.peer;
        self.total_usage
            .limit_log
            .note(limit, || format!("closing the connection from {peer}: {why} (limit {})", limit.name()));
        self.close(why);
    }

    /// Drops unsent replies, and makes further sends do nothing. Does not block for long: a thread
    /// that sends, or waits in a receive, returns first.
    pub(super) fn close(&self, why: &str) {
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
        self.calls.lock().close();
        let mut output = self.output.lock();
        if output.closed {
            return;
        }
        tracing::debug!("connection from {} closed: {why}", self.peer);
        self.log_close(why);
        output.closed = true;
        let unsent = output.bytes.len() - output.sent;
        self.forget_unsent(unsent);
        self.unsent.store(0, Ordering::Relaxed);
        output.bytes = Vec::new();
        output.sent = 0;
        output.since = None;
    }

    fn log_close(&self, why: &str) {
        probe!(SvcClose { peer: ShortText::of(self.peer).bytes(), reason: why });
    }

    /// Closes the sending side of a connection after its last reply. If a socket is closed while
    /// received bytes are unread, the kernel resets the connection and drops replies in transit. So
    /// these bytes are read first, for a short time.
    pub(super) fn close_gracefully(&self) {
        if rustix::net::shutdown(&self.socket, Shutdown::Write).is_err() {
            return;
        }
        let clock = &self.total_usage.clock;
        let end = clock.now() + CLOSE_WAIT_MAX;
        let mut discarded = 0;
        let bytes = &mut [0; 4096];
        while discarded < CLOSE_BYTES_MAX {
            match rustix::net::recv(&self.socket, &mut bytes[..], RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return,
                Ok((_, count)) => discarded += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let left = clock.until(end);
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

    /// Logs an error of this client: the first time as a warning.
    pub(super) fn log_misbehaviour(&self, what: &str) {
        if self.warned.swap(true, Ordering::Relaxed) {
            tracing::debug!("client {}: {what}", self.peer);
        } else {
            tracing::warn!("client {}: {what}", self.peer);
        }
    }
}

impl Drop for ServerConnection {
    fn drop(&mut self) {
        if !self.output.get_mut().closed {
            self.log_close("ended");
        }
        let output = self.output.get_mut();
        let unsent = output.bytes.len() - output.sent;
        self.forget_unsent(unsent);
    }
}

#[cfg(test)]
mod tests {
    use std::{net::Ipv4Addr, sync::mpsc, thread};

    use super::*;
    use crate::{
        clock::TimeSource,
        connection::sendfile::SendfileRange,
        record::buffer_pool::BufferPool,
        server::{clients::ClientAddressTable, limits::Limits, sending::SendOutcome},
    };

    /// A connection, and its client's end.
    fn connected() -> (ServerConnection, OwnedFd) {
        let flags = rustix::net::SocketFlags::CLOEXEC;
        let (family, kind) = (rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM);
        let (socket, client) = rustix::net::socketpair(family, kind, flags, None).expect("two sockets");
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let client_ref = Arc::new(ClientAddressTable::default()).add_connection(address.ip());
        let receive_buffer = ReceiveBuffer::new(Arc::new(BufferPool::new(0)));
        let usage = Arc::new(TotalUsage::new(TimeSource::System));
        let connection =
            ServerConnection::new(1, socket, address, address, receive_buffer, usage, client_ref);
        (connection, client)
    }

    #[test]
    fn closing_a_connection_does_not_wait_for_a_thread_that_sends_a_file() {
        let (connection, _client) = connected();
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let file = rustix::fs::memfd_create(c"piece", flags).expect("a file");
        rustix::fs::ftruncate(&file, 64 << 20).expect("it may have holes");
        let piece =
            SendfileRange { file: Arc::new(file), offset: 0, length: 64 << 20, failed: Arc::default() };
        thread::scope(|scope| {
            let sending =
                scope.spawn(|| connection.send_with_file([&[1], &[]], &piece, &[], true, &Limits::default()));
            // It holds the lock, and waits for the client without end.
            while connection.output.try_lock().is_some() {
                thread::yield_now();
            }
            thread::sleep(Duration::from_millis(20));
            connection.close("the test wants it");
            assert_eq!(sending.join().ok(), Some(SendOutcome::Closed));
        });
    }

    #[test]
    fn without_patience_a_file_is_sent_as_far_as_the_socket_accepts_and_the_rest_is_queued() {
        let (connection, client) = connected();
        let content: Vec<u8> = (0u32..1 << 18).flat_map(u32::to_be_bytes).collect();
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let file = rustix::fs::memfd_create(c"piece", flags).expect("a file");
        assert_eq!(rustix::io::write(&file, &content), Ok(content.len()));
        let piece =
            SendfileRange { file: Arc::new(file), offset: 0, length: 1 << 20, failed: Arc::default() };
        // The client does not read: a thread that waits would do so without end.
        let sent = connection.send_with_file([&[1], &[]], &piece, &[2], false, &Limits::default());
        assert_eq!(sent, SendOutcome::Queued);
        let unsent = connection.unsent.load(Ordering::Relaxed);
        assert!(unsent < content.len(), "all of the file was kept");
        let flags = rustix::fs::fcntl_getfl(&connection.socket).expect("they are known");
        assert!(!flags.contains(rustix::fs::OFlags::NONBLOCK));
        let mut received = Vec::new();
        while received.len() < content.len() + 2 {
            let mut bytes = [0; 4096];
            let count = rustix::io::read(&client, &mut bytes).expect("there is more");
            received.extend_from_slice(&bytes[..count]);
            connection.drain();
        }
        assert!(received == [&[1], &*content, &[2]].concat());
    }

    #[test]
    fn the_check_for_slow_clients_does_not_wait_for_sending_threads() {
        let (connection, _client) = connected();
        let (sender, receiver) = mpsc::channel();
        thread::scope(|scope| {
            let sending = connection.output.lock();
            scope.spawn(|| sender.send(connection.unsent_since()));
            let seen = receiver.recv_timeout(Duration::from_secs(60));
            drop(sending);
            assert_eq!(seen, Ok(None));
        });
    }
}
