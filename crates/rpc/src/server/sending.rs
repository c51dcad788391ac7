//! Sending over a connection: bytes that the socket does not accept wait in a backlog.
//!
//! It has the backlog and its limits. Invariant: replies are complete records in the order in which
//! they were sent, however many threads send.

use std::{
    os::fd::OwnedFd,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use parking_lot::MutexGuard;
use rustix::{io::Errno, net::SendFlags};

use super::{
    connection::ServerConnection,
    limits::{Limits, ResourceLimit, UNSENT_PROGRESS_MIN},
};
use crate::connection::sendfile::{SendfileOutcome, SendfileRange};

/// Bytes that the socket has not accepted.
#[derive(Default)]
pub(super) struct SendBacklog {
    pub(super) bytes: Vec<u8>,
    pub(super) sent: usize,
    pub(super) closed: bool,
    /// Since when bytes are unsent, or since when the last [`UNSENT_PROGRESS_MIN`] of them were
    /// sent.
    pub(super) since: Option<Instant>,
    /// Number of bytes sent since then.
    progress: usize,
}

/// The result of sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendOutcome {
    /// All bytes were sent.
    All,
    /// Some wait in the backlog.
    Queued,
    /// The connection is closed.
    Closed,
}

impl ServerConnection {
    /// Sends complete records, or queues the unsent bytes, within `limits`.
    pub(super) fn send(&self, parts: [&[u8]; 2], limits: &Limits) -> SendOutcome {
        self.send_locked(self.output.lock(), parts, limits)
    }

    /// As [`ServerConnection::send`]; `None` if other threads send for all of `timeout`: a client
    /// may receive the ranges of files slowly.
    pub(super) fn send_within(
        &self,
        timeout: Duration,
        parts: [&[u8]; 2],
        limits: &Limits,
    ) -> Option<SendOutcome> {
        let output = self.output.try_lock_for(timeout)?;
        Some(self.send_locked(output, parts, limits))
    }

    fn send_locked(
        &self,
        output: MutexGuard<'_, SendBacklog>,
        parts: [&[u8]; 2],
        limits: &Limits,
    ) -> SendOutcome {
        if output.closed {
            return SendOutcome::Closed;
        }
        let mut skip = 0;
        let total = parts[0].len() + parts[1].len();
        if output.bytes.is_empty() {
            match push(&self.socket, parts, SendFlags::empty()) {
                Ok(sent) if sent == total => return SendOutcome::All,
                Ok(sent) => skip = sent,
                Err(errno) => {
                    drop(output);
                    self.close(&errno.to_string());
                    return SendOutcome::Closed;
                }
            }
        }
        self.keep(output, total - skip, limits, |bytes| {
            for part in parts {
                let skipped = skip.min(part.len());
                bytes.extend_from_slice(&part[skipped..]);
                skip -= skipped;
            }
            Ok(())
        })
    }

    /// As [`ServerConnection::send`] for records of which the last contains a range of a file
    /// before its last bytes, `after`. If `patient`, the thread waits for the client to receive the
    /// range, for the socket's send timeout.
    pub(super) fn send_with_file(
        &self,
        before: [&[u8]; 2],
        piece: &SendfileRange,
        after: &[u8],
        patient: bool,
        limits: &Limits,
    ) -> SendOutcome {
        let output = self.output.lock();
        if output.closed {
            return SendOutcome::Closed;
        }
        let head = before[0].len() + before[1].len();
        let total = head + piece.length() + after.len();
        let pushed =
            if output.bytes.is_empty() { self.push_with_file(before, piece, after, patient) } else { Ok(0) };
        let sent = match pushed {
            Ok(sent) if sent == total => return SendOutcome::All,
            Ok(sent) => sent,
            Err(errno) => {
                drop(output);
                self.close(&errno.to_string());
                return SendOutcome::Closed;
            }
        };
        self.keep(output, total - sent, limits, |bytes| {
            let mut skip = sent;
            for part in before {
                let skipped = skip.min(part.len());
                bytes.extend_from_slice(&part[skipped..]);
                skip -= skipped;
            }
            let skipped = skip.min(piece.length());
            piece.read_rest(skipped, bytes)?;
            bytes.extend_from_slice(&after[skip - skipped..]);
            Ok(())
        })
    }

