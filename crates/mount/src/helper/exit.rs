//! The exit statuses of mount(8).

use std::fmt;

/// The exit statuses of mount(8).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitStatus {
    /// The file system is mounted.
    Success = 0,
    /// Wrong invocation or permissions.
    Usage = 1,
    /// Out of memory, cannot fork, and similar errors of the system.
    System = 2,
    /// An internal error.
    Internal = 4,
    /// Interrupted by the user.
    User = 8,
    /// /run/mount/utab could not be written.
    Table = 16,
    /// The file system is not mounted.
    Failed = 32,
}

/// Why a mount failed, for the user: what happened, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountFailure {
    /// The exit status.
    pub status: ExitStatus,
    /// The failure, in the phrases of mount.nfs.
    pub what: String,
    /// A proposed remedy; may be empty.
    pub advice: String,
    /// Whether a later attempt may succeed (`bg`, `retry=`).
    pub passing: bool,
}

impl MountFailure {
    /// A permanent failure.
    #[must_use]
    pub fn lasting(status: ExitStatus, what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { status, what: what.into(), advice: advice.into(), passing: false }
    }

    /// A failure that may be temporary: the server does not respond yet.
    #[must_use]
    pub fn passing(what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { status: ExitStatus::Failed, what: what.into(), advice: advice.into(), passing: true }
    }
}

impl fmt::Display for MountFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        if !self.advice.is_empty() {
            write!(f, "\n  {}", self.advice)?;
        }
        Ok(())
    }
}

impl std::error::Error for MountFailure {}

impl ExitStatus {
    /// The status with this number.
    #[must_use]
    pub fn of(number: u8) -> Option<Self> {
        [Self::Success, Self::Usage, Self::System, Self::Internal, Self::User, Self::Table, Self::Failed]
            .into_iter()
            .find(|&status| status as u8 == number)
    }
}
