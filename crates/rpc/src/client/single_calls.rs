//! Calls to a peer one after another, each within a time limit, over TCP or UDP, from a given
//! address of this host: for a server that calls its clients (NLM, NSM), which must be known by the
//! address that they have connected to.
//!
//! Unlike a [`TcpTransport`](super::TcpTransport) it has no threads, does not connect again, and
//! repeats a call over UDP only, within its time limit.

use std::{
    fmt,
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpStream, UdpSocket},
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use curt_xdr::{Decoder, Encode};
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    io::Errno,
    net::{RecvFlags, sockopt},
};

use super::connect::{LocalAddress, begin, random_u32};
use crate::{
    clock::TimeSource,
    connection::CallError,
    message::{AcceptStatus, ProcedureId, RejectedReply, call_record, decode_reply_header},
    record::{MARK_SIZE, RecordAssembler, RecordProgress},
    security::credential::RpcCredential,
};

/// Time limits are those of the network.
const CLOCK: TimeSource = TimeSource::System;

/// Maximum size of a reply in bytes.
const REPLY_MAX: usize = 8 << 10;

/// The first pause before a datagram is sent again; each is twice the last one.
const DATAGRAM_RETRY: Duration = Duration::from_millis(300);

/// Calls to one port of a peer.
pub struct SingleCalls {
    socket: CallSocket,
    peer: SocketAddr,
    xid: u32,
    bytes: Vec<u8>,
}

#[derive(Debug)]
enum CallSocket {
    Tcp(TcpStream),
    Udp(UdpSocket),
}

impl SingleCalls {
    /// Connects to `peer` over TCP.
    ///
    /// # Errors
    /// [`CallError::Unreachable`].
    pub fn tcp(local: LocalAddress, peer: SocketAddr, timeout: Duration) -> Result<Self, CallError> {
        let end = CLOCK.now() + timeout;
        let socket = begin(local, peer).and_then(|socket| connected(socket, end)).map_err(unreachable)?;
        Self::new(CallSocket::Tcp(TcpStream::from(socket)), peer)
    }

    /// Sends datagrams to `peer`.
    ///
    /// # Errors
    /// [`CallError::Unreachable`].
    pub fn udp(local: LocalAddress, peer: SocketAddr) -> Result<Self, CallError> {
        let bind = || -> io::Result<UdpSocket> {
            let mut failure = None;
            for port in local.ports()? {
                match UdpSocket::bind((local.ip_for(peer.ip()), port)) {
                    Ok(socket) => {
                        socket.connect(peer)?;
                        return Ok(socket);
                    }
                    Err(error) if error.kind() == io::ErrorKind::AddrInUse => failure = Some(error),
                    Err(error) => return Err(error),
                }
            }
            Err(failure.unwrap_or_else(|| Errno::ADDRINUSE.into()))
        };
        Self::new(CallSocket::Udp(bind().map_err(unreachable)?), peer)
    }

    fn new(socket: CallSocket, peer: SocketAddr) -> Result<Self, CallError> {
        let xid = random_u32().map_err(unreachable)?;
        Ok(Self { socket, peer, xid, bytes: Vec::new() })
    }

