//! What a service manager is told: that the server is ready, reloads, stops, and lives
//! (sd_notify(3)).
//!
//! Without `NOTIFY_SOCKET` nobody listens and nothing is sent. A message that cannot be sent is a
//! debug line: a server does not end for want of somebody to tell.

use std::{io, time::Duration};

use sd_notify::NotifyState;

/// Tells that clients are served.
pub(super) fn ready(status: &str) {
    notify(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Tells that exports are read again; [`ready`] ends it.
pub(super) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(error) => tracing::debug!("the service manager is not told of a reload: {error}"),
    }
}

/// Tells that what was begun is finished, and that `patience` may pass meanwhile.
pub(super) fn stopping(patience: Duration) {
    let patience = u32::try_from(patience.as_micros()).unwrap_or(u32::MAX);
    notify(&[NotifyState::Stopping, NotifyState::ExtendTimeoutUsec(patience)]);
}

/// Tells that requests are served.
pub(super) fn alive() {
    notify(&[NotifyState::Watchdog]);
}

/// How often it wants to hear that: the time after which it takes this process for hung. `None`:
/// never.
pub(super) fn watchdog() -> Option<Duration> {
    sd_notify::watchdog_enabled().filter(|interval| !interval.is_zero())
}

fn notify(states: &[NotifyState<'_>]) {
    match sd_notify::notify(states) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => tracing::debug!("the service manager is not told: {error}"),
    }
}
