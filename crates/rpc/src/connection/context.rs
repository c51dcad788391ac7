//! The context of a call: the connection on which a service received it.

use std::{
    any::Any,
    net::SocketAddr,
    sync::{Arc, OnceLock},
};

use super::{sendfile::SendfileRange, service::Backchannel};

/// The context of one call.
pub struct CallContext<'a> {
    peer: SocketAddr,
    local: SocketAddr,
    reader: Option<&'a mut dyn HandOverReading>,
    service_data: Option<&'a OnceLock<Box<dyn Any + Send + Sync>>>,
    backchannel: Option<&'a dyn Fn() -> Arc<dyn Backchannel>>,
    allows_sendfile: bool,
    /// The position in the reply, and the range of the file.
    file_range: Option<(usize, SendfileRange)>,
}

/// The reading of a connection, which can be handed over.
pub(crate) trait HandOverReading {
    /// Sends complete replies and lets another thread read.
    fn hand_over(&mut self);
}

impl<'a> CallContext<'a> {
    /// The context of a call that was received without a socket (in tests, or within one process).
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

    /// The context of a call on a connection.
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

    /// The service's data of this connection, created by `make` at the first call and kept until
    /// the connection ends. Calls of one connection may execute at the same time. `None` without a
    /// socket.
    ///
    /// # Panics
    /// If a service requests different types.
    #[must_use]
    pub fn service_data<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Option<&'a T> {
        let memory = self.service_data?.get_or_init(|| Box::new(make()));
        let memory = memory.downcast_ref::<T>();
        Some(memory.expect("a service remembers one type"))
    }

    /// The client's address; an IPv4-mapped IPv6 address is returned as IPv4.
    #[must_use]
    pub const fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The address to which the client connected.
    #[must_use]
    pub const fn local(&self) -> SocketAddr {
        self.local
    }

    /// To be called before an operation that may wait for a disk or a lock: another thread then
    /// reads and answers later calls of the connection. Repeated calls are cheap. Not needed for
    /// operations in memory.
    pub fn may_block(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.hand_over();
        }
    }

    /// The backchannel to the client; `None` at the client's end, or without a socket.
    #[must_use]
    pub fn backchannel(&self) -> Option<Arc<dyn Backchannel>> {
        self.backchannel.map(|make| make())
    }

    /// Whether a reply may contain a range of a file: not without a socket, nor if the call's
    /// flavor protects the results, nor if it has one already.
    #[must_use]
    pub const fn allows_sendfile(&self) -> bool {
        self.allows_sendfile && self.file_range.is_none()
    }

    /// Inserts a range of a file into the reply after its first `at` bytes. Bytes that the service
    /// appends to the reply later, such as padding, follow the range.
    ///
    /// # Panics
    /// If the reply has a range already, or may not have one ([`CallContext::allows_sendfile`]).
    pub fn attach(&mut self, at: usize, piece: SendfileRange) {
        assert!(self.allows_sendfile || self.file_range.is_some(), "the reply takes no piece of a file");
        let before = self.file_range.replace((at, piece));
        assert!(before.is_none(), "a reply has one piece of a file at most");
    }

    /// The reply may contain no range of a file from now on: the service keeps its bytes, or they
    /// are protected.
    pub const fn forbid_sendfile(&mut self) {
        self.allows_sendfile = false;
    }

    pub(crate) const fn take_file_range(&mut self) -> Option<(usize, SendfileRange)> {
        self.file_range.take()
    }
}
