//! The directory of a user's control sockets.

use std::path::PathBuf;

/// `/run/curt` for root; `$XDG_RUNTIME_DIR/curt` for other users, or `/tmp/curt-UID` if it is not
/// set.
#[must_use]
pub fn directory() -> PathBuf {
    let user = rustix::process::geteuid();
    if user.is_root() {
        return PathBuf::from("/run/curt");
    }
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(runtime) if !runtime.is_empty() => PathBuf::from(runtime).join("curt"),
        _ => PathBuf::from(format!("/tmp/curt-{}", user.as_raw())),
    }
}
