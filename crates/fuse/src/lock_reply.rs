//! The reply to a request for a lock, which may be sent long after the request was read: a wait for a
//! lock holds no thread.

use std::{fmt, os::fd::OwnedFd, sync::Arc};

use rustix::io::Errno;

use crate::{
    abi::encode::SmallReply,
    filesystem::Interruption,
    interrupt::{InFlightRequest, InFlightRequests},
    reply,
};

/// The reply to SETLK or SETLKW. If it is dropped, EIO is sent.
pub struct LockReply<I: Interruption> {
    device: Arc<OwnedFd>,
    unique: u64,
    requests: Arc<InFlightRequests<I>>,
    request: Arc<InFlightRequest<I>>,
    is_sent: bool,
}

impl<I: Interruption> LockReply<I> {
    /// The reply to request `unique`, which is registered as `request`.
    pub(crate) fn new(
        device: &Arc<OwnedFd>,
        unique: u64,
        requests: &Arc<InFlightRequests<I>>,
        request: &Arc<InFlightRequest<I>>,
    ) -> Self {
        let (device, requests, request) = (Arc::clone(device), Arc::clone(requests), Arc::clone(request));
        Self { device, unique, requests, request, is_sent: false }
    }

    /// Sends the result.
    pub fn send(mut self, result: Result<(), Errno>) {
        self.send_once(result);
    }

    fn send_once(&mut self, result: Result<(), Errno>) {
        if std::mem::replace(&mut self.is_sent, true) {
            return;
        }
        self.requests.end(&self.request);
        self.requests.leave(&self.request);
        match result {
            Ok(()) => {
                let sent = rustix::io::write(&self.device, SmallReply::new().finish(self.unique));
                reply::settle(&self.device, self.unique, "SETLK", sent);
            }
            Err(errno) => reply::send_error(&self.device, self.unique, errno),
        }
    }
}

impl<I: Interruption> Drop for LockReply<I> {
    fn drop(&mut self) {
        self.send_once(Err(Errno::IO));
    }
}

impl<I: Interruption> fmt::Debug for LockReply<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockReply").field("unique", &self.unique).finish_non_exhaustive()
    }
}
