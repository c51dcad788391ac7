//! The thread that ends the leases of NFSv4 clients that are silent, and the grace period.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use curt_server::NfsService;

/// Interval of the searches.
const INTERVAL: Duration = Duration::from_secs(1);
/// The interval in a grace period, for whose end clients wait.
const GRACE_INTERVAL: Duration = Duration::from_millis(100);

/// Ends leases until the server `stops`.
pub(super) fn watch(service: Arc<NfsService>, stops: Arc<AtomicBool>) -> io::Result<()> {
    let watch = move || {
        while !stops.load(Ordering::Relaxed) {
            thread::sleep(if service.is_in_grace() { GRACE_INTERVAL } else { INTERVAL });
            service.expire_leases();
        }
    };
    thread::Builder::new().name("curt-leases".into()).spawn(watch)?;
    Ok(())
}
