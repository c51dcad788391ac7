//! Calls that arrive as datagrams (UDP): those of the system's status monitor, and notifications of
//! restarted hosts. One thread receives and executes them one after the other. Calls that may wait
//! for another process are executed by a few other threads; those that find the queue full are
//! dropped, and their senders repeat them.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::{Builder, Scope},
};

use parking_lot::Mutex;

use crate::{
    connection::{CallContext, CallHandler, RpcService, answer::Answered},
    message::{CallMessage, ProcedureId},
    record::MARK_SIZE,
};

/// The largest datagram of UDP in bytes.
const DATAGRAM_MAX: usize = 65_535;

/// Threads for calls that may wait.
const WAITING_THREADS: usize = 2;

/// Calls that may wait, and for which no thread is free.
const WAITING_MAX: usize = 32;

/// A server of calls in datagrams.
pub struct DatagramServer {
    socket: UdpSocket,
    handler: CallHandler,
    handle: DatagramServerHandle,
    may_wait: fn(ProcedureId) -> bool,
}

/// A datagram that is executed by another thread.
struct WaitingCall {
    message: Vec<u8>,
    peer: SocketAddr,
}

/// Stops a [`DatagramServer`] from another thread.
#[derive(Clone, Debug)]
pub struct DatagramServerHandle {
    is_stopped: Arc<AtomicBool>,
    port: u16,
}

impl DatagramServerHandle {
    /// Makes the server end after the call in progress.
    pub fn shutdown(&self) {
        // Release: the datagram below ends the wait of the thread that reads it.
        self.is_stopped.store(true, Ordering::Release);
        let _ = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))
            .and_then(|socket| socket.send_to(&[], (Ipv4Addr::LOCALHOST, self.port)));
    }
}

impl DatagramServer {
    /// A server of the calls that `socket` receives. Calls of procedures that `may_wait` do not
    /// delay others.
    ///
    /// # Errors
    /// Its address is not known.
    pub fn new(
        socket: UdpSocket,
        service: Arc<dyn RpcService>,
        may_wait: fn(ProcedureId) -> bool,
    ) -> io::Result<Self> {
        let handle = DatagramServerHandle { is_stopped: Arc::default(), port: socket.local_addr()?.port() };
        Ok(Self { socket, handler: CallHandler::of(service), handle, may_wait })
    }

    /// The handle that stops the server.
    #[must_use]
    pub fn handle(&self) -> DatagramServerHandle {
        self.handle.clone()
    }

