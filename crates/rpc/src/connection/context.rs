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
    was_handed_over: bool,
    was_deferred: bool,
    /// The value that the service passed to [`DeferredCall::resume`].
    resumed: Option<Box<dyn Any + Send>>,
    service_data: Option<&'a OnceLock<Box<dyn Any + Send + Sync>>>,
    backchannel: Option<&'a dyn Fn() -> Arc<dyn Backchannel>>,
    allows_sendfile: bool,
    file_range: Option<AttachedRange>,
}

/// A range of a file that is part of a reply.
pub(crate) struct AttachedRange {
    /// Its position in the reply.
    pub(crate) at: usize,
    pub(crate) range: SendfileRange,
}

/// The reading of a connection, which can be handed over.
pub(crate) trait HandOverReading {
    /// Sends complete replies and lets another thread read.
    fn hand_over(&mut self);

    /// The call, to be executed again later; none if there are too many calls in progress.
    fn defer(&self) -> Option<Box<dyn DeferredCall>>;
}

/// A call that is to be executed again. Dropped without [`Self::resume`], it gets no reply.
pub trait DeferredCall: Send {
    /// Has a thread of the server execute the call again, from the beginning. The service finds
    /// `state` in the call's context ([`CallContext::resumed`]). Does not wait.
    fn resume(self: Box<Self>, state: Box<dyn Any + Send>);
}

impl<'a> CallContext<'a> {
    /// The context of a call that was received without a socket (in tests, or within one process).
    #[must_use]
    pub const fn detached(peer: SocketAddr, local: SocketAddr) -> Self {
        Self {
            peer,
            local,
            reader: None,
            was_handed_over: false,
            was_deferred: false,
            resumed: None,
            service_data: None,
            backchannel: None,
            allows_sendfile: false,
            file_range: None,
        }
    }

    /// For tests: a context of a peer that can be called.
    #[must_use]
    pub const fn detached_with_backchannel(
        peer: SocketAddr,
        local: SocketAddr,
        backchannel: &'a dyn Fn() -> Arc<dyn Backchannel>,
    ) -> Self {
        let mut context = Self::detached(peer, local);
        context.backchannel = Some(backchannel);
        context
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
            was_handed_over: false,
            was_deferred: false,
            resumed: None,
            service_data: Some(service_data),
            backchannel: Some(backchannel),
            allows_sendfile: true,
            file_range: None,
        }
    }

    /// The context of a call that was deferred.
    pub(crate) fn resuming(self, state: Box<dyn Any + Send>) -> Self {
        Self { was_deferred: true, resumed: Some(state), ..self }
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
        if !self.was_handed_over
            && let Some(reader) = &mut self.reader
        {
            self.was_handed_over = true;
            reader.hand_over();
        }
    }

    /// A call that waits for another client does not use a thread: the service keeps this, returns
    /// [`CallFailure::NoReply`](crate::message::CallFailure::NoReply), and resumes the call when it
    /// need not wait any more. `None` without a socket, and if the connection has too many calls in
    /// progress.
    #[must_use]
    pub fn defer(&self) -> Option<Box<dyn DeferredCall>> {
        self.reader.as_ref()?.defer()
    }

    /// Whether this call was deferred, and is executed again.
    #[must_use]
    pub const fn was_deferred(&self) -> bool {
        self.was_deferred
    }

    /// The value that the service passed to [`DeferredCall::resume`], if this call was deferred;
    /// once.
    #[inline]
    pub fn resumed<T: Any + Send>(&mut self) -> Option<Box<T>> {
        self.resumed.take()?.downcast().ok()
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
        let before = self.file_range.replace(AttachedRange { at, range: piece });
        assert!(before.is_none(), "a reply has one piece of a file at most");
    }

    /// The reply may contain no range of a file from now on: the service keeps its bytes, or they
    /// are protected.
    pub const fn forbid_sendfile(&mut self) {
        self.allows_sendfile = false;
    }

    pub(crate) const fn take_file_range(&mut self) -> Option<AttachedRange> {
        self.file_range.take()
    }
}
