//! From a file system's errors to the statuses that clients get: the one table.

use curt_proto::{mount3, nfs3};
use curt_vfs::Error;
use rustix::io::Errno;

/// The NFSv3 status for an error of the file system (RFC 1813 section 2.6).
pub(crate) fn of_error(error: Error) -> nfs3::Status {
    match error {
        Error::Os(errno) => of_errno(errno),
        // The data are lost whatever the reason was: a client that is told e.g. "stale" would not report a lost write.
        Error::Lost(errno) => match of_errno(errno) {
            space @ (nfs3::Status::Nospc | nfs3::Status::Dquot | nfs3::Status::Fbig) => space,
            _ => nfs3::Status::Io,
        },
        Error::BadHandle => nfs3::Status::Badhandle,
        Error::BadCookie => nfs3::Status::BadCookie,
        Error::NotSync => nfs3::Status::NotSync,
    }
}

/// The NFSv3 status for an error number.
fn of_errno(errno: Errno) -> nfs3::Status {
    use nfs3::Status;
    match errno {
        Errno::PERM => Status::Perm,
        Errno::NOENT => Status::Noent,
        Errno::NXIO => Status::Nxio,
        Errno::ACCESS => Status::Acces,
        Errno::EXIST => Status::Exist,
        Errno::XDEV => Status::Xdev,
        Errno::NODEV => Status::Nodev,
        Errno::NOTDIR => Status::Notdir,
        Errno::ISDIR => Status::Isdir,
        // ELOOP: a symbolic link where none may be; NFS has no word for it.
        Errno::INVAL | Errno::LOOP | Errno::DOM | Errno::RANGE => Status::Inval,
        Errno::FBIG | Errno::OVERFLOW => Status::Fbig,
        Errno::NOSPC => Status::Nospc,
        Errno::ROFS => Status::Rofs,
        Errno::MLINK => Status::Mlink,
        Errno::NAMETOOLONG => Status::Nametoolong,
        Errno::NOTEMPTY => Status::Notempty,
        Errno::DQUOT => Status::Dquot,
        Errno::STALE => Status::Stale,
        Errno::REMOTE => Status::Remote,
        Errno::OPNOTSUPP | Errno::NOSYS => Status::Notsupp,
        // What passes by itself: the client is to ask again, not to fail (descriptors or memory that ran out
        // for the moment).
        Errno::AGAIN | Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::INTR => Status::Jukebox,
        // EBUSY is a mount point: it does not pass by itself, and the RFC has no status for it.
        Errno::BUSY => Status::Acces,
        // ETXTBSY among them, for a file that is being executed here: the program may run for days, and clients would wait.
        _ => Status::Io,
    }
}

/// As [`of_error`], for procedures in whose lists of errors the RFC says `NFS3ERR_INVAL` for any object that is not
/// of the right type, directories included.
pub(crate) fn of_error_on_data(error: Error) -> nfs3::Status {
    match of_error(error) {
        nfs3::Status::Isdir => nfs3::Status::Inval,
        status => status,
    }
}

/// The MOUNT status for an error on the way to the directory that is to be mounted.
pub(crate) fn of_mount_error(error: Error) -> mount3::Status {
    use mount3::Status;
    match of_error(error) {
        nfs3::Status::Perm => Status::Perm,
        nfs3::Status::Noent | nfs3::Status::Stale => Status::Noent,
        nfs3::Status::Acces => Status::Acces,
        nfs3::Status::Notdir => Status::Notdir,
        nfs3::Status::Inval => Status::Inval,
        nfs3::Status::Nametoolong => Status::Nametoolong,
        nfs3::Status::Io => Status::Io,
        _ => Status::Serverfault,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // SEMANTICS: serve-6.
    #[test]
    fn errors_of_the_file_system_keep_their_meaning() {
        let table = [
            (Error::Os(Errno::DQUOT), "NFS3ERR_DQUOT"),
            (Error::Os(Errno::NOSPC), "NFS3ERR_NOSPC"),
            (Error::Os(Errno::ROFS), "NFS3ERR_ROFS"),
            (Error::Os(Errno::IO), "NFS3ERR_IO"),
            (Error::Os(Errno::STALE), "NFS3ERR_STALE"),
            (Error::Os(Errno::NOTEMPTY), "NFS3ERR_NOTEMPTY"),
            (Error::Os(Errno::TXTBSY), "NFS3ERR_IO"),
            (Error::Os(Errno::MFILE), "NFS3ERR_JUKEBOX"),
            (Error::Os(Errno::OPNOTSUPP), "NFS3ERR_NOTSUPP"),
            (Error::Os(Errno::BADMSG), "NFS3ERR_IO"),
            (Error::Lost(Errno::IO), "NFS3ERR_IO"),
            (Error::Lost(Errno::NOSPC), "NFS3ERR_NOSPC"),
            (Error::Lost(Errno::STALE), "NFS3ERR_IO"),
            (Error::BadHandle, "NFS3ERR_BADHANDLE"),
            (Error::BadCookie, "NFS3ERR_BAD_COOKIE"),
            (Error::NotSync, "NFS3ERR_NOT_SYNC"),
        ];
        for (error, name) in table {
            assert_eq!(of_error(error).name(), name, "{error:?}");
        }
        assert_eq!(of_error_on_data(Error::Os(Errno::ISDIR)), nfs3::Status::Inval);
    }

    /// A failure that reads as success would lose data silently.
    #[test]
    fn no_error_number_becomes_success() {
        for raw in 1..=133 {
            assert_ne!(of_errno(Errno::from_raw_os_error(raw)), nfs3::Status::Ok, "{raw}");
        }
    }
}
