//! Why an operation failed.

/// Why an operation on a file system failed, independent of the version of NFS (RFC 1813 section
/// 2.6, RFC 8881 section 15.1). The names are those of `NFS3ERR_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// Only the owner or the superuser may do this.
    Perm,
    /// No such file or directory.
    Noent,
    /// The disk or file system failed.
    Io,
    /// No such device or address.
    Nxio,
    /// Permission denied.
    Acces,
    /// The file exists.
    Exist,
    /// A hard link or rename across file systems.
    Xdev,
    /// No such device.
    Nodev,
    /// Not a directory.
    Notdir,
    /// A directory.
    Isdir,
    /// An invalid argument, or one not supported for this object.
    Inval,
    /// The file would exceed the server's maximum size.
    Fbig,
    /// No space is left on the device.
    Nospc,
    /// The file system is read-only.
    Rofs,
    /// Too many hard links.
    Mlink,
    /// The name is too long.
    Nametoolong,
    /// The directory is not empty.
    Notempty,
    /// The quota is exceeded.
    Dquot,
    /// The handle's file no longer exists.
    Stale,
    /// Too many levels of remote in the path.
    Remote,
    /// The handle is not one of this server.
    Badhandle,
    /// The guard of a SETATTR does not match.
    NotSync,
    /// The directory cookie is no longer valid.
    BadCookie,
    /// The operation is not supported.
    Notsupp,
    /// The buffer or request is too small.
    Toosmall,
    /// The server failed for a reason that no other status describes.
    Serverfault,
    /// The server cannot create objects of this type.
    Badtype,
    /// The server has begun the operation but needs time: try again later.
    Jukebox,
}
