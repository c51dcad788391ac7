//! Why an operation failed: an errno, or one of four reasons that have none.

use curt_types::Fault;
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

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        match error {
            Error::Os(errno) => of_errno(errno),
            // The data are lost whatever the reason was: a client that is told e.g. "stale" would
            // not report a lost write.
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

/// What an error number means to a client: the one table.
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
        // ELOOP: a symbolic link where none may be; NFS has no word for it.
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
        // What passes by itself: the client is to ask again, not to fail (descriptors or memory
        // that ran out for the moment).
        Errno::AGAIN | Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::INTR => Fault::Jukebox,
        // EBUSY is a mount point: it does not pass by itself, and the RFC has no status for it.
        Errno::BUSY => Fault::Acces,
        // ETXTBSY among them, for a file that is being executed here: the program may run for days,
        // and clients would wait.
        _ => Fault::Io,
    }
}
