//! A client that works as a mount's would, without a mount: for programs on machines without FUSE.

use std::sync::Arc;

use curt_client::mounting::Mounted;
use curt_client::threads::{SystemClock, Threads};
use curt_client::{Client, Environment};
use curt_rpc::client::Interrupt;

use super::events::WireEvents;
use super::{BACKGROUND_THREADS, Plan, UNMOUNT_PATIENCE, connecting, settled};
use crate::helper::Failure;

/// The client of an export, with the options of a plan, whose target is ignored.
pub struct ClientAlone {
    client: Client,
    mounted: Mounted,
}

impl ClientAlone {
    /// Connects as a mount would.
    ///
    /// # Errors
    /// Those of a mount until the server has answered.
    pub fn connect(plan: &Plan) -> Result<Self, Failure> {
        let plan = Plan {
            settings: settled(&plan.settings),
            ..plan.clone()
        };
        let environment = Environment {
            clock: Arc::new(SystemClock),
            background: Arc::new(Threads::new(BACKGROUND_THREADS)),
            observer: None,
        };
        let events = Arc::new(WireEvents::default());
        let mounted = connecting::connect(&plan, &environment, &events, &mut |_| ())?;
        let client = connecting::client(&mounted, &mut plan.settings.clone(), &environment)?;
        Ok(Self { client, mounted })
    }

    /// The client.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }
}

impl Drop for ClientAlone {
    fn drop(&mut self) {
        self.mounted
            .mount_service
            .unmount(UNMOUNT_PATIENCE, &Interrupt::never());
    }
}
