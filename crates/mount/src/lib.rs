//! Mounts: FUSE requests to client calls and back, mount options and the mount helper.

pub mod bridge;
pub mod daemon;
pub mod explain;
pub mod helper;
mod kernel_quirks;
pub mod lock_service;
mod locked_file;
pub mod observed;
pub mod options;
