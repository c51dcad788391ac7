//! Revalidating files that stay open, for readers that the kernel serves from its page cache.
//!
//! Owns the thread that does so, and how often. It is the only one that waits for these answers, so
//! a silent server holds up nothing else. The kernel is notified of changes by
//! [`super::invalidation`].

use std::sync::{Arc, Weak};
use std::time::Duration;

use curt_client::ops;
use curt_fuse::FuseFh;
use curt_rpc::client::Interrupt;

use super::Bridge;

/// How long after its attributes expired an open file is revalidated, at most, while there are not
/// too many.
const INTERVAL: Duration = Duration::from_secs(1);

/// Requests in each round at most; the next round begins with the files behind the last that was
/// asked about, so that of more open files each has its turn.
const GETATTRS_PER_ROUND_MAX: usize = 64;

/// Rechecks until this value is dropped.
#[derive(Debug)]
pub struct OpenFileRevalidation {
    end: Interrupt,
}

impl OpenFileRevalidation {
    /// Starts the thread.
    ///
    /// # Errors
    /// There is none to be had.
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
            // A failure is the reader's to find out, too.
            if ops::revalidate_open_file(&bridge.client, &file, end) != Ok(false) {
                left -= 1;
                last = number;
            }
        }
    }
}
