//! Why a server refuses, whatever the protocol version.

/// Why a server refused an operation.
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
    /// The file would be larger than the server can keep.
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
    /// The handle is none of this server's.
    Badhandle,
    /// The guard of a SETATTR does not match.
    NotSync,
    /// The directory position is not valid any more.
    BadCookie,
    /// The operation is not supported.
    Notsupp,
    /// The buffer or request is too small.
    Toosmall,
    /// The server failed in a way no other status describes.
    Serverfault,
    /// The server cannot create objects of this type.
    Badtype,
    /// The server began but needs time: ask again later.
    Jukebox,
}
