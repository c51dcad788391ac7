//! Notifications that invalidate the kernel's caches.
//!
//! [`Notifier::invalidate_inode`] waits for pages that are being read or written. Never call it
//! while holding a lock that a reply needs.

use std::{
    io::IoSlice,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use rustix::io::Errno;

use crate::{abi::notify, message_fields::NodeId, reply::notification_header, sys};

/// Size of `fuse_notify_store_out`.
const ENLARGE_BYTES: usize = 24;

/// Sends notifications. Errors: ENOENT if the kernel does not have the object (nothing to do
/// then), ENOSYS or EINVAL if it does not support the notification, ENODEV after the mount has
/// ended.
#[derive(Clone, Debug)]
pub struct Notifier {
    device: Arc<OwnedFd>,
}

impl Notifier {
    pub(crate) fn new(device: Arc<OwnedFd>) -> Self {
        Self { device }
    }

    /// Invalidates an object's attributes and `length` bytes of its pages from `offset` on (0:
    /// all). A negative offset invalidates the attributes only.
    ///
    /// # Errors
    /// See [`Notifier`].
    pub fn invalidate_inode(&self, node: NodeId, offset: i64, length: i64) -> Result<(), Errno> {
        self.send(notify::INVAL_INODE, &[&node.0.to_ne_bytes(), &offset.to_ne_bytes(), &length.to_ne_bytes()])
    }

    /// Raises the kernel's size of a file to `size`, if it is smaller; no page changes.
    ///
    /// There is no notification for this. But when the kernel stores bytes, it raises the file's
    /// size before it copies them (Linux 2.6.36 to 6.18, `fuse_notify_store`). So this stores one
    /// unreadable byte there.
    ///
    /// # Errors
    /// See [`Notifier`].
    pub fn enlarge(&self, node: NodeId, size: u64) -> Result<(), Errno> {
        let Some(last) = size.checked_sub(1) else {
            return Ok(());
        };
        let header = notification_header(ENLARGE_BYTES + 1, notify::STORE);
        let (count, padding) = (1_u32.to_ne_bytes(), [0; 4]);
        let node = node.0.to_ne_bytes();
        let message = [&header[..], &node, &last.to_ne_bytes(), &count, &padding].concat();
        match sys::write_and_an_unreadable_byte(self.device.as_fd(), &message) {
            // The error of the unreadable byte: everything before it is done.
            Err(Errno::FAULT) => Ok(()),
            result => result,
        }
    }

    fn send(&self, code: i32, parts: &[&[u8]]) -> Result<(), Errno> {
        let body = parts.iter().map(|part| part.len()).sum();
        let header = notification_header(body, code);
        let mut message = vec![IoSlice::new(&header)];
        message.extend(parts.iter().map(|part| IoSlice::new(part)));
        rustix::io::writev(&self.device, &message).map(drop)
    }
}
