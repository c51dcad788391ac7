//! The kernel's side of a mount: FUSE's wire format, channel, interrupts and notifications.
