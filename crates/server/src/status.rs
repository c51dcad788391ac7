//! From a file system's errors to the statuses that clients get: the one table.

use curt_proto::{mount3, nfs3};
use curt_vfs::Error;
use rustix::io::Errno;

/// The NFSv3 status for an error of the file system (RFC 1813 section 2.6).
pub(crate) fn of_error(error: Error) -> nfs3::NfsStat3 {
    match error {
        Error::Os(errno) => of_errno(errno),
        // The data are lost whatever the reason was: a client that is told e.g. "stale" would not
        // report a lost write.
        Error::Lost(errno) => match of_errno(errno) {
            space @ (nfs3::NfsStat3::Nospc | nfs3::NfsStat3::Dquot | nfs3::NfsStat3::Fbig) => space,
            _ => nfs3::NfsStat3::Io,
        },
        Error::BadHandle => nfs3::NfsStat3::Badhandle,
        Error::BadCookie => nfs3::NfsStat3::BadCookie,
        Error::NotSync => nfs3::NfsStat3::NotSync,
    }
}

/// The NFSv3 status for an error number.
fn of_errno(errno: Errno) -> nfs3::NfsStat3 {
    use nfs3::NfsStat3;
    match errno {
        Errno::PERM => NfsStat3::Perm,
        Errno::NOENT => NfsStat3::Noent,
        Errno::NXIO => NfsStat3::Nxio,
        Errno::ACCESS => NfsStat3::Acces,
        Errno::EXIST => NfsStat3::Exist,
        Errno::XDEV => NfsStat3::Xdev,
        Errno::NODEV => NfsStat3::Nodev,
        Errno::NOTDIR => NfsStat3::Notdir,
        Errno::ISDIR => NfsStat3::Isdir,
        // ELOOP: a symbolic link where none may be; NFS has no word for it.
        Errno::INVAL | Errno::LOOP | Errno::DOM | Errno::RANGE => NfsStat3::Inval,
        Errno::FBIG | Errno::OVERFLOW => NfsStat3::Fbig,
        Errno::NOSPC => NfsStat3::Nospc,
        Errno::ROFS => NfsStat3::Rofs,
        Errno::MLINK => NfsStat3::Mlink,
        Errno::NAMETOOLONG => NfsStat3::Nametoolong,
        Errno::NOTEMPTY => NfsStat3::Notempty,
        Errno::DQUOT => NfsStat3::Dquot,
        Errno::STALE => NfsStat3::Stale,
        Errno::REMOTE => NfsStat3::Remote,
        Errno::OPNOTSUPP | Errno::NOSYS => NfsStat3::Notsupp,
        // What passes by itself: the client is to ask again, not to fail (descriptors or memory
        // that ran out for the moment).
        Errno::AGAIN | Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::INTR => NfsStat3::Jukebox,
        // EBUSY is a mount point: it does not pass by itself, and the RFC has no status for it.
        Errno::BUSY => NfsStat3::Acces,
        // ETXTBSY among them, for a file that is being executed here: the program may run for days,
        // and clients would wait.
        _ => NfsStat3::Io,
    }
}

/// As [`of_error`], for procedures in whose lists of errors the RFC says `NFS3ERR_INVAL` for any
/// object that is not of the right type, directories included.
pub(crate) fn of_error_on_data(error: Error) -> nfs3::NfsStat3 {
    match of_error(error) {
        nfs3::NfsStat3::Isdir => nfs3::NfsStat3::Inval,
        status => status,
    }
}

/// The MOUNT status for an error on the way to the directory that is to be mounted.
pub(crate) fn of_mount_error(error: Error) -> mount3::MountStat3 {
    use mount3::MountStat3;
    match of_error(error) {
        nfs3::NfsStat3::Perm => MountStat3::Perm,
        nfs3::NfsStat3::Noent | nfs3::NfsStat3::Stale => MountStat3::Noent,
        nfs3::NfsStat3::Acces => MountStat3::Acces,
        nfs3::NfsStat3::Notdir => MountStat3::Notdir,
        nfs3::NfsStat3::Inval => MountStat3::Inval,
        nfs3::NfsStat3::Nametoolong => MountStat3::Nametoolong,
        nfs3::NfsStat3::Io => MountStat3::Io,
        _ => MountStat3::Serverfault,
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
        assert_eq!(of_error_on_data(Error::Os(Errno::ISDIR)), nfs3::NfsStat3::Inval);
    }

    /// A failure that reads as success would lose data silently.
    #[test]
    fn no_error_number_becomes_success() {
        for raw in 1..=133 {
            assert_ne!(
                of_errno(Errno::from_raw_os_error(raw)),
                nfs3::NfsStat3::Ok,
                "{raw}"
            );
        }
    }
}
