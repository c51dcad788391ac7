//! What a server is made with beside its listeners and its service.

use std::sync::Arc;

use super::Limits;
use crate::{clock::TimeSource, security::flavor::FlavorAcceptor};

/// How a server behaves.
#[derive(Clone, Debug, Default)]
pub struct RpcServerOptions {
    /// What its clients may take.
    pub limits: Limits,
    /// The clock by which the times among the limits pass.
    pub clock: TimeSource,
    /// Protects calls of other flavors than AUTH_NONE and AUTH_SYS.
    pub acceptor: Option<Arc<dyn FlavorAcceptor>>,
}

impl From<Limits> for RpcServerOptions {
    fn from(limits: Limits) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }
}
