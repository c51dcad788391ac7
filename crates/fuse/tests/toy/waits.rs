//! Requests that get stuck, as on a server that is gone.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use curt_fuse::Interruption;
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;

/// By what a stuck request is ended.
#[derive(Debug, Default)]
pub struct Token {
    raised: Mutex<bool>,
    bell: Condvar,
}

impl Interruption for Token {
    fn raise(&self) {
        *self.raised.lock() = true;
        self.bell.notify_all();
    }

    fn is_raised(&self) -> bool {
        *self.raised.lock()
    }
}

/// Which operations get stuck, how many are, and how often each kind was called.
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
    /// From now on `operation` gets stuck.
    pub fn on(&self, operation: &'static str) {
        self.state.lock().operations.insert(operation);
    }

    /// Everything goes on.
    pub fn release(&self) {
        self.state.lock().operations.clear();
    }

    /// How many requests are stuck now.
    pub fn waiting(&self) -> usize {
        self.state.lock().waiting
    }

    /// How often the operation was called.
    pub fn calls(&self, operation: &str) -> usize {
        self.state.lock().calls.get(operation).copied().unwrap_or(0)
    }

    pub fn set_silence(&self, silence: Option<Duration>) {
        self.state.lock().silence = silence;
    }

    pub fn silence(&self) -> Option<Duration> {
        self.state.lock().silence
    }

    /// Called by each operation when it begins: EINTR if it was stuck and its wait ended.
    pub fn pass(&self, operation: &'static str, token: &Token) -> Result<(), Errno> {
        {
            let mut state = self.state.lock();
            *state.calls.entry(operation).or_default() += 1;
            if !state.operations.contains(operation) {
                return Ok(());
            }
            state.waiting += 1;
        }
        let outcome = self.wait(operation, token);
        self.state.lock().waiting -= 1;
        outcome
    }

    fn wait(&self, operation: &'static str, token: &Token) -> Result<(), Errno> {
        let mut raised = token.raised.lock();
        loop {
            if *raised {
                return Err(Errno::INTR);
            }
            token.bell.wait_for(&mut raised, Duration::from_millis(20));
            if !self.state.lock().operations.contains(operation) {
                return Ok(());
            }
        }
    }
}
