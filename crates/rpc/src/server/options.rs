//! Options of a server.

use std::sync::Arc;

use super::limits::Limits;
use crate::{clock::TimeSource, security::flavor::FlavorAcceptor};

/// Options of a server.
#[derive(Clone, Debug, Default)]
pub struct RpcServerOptions {
    /// Limits of the clients' resources.
    pub limits: Limits,
    /// The clock for the timeouts among the limits.
    pub clock: TimeSource,
    /// Handles calls of flavors other than AUTH_NONE and AUTH_SYS.
    pub acceptor: Option<Arc<dyn FlavorAcceptor>>,
}

impl From<Limits> for RpcServerOptions {
    fn from(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }
}
