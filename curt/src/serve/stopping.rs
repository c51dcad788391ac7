//! What signals do to a server.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use curt_rpc::server::ServerHandle;
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ},
    iterator::Signals,
};

use super::systemd;

/// The exit status of a server that a second signal ended.
const ENDED_AT_ONCE: i32 = 1;

/// How long finishing and syncing may take before a service manager kills this process.
const FINISHED_WITHIN: Duration = Duration::from_secs(120);

/// What SIGHUP asks for: reads everything again that can change, and says in one line what is served now.
pub(super) type Reload = Box<dyn FnMut() -> String + Send>;

/// Has the first SIGTERM or SIGINT stop the server in order, the second end the process, and SIGHUP do `reload`.
///
/// To be called before rights are given up for serving: this thread keeps those that opening exports needs. Returns what tells that the server was
/// told to stop.
pub(super) fn watch(server: ServerHandle, mut reload: Reload) -> io::Result<Arc<AtomicBool>> {
    // A file that grows beyond a limit is an error of that write, not the end of the server. The flag is of no use:
    // a handler is what keeps the signal from killing.
    signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let stops = Arc::new(AtomicBool::new(false));
    let is_stopping = Arc::clone(&stops);
    let listen = move || {
        for signal in signals.forever() {
            // Relaxed, here and where it is read: it orders nothing.
            match (signal, is_stopping.load(Ordering::Relaxed)) {
                (SIGHUP, false) => {
                    systemd::reloading();
                    systemd::ready(&reload());
                }
                (SIGHUP, true) => {}
                (_, false) => {
                    is_stopping.store(true, Ordering::Relaxed);
                    tracing::info!("stopping: what was begun is finished; a second signal ends this at once");
                    systemd::stopping(FINISHED_WITHIN);
                    server.shutdown();
                }
                (_, true) => {
                    tracing::warn!("ended at once");
                    std::process::exit(ENDED_AT_ONCE);
                }
            }
        }
    };
    thread::Builder::new().name("curt-signals".into()).spawn(listen)?;
    Ok(stops)
}
