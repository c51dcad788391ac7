//! The thread that ends the leases of NFSv4 clients that are silent.

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

/// Ends leases until the server `stops`.
pub(super) fn watch(service: Arc<NfsService>, stops: Arc<AtomicBool>) -> io::Result<()> {
    let watch = move || {
        while !stops.load(Ordering::Relaxed) {
            thread::sleep(INTERVAL);
            service.expire_leases();
        }
    };
    thread::Builder::new().name("curt-leases".into()).spawn(watch)?;
    Ok(())
}
