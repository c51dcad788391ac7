//! What signals do to a server.

use std::{
    io,
    sync::{Arc, atomic::AtomicBool},
    thread,
};

use curt_rpc::server::ServerHandle;
use signal_hook::{
    consts::{SIGINT, SIGTERM, SIGXFSZ},
    iterator::Signals,
};

/// The exit status of a server that a second signal ended.
const ENDED_AT_ONCE: i32 = 1;

/// Has the first SIGTERM or SIGINT stop the server in order, and the second end the process.
pub(super) fn watch(server: ServerHandle) -> io::Result<()> {
    // A file that grows beyond a limit is an error of that write, not the end of the server. The flag is of no use:
    // a handler is what keeps the signal from killing.
    signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    thread::Builder::new()
        .name("curt-signals".into())
        .spawn(move || {
            let mut arrived = signals.forever();
            if arrived.next().is_some() {
                tracing::info!("stopping: what was begun is finished; a second signal ends this at once");
                server.shutdown();
            }
            if arrived.next().is_some() {
                tracing::warn!("ended at once");
                std::process::exit(ENDED_AT_ONCE);
            }
        })?;
    Ok(())
}