    /// Makes one call, and returns its results. After an error other than one that a reply reports,
    /// the connection cannot be used any more.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn call(
        &mut self,
        target: ProcedureId,
        credential: &RpcCredential,
        arguments: &dyn Encode,
        timeout: Duration,
    ) -> Result<Vec<u8>, CallError> {
        self.transmit(target, credential, arguments, timeout, DATAGRAM_RETRY)
    }

    /// As [`Self::call`], but never sends the call a second time: the peer has received at most one
    /// copy of it.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn call_once(
        &mut self,
        target: ProcedureId,
        credential: &RpcCredential,
        arguments: &dyn Encode,
        timeout: Duration,
    ) -> Result<Vec<u8>, CallError> {
        self.transmit(target, credential, arguments, timeout, timeout)
    }

    /// Sends one call, and does not wait for its reply. Replies to such calls that have arrived are
    /// discarded, so nothing else may be called over this connection.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn send_only(
        &mut self,
        target: ProcedureId,
        credential: &RpcCredential,
        arguments: &dyn Encode,
        timeout: Duration,
    ) -> Result<(), CallError> {
        self.xid = self.xid.wrapping_add(1);
        let ProcedureId { program, version, procedure } = target;
        let call = call_record(self.xid, program, version, procedure, credential, arguments);
        self.bytes.resize(REPLY_MAX, 0);
        let flags = RecvFlags::DONTWAIT;
        match &mut self.socket {
            CallSocket::Tcp(stream) => {
                while rustix::net::recv(&*stream, &mut self.bytes[..], flags)
                    .is_ok_and(|(_, length)| length > 0)
                {}
                stream.set_write_timeout(Some(timeout)).map_err(unreachable)?;
                stream.write_all(&call).map_err(lost)
            }
            CallSocket::Udp(socket) => {
                // An error of the call before is that of this one, too.
                while rustix::net::recv(&*socket, &mut self.bytes[..], flags).is_ok() {}
                socket.send(&call[MARK_SIZE..]).map(drop).map_err(lost)
            }
        }
    }

    /// Whether the peer has closed the connection. A call over it would be lost.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        let CallSocket::Tcp(stream) = &self.socket else { return false };
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        match rustix::net::recv(stream, &mut [0_u8; 1], flags) {
            Ok((_, length)) => length == 0,
            Err(errno) => errno != Errno::AGAIN && errno != Errno::INTR,
        }
    }

    /// `pause`: before a datagram is sent again.
    fn transmit(
        &mut self,
        target: ProcedureId,
        credential: &RpcCredential,
        arguments: &dyn Encode,
        timeout: Duration,
        pause: Duration,
    ) -> Result<Vec<u8>, CallError> {
        let end = CLOCK.now() + timeout;
        self.xid = self.xid.wrapping_add(1);
        let ProcedureId { program, version, procedure } = target;
        let call = call_record(self.xid, program, version, procedure, credential, arguments);
        match &self.socket {
            CallSocket::Tcp(_) => self.call_by_stream(&call, end),
            CallSocket::Udp(_) => self.call_by_datagram(&call[MARK_SIZE..], end, pause),
        }
    }

    fn call_by_stream(&mut self, call: &[u8], end: Instant) -> Result<Vec<u8>, CallError> {
        let CallSocket::Tcp(stream) = &mut self.socket else { return Err(CallError::Closed) };
        stream.set_write_timeout(Some(left(end)?)).map_err(unreachable)?;
        stream.write_all(call).map_err(lost)?;
        // Replies to calls that timed out may come first.
        loop {
            let (mut assembler, bytes) = (RecordAssembler::default(), &mut self.bytes);
            bytes.clear();
            let body = loop {
                match assembler.advance(bytes, |_| REPLY_MAX).map_err(|_| CallError::Closed)? {
                    RecordProgress::Complete { body, .. } => break body,
                    RecordProgress::Needs(more) => {
                        let have = bytes.len();
                        // `more` is bounded by REPLY_MAX.
                        bytes.resize(have + more, 0);
                        stream.set_read_timeout(Some(left(end)?)).map_err(unreachable)?;
                        let count = stream.read(&mut bytes[have..]).map_err(lost)?;
                        if count == 0 {
                            return Err(CallError::Closed);
                        }
                        bytes.truncate(have + count);
                    }
                }
            };
            if let Some(results) = results_of(&bytes[MARK_SIZE..MARK_SIZE + body], self.xid) {
                return results;
            }
        }
    }

    fn call_by_datagram(
        &mut self,
        call: &[u8],
        end: Instant,
        mut pause: Duration,
    ) -> Result<Vec<u8>, CallError> {
        let CallSocket::Udp(socket) = &self.socket else { return Err(CallError::Closed) };
        self.bytes.resize(REPLY_MAX, 0);
        loop {
            socket.send(call).map_err(lost)?;
            let again = CLOCK.now() + pause;
            pause *= 2;
            loop {
                let wait = left(end)?.min(CLOCK.until(again));
                if wait.is_zero() {
                    break;
                }
                socket.set_read_timeout(Some(wait)).map_err(unreachable)?;
                match socket.recv(&mut self.bytes) {
                    Ok(length) => {
                        if let Some(results) = results_of(&self.bytes[..length], self.xid) {
                            return results;
                        }
                    }
                    Err(error) if is_timeout(&error) => {}
                    Err(error) => return Err(lost(error)),
                }
            }
        }
    }
}

impl fmt::Debug for SingleCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SingleCalls").field("socket", &self.socket).field("peer", &self.peer).finish()
    }
}

