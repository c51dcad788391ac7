//! Revalidates open files, for readers that the kernel serves from its page cache.
//!
//! This module owns the revalidation thread and its interval. Only this thread waits for these
//! replies, so a silent server blocks nothing else. [`super::invalidation`] notifies the kernel of
//! changes.

use std::sync::{Arc, Weak};
use std::time::Duration;

use curt_client::ops;
use curt_fuse::FuseFh;
use curt_rpc::client::Interrupt;

use super::Bridge;

/// Maximum time from the expiry of an open file's attributes to their revalidation, unless there
/// are too many files.
const INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of requests in each round. The next round begins after the last file of this one,
/// so that all of more open files are revalidated in turn.
const GETATTRS_PER_ROUND_MAX: usize = 64;

/// Revalidates until this value is dropped.
#[derive(Debug)]
pub struct OpenFileRevalidation {
    end: Interrupt,
}

impl OpenFileRevalidation {
    /// Starts the thread.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(bridge: &Arc<Bridge>) -> std::io::Result<Self> {
        let end = Interrupt::new();
        let (bridge, ended) = (Arc::downgrade(bridge), end.clone());
        std::thread::Builder::new()
            .name("rechecks".to_owned())
            .stack_size(128 * 1024)
            .spawn(move || run(&bridge, &ended))?;
        Ok(Self { end })
    }
}

impl Drop for OpenFileRevalidation {
    fn drop(&mut self) {
        self.end.raise();
    }
}

fn run(bridge: &Weak<Bridge>, end: &Interrupt) {
    let mut last = FuseFh(0);
    while !end.wait_for(INTERVAL) {
        let Some(bridge) = bridge.upgrade() else { return };
        let mut left = GETATTRS_PER_ROUND_MAX;
        for (number, file) in bridge.files.all_from(last) {
            if left == 0 || end.is_raised() {
                break;
            }
            // Ignored: the reader gets the same error.
            if ops::revalidate_open_file(&bridge.client, &file, end) != Ok(false) {
                left -= 1;
                last = number;
            }
        }
    }
}
