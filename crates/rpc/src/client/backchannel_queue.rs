//! Calls of the server that wait to be executed.

use std::{collections::VecDeque, sync::Arc};

use curt_sync::Wake as _;

use crate::{connection::waiter::CallWaiter, message::call::CALL_HEADER_MAX};

/// Maximum size of a call of the server in bytes. Calls of NFSv4.1 have a few hundred bytes.
pub(super) const CALLBACK_MAX: usize = CALL_HEADER_MAX + (64 << 10);

/// Maximum number of waiting calls. The client of a session allows far fewer at once (RFC 8881
/// section 18.36.3, `csa_back_chan_attrs`).
const CALLBACKS_MAX: usize = 64;

#[derive(Default)]
pub(super) struct BackchannelQueue {
    calls: VecDeque<Vec<u8>>,
    /// The thread that executes the calls, if there is one.
    waiter: Option<Arc<CallWaiter>>,
    has_service: bool,
}

/// The result of receiving a call of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BackchannelAdmission {
    Queued,
    /// There is no service for such calls.
    NoService,
    /// The call was dropped, because the queue is full.
    TooMany,
}

impl BackchannelQueue {
    /// Calls are queued from now on.
    pub(super) const fn open(&mut self) {
        self.has_service = true;
    }

    pub(super) fn set_waiter(&mut self, waiter: Arc<CallWaiter>) {
        self.waiter = Some(waiter);
    }

    pub(super) const fn has_service(&self) -> bool {
        self.has_service
    }

    pub(super) fn push(&mut self, call: &[u8]) -> BackchannelAdmission {
        if !self.has_service {
            return BackchannelAdmission::NoService;
        }
        if self.calls.len() >= CALLBACKS_MAX {
            return BackchannelAdmission::TooMany;
        }
        self.calls.push_back(call.to_vec());
        self.wake();
        BackchannelAdmission::Queued
    }

    pub(super) fn pop(&mut self) -> Option<Vec<u8>> {
        self.calls.pop_front()
    }

    /// Wakes the thread.
    pub(super) fn wake(&self) {
        if let Some(waiter) = &self.waiter {
            waiter.wake();
        }
    }
}
