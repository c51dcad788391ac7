//! The kernel's side of a mount: FUSE's wire format, channel, interrupts and notifications.
//!
//! A [`FuseMount`] is made by mount(2) or fusermount3 and holds the descriptor; a [`FuseSession`]
//! reads requests from it on as many threads as are needed and has a [`Filesystem`] answer them; a
//! [`Notifier`] tells the kernel what has become void.
//!
//! Architecture invariants: as long as a session lasts, some thread reads the device, whatever the
//! others wait for; a reply goes to the descriptor its request came from; nothing that the kernel
//! sends makes this crate panic; answering a LOOKUP or GETATTR allocates nothing. This crate knows
//! nothing of NFS.

mod abi;
mod caller_state;
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
pub use channel::{FuseDevice, FuseMount, FuseMountError, MountFlags, MountOptions};
pub use filesystem::{Filesystem, FuseContext, Interruption};
pub use listing::{Dirent, DirentBuffer};
pub use negotiate::{IO_BYTES_MAX, NegotiatedFeatures, RequestedFeatures};
pub use notify::Notifier;
pub use reply::ReadReply;
pub use session::{FuseSession, FuseSessionEnd, FuseSessionError, FuseSessionOptions, RequestBarrier};
pub use values::{
    AttrOut, CreateIn, EntryOut, FuseAttr, FuseFh, FuseTime, LkIn, LockKind, LockRange, MknodIn, NodeId,
    OpenIn, OpenOut, ReadIn, ReleaseIn, SetattrIn, SetattrTime, StatfsOut, WriteIn, device_number,
    device_parts,
};