    /// Serves until [`DatagramServerHandle::shutdown`], or until the socket fails.
    ///
    /// # Errors
    /// The error of the socket.
    pub fn run(&self) -> io::Result<()> {
        let local = self.socket.local_addr()?;
        let (mut message, mut reply) = (vec![0; DATAGRAM_MAX], Vec::new());
        let (waiting, calls) = sync_channel(WAITING_MAX);
        let calls = Mutex::new(calls);
        std::thread::scope(|scope| {
            // The other threads end with it.
            let waiting = waiting;
            let mut has_threads = false;
            loop {
                let received = self.socket.recv_from(&mut message);
                if self.handle.is_stopped.load(Ordering::Acquire) {
                    return Ok(());
                }
                match received {
                    Ok((length, peer)) if self.may_wait(&message[..length]) => {
                        has_threads = has_threads || self.start_threads(scope, &calls, local);
                        if has_threads {
                            self.hand_over(&message[..length], peer, &waiting);
                        } else {
                            self.answer(&message[..length], peer, local, &mut reply);
                        }
                    }
                    Ok((length, peer)) => self.answer(&message[..length], peer, local, &mut reply),
                    // The port of an earlier reply is closed.
                    Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
        })
    }

    fn may_wait(&self, message: &[u8]) -> bool {
        CallMessage::decode(message).is_ok_and(|call| {
            let CallMessage { program, version, procedure, .. } = call;
            (self.may_wait)(ProcedureId { program, version, procedure })
        })
    }

    fn hand_over(&self, message: &[u8], peer: SocketAddr, waiting: &SyncSender<WaitingCall>) {
        if waiting.try_send(WaitingCall { message: message.to_vec(), peer }).is_err() {
            tracing::debug!(%peer, "a call in a datagram is dropped: too many wait");
        }
    }

    /// Starts the threads for calls that may wait. Returns whether there is any.
    fn start_threads<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        calls: &'scope Mutex<Receiver<WaitingCall>>,
        local: SocketAddr,
    ) -> bool {
        let work = move || {
            let mut reply = Vec::new();
            loop {
                let call = calls.lock().recv();
                let Ok(WaitingCall { message, peer }) = call else { return };
                self.answer(&message, peer, local, &mut reply);
            }
        };
        let start =
            |_: &usize| Builder::new().name("curt-datagrams".into()).spawn_scoped(scope, work).is_ok();
        (0..WAITING_THREADS).filter(start).count() > 0
    }

    fn answer(&self, message: &[u8], peer: SocketAddr, local: SocketAddr, reply: &mut Vec<u8>) {
        reply.clear();
        let mut context = CallContext::detached(peer, local);
        let log = |what: &str| tracing::debug!(%peer, "{what}");
        if let Ok(Answered::Reply(_)) = self.handler.answer(message, &mut context, reply, &log) {
            // A datagram has no record mark. A client without a reply sends the call again.
            let _ = self.socket.send_to(&reply[MARK_SIZE..], peer);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may end in a panic")]

    use std::time::Duration;

    use super::*;
    use crate::{
        auth::RpcCredential,
        message::{CallFailure, CallMessage, decode_reply_header, encode_call_header},
    };

    struct Echo;

    impl RpcService for Echo {
        fn call(
            &self,
            call: &CallMessage<'_>,
            context: &mut CallContext<'_>,
            reply: &mut Vec<u8>,
        ) -> Result<(), CallFailure> {
            assert!(context.peer().ip().is_loopback());
            reply.extend_from_slice(call.arguments);
            Ok(())
        }
    }

    #[test]
    fn a_call_in_a_datagram_is_answered_and_anything_else_is_not() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let server = DatagramServer::new(socket, Arc::new(Echo), |_| false).unwrap();
        let handle = server.handle();
        let thread = std::thread::spawn(move || server.run());
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        client.send_to(b"not a call", address).unwrap();
        client.send_to(b"", address).unwrap();
        let mut call = Vec::new();
        encode_call_header(&mut call, 7, 1, 2, 3, &RpcCredential::None);
        call.extend_from_slice(&[1, 2, 3, 4]);
        client.send_to(&call, address).unwrap();
        let mut reply = [0; 100];
        let length = client.recv(&mut reply).unwrap();
        let mut results = curt_xdr::Decoder::new(&reply[..length]);
        assert_eq!(decode_reply_header(&mut results).unwrap().xid, 7);
        assert_eq!(results.remaining(), [1, 2, 3, 4]);
        handle.shutdown();
        thread.join().unwrap().unwrap();
    }

    /// Procedure 1 waits until the test ends its wait; each call is reported.
    struct Waiting {
        called: Mutex<std::sync::mpsc::Sender<u32>>,
        end: Mutex<Receiver<()>>,
    }

    impl RpcService for Waiting {
        fn call(
            &self,
            call: &CallMessage<'_>,
            _: &mut CallContext<'_>,
            _: &mut Vec<u8>,
        ) -> Result<(), CallFailure> {
            if call.procedure == 1 {
                let _ = self.end.lock().recv();
            }
            self.called.lock().send(call.procedure).unwrap();
            Ok(())
        }
    }

    #[test]
    fn calls_that_wait_delay_no_others_and_are_dropped_beyond_a_limit() {
        let minute = Duration::from_secs(60);
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let ((called, calls), (ends, end)) = (std::sync::mpsc::channel(), std::sync::mpsc::channel());
        let service = Waiting { called: Mutex::new(called), end: Mutex::new(end) };
        let server = DatagramServer::new(socket, Arc::new(service), |call| call.procedure == 1).unwrap();
        let handle = server.handle();
        let thread = std::thread::spawn(move || server.run());
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.set_read_timeout(Some(minute)).unwrap();
        let send = |procedure| {
            let mut call = Vec::new();
            encode_call_header(&mut call, procedure, 1, 2, procedure, &RpcCredential::None);
            client.send_to(&call, address).unwrap();
        };
        let is_answered = |procedure| {
            let mut reply = [0; 100];
            let length = client.recv(&mut reply).unwrap();
            let mut results = curt_xdr::Decoder::new(&reply[..length]);
            decode_reply_header(&mut results).unwrap().xid == procedure
        };
        // Not all at once: the socket's buffer holds fewer.
        for _ in 0..2 * (WAITING_MAX + WAITING_THREADS) {
            send(1);
            send(0);
            assert_eq!(calls.recv_timeout(minute), Ok(0));
            assert!(is_answered(0));
        }
        let mut executed = 0;
        for _ in 0..WAITING_MAX {
            ends.send(()).unwrap();
            assert_eq!(calls.recv_timeout(minute), Ok(1));
            assert!(is_answered(1), "the reply comes from the socket that was called");
            executed += 1;
        }
        drop(ends);
        while let Ok(1) = calls.recv_timeout(Duration::from_millis(500)) {
            executed += 1;
        }
        // A thread may take a call only after the queue was full.
        assert!((WAITING_MAX..=WAITING_MAX + WAITING_THREADS).contains(&executed), "{executed}");
        handle.shutdown();
        thread.join().unwrap().unwrap();
    }
}
