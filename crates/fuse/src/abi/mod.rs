//! The words of the kernel's FUSE protocol, version 7.45: numbers of operations and flags.
//!
//! Owns every constant that this crate says to or hears from the kernel
//! (include/uapi/linux/fuse.h), under names of our own. Knows nothing of descriptors and threads;
//! [`parse`] reads requests, [`encode`] writes replies.

pub(crate) mod encode;
pub(crate) mod parse;

/// Major version of the protocol.
pub(crate) const MAJOR: u32 = 7;
/// The newest minor version that is understood.
pub(crate) const MINOR: u32 = 45;
/// The oldest minor version that is served (Linux 3.15): the structures did not change their sizes
/// since.
pub(crate) const MINOR_MIN: u32 = 23;

/// Bytes before the body of a request (`fuse_in_header`).
pub(crate) const REQUEST_HEADER_BYTES: usize = 40;
/// Bytes before the body of a reply (`fuse_out_header`).
pub(crate) const REPLY_HEADER_BYTES: usize = 16;

/// Declares numbers that the kernel uses, as constants of a module.
macro_rules! numbers {
    ($(#[$module_doc:meta])* $visible:vis mod $module:ident: $type:ty {
        $($(#[$doc:meta])* $name:ident = $value:expr;)*
    }) => {
        $(#[$module_doc])*
        $visible mod $module {
            $($(#[$doc])* $visible const $name: $type = $value;)*
        }
    };
}

numbers! {
    /// What a request asks for.
    pub(crate) mod opcode: u32 {
        /// Find a name in a directory.
        LOOKUP = 1;
        /// Give back look-ups; has no reply.
        FORGET = 2;
        /// Attributes of an object.
        GETATTR = 3;
        /// Change attributes.
        SETATTR = 4;
        /// Target of a symbolic link.
        READLINK = 5;
        /// Make a symbolic link.
        SYMLINK = 6;
        /// Make a file, device, pipe or socket.
        MKNOD = 8;
        /// Make a directory.
        MKDIR = 9;
        /// Remove a name.
        UNLINK = 10;
        /// Remove a directory.
        RMDIR = 11;
        /// Move a name.
        RENAME = 12;
        /// Make another name.
        LINK = 13;
        /// Open a file.
        OPEN = 14;
        /// Read from an open file.
        READ = 15;
        /// Write to an open file.
        WRITE = 16;
        /// Sizes of the file system.
        STATFS = 17;
        /// The last descriptor of an open file is gone.
        RELEASE = 18;
        /// Make data durable.
        FSYNC = 20;
        /// Set an extended attribute.
        SETXATTR = 21;
        /// Read an extended attribute.
        GETXATTR = 22;
        /// Names of the extended attributes.
        LISTXATTR = 23;
        /// Remove an extended attribute.
        REMOVEXATTR = 24;
        /// A descriptor of an open file is closed.
        FLUSH = 25;
        /// The first request of all: versions and flags.
        INIT = 26;
        /// Open a directory.
        OPENDIR = 27;
        /// Names of a directory.
        READDIR = 28;
        /// The last descriptor of an open directory is gone.
        RELEASEDIR = 29;
        /// Make a directory durable.
        FSYNCDIR = 30;
        /// Is a lock free?
        GETLK = 31;
        /// Take or give back a lock, at once or not at all.
        SETLK = 32;
        /// The same, waiting for it.
        SETLKW = 33;
        /// May the caller?
        ACCESS = 34;
        /// Make and open a file.
        CREATE = 35;
        /// The caller of a request does not want to wait any more.
        INTERRUPT = 36;
        /// Block number of a file's block.
        BMAP = 37;
        /// The mount ends.
        DESTROY = 38;
        /// ioctl(2).
        IOCTL = 39;
        /// poll(2).
        POLL = 40;
        /// Answer to a notification that asks for data.
        NOTIFY_REPLY = 41;
        /// Give back look-ups of many objects; has no reply.
        BATCH_FORGET = 42;
        /// fallocate(2).
        FALLOCATE = 43;
        /// Names of a directory, each looked up.
        READDIRPLUS = 44;
        /// Move a name, with flags.
        RENAME2 = 45;
        /// Find data or holes.
        LSEEK = 46;
        /// Copy between files.
        COPY_FILE_RANGE = 47;
        /// Make the file system durable.
        SYNCFS = 50;
        /// Make and open a file without a name.
        TMPFILE = 51;
        /// Attributes that are asked for one by one.
        STATX = 52;
        /// Copy between files, with a 64-bit answer.
        COPY_FILE_RANGE_64 = 53;
    }
}

numbers! {
    /// Features that INIT negotiates; those above bit 31 travel in a second word.
    pub mod feature: u64 {
        /// Several reads of one file at a time.
        ASYNC_READ = 1 << 0;
        /// fcntl(2) locks are ours to decide.
        POSIX_LOCKS = 1 << 1;
        /// OPEN carries O_TRUNC.
        ATOMIC_O_TRUNC = 1 << 3;
        /// LOOKUP of `.` and `..` is answered, also for objects that were forgotten: the kernel
        /// opens them by handle.
        EXPORT_SUPPORT = 1 << 4;
        /// Writes larger than a page.
        BIG_WRITES = 1 << 5;
        /// flock(2) locks are ours to decide.
        FLOCK_LOCKS = 1 << 10;
        /// READDIRPLUS is understood.
        DO_READDIRPLUS = 1 << 13;
        /// The kernel chooses between READDIR and READDIRPLUS by what callers do with the names.
        READDIRPLUS_AUTO = 1 << 14;
        /// Direct I/O need not be awaited.
        ASYNC_DIO = 1 << 15;
        /// Look-ups and listings of one directory at the same time.
        PARALLEL_DIROPS = 1 << 18;
        /// Reading the device after an abort says so.
        ABORT_ERROR = 1 << 21;
        /// The reply to INIT says how many pages a request may have.
        MAX_PAGES = 1 << 22;
        /// Reading asks for attributes that have expired, and a change of them drops cached pages.
        AUTO_INVAL_DATA = 1 << 12;
        /// Cached pages are dropped when told, not when attributes change.
        EXPLICIT_INVAL_DATA = 1 << 25;
        /// Set-id bits are ours to clear, and requests say when.
        HANDLE_KILLPRIV_V2 = 1 << 28;
        /// The request and the reply have a second word of features.
        INIT_EXT = 1 << 30;
        /// Entries can be expired rather than dropped.
        HAS_EXPIRE_ONLY = 1 << 35;
    }
}

numbers! {
    /// Flags in the reply to OPEN, CREATE and OPENDIR.
    pub mod open_reply: u32 {
        /// The file is not cached by the kernel.
        DIRECT_IO = 1 << 0;
        /// What the kernel has of the file stays valid.
        KEEP_CACHE = 1 << 1;
    }
}

numbers! {
    /// Which fields of a SETATTR are meant.
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
        /// An open file.
        FH = 1 << 6;
        /// The access time becomes now.
        ATIME_NOW = 1 << 7;
        /// The modification time becomes now.
        MTIME_NOW = 1 << 8;
        /// Set-id bits are to be cleared.
        KILL_SUIDGID = 1 << 11;
    }
}

numbers! {
    /// Flags of single requests.
    pub(crate) mod request_flag: u32 {
        /// GETATTR names an open file.
        GETATTR_FH = 1 << 0;
        /// RELEASE gives back the flock lock.
        RELEASE_FLOCK_UNLOCK = 1 << 1;
        /// The lock is one of flock(2).
        LOCK_FLOCK = 1 << 0;
        /// READ carries a lock owner.
        READ_LOCK_OWNER = 1 << 1;
        /// WRITE comes from the page cache; whose it is, is a guess.
        WRITE_CACHE = 1 << 0;
        /// WRITE carries a lock owner.
        WRITE_LOCK_OWNER = 1 << 1;
        /// WRITE is to clear set-id bits.
        WRITE_KILL_SUIDGID = 1 << 2;
        /// OPEN and CREATE are to clear set-id bits.
        OPEN_KILL_SUIDGID = 1 << 0;
        /// FSYNC is fdatasync(2).
        FSYNC_DATA_ONLY = 1 << 0;
    }
}

numbers! {
    /// What a notification tells.
    pub(crate) mod notify: i32 {
        /// Pages and attributes of an object are void.
        INVAL_INODE = 2;
        /// A name is void.
        INVAL_ENTRY = 3;
        /// Bytes for the kernel to keep.
        STORE = 4;
        /// A name was removed by somebody else.
        DELETE = 6;
    }
}

/// INVAL_ENTRY lets the name be asked for again but leaves it to whoever is in it.
pub(crate) const EXPIRE_ONLY: u32 = 1 << 0;

/// The name of an operation, for log lines.
#[must_use]
pub(crate) fn opcode_name(number: u32) -> &'static str {
    usize::try_from(number)
        .ok()
        .and_then(|index| OPCODE_NAMES.get(index))
        .copied()
        .unwrap_or("?")
}

const OPCODE_NAMES: [&str; 54] = [
    "?",
    "LOOKUP",
    "FORGET",
    "GETATTR",
    "SETATTR",
    "READLINK",
    "SYMLINK",
    "?",
    "MKNOD",
    "MKDIR",
    "UNLINK",
    "RMDIR",
    "RENAME",
    "LINK",
    "OPEN",
    "READ",
    "WRITE",
    "STATFS",
    "RELEASE",
    "?",
    "FSYNC",
    "SETXATTR",
    "GETXATTR",
    "LISTXATTR",
    "REMOVEXATTR",
    "FLUSH",
    "INIT",
    "OPENDIR",
    "READDIR",
    "RELEASEDIR",
    "FSYNCDIR",
    "GETLK",
    "SETLK",
    "SETLKW",
    "ACCESS",
    "CREATE",
    "INTERRUPT",
    "BMAP",
    "DESTROY",
    "IOCTL",
    "POLL",
    "NOTIFY_REPLY",
    "BATCH_FORGET",
    "FALLOCATE",
    "READDIRPLUS",
    "RENAME2",
    "LSEEK",
    "COPY_FILE_RANGE",
    "SETUPMAPPING",
    "REMOVEMAPPING",
    "SYNCFS",
    "TMPFILE",
    "STATX",
    "COPY_FILE_RANGE_64",
];

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
