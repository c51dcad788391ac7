//! The end of a mount: signals, dirty data, and unmounting.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use curt_client::Superblock;
use curt_client::data::UnsentData;
use curt_fuse::FuseMount;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tracing::{error, info, warn};

/// Timeout of writing dirty data at the end.
const FLUSH_MAX: Duration = Duration::from_secs(30);

/// Timeout of a session after its mount is detached; then it is aborted.
const DETACH_TIMEOUT: Duration = Duration::from_secs(1);

/// The exit status after a second signal: data may be lost.
const EXIT_SECOND_SIGNAL: i32 = 130;

/// Ends the mount at SIGTERM and SIGINT: writes dirty data for at most 30 s, then unmounts. A
/// second signal ends the process at once.
///
/// # Errors
/// The signals cannot be received, or no thread can be started.
pub(super) fn on_signals(mount: Arc<FuseMount>, client: Arc<Superblock>) -> std::io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    let began = Arc::new(AtomicBool::new(false));
    std::thread::Builder::new().name("signals".to_owned()).stack_size(128 * 1024).spawn(move || {
        for signal in signals.forever() {
            if began.swap(true, Ordering::Relaxed) {
                error!(signal, "ending at once: what was not written is lost");
                log_lost(&client.unwritten());
                detach(&mount);
                std::process::exit(EXIT_SECOND_SIGNAL);
            }
            info!(signal, "ending: writing what is unwritten, for at most {} s", FLUSH_MAX.as_secs());
            let (mount, client) = (Arc::clone(&mount), Arc::clone(&client));
            let end = move || {
                write_back(&client);
                detach(&mount);
                // Open files keep a detached mount, and its session, alive.
                let deadline = Instant::now() + DETACH_TIMEOUT;
                while Instant::now() < deadline {
                    std::thread::sleep(Duration::from_millis(20));
                }
                if let Err(error) = mount.abort() {
                    warn!(%error, "the connection to the kernel cannot be cut");
                }
                std::process::exit(0);
            };
            if let Err(error) = std::thread::Builder::new().name("ending".to_owned()).spawn(end) {
                error!(%error, "no thread for the end: what was not written is lost");
                std::process::exit(EXIT_SECOND_SIGNAL);
            }
        }
    })?;
    Ok(())
}

/// Writes dirty data, and logs which data are lost.
pub(super) fn write_back(client: &Superblock) {
    log_lost(&client.sync_all(FLUSH_MAX));
}

fn log_lost(files: &[UnsentData]) {
    for file in files {
        error!(
            file = file.label,
            unsent = file.unsent,
            uncommitted = file.uncommitted,
            "bytes that were written here are not on the server's disk"
        );
    }
}

/// Unmounts.
pub(super) fn detach(mount: &FuseMount) {
    match mount.detach_if_there() {
        Ok(_) => {}
        Err(error) => warn!(%error, mount_point = %mount.target().display(), "cannot unmount"),
    }
}
