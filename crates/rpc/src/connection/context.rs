//! What a service may know and do about the connection that a call came from.

use std::{
    any::Any,
    net::SocketAddr,
    sync::{Arc, OnceLock},
};

use super::{sendfile::SendfileRange, service::Backchannel};

/// One call's surroundings.
pub struct CallContext<'a> {
    peer: SocketAddr,
    local: SocketAddr,
    reader: Option<&'a mut dyn HandOverReading>,
    service_data: Option<&'a OnceLock<Box<dyn Any + Send + Sync>>>,
    backchannel: Option<&'a dyn Fn() -> Arc<dyn Backchannel>>,
    allows_sendfile: bool,
    /// Where in the reply, and what.
    file_range: Option<(usize, SendfileRange)>,
}

/// The reading of a connection, which can be left to others.
pub(crate) trait HandOverReading {
    /// Sends what is finished and lets another thread read on.
    fn hand_over(&mut self);
}

impl<'a> CallContext<'a> {
    /// The surroundings of a call that came through no socket (in tests, or within one process).
    #[must_use]
    pub const fn detached(peer: SocketAddr, local: SocketAddr) -> Self {
        Self {
            peer,
            local,
            reader: None,
            service_data: None,
            backchannel: None,
            allows_sendfile: false,
            file_range: None,
        }
    }

    /// The surroundings of a call on a connection.
    pub(crate) fn of_connection(
        peer: SocketAddr,
        local: SocketAddr,
        service_data: &'a OnceLock<Box<dyn Any + Send + Sync>>,
        backchannel: &'a dyn Fn() -> Arc<dyn Backchannel>,
        reader: &'a mut dyn HandOverReading,
    ) -> Self {
        Self {
            peer,
            local,
            reader: Some(reader),
            service_data: Some(service_data),
            backchannel: Some(backchannel),
            allows_sendfile: true,
            file_range: None,
        }
    }

    /// What the service remembers of this connection for as long as it lasts: made by `make` when
    /// it is first asked for. Calls of one connection may be executed at the same time. Nothing is
    /// remembered of what came through no socket.
    ///
    /// # Panics
    /// If a service asks for different types: there is one.
    #[must_use]
    pub fn service_data<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Option<&'a T> {
        let memory = self.service_data?.get_or_init(|| Box::new(make()));
        let memory = memory.downcast_ref::<T>();
        Some(memory.expect("a service remembers one type"))
    }

    /// The client's address; one that is mapped into IPv6 is told as the IPv4 address it is.
    #[must_use]
    pub const fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The address that the client connected to.
    #[must_use]
    pub const fn local(&self) -> SocketAddr {
        self.local
    }

    /// To be called before an operation that may wait for a disk or a lock: later calls on the same
    /// connection are then read and answered meanwhile. Cheap to call again; not needed for what
    /// only touches memory.
    pub fn may_block(&mut self) {
        if let Some(turn) = self.reader.take() {
            turn.hand_over();
        }
    }

    /// The way back to the client; none from a client to its server, or without a socket.
    #[must_use]
    pub fn backchannel(&self) -> Option<Arc<dyn Backchannel>> {
        self.backchannel.map(|make| make())
    }

    /// Whether a reply may contain a piece of a file: not without a socket, nor if the call's
    /// flavor protects the results.
    #[must_use]
    pub const fn allows_sendfile(&self) -> bool {
        self.allows_sendfile
    }

    /// Has the reply contain a piece of a file behind its first `at` bytes. What the service
    /// appends to the reply later, such as padding, comes behind the piece.
    ///
    /// # Panics
    /// If the call has a piece already, or its reply takes none ([`CallContext::allows_sendfile`]).
    pub fn attach(&mut self, at: usize, piece: SendfileRange) {
        assert!(self.allows_sendfile, "the reply takes no piece of a file");
        let before = self.file_range.replace((at, piece));
        assert!(before.is_none(), "a reply has one piece of a file at most");
    }

    pub(crate) const fn forbid_sendfile(&mut self) {
        self.allows_sendfile = false;
    }

    pub(crate) const fn take_file_range(&mut self) -> Option<(usize, SendfileRange)> {
        self.file_range.take()
    }
}
