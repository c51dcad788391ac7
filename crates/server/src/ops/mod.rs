//! The meaning of requests, a file per verb, in terms that NFSv3 and NFSv4 share: the rules of
//! exports, valid names, operations that may block, attributes before and after an operation.
//!
//! A verb takes the request and its current target; LINK and RENAME take the saved target as well.
//! These are the current and saved filehandle of an NFSv4 compound (RFC 8881 section 16.2.3.1), and
//! handles among the arguments in NFSv3. The result has the attributes that replies carry, on
//! success and on failure. Verbs do not depend on procedures, statuses or XDR.
//!
//! A verb that may block reports that before. That includes every change, because names and
//! attributes are durable before the reply, but not an unstable WRITE, which only reaches the page
//! cache.

mod access;
mod attributes;
mod commit;
mod export_crossing;
mod file_system;
mod interrupted_change;
mod link;
mod list;
mod lookup;
mod make;
mod name;
mod read;
mod readlink;
mod remove;
mod rename;
mod write;

use curt_types::{Attributes, Fault, FileHandle, Wcc};

pub(crate) use access::access;
pub(crate) use attributes::{MAX_SIZE, getattr, setattr};
pub(crate) use commit::commit;
pub(crate) use file_system::{limits, space};
pub(crate) use link::link;
pub(crate) use list::{Listing, entries, object_of_entry, open_directory};
pub(crate) use lookup::{find, find_object, lookup};
pub(crate) use make::make;
pub(crate) use name::{NamePurpose, check_name};
pub(crate) use read::{TRANSFER_MAX, read};
pub(crate) use readlink::readlink;
pub(crate) use remove::remove;
pub(crate) use rename::rename;
pub(crate) use write::write;

/// The outcome of a request: its result or its fault, and in either case the attributes of its
/// objects.
#[must_use]
pub(crate) struct OpResult<T, A> {
    pub(crate) attributes: A,
    pub(crate) value: Result<T, Fault>,
}

impl<T, A> OpResult<T, A> {
    /// Maps the result of a success.
    #[inline]
    pub(crate) fn map<U>(self, value: impl FnOnce(T) -> U) -> OpResult<U, A> {
        OpResult { attributes: self.attributes, value: self.value.map(value) }
    }
}

/// The outcome of a query, with the attributes of the object, or of the directory of a LOOKUP.
pub(crate) type PostOp<T> = OpResult<T, Option<Attributes>>;

/// The outcome of a change, with the attributes before and after of the object or directory.
pub(crate) type WccOp<T> = OpResult<T, Wcc>;

/// The outcome of a change that takes both targets.
pub(crate) type BothOp = OpResult<(), BothAttributes>;

/// The attributes of both targets.
pub(crate) struct BothAttributes {
    pub(crate) saved: Wcc,
    pub(crate) current: Wcc,
}

/// An object that was found or created.
pub(crate) struct FoundObject {
    pub(crate) handle: FileHandle,
    pub(crate) attributes: Option<Attributes>,
    /// Whether the request created it.
    pub(crate) is_new: bool,
}
