//! FUSE: wire format, channel, interrupts and notifications.
//!
//! A [`FuseMount`] is created by mount(2) or fusermount3; a [`FuseSession`] reads requests on as
//! many threads as needed and has a [`Filesystem`] handle them; a [`Notifier`] invalidates the
//! kernel's caches.
//!
//! Invariants: while a session lasts, some thread reads the device, whatever the others wait for; a
//! reply goes to the descriptor its request came from; no input from the kernel causes a panic; a
//! reply to LOOKUP or GETATTR allocates no memory. This crate does not depend on NFS.

mod abi;
mod caller_state;
mod channel;
mod filesystem;
mod interrupt;
mod listing;
mod message_fields;
pub mod mountinfo;
mod negotiate;
mod notify;
mod reply;
mod request;
mod requests_in_progress;
mod session;
mod setlk_reply;
mod sys;

pub use abi::{feature, open_reply};
pub use channel::{FuseDevice, FuseMount, FuseMountError, MountFlags, MountOptions};
pub use filesystem::Filesystem;
pub use listing::{Dirent, DirentBuffer};
pub use message_fields::{
    AttrOut, CreateIn, EntryOut, FuseAttr, FuseFh, FuseTime, LkIn, LockKind, LockRange, MknodIn, NodeId,
    OpenIn, OpenOut, ReadIn, ReleaseIn, SetattrIn, SetattrTime, StatfsOut, WriteIn,
};
pub use negotiate::{IO_BYTES_MAX, NegotiatedFeatures, RequestedFeatures};
pub use notify::Notifier;
pub use reply::ReadReply;
pub use requests_in_progress::{FuseContext, RequestBarrier};
pub use session::{FuseSession, FuseSessionEnd, FuseSessionError, FuseSessionOptions};
pub use setlk_reply::SetlkReply;
