//! Calls that arrive as datagrams (UDP): those of the system's status monitor, and notifications of
//! restarted hosts. One thread receives and executes them one after the other.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::{
    connection::{CallContext, CallHandler, RpcService, answer::Answered},
    record::MARK_SIZE,
};

/// The largest datagram of UDP in bytes.
const DATAGRAM_MAX: usize = 65_535;

/// A server of calls in datagrams.
pub struct DatagramServer {
    socket: UdpSocket,
    handler: CallHandler,
    handle: DatagramServerHandle,
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
    /// A server of the calls that `socket` receives.
    ///
    /// # Errors
    /// Its address is not known.
    pub fn new(socket: UdpSocket, service: Arc<dyn RpcService>) -> io::Result<Self> {
        let handle = DatagramServerHandle { is_stopped: Arc::default(), port: socket.local_addr()?.port() };
        Ok(Self { socket, handler: CallHandler::of(service), handle })
    }

    /// The handle that stops the server.
    #[must_use]
    pub fn handle(&self) -> DatagramServerHandle {
        self.handle.clone()
    }

    /// Serves until [`DatagramServerHandle::shutdown`], or until the socket fails.
    ///
    /// # Errors
    /// That of the socket.
    pub fn run(&self) -> io::Result<()> {
        let local = self.socket.local_addr()?;
        let (mut message, mut reply) = (vec![0; DATAGRAM_MAX], Vec::new());
        loop {
            let received = self.socket.recv_from(&mut message);
            if self.handle.is_stopped.load(Ordering::Acquire) {
                return Ok(());
            }
            match received {
                Ok((length, peer)) => self.answer(&message[..length], peer, local, &mut reply),
                // The port of an earlier reply is closed.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
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
        let server = DatagramServer::new(socket, Arc::new(Echo)).unwrap();
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
}
