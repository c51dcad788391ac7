//! The status that a client gets for each error of a file system.

use curt_proto::nfs3::NfsStat3;
use curt_types::Fault;
use curt_vfs::Error;
use rustix::io::Errno;

use crate::ops::OpResult;
use crate::v3::on_data;

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
        assert_eq!(NfsStat3::from(Fault::from(error)).name(), name, "{error:?}");
    }
    let directory = OpResult::<(), ()> { attributes: (), value: Err(Error::Os(Errno::ISDIR).into()) };
    assert_eq!(on_data(directory).value, Err(Fault::Inval));
}
