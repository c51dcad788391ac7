//! The kernel's side of a mount: FUSE's wire format, channel, interrupts and notifications.
//!
//! A [`Mount`] is made by mount(2) or fusermount3 and holds the descriptor; a [`Session`] reads requests from it on as many
//! threads as are needed and has a [`Filesystem`] answer them; a [`Notifier`] tells the kernel what has become void.
//!
//! Architecture invariants: as long as a session lasts, some thread reads the device, whatever the others wait for; a reply
//! goes to the descriptor its request came from; nothing that the kernel sends makes this crate panic; answering a LOOKUP or
//! GETATTR allocates nothing. This crate knows nothing of NFS.

mod abi;
mod caller;
mod channel;
mod filesystem;
mod interrupt;
mod listing;
mod negotiate;
mod notify;
mod reply;
mod request;
mod session;
mod sys;
mod values;

pub use abi::{feature, open_reply};
pub use channel::{Device, Mount, MountError, MountFlags, MountOptions};
pub use filesystem::{Context, Filesystem, Interruption};
pub use listing::{Listing, Name};
pub use negotiate::{IO_BYTES_MAX, Negotiated, Wishes};
pub use notify::Notifier;
pub use reply::ReadReply;
pub use session::{Arrivals, Ended, Session, SessionError, SessionOptions};
pub use values::{
    Attributes, Create, Entry, FileSystemSizes, FuseFh, Lock, LockKind, LockRange, NewNode, NodeId, Open,
    Opened, Read, Release, SetAttributes, SetTime, Stat, Time, Write, device_number, device_parts,
};
