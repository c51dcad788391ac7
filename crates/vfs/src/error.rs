//! Why an operation failed: an errno, or one of four reasons without an errno.

use curt_types::Fault;
use rustix::io::Errno;

/// Why an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The operating system's error.
    #[error("{0}")]
    Os(Errno),
    /// The handle is not one of this tree (RFC 1813: `NFS3ERR_BADHANDLE`).
    #[error("not a handle of this tree")]
    BadHandle,
    /// The cookie is not one of this directory (RFC 1813: `NFS3ERR_BAD_COOKIE`).
    #[error("not a cookie of this directory")]
    BadCookie,
    /// The guard of SETATTR does not match (RFC 1813: `NFS3ERR_NOT_SYNC`).
    #[error("the file changed meanwhile")]
    NotSync,
    /// Data that were reported as unstable may be lost ([`crate::Vfs::losses`] has changed).
    #[error("written data may be lost: {0}")]
    Lost(Errno),
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        Self::Os(errno)
    }
}

impl Error {
    /// The object no longer exists.
    pub const STALE: Self = Self::Os(Errno::STALE);

    /// The errno, if there is one.
    #[must_use]
    pub const fn errno(self) -> Option<Errno> {
        match self {
            Self::Os(errno) | Self::Lost(errno) => Some(errno),
            Self::BadHandle | Self::BadCookie | Self::NotSync => None,
        }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        match error {
            Error::Os(errno) => of_errno(errno),
            // The data are lost whatever the reason is: a client that gets another status, such as
            // "stale", would not report a lost write.
            Error::Lost(errno) => match of_errno(errno) {
                space @ (Self::Nospc | Self::Dquot | Self::Fbig) => space,
                _ => Self::Io,
            },
            Error::BadHandle => Self::Badhandle,
            Error::BadCookie => Self::BadCookie,
            Error::NotSync => Self::NotSync,
        }
    }
}

/// The status for each errno.
fn of_errno(errno: Errno) -> Fault {
    match errno {
        Errno::PERM => Fault::Perm,
        Errno::NOENT => Fault::Noent,
        Errno::NXIO => Fault::Nxio,
        Errno::ACCESS => Fault::Acces,
        Errno::EXIST => Fault::Exist,
        Errno::XDEV => Fault::Xdev,
        Errno::NODEV => Fault::Nodev,
        Errno::NOTDIR => Fault::Notdir,
        Errno::ISDIR => Fault::Isdir,
        // ELOOP: a symbolic link where none is allowed; NFS has no status for it.
        Errno::INVAL | Errno::LOOP | Errno::DOM | Errno::RANGE => Fault::Inval,
        Errno::FBIG | Errno::OVERFLOW => Fault::Fbig,
        Errno::NOSPC => Fault::Nospc,
        Errno::ROFS => Fault::Rofs,
        Errno::MLINK => Fault::Mlink,
        Errno::NAMETOOLONG => Fault::Nametoolong,
        Errno::NOTEMPTY => Fault::Notempty,
        Errno::DQUOT => Fault::Dquot,
        Errno::STALE => Fault::Stale,
        Errno::REMOTE => Fault::Remote,
        Errno::OPNOTSUPP | Errno::NOSYS => Fault::Notsupp,
        // Temporary errors (lack of descriptors or memory): the client is to try again, not to
        // fail.
        Errno::AGAIN | Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::INTR => Fault::Jukebox,
        // EBUSY means a mount point: it is not temporary, and the RFC has no status for it.
        Errno::BUSY => Fault::Acces,
        // Includes ETXTBSY, for a file that is being executed on the server: the program may run
        // for days, and clients would wait.
        _ => Fault::Io,
    }
}
