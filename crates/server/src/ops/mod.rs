//! What requests mean, a file per verb, in terms that NFSv3 and NFSv4 share: which exports allow
//! it, which names may be used, what may block, what is told of objects before and after.
//!
//! A verb takes the request and its current target, and LINK and RENAME the saved target as well:
//! what an NFSv4 compound calls its current and saved filehandle (RFC 8881 section 16.2.3.1) and
//! NFSv3 has among its arguments. Its result has the attributes that replies carry, whether or not
//! it succeeded. Verbs know nothing of procedures, statuses or XDR.
//!
//! A verb that may block says so first. That includes every change, because names and attributes
//! are durable before the reply, but not an unstable WRITE, which only reaches the page cache.

mod access;
mod attributes;
mod commit;
mod crossing;
mod file_system;
mod link;
mod list;
mod lookup;
mod make;
mod name;
mod read;
mod readlink;
mod remove;
mod rename;
mod repeated;
mod write;

use curt_types::{Attributes, Fault, FileHandle, Wcc};

pub(crate) use access::access;
pub(crate) use attributes::{getattr, setattr};
pub(crate) use commit::commit;
pub(crate) use file_system::{limits, space};
pub(crate) use link::link;
pub(crate) use list::{Listing, entries, object_of_entry, open_directory};
pub(crate) use lookup::lookup;
pub(crate) use make::make;
pub(crate) use name::NamePurpose;
pub(crate) use read::{TRANSFER_MAX, read};
pub(crate) use readlink::readlink;
pub(crate) use remove::remove;
pub(crate) use rename::rename;
pub(crate) use write::write;

/// What became of a request: its result or why it failed, and what is told of its objects either
/// way.
#[must_use]
pub(crate) struct OpResult<T, A> {
    pub(crate) attributes: A,
    pub(crate) value: Result<T, Fault>,
}

impl<T, A> OpResult<T, A> {
    /// The same with another value, if it succeeded.
    pub(crate) fn map<U>(self, value: impl FnOnce(T) -> U) -> OpResult<U, A> {
        OpResult { attributes: self.attributes, value: self.value.map(value) }
    }
}

/// The result of a query: with the attributes of the object, or of the directory looked into.
pub(crate) type PostOp<T> = OpResult<T, Option<Attributes>>;

/// The result of a change: with the attributes before and after of the object or directory.
pub(crate) type WccOp<T> = OpResult<T, Wcc>;

/// The result of a change that takes both targets.
pub(crate) type BothOp = OpResult<(), BothAttributes>;

/// What is told of both targets.
pub(crate) struct BothAttributes {
    pub(crate) saved: Wcc,
    pub(crate) current: Wcc,
}

/// An object that was found or made.
pub(crate) struct FoundObject {
    pub(crate) handle: FileHandle,
    pub(crate) attributes: Option<Attributes>,
}
