//! Why an operation failed: an errno, or one of four reasons that have none.

use rustix::io::Errno;

/// Why an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// What the operating system said, or would have said.
    #[error("{0}")]
    Os(Errno),
    /// The handle is not one that this tree gives (RFC 1813: `NFS3ERR_BADHANDLE`).
    #[error("not a handle of this tree")]
    BadHandle,
    /// The cookie is not one that this directory gives (RFC 1813: `NFS3ERR_BAD_COOKIE`).
    #[error("not a cookie of this directory")]
    BadCookie,
    /// The guard of SETATTR does not match (RFC 1813: `NFS3ERR_NOT_SYNC`).
    #[error("the file changed meanwhile")]
    NotSync,
    /// Data that had been answered as unstable may be lost ([`crate::Vfs::losses`] has changed).
    #[error("written data may be lost: {0}")]
    Lost(Errno),
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        Self::Os(errno)
    }
}

impl Error {
    /// The object is gone.
    pub const STALE: Self = Self::Os(Errno::STALE);

    /// The operating system's number, where there is one.
    #[must_use]
    pub const fn errno(self) -> Option<Errno> {
        match self {
            Self::Os(errno) | Self::Lost(errno) => Some(errno),
            Self::BadHandle | Self::BadCookie | Self::NotSync => None,
        }
    }
}
