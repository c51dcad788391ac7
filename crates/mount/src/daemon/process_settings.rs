//! Process settings of a daemon, made before it starts threads.

use tracing::debug;

/// As for sshd and udevd: killed last but for processes with -1000 when memory is short.
const OOM_SCORE_ADJ: &str = "-900";

/// Requests settings that protect a file system's daemon when memory is short. Failures are
/// harmless.
pub(super) fn prepare() {
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJ) {
        debug!(%error, "oom_score_adj stays as it is: the kernel may end this mount when memory is short");
    }
    // PR_SET_IO_FLUSHER: memory allocation during write-back must not wait for the same write-back.
    if let Err(error) = rustix::process::configure_io_flusher_behavior(true) {
        debug!(%error, "PR_SET_IO_FLUSHER is refused: writing may wait for memory that waits for writing");
    }
}

/// A tenth of this machine's memory in bytes; `None` if unknown.
pub(super) fn tenth_of_memory() -> Option<u64> {
    let information = rustix::system::sysinfo();
    information.totalram.checked_mul(u64::from(information.mem_unit)).map(|bytes| bytes / 10)
}
