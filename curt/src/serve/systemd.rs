//! Notifications to a service manager: ready, reloading, stopping, watchdog (sd_notify(3)).
//!
//! Without `NOTIFY_SOCKET` nothing is sent. If a message cannot be sent, this is logged at level
//! debug.

use std::{io, time::Duration};

use sd_notify::NotifyState;

/// Reports that clients are served.
pub(super) fn ready(status: &str) {
    notify(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Reports that exports are read again; [`ready`] ends this state.
pub(super) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(error) => tracing::debug!("the service manager cannot be notified of a reload: {error}"),
    }
}

/// Reports that the server completes its calls and ends, and that this may take `timeout`.
pub(super) fn stopping(timeout: Duration) {
    let timeout = u32::try_from(timeout.as_micros()).unwrap_or(u32::MAX);
    notify(&[NotifyState::Stopping, NotifyState::ExtendTimeoutUsec(timeout)]);
}

/// Reports that calls are answered.
pub(super) fn alive() {
    notify(&[NotifyState::Watchdog]);
}

/// The watchdog's timeout; `None`: there is no watchdog.
pub(super) fn watchdog() -> Option<Duration> {
    sd_notify::watchdog_enabled().filter(|interval| !interval.is_zero())
}

fn notify(states: &[NotifyState<'_>]) {
    match sd_notify::notify(states) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => tracing::debug!("the service manager cannot be notified: {error}"),
    }
}
