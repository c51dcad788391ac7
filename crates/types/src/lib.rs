//! The domain types that client, server and file systems share.
//!
//! Owns what an object, its attributes, its handle and a failed operation are, in terms that hold
//! for NFSv3 and NFSv4 alike. Everything is a plain value. The wire types of a protocol version
//! (`Fattr`, `NfsStat3`) are in `proto`, which converts them to these and back.
//!
//! Must not know: bytes on the wire, procedures, errno values, caches.

#![forbid(unsafe_code)]

mod access;
mod attributes;
mod change_stamp;
mod fault;
mod file_handle;
mod timestamp;

pub use access::Access;
pub use attributes::{
    Attributes, Device, FileKind, PreOpAttr, PreOpState, SetAttributes, SetTime, Stability, Wcc,
};
pub use change_stamp::ChangeStamp;
pub use fault::Fault;
pub use file_handle::{FILE_HANDLE_MAX, FileHandle, HandleTooLong};
pub use timestamp::Timestamp;
