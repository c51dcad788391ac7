//! Requests that block, as with a server that does not respond.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use curt_sync::Interrupt;
use parking_lot::Mutex;
use rustix::io::Errno;

/// Which operations block, how many are blocked, and how often each was called.
#[derive(Debug, Default)]
pub struct Stuck {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    operations: HashSet<&'static str>,
    waiting: usize,
    calls: HashMap<&'static str, usize>,
    silence: Option<Duration>,
}

impl Stuck {
    /// Blocks `operation` from now on.
    pub fn on(&self, operation: &'static str) {
        self.state.lock().operations.insert(operation);
    }

    /// Ends all blocks.
    pub fn release(&self) {
        self.state.lock().operations.clear();
    }

    /// Number of blocked requests.
    pub fn waiting(&self) -> usize {
        self.state.lock().waiting
    }

    /// Number of calls of the operation.
    pub fn calls(&self, operation: &str) -> usize {
        self.state.lock().calls.get(operation).copied().unwrap_or(0)
    }

    pub fn set_silence(&self, silence: Option<Duration>) {
        self.state.lock().silence = silence;
    }

    pub fn silence(&self) -> Option<Duration> {
        self.state.lock().silence
    }

    /// Called at the start of each operation: EINTR if it was blocked and its wait was ended.
    pub fn pass(&self, operation: &'static str, interruption: &Interrupt) -> Result<(), Errno> {
        {
            let mut state = self.state.lock();
            *state.calls.entry(operation).or_default() += 1;
            if !state.operations.contains(operation) {
                return Ok(());
            }
            state.waiting += 1;
        }
        let outcome = self.wait(operation, interruption);
        self.state.lock().waiting -= 1;
        outcome
    }

    fn wait(&self, operation: &'static str, interruption: &Interrupt) -> Result<(), Errno> {
        while !interruption.wait_for(Duration::from_millis(20)) {
            if !self.state.lock().operations.contains(operation) {
                return Ok(());
            }
        }
        Err(Errno::INTR)
    }
}
