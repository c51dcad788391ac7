//! Process settings of a daemon that the kernel depends on, made before it starts threads.

use tracing::debug;

/// As sshd and udevd: the last to be killed when memory is short, but one (-1000 is never).
const OOM_SCORE_ADJ: &str = "-900";

/// Requests the settings that keep a file system's daemon alive when memory is short. A refusal
/// only means less safety.
pub(super) fn prepare() {
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJ) {
        debug!(%error, "oom_score_adj stays as it is: the kernel may end this mount when memory is short");
    }
    // PR_SET_IO_FLUSHER: writing back must not wait for itself when it needs memory.
    if let Err(error) = rustix::process::configure_io_flusher_behavior(true) {
        debug!(%error, "PR_SET_IO_FLUSHER is refused: writing may wait for memory that waits for writing");
    }
}

/// A tenth of this machine's memory, in bytes; `None` if that is unknown.
pub(super) fn tenth_of_memory() -> Option<u64> {
    let information = rustix::system::sysinfo();
    information
        .totalram
        .checked_mul(u64::from(information.mem_unit))
        .map(|bytes| bytes / 10)
}
