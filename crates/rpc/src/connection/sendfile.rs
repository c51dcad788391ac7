//! A piece of a file inside a reply: it goes from the page cache to the socket by sendfile(2),
//! without passing through memory of this process.
//!
//! Invariant: the reply has as many bytes as were announced. If the file was truncated meanwhile,
//! zeros fill the rest; if it cannot be read, the connection ends. Nothing else ever takes the
//! place of the file's bytes.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::{fs::OFlags, io::Errno};

/// A piece of a file that a reply is to contain.
#[derive(Clone, Debug)]
pub struct SendfileRange {
    /// The file, open to be read.
    pub file: Arc<OwnedFd>,
    /// Where in the file the piece begins, in bytes.
    pub offset: u64,
    /// How many bytes it has.
    pub length: u32,
    /// Is set when the file could not be read or its file system has no sendfile: whoever offers
    /// pieces of such files should read them itself from then on, where an error can still be an
    /// answer.
    pub failed: Arc<AtomicBool>,
}

/// What the socket took of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendfileOutcome {
    /// So many bytes, because it has no room for more at the moment, or because the file ended
    /// there.
    Some(usize),
    /// The socket is broken.
    Lost(Errno),
}

impl SendfileRange {
    pub(crate) fn length(&self) -> usize {
        usize::try_from(self.length).unwrap_or(usize::MAX)
    }

    /// Sends as much as the socket takes: at once, or, if someone is `patient`, within its own
    /// timeout for sending.
    pub(crate) fn push(&self, socket: &OwnedFd, patient: bool) -> SendfileOutcome {
        if patient {
            return self.push_some(socket);
        }
        // There is no other way to tell sendfile(2). Whoever begins to receive meanwhile waits for
        // nothing either: at worst the connection is parked.
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
                // The end of the file, or no room.
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
                // Of the file or of the socket: whoever reads the rest, or sends it, will see
                // which.
                Err(_) => break,
            }
        }
        SendfileOutcome::Some(sent)
    }

    /// Appends what follows the first `from` bytes of the piece to `bytes`, with zeros where the
    /// file ends before it.
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

    /// Sends a piece of a file that was opened so by a socket without a peer; whether that speaks
    /// against pieces of the file.
    fn fails_of(file: &str) -> bool {
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None);
        let piece = SendfileRange {
            file: Arc::new(File::open(file).expect("it is there").into()),
            offset: 0,
            length: 8,
            failed: Arc::default(),
        };
        assert_eq!(
            piece.push(&socket.expect("a socket"), true),
            SendfileOutcome::Some(0)
        );
        piece.failed.load(Ordering::Relaxed)
    }

    #[test]
    fn a_lost_client_does_not_speak_against_the_file_and_a_file_without_pieces_does() {
        assert!(!fails_of("/proc/self/exe"));
        assert!(fails_of("/proc/self/mem"));
    }
}
