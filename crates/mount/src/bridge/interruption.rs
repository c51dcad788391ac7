//! The interrupt that both sides share: FUSE raises it, and the client's waits end.

use curt_fuse::Interruption;
use curt_rpc::client::Interrupt;

/// An interrupt of the client that a FUSE session can raise.
#[derive(Debug, Clone)]
pub struct FuseInterrupt(pub(super) Interrupt);

impl Default for FuseInterrupt {
    fn default() -> Self {
        Self(Interrupt::new())
    }
}

impl Interruption for FuseInterrupt {
    fn raise(&self) {
        self.0.raise();
    }

    fn is_raised(&self) -> bool {
        self.0.is_raised()
    }
}