/// Waits until a socket is connected.
fn connected(socket: OwnedFd, end: Instant) -> io::Result<OwnedFd> {
    loop {
        let wait = CLOCK.until(end);
        if wait.is_zero() {
            return Err(Errno::TIMEDOUT.into());
        }
        let timeout = Timespec::try_from(wait).ok();
        let mut fds = [PollFd::new(&socket, PollFlags::OUT)];
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => break,
            Err(errno) => return Err(errno.into()),
        }
    }
    sockopt::socket_error(&socket)??;
    sockopt::set_tcp_nodelay(&socket, true)?;
    rustix::io::ioctl_fionbio(&socket, false)?;
    Ok(socket)
}

/// The outcome that a reply reports; `None` if it is no reply to call `xid`.
fn results_of(reply: &[u8], xid: u32) -> Option<Result<Vec<u8>, CallError>> {
    let mut decoder = Decoder::new(reply);
    let header = match decode_reply_header(&mut decoder) {
        Ok(header) => header,
        Err(error) => return Some(Err(error.into())),
    };
    if header.xid != xid {
        return None;
    }
    Some(match header.outcome {
        Ok(AcceptStatus::Success) => Ok(decoder.remaining().to_vec()),
        Ok(AcceptStatus::ProgramUnavailable) => Err(CallError::ProgramUnavailable),
        Ok(AcceptStatus::ProgramMismatch(versions)) => Err(CallError::ProgramMismatch(versions)),
        Ok(AcceptStatus::ProcedureUnavailable) => Err(CallError::ProcedureUnavailable),
        Ok(AcceptStatus::GarbageArguments) => Err(CallError::GarbageArguments),
        Ok(AcceptStatus::SystemError) => Err(CallError::SystemError),
        Err(RejectedReply::RpcMismatch(versions)) => Err(CallError::RpcMismatch(versions)),
        Err(RejectedReply::Authentication(status)) => Err(CallError::Denied(status)),
    })
}

