//! The reply to a request for a lock, which may be sent long after the request was read.
//!
//! A wait for a lock holds no thread.

use std::{fmt, os::fd::OwnedFd, sync::Arc};

use rustix::io::Errno;

use crate::{
    abi::opcode,
    reply::{self, SmallReply},
};

/// The reply to SETLK or SETLKW. If it is dropped, EIO is sent.
pub struct SetlkReply {
    device: Arc<OwnedFd>,
    unique: u64,
    /// Ends the registration of the request; `None`: the reply was sent.
    end: Option<Box<dyn FnOnce() + Send>>,
}

impl SetlkReply {
    /// The reply to request `unique`; `end` is called before it is sent.
    pub(crate) fn new(device: &Arc<OwnedFd>, unique: u64, end: impl FnOnce() + Send + 'static) -> Self {
        Self { device: Arc::clone(device), unique, end: Some(Box::new(end)) }
    }

    /// Sends the result.
    pub fn send(mut self, result: Result<(), Errno>) {
        self.send_once(result);
    }

    fn send_once(&mut self, result: Result<(), Errno>) {
        let Some(end) = self.end.take() else { return };
        end();
        match result {
            Ok(()) => {
                let sent = rustix::io::write(&self.device, SmallReply::new().finish(self.unique));
                reply::settle(&self.device, self.unique, opcode::SETLK, sent);
            }
            Err(errno) => reply::send_error(&self.device, self.unique, errno),
        }
    }
}

impl Drop for SetlkReply {
    fn drop(&mut self) {
        self.send_once(Err(Errno::IO));
    }
}

impl fmt::Debug for SetlkReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SetlkReply").field("unique", &self.unique).finish_non_exhaustive()
    }
}
