//! The kernel's FUSE protocol, version 7.45: numbers of operations and flags.
//!
//! All constants of include/uapi/linux/fuse.h that this crate uses are here, under shorter names.
//! [`crate::request`] decodes requests, [`crate::reply`] encodes replies.

/// Major version of the protocol.
pub(crate) const MAJOR: u32 = 7;
/// The newest supported minor version.
pub(crate) const MINOR: u32 = 45;
/// The oldest supported minor version (Linux 3.15): the sizes of the structures have not changed
/// since.
pub(crate) const MINOR_MIN: u32 = 23;

/// Size of `fuse_in_header`.
pub(crate) const REQUEST_HEADER_BYTES: usize = 40;
/// Size of `fuse_out_header`.
pub(crate) const REPLY_HEADER_BYTES: usize = 16;

/// Declares the kernel's numbers as constants of a module.
macro_rules! numbers {
    ($(#[$module_doc:meta])* $visible:vis mod $module:ident: $type:ty {
        $($(#[$doc:meta])* $name:ident = $value:expr;)*
    }) => {
        $(#[$module_doc])*
        $visible mod $module {
            $($(#[$doc])* $visible const $name: $type = $value;)*
        }
    };
    (names $names:ident; $visible:vis mod $module:ident: $type:ty { $($(#[$doc:meta])* $name:ident = $value:expr;)* }) => {
        numbers! { $visible mod $module: $type { $($(#[$doc])* $name = $value;)* } }
        const $names: &[($type, &str)] = &[$(($module::$name, stringify!($name))),*];
    };
}

numbers! {
    names OPCODE_NAMES;
    pub(crate) mod opcode: u32 {
        /// Looks up a name in a directory.
        LOOKUP = 1;
        /// Decrements an object's look-up count; has no reply.
        FORGET = 2;
        /// Returns the attributes of an object.
        GETATTR = 3;
        /// Changes attributes.
        SETATTR = 4;
        /// Returns the target of a symbolic link.
        READLINK = 5;
        /// Creates a symbolic link.
        SYMLINK = 6;
        /// Creates a file, device, pipe or socket.
        MKNOD = 8;
        /// Creates a directory.
        MKDIR = 9;
        /// Removes a name.
        UNLINK = 10;
        /// Removes a directory.
        RMDIR = 11;
        /// Renames an object.
        RENAME = 12;
        /// Creates a hard link.
        LINK = 13;
        /// Opens a file.
        OPEN = 14;
        /// Reads from an open file.
        READ = 15;
        /// Writes to an open file.
        WRITE = 16;
        /// Returns the sizes of the file system.
        STATFS = 17;
        /// The last descriptor of an open file is closed.
        RELEASE = 18;
        /// Makes data durable.
        FSYNC = 20;
        /// Sets an extended attribute.
        SETXATTR = 21;
        /// Returns an extended attribute.
        GETXATTR = 22;
        /// Lists the extended attributes.
        LISTXATTR = 23;
        /// Removes an extended attribute.
        REMOVEXATTR = 24;
        /// A descriptor of an open file is closed.
        FLUSH = 25;
        /// The first request: versions and flags.
        INIT = 26;
        /// Opens a directory.
        OPENDIR = 27;
        /// Lists a directory.
        READDIR = 28;
        /// The last descriptor of an open directory is closed.
        RELEASEDIR = 29;
        /// Makes a directory durable.
        FSYNCDIR = 30;
        /// Tests a lock.
        GETLK = 31;
        /// Sets or releases a lock without waiting.
        SETLK = 32;
        /// Sets a lock, and waits for it.
        SETLKW = 33;
        /// Checks the caller's permission.
        ACCESS = 34;
        /// Creates and opens a file.
        CREATE = 35;
        /// The caller of a request was interrupted.
        INTERRUPT = 36;
        /// Returns the block number of a file's block.
        BMAP = 37;
        /// The mount ends.
        DESTROY = 38;
        /// ioctl(2).
        IOCTL = 39;
        /// poll(2).
        POLL = 40;
        /// Reply to a notification that requests data.
        NOTIFY_REPLY = 41;
        /// Decrements the look-up counts of many objects; has no reply.
        BATCH_FORGET = 42;
        /// fallocate(2).
        FALLOCATE = 43;
        /// Lists a directory and looks up each name.
        READDIRPLUS = 44;
        /// Renames an object, with flags.
        RENAME2 = 45;
        /// Finds data or holes.
        LSEEK = 46;
        /// Copies between files.
        COPY_FILE_RANGE = 47;
        /// Maps a file of a DAX file system.
        SETUPMAPPING = 48;
        /// Ends such a mapping.
        REMOVEMAPPING = 49;
        /// Makes the file system durable.
        SYNCFS = 50;
        /// Creates and opens a file without a name.
        TMPFILE = 51;
        /// Returns the attributes in a mask.
        STATX = 52;
        /// Copies between files, with a 64-bit result.
        COPY_FILE_RANGE_64 = 53;
    }
}

numbers! {
    /// Features that INIT negotiates; those above bit 31 are in a second word.
    pub mod feature: u64 {
        /// Several concurrent reads of one file.
        ASYNC_READ = 1 << 0;
        /// The daemon decides fcntl(2) locks.
        POSIX_LOCKS = 1 << 1;
        /// OPEN contains O_TRUNC.
        ATOMIC_O_TRUNC = 1 << 3;
        /// LOOKUP of `.` and `..` is supported, also for forgotten objects: the kernel opens them
        /// by handle.
        EXPORT_SUPPORT = 1 << 4;
        /// Writes larger than a page.
        BIG_WRITES = 1 << 5;
        /// The daemon decides flock(2) locks.
        FLOCK_LOCKS = 1 << 10;
        /// READDIRPLUS is supported.
        DO_READDIRPLUS = 1 << 13;
        /// The kernel chooses between READDIR and READDIRPLUS by the use of the names.
        READDIRPLUS_AUTO = 1 << 14;
        /// Direct I/O may be asynchronous.
        ASYNC_DIO = 1 << 15;
        /// Concurrent look-ups and listings in one directory.
        PARALLEL_DIROPS = 1 << 18;
        /// Reading the device after an abort returns a specific error.
        ABORT_ERROR = 1 << 21;
        /// The reply to INIT has the maximum number of pages of a request.
        MAX_PAGES = 1 << 22;
        /// A read requests attributes that have expired, and drops cached pages if they have
        /// changed.
        AUTO_INVAL_DATA = 1 << 12;
        /// Cached pages are dropped by notification only, not when attributes change.
        EXPLICIT_INVAL_DATA = 1 << 25;
        /// The daemon clears set-id bits, and requests state when.
        HANDLE_KILLPRIV_V2 = 1 << 28;
        /// The request and the reply have a second word of features.
        INIT_EXT = 1 << 30;
        /// The kernel caches the targets of symbolic links until it is notified.
        CACHE_SYMLINKS = 1 << 23;
    }
}

numbers! {
    /// Flags in the reply to OPEN, CREATE and OPENDIR.
    pub mod open_reply: u32 {
        /// The kernel does not cache the file.
        DIRECT_IO = 1 << 0;
        /// The kernel keeps its cached pages of the file.
        KEEP_CACHE = 1 << 1;
        /// The kernel sends no FLUSH when the file is closed. It releases POSIX locks only by
        /// FLUSH, if the daemon decides them.
        NOFLUSH = 1 << 5;
    }
}

numbers! {
    /// The fields that a SETATTR sets.
    pub(crate) mod set_valid: u32 {
        /// The mode.
        MODE = 1 << 0;
        /// The owner.
        UID = 1 << 1;
        /// The group.
        GID = 1 << 2;
        /// The size.
        SIZE = 1 << 3;
        /// The access time.
        ATIME = 1 << 4;
        /// The modification time.
        MTIME = 1 << 5;
        /// By an open file.
        FH = 1 << 6;
        /// The access time is set to now.
        ATIME_NOW = 1 << 7;
        /// The modification time is set to now.
        MTIME_NOW = 1 << 8;
        /// Set-id bits are to be cleared.
        KILL_SUIDGID = 1 << 11;
    }
}

numbers! {
    /// Flags of requests.
    pub(crate) mod request_flag: u32 {
        /// GETATTR refers to an open file.
        GETATTR_FH = 1 << 0;
        /// RELEASE releases the flock(2) lock.
        RELEASE_FLOCK_UNLOCK = 1 << 1;
        /// The lock is a flock(2) lock.
        LOCK_FLOCK = 1 << 0;
        /// READ has a lock owner.
        READ_LOCK_OWNER = 1 << 1;
        /// WRITE is from the page cache; its caller is a guess.
        WRITE_CACHE = 1 << 0;
        /// WRITE has a lock owner.
        WRITE_LOCK_OWNER = 1 << 1;
        /// WRITE clears set-id bits.
        WRITE_KILL_SUIDGID = 1 << 2;
        /// OPEN and CREATE clear set-id bits.
        OPEN_KILL_SUIDGID = 1 << 0;
        /// FSYNC is fdatasync(2).
        FSYNC_DATA_ONLY = 1 << 0;
    }
}

numbers! {
    /// Notification codes.
    pub(crate) mod notify: i32 {
        /// Invalidates pages and attributes of an object.
        INVAL_INODE = 2;
        /// Stores bytes in the kernel's cache.
        STORE = 4;
    }
}

/// The name of an operation, for log lines.
#[must_use]
pub(crate) fn opcode_name(number: u32) -> &'static str {
    OPCODE_NAMES.iter().find(|(opcode, _)| *opcode == number).map_or("?", |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_at_their_numbers() {
        for (number, name) in [
            (opcode::LOOKUP, "LOOKUP"),
            (opcode::WRITE, "WRITE"),
            (opcode::FSYNC, "FSYNC"),
            (opcode::SETLKW, "SETLKW"),
            (opcode::BATCH_FORGET, "BATCH_FORGET"),
            (opcode::TMPFILE, "TMPFILE"),
            (opcode::COPY_FILE_RANGE_64, "COPY_FILE_RANGE_64"),
            (54, "?"),
            (u32::MAX, "?"),
        ] {
            assert_eq!(opcode_name(number), name);
        }
    }
}