/// The time until `end`.
fn left(end: Instant) -> Result<Duration, CallError> {
    let left = CLOCK.until(end);
    if left.is_zero() { Err(CallError::TimedOut { softerr: false }) } else { Ok(left) }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

fn unreachable(error: io::Error) -> CallError {
    CallError::Unreachable(error.kind())
}

/// The error of a connection that was established.
fn lost(error: io::Error) -> CallError {
    if is_timeout(&error) {
        CallError::TimedOut { softerr: false }
    } else if error.kind() == io::ErrorKind::ConnectionRefused {
        // A datagram reached a host that has no socket at its port.
        unreachable(error)
    } else {
        CallError::Closed
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may end in a panic")]

    use std::{
        net::{IpAddr, TcpListener},
        sync::Arc,
        thread,
    };

    use super::*;
    use crate::{
        connection::{CallContext, RpcService},
        message::{CallFailure, CallMessage},
        server::{DatagramServer, Limits, RpcServer},
    };

    const TARGET: ProcedureId = ProcedureId { program: 1, version: 2, procedure: 3 };
    const MINUTE: Duration = Duration::from_secs(60);
    const ANY: LocalAddress = LocalAddress { ip: None, is_port_reserved: false };

    /// Replies with the caller's address and the arguments.
    struct Echo;

    impl RpcService for Echo {
        fn call(
            &self,
            call: &CallMessage<'_>,
            context: &mut CallContext<'_>,
            reply: &mut Vec<u8>,
        ) -> Result<(), CallFailure> {
            if call.procedure != TARGET.procedure {
                return Err(CallFailure::ProcedureUnavailable);
            }
            let IpAddr::V4(peer) = context.peer().ip() else { return Err(CallFailure::SystemError) };
            reply.extend_from_slice(&peer.octets());
            reply.extend_from_slice(call.arguments);
            Ok(())
        }
    }

    #[test]
    fn a_peer_is_called_from_the_given_address_over_either_transport() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp = listener.local_addr().unwrap();
        let server = RpcServer::new(vec![listener], Arc::new(Echo), Limits::default()).unwrap();
        let stop = server.handle();
        let serving = thread::spawn(move || server.run());
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let udp = socket.local_addr().unwrap();
        let datagrams = DatagramServer::new(socket, Arc::new(Echo), |_| false).unwrap();
        let stop_datagrams = datagrams.handle();
        let receiving = thread::spawn(move || datagrams.run());
        let local = LocalAddress { ip: Some("127.0.0.9".parse().unwrap()), is_port_reserved: false };
        let mut calls = SingleCalls::tcp(local, tcp, MINUTE).unwrap();
        let mut datagrams = SingleCalls::udp(local, udp).unwrap();
        for calls in [&mut calls, &mut datagrams] {
            for number in [7_u32, 8] {
                let results = calls.call(TARGET, &RpcCredential::None, &number, MINUTE).unwrap();
                assert_eq!(results, [127, 0, 0, 9, 0, 0, 0, u8::try_from(number).unwrap()]);
            }
            let other = ProcedureId { procedure: 4, ..TARGET };
            let refused = calls.call(other, &RpcCredential::None, &(), MINUTE);
            assert_eq!(refused, Err(CallError::ProcedureUnavailable));
        }
        stop.shutdown();
        stop_datagrams.shutdown();
        drop(calls);
        serving.join().unwrap();
        receiving.join().unwrap().unwrap();
    }

    #[test]
    fn a_silent_or_absent_peer_ends_a_call_in_time() {
        let soon = Duration::from_millis(50);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
        let timed_out = Err(CallError::TimedOut { softerr: false });
        let mut calls = SingleCalls::tcp(ANY, listener.local_addr().unwrap(), MINUTE).unwrap();
        assert_eq!(calls.call(TARGET, &RpcCredential::None, &(), soon), timed_out);
        let mut calls = SingleCalls::udp(ANY, silent.local_addr().unwrap()).unwrap();
        assert_eq!(calls.call(TARGET, &RpcCredential::None, &(), soon), timed_out);
        let (tcp, udp) = (listener.local_addr().unwrap(), silent.local_addr().unwrap());
        drop((listener, silent));
        let refused = CallError::Unreachable(io::ErrorKind::ConnectionRefused);
        assert_eq!(SingleCalls::tcp(ANY, tcp, MINUTE).err(), Some(refused));
        let mut calls = SingleCalls::udp(ANY, udp).unwrap();
        assert_eq!(calls.call(TARGET, &RpcCredential::None, &(), MINUTE), Err(refused));
    }

    #[test]
    fn a_call_that_may_be_sent_once_is_not_repeated() {
        let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut calls = SingleCalls::udp(ANY, silent.local_addr().unwrap()).unwrap();
        let mut time = DATAGRAM_RETRY * 4;
        let timed_out = Err(CallError::TimedOut { softerr: false });
        silent.set_nonblocking(true).unwrap();
        let received = || std::iter::from_fn(|| silent.recv(&mut [0; 256]).ok()).count();
        loop {
            assert_eq!(calls.call(TARGET, &RpcCredential::None, &(), time), timed_out);
            if received() > 1 {
                break;
            }
            // This thread was not scheduled in time for a retry.
            time *= 2;
            assert!(time < MINUTE, "it is not repeated");
        }
        assert_eq!(calls.call_once(TARGET, &RpcCredential::None, &(), time), timed_out);
        assert_eq!(received(), 1);
    }

    #[test]
    fn a_connection_that_the_peer_has_closed_is_known_before_a_call() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let calls = SingleCalls::tcp(ANY, listener.local_addr().unwrap(), MINUTE).unwrap();
        let (stream, _) = listener.accept().unwrap();
        assert!(!calls.is_closed());
        drop(stream);
        let end = Instant::now() + MINUTE;
        while !calls.is_closed() {
            assert!(Instant::now() < end, "the end of the connection has not arrived");
            thread::yield_now();
        }
    }

    #[test]
    fn a_reply_that_is_too_long_or_none_ends_the_connection() {
        for bytes in [&[0xff; 64][..], &[0x80, 0, 0x40, 0], &[0x80, 0, 0, 4, 0, 0, 0, 0], &[]] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let peer = thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let mut call = [0; 44];
                stream.read_exact(&mut call).unwrap();
                stream.write_all(bytes).unwrap();
            });
            let mut calls = SingleCalls::tcp(ANY, address, MINUTE).unwrap();
            let outcome = calls.call(TARGET, &RpcCredential::None, &(), MINUTE);
            assert!(matches!(outcome, Err(CallError::Closed | CallError::Malformed(_))), "{outcome:?}");
            peer.join().unwrap();
        }
    }
}