    /// Sends as much as the socket accepts; returns the number of bytes.
    fn push_with_file(
        &self,
        before: [&[u8]; 2],
        piece: &SendfileRange,
        after: &[u8],
        patient: bool,
    ) -> Result<usize, Errno> {
        let head = before[0].len() + before[1].len();
        let mut sent = push(&self.socket, before, SendFlags::MORE)?;
        if sent < head {
            return Ok(sent);
        }
        match piece.push(&self.socket, patient) {
            SendfileOutcome::Some(count) => sent += count,
            SendfileOutcome::Lost(errno) => return Err(errno),
        }
        if sent == head + piece.length() && !after.is_empty() {
            sent += push(&self.socket, [after, &[]], SendFlags::empty())?;
        }
        Ok(sent)
    }

    /// Queues `count` bytes, which `append` appends, until the client receives them.
    fn keep(
        &self,
        mut output: MutexGuard<'_, SendBacklog>,
        count: usize,
        limits: &Limits,
        append: impl FnOnce(&mut Vec<u8>) -> Result<(), Errno>,
    ) -> SendOutcome {
        let all = self.total_usage.unsent.fetch_add(count, Ordering::Relaxed) + count;
        let own = self.client_ref.client.unsent.fetch_add(count, Ordering::Relaxed) + count;
        let met = if own > limits.unsent_per_client {
            Some(ResourceLimit::UnsentPerClient)
        } else if all > limits.unsent {
            Some(ResourceLimit::Unsent)
        } else {
            None
        };
        let before = output.bytes.len();
        let appended = met.map_or_else(|| append(&mut output.bytes), |_| Ok(()));
        if met.is_none() && appended.is_ok() {
            debug_assert_eq!(output.bytes.len() - before, count);
            output.since.get_or_insert_with(|| self.total_usage.clock.now());
            self.unsent.store(output.bytes.len() - output.sent, Ordering::Relaxed);
            return SendOutcome::Queued;
        }
        output.bytes.truncate(before);
        self.forget_unsent(count);
        drop(output);
        if let Some(limit) = met {
            self.close_for(limit, "it does not take its replies");
        }
        if let Err(errno) = appended {
            self.log_misbehaviour(&format!(
                "a file cannot be read in the middle of a reply: {errno}; closing the connection"
            ));
            self.close("a file cannot be read");
        }
        SendOutcome::Closed
    }

    /// Sends as much of the backlog as the socket accepts.
    pub(super) fn drain(&self) -> SendOutcome {
        let mut output = self.output.lock();
        if output.closed {
            return SendOutcome::Closed;
        }
        match push(&self.socket, [&output.bytes[output.sent..], &[]], SendFlags::empty()) {
            Ok(sent) => {
                output.sent += sent;
                output.progress += sent;
                self.forget_unsent(sent);
                self.unsent.fetch_sub(sent, Ordering::Relaxed);
                if output.sent < output.bytes.len() {
                    if output.progress >= UNSENT_PROGRESS_MIN {
                        output.since = Some(self.total_usage.clock.now());
                        output.progress = 0;
                    }
                    return SendOutcome::Queued;
                }
                // Frees the memory: backlogs are rare.
                *output = SendBacklog::default();
                SendOutcome::All
            }
            Err(errno) => {
                drop(output);
                self.close(&errno.to_string());
                SendOutcome::Closed
            }
        }
    }

    /// Since when replies are unsent without progress. Does not wait for the lock: a thread that
    /// holds it may be sending a range of a file, and the next check sees its unsent bytes.
    pub(super) fn unsent_since(&self) -> Option<Instant> {
        self.output.try_lock()?.since
    }
}

/// Writes as much as the socket accepts without waiting; returns the number of bytes.
fn push(socket: &OwnedFd, [first, second]: [&[u8]; 2], more: SendFlags) -> Result<usize, Errno> {
    let total = first.len() + second.len();
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT | more;
    let mut done = 0;
    while done < total {
        let sent = if done >= first.len() {
            rustix::net::send(socket, &second[done - first.len()..], flags)
        } else if second.is_empty() {
            rustix::net::send(socket, &first[done..], flags)
        } else {
            let parts = [&first[done..], second].map(std::io::IoSlice::new);
            rustix::net::sendmsg(socket, &parts, &mut Default::default(), flags)
        };
        match sent {
            Ok(sent) => done += sent,
            Err(Errno::AGAIN) => break,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(done)
}
