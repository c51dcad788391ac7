//! A range of a file inside a reply: sendfile(2) copies it from the page cache to the socket
//! without passing through memory of this process.
//!
//! Invariant: the reply has the announced number of bytes. If the file was truncated meanwhile,
//! zeros fill the rest; if it cannot be read, the connection ends. No other bytes replace those of
//! the file.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::{fs::OFlags, io::Errno};

/// A range of a file that a reply contains.
#[derive(Clone, Debug)]
pub struct SendfileRange {
    /// The file, open for reading.
    pub file: Arc<OwnedFd>,
    /// The offset of the range in bytes.
    pub offset: u64,
    /// The length of the range in bytes.
    pub length: u32,
    /// Set when the file could not be read or its file system does not support sendfile(2): the
    /// service should then read such files itself, so that an error can still become the reply's
    /// status.
    pub failed: Arc<AtomicBool>,
}

/// The result of sending a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendfileOutcome {
    /// This many bytes were sent, because the socket is full or the file ended.
    Some(usize),
    /// The socket is broken.
    Lost(Errno),
}

impl SendfileRange {
    pub(crate) fn length(&self) -> usize {
        usize::try_from(self.length).unwrap_or(usize::MAX)
    }

    /// Sends as much as the socket accepts: without waiting, or, if `patient`, within the socket's
    /// send timeout.
    pub(crate) fn push(&self, socket: &OwnedFd, patient: bool) -> SendfileOutcome {
        if patient {
            return self.push_some(socket);
        }
        // sendfile(2) has no other way to avoid waiting. A thread that begins to receive meanwhile
        // does not wait either: at worst the connection becomes idle.
        if rustix::fs::fcntl_setfl(socket, OFlags::NONBLOCK).is_err() {
            return SendfileOutcome::Some(0);
        }
        let pushed = self.push_some(socket);
        let _ = rustix::fs::fcntl_setfl(socket, OFlags::empty());
        pushed
    }

    fn push_some(&self, socket: &OwnedFd) -> SendfileOutcome {
        let mut offset = self.offset;
        let mut sent = 0;
        while sent < self.length() {
            match rustix::fs::sendfile(socket, &self.file, Some(&mut offset), self.length() - sent) {
                // The file ended, or the socket is full.
                Ok(0) | Err(Errno::AGAIN) => break,
                Ok(count) => sent += count,
                Err(Errno::INTR) => {}
                Err(errno @ (Errno::PIPE | Errno::CONNRESET | Errno::TIMEDOUT)) => {
                    return SendfileOutcome::Lost(errno);
                }
                Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                    self.failed.store(true, Ordering::Relaxed);
                    break;
                }
                // An error of the file or of the socket: reading or sending the rest shows which.
                Err(_) => break,
            }
        }
        SendfileOutcome::Some(sent)
    }

    /// Appends the range without its first `from` bytes to `bytes`, with zeros beyond the end of
    /// the file.
    pub(crate) fn read_rest(&self, from: usize, bytes: &mut Vec<u8>) -> Result<(), Errno> {
        let start = bytes.len();
        bytes.resize(start + self.length() - from, 0);
        let mut at = start;
        while at < bytes.len() {
            let offset = self.offset + (from + at - start) as u64;
            match rustix::io::pread(self.file.as_fd(), &mut bytes[at..], offset) {
                Ok(0) => break,
                Ok(count) => at += count,
                Err(Errno::INTR) => {}
                Err(errno) => {
                    self.failed.store(true, Ordering::Relaxed);
                    bytes.truncate(start);
                    return Err(errno);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use rustix::net::{AddressFamily, SocketFlags, SocketType};

    use super::*;

    /// Sends a range of a file through a socket without a peer; returns whether `failed` is set.
    fn fails_of(file: &str) -> bool {
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None);
        let piece = SendfileRange {
            file: Arc::new(File::open(file).expect("it is there").into()),
            offset: 0,
            length: 8,
            failed: Arc::default(),
        };
        assert_eq!(piece.push(&socket.expect("a socket"), true), SendfileOutcome::Some(0));
        piece.failed.load(Ordering::Relaxed)
    }

    #[test]
    fn a_lost_client_does_not_disable_sendfile_and_a_file_without_pieces_does() {
        assert!(!fails_of("/proc/self/exe"));
        assert!(fails_of("/proc/self/mem"));
    }
}
