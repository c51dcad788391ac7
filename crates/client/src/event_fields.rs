//! The fields that trace events about an inode share, and the macros that emit such events.

/// The fields that all events about an inode have, named as in Linux's tracepoints. All are zero if
/// the inode is unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InodeEventFields {
    /// The server's fsid of its file system.
    pub dev: u64,
    /// Its inode number within the mount.
    pub fileid: u64,
    /// The CRC-32 of its handle.
    pub fhandle: u32,
    /// Its type, in the encoding of the upper bits of the mode.
    pub object_type: u8,
    /// Its ctime as a monotonic number.
    pub version: u64,
    /// Its size as programs see it.
    pub size: u64,
    /// The parts of the cache that are invalid, as Linux's flags.
    pub cache_validity: u32,
    /// The state flags, as Linux's flags.
    pub nfsi_flags: u32,
}

#[doc(hidden)]
#[macro_export]
/// Emits the enter event of an operation on an inode; `$subject` is evaluated only if the event is
/// enabled.
macro_rules! trace_enter {
    ($subject:expr, $event:ident { $($field:ident $(: $value:expr)?),* $(,)? }) => {
        curt_observe::probe!(let subject = $subject; $event {
            $($field $(: $value)?,)*
            fileid: subject.fileid,
            dev: subject.dev,
            fhandle: subject.fhandle,
            version: subject.version,
            cache_validity: subject.cache_validity,
        })
    };
}

#[doc(hidden)]
#[macro_export]
/// Emits the exit event of an operation on an inode, or an event of a state change.
macro_rules! trace_exit {
    ($subject:expr, $event:ident { $($field:ident $(: $value:expr)?),* $(,)? }) => {
        curt_observe::probe!(let subject = $subject; $event {
            $($field $(: $value)?,)*
            fileid: subject.fileid,
            dev: subject.dev,
            fhandle: subject.fhandle,
            object_type: subject.object_type,
            version: subject.version,
            size: subject.size,
            cache_validity: subject.cache_validity,
            nfsi_flags: subject.nfsi_flags,
        })
    };
}

pub(crate) use {trace_enter, trace_exit};
