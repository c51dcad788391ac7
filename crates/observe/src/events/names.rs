//! The names of errnos, statuses and file types: tables of numbers and names.

/// Errno, as negative numbers in events (errno(3); the numbers are the same on every supported
/// processor).
const ERRNOS: &str = "\
    1 EPERM 2 ENOENT 4 EINTR 5 EIO 6 ENXIO 9 EBADF 11 EAGAIN 12 ENOMEM 13 EACCES 16 EBUSY \
    17 EEXIST 18 EXDEV 19 ENODEV 20 ENOTDIR 21 EISDIR 22 EINVAL 23 ENFILE 24 EMFILE 26 ETXTBSY \
    27 EFBIG 28 ENOSPC 29 ESPIPE 30 EROFS 31 EMLINK 36 ENAMETOOLONG 37 ENOLCK 38 ENOSYS \
    39 ENOTEMPTY 40 ELOOP 61 ENODATA 71 EPROTO 75 EOVERFLOW 95 EOPNOTSUPP 104 ECONNRESET \
    107 ENOTCONN 110 ETIMEDOUT 111 ECONNREFUSED 112 EHOSTDOWN 113 EHOSTUNREACH 116 ESTALE \
    121 EREMOTEIO 122 EDQUOT";

/// Statuses of NFSv3 (RFC 1813, section 2.6).
const STATUSES: &str = "\
    0 NFS3_OK 1 NFS3ERR_PERM 2 NFS3ERR_NOENT 5 NFS3ERR_IO 6 NFS3ERR_NXIO 13 NFS3ERR_ACCES \
    17 NFS3ERR_EXIST 18 NFS3ERR_XDEV 19 NFS3ERR_NODEV 20 NFS3ERR_NOTDIR 21 NFS3ERR_ISDIR \
    22 NFS3ERR_INVAL 27 NFS3ERR_FBIG 28 NFS3ERR_NOSPC 30 NFS3ERR_ROFS 31 NFS3ERR_MLINK \
    63 NFS3ERR_NAMETOOLONG 66 NFS3ERR_NOTEMPTY 69 NFS3ERR_DQUOT 70 NFS3ERR_STALE 71 NFS3ERR_REMOTE \
    10001 NFS3ERR_BADHANDLE 10002 NFS3ERR_NOT_SYNC 10003 NFS3ERR_BAD_COOKIE 10004 NFS3ERR_NOTSUPP \
    10005 NFS3ERR_TOOSMALL 10006 NFS3ERR_SERVERFAULT 10007 NFS3ERR_BADTYPE 10008 NFS3ERR_JUKEBOX";

/// Types of files, in the upper bits of a mode (inode(7)).
const TYPES: &str = "\
    1 FIFO 2 CHR 4 DIR 6 BLK 8 REG 10 LNK 12 SOCK";

/// The name for a number.
fn name_in(table: &'static str, number: u64) -> Option<&'static str> {
    let number = number.to_string();
    let mut words = table.split_whitespace();
    words.find(|word| *word == number)?;
    words.next()
}

/// The name of an errno.
pub(super) fn errno(number: u64) -> Option<&'static str> {
    name_in(ERRNOS, number)
}

/// The name of a status.
pub(super) fn status(number: u64) -> Option<&'static str> {
    name_in(STATUSES, number)
}

/// The name of a type of files.
pub(super) fn file_type(number: u64) -> Option<&'static str> {
    name_in(TYPES, number)
}
