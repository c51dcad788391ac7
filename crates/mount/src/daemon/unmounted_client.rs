//! A client without a mount, for programs on machines without FUSE.

use std::path::PathBuf;
use std::sync::Arc;

use curt_client::mounting::MountedExport;
use curt_client::threads::{BackgroundThreads, MonotonicClock};
use curt_client::{Environment, Superblock};

use super::connect::TransportEventCounter;
use super::{BACKGROUND_THREADS, MountSpec, UNMOUNT_TIMEOUT, connect, settled};
use crate::helper::MountFailure;

/// The client of an export, with the options of a mount, whose mount point is ignored.
pub struct UnmountedClient {
    client: Superblock,
    mounted: MountedExport,
}

impl UnmountedClient {
    /// Connects like a mount.
    ///
    /// # Errors
    /// The errors of a mount until the server has replied.
    pub fn connect(plan: &MountSpec) -> Result<Self, MountFailure> {
        let target = PathBuf::new();
        let plan = MountSpec { target, settings: settled(&plan.settings), ..plan.clone() };
        let environment = Environment {
            clock: Arc::new(MonotonicClock),
            background: Arc::new(BackgroundThreads::new(BACKGROUND_THREADS)),
            observer: None,
        };
        let events = Arc::new(TransportEventCounter::default());
        let mounted = connect::connect(&plan, &environment, &events, &mut |_| ())?;
        let client = connect::client(&mounted, &mut plan.settings.clone(), &environment)?;
        Ok(Self { client, mounted })
    }

    /// The client.
    #[must_use]
    pub fn client(&self) -> &Superblock {
        &self.client
    }
}

impl Drop for UnmountedClient {
    fn drop(&mut self) {
        self.mounted.protocol.end(UNMOUNT_TIMEOUT);
    }
}
