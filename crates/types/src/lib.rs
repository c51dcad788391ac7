//! Types that client, server and file systems share.
//!
//! Objects, attributes, handles and faults in terms that hold for NFSv3 and NFSv4. All are plain
//! values. The wire types of a protocol version (`Fattr`, `NfsStat3`) are in `proto`, which
//! converts between the two.
//!
//! Does not depend on wire formats, procedures, errno values or caches.

#![forbid(unsafe_code)]

mod access;
mod attributes;
mod byte_range;
mod change_stamp;
mod fault;
mod file_handle;
mod timestamp;
mod verifier;

pub use access::Access;
pub use attributes::{Attributes, Device, FileKind, PreOpState, SetAttributes, SetTime, Stability, Wcc};
pub use byte_range::{ByteRange, LockType};
pub use change_stamp::ChangeStamp;
pub use fault::Fault;
pub use file_handle::{FILE_HANDLE_MAX, FileHandle, HandleTooLong};
pub use timestamp::Timestamp;
pub use verifier::{CookieVerifier, WriteVerifier};
