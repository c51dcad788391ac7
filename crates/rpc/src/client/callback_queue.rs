//! Calls of the server that wait to be answered.

use std::{collections::VecDeque, sync::Arc};

use super::Wake as _;
use crate::{connection::waiter::CallWaiter, message::CALL_HEADER_MAX};

/// The longest call that a server may send, in bytes. Those of NFSv4.1 have a few hundred.
pub(super) const CALLBACK_MAX: usize = CALL_HEADER_MAX + (64 << 10);

/// How many of them may wait. The client of a session allows far fewer at once (RFC 8881 section
/// 18.36.3, `csa_back_chan_attrs`).
const CALLBACKS_MAX: usize = 64;

/// Part of a connection's state.
#[derive(Default)]
pub(super) struct CallbackQueue {
    calls: VecDeque<Vec<u8>>,
    /// The thread that answers them, if there is one.
    waiter: Option<Arc<CallWaiter>>,
    has_service: bool,
}

/// What became of a call of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallbackAdmission {
    Queued,
    /// Nobody answers calls here.
    NoService,
    /// So many wait that it was dropped.
    TooMany,
}

impl CallbackQueue {
    /// From now on calls are kept.
    pub(super) const fn open(&mut self) {
        self.has_service = true;
    }

    pub(super) fn set_waiter(&mut self, waiter: Arc<CallWaiter>) {
        self.waiter = Some(waiter);
    }

    pub(super) const fn has_service(&self) -> bool {
        self.has_service
    }

    pub(super) fn push(&mut self, call: &[u8]) -> CallbackAdmission {
        if !self.has_service {
            return CallbackAdmission::NoService;
        }
        if self.calls.len() >= CALLBACKS_MAX {
            return CallbackAdmission::TooMany;
        }
        self.calls.push_back(call.to_vec());
        self.wake();
        CallbackAdmission::Queued
    }

    pub(super) fn pop(&mut self) -> Option<Vec<u8>> {
        self.calls.pop_front()
    }

    /// Has the thread look again.
    pub(super) fn wake(&self) {
        if let Some(waiter) = &self.waiter {
            waiter.wake();
        }
    }
}
