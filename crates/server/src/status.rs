//! From a file system's errors to the statuses that clients get.

use curt_proto::{mount3, nfs3};
use curt_types::Fault;
use curt_vfs::Error;

/// The NFSv3 status for an error of the file system.
pub(crate) fn of_error(error: Error) -> nfs3::NfsStat3 {
    Fault::from(error).into()
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
    use rustix::io::Errno;

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
}
