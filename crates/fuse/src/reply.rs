//! Replies on their way to the kernel.
//!
//! Owns the sending of data from where they lie: header and pieces go out in one writev(2), nothing
//! is copied on the way.

use std::{
    fmt,
    io::IoSlice,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use rustix::io::Errno;

use crate::abi::{REPLY_HEADER_BYTES, encode};

/// Pieces of one reply at most (the kernel's UIO_MAXIOV is 1024; the header takes one).
const PIECES_MAX: usize = 1023;

/// Sends the data of a READ, from whatever thread has them. Clones send the same reply.
#[derive(Clone)]
pub struct ReadReply {
    device: Arc<OwnedFd>,
    unique: u64,
    size: u32,
    state: Arc<ReadReplyState>,
}

/// How far a reply is. Neither orders anything: it is the kernel that is told.
#[derive(Debug, Default)]
struct ReadReplyState {
    /// Somebody sends it, or has.
    begun: AtomicBool,
    /// The bytes of data that the kernel took.
    bytes: AtomicUsize,
}

impl fmt::Debug for ReadReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadReply")
            .field("size", &self.size)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl ReadReply {
    pub(crate) fn new(device: Arc<OwnedFd>, unique: u64, size: u32) -> Self {
        Self {
            device,
            unique,
            size,
            state: Arc::default(),
        }
    }

    /// Sends `pieces`, one behind the other: all of them together are what was read. What exceeds
    /// the size that was asked for is left out; more than 1,023 pieces are first made one. A second
    /// call does nothing.
    pub fn send<'p>(&self, pieces: impl IntoIterator<Item = &'p [u8]>) {
        if self.state.begun.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut room = usize::try_from(self.size).unwrap_or(usize::MAX);
        let pieces: Vec<&[u8]> = pieces
            .into_iter()
            .map_while(|piece| {
                let taken = piece.get(..room.min(piece.len()))?;
                room -= taken.len();
                Some(taken)
            })
            .filter(|piece| !piece.is_empty())
            .collect();
        let (device, unique) = (&self.device, self.unique);
        let sent = match pieces.as_slice() {
            [] => send_data(device, unique, &[]),
            [piece] => send_data(device, unique, piece),
            many if many.len() > PIECES_MAX => send_data(device, unique, &many.concat()),
            many => send_pieces(device, unique, many),
        };
        let bytes = sent.map_or(0, |whole| whole.saturating_sub(REPLY_HEADER_BYTES));
        self.state.bytes.store(bytes, Ordering::Relaxed);
        settle(device, unique, "READ", sent);
    }

    /// How many bytes of data were sent; 0 if none were yet, or the kernel did not take them.
    #[must_use]
    pub fn sent_bytes(&self) -> usize {
        self.state.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn is_sent(&self) -> bool {
        self.state.begun.load(Ordering::Relaxed)
    }
}

/// Sends a reply whose body is `data`.
pub(crate) fn send_data(device: &OwnedFd, unique: u64, data: &[u8]) -> Result<usize, Errno> {
    let header = encode::header(data.len(), 0, unique);
    rustix::io::writev(device, &[IoSlice::new(&header), IoSlice::new(data)])
}

fn send_pieces(device: &OwnedFd, unique: u64, pieces: &[&[u8]]) -> Result<usize, Errno> {
    let header = encode::header(pieces.iter().map(|piece| piece.len()).sum(), 0, unique);
    let mut message = Vec::with_capacity(pieces.len() + 1);
    message.push(IoSlice::new(&header));
    message.extend(pieces.iter().map(|piece| IoSlice::new(piece)));
    rustix::io::writev(device, &message)
}

/// Sees to it that a request is answered if its reply was not taken.
pub(crate) fn settle(device: &OwnedFd, unique: u64, name: &str, sent: Result<usize, Errno>) {
    match sent {
        // ENOENT, ENODEV: the connection was aborted meanwhile.
        Ok(_) | Err(Errno::NOENT | Errno::NODEV) => {}
        Err(errno) => {
            tracing::warn!("the kernel did not accept the reply to {name}: {errno}; replying EIO");
            send_error(device, unique, Errno::IO);
        }
    }
}

/// Answers a request with an error. That it cannot be sent means that nobody waits for it.
pub(crate) fn send_error(device: &OwnedFd, unique: u64, errno: Errno) {
    let _ = rustix::io::write(device, &encode::header(0, errno.raw_os_error(), unique));
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, pipe};

    use super::*;

    fn sent(size: u32, pieces: &[&[u8]]) -> Vec<u8> {
        let (mut reader, writer) = pipe().expect("a pipe");
        let reply = ReadReply::new(Arc::new(OwnedFd::from(writer)), 7, size);
        reply.send(pieces.iter().copied());
        reply.clone().send([&b"again"[..]]);
        assert!(reply.is_sent());
        drop(reply);
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).expect("a pipe");
        let length = u32::try_from(bytes.len()).expect("short");
        assert_eq!(bytes[..4], length.to_ne_bytes());
        bytes.split_off(16)
    }

    #[test]
    fn pieces_are_sent_in_order_and_never_more_than_was_asked_for() {
        assert_eq!(sent(9, &[]), b"");
        assert_eq!(sent(9, &[b"abc"]), b"abc");
        assert_eq!(sent(9, &[b"abc", b"", b"def"]), b"abcdef");
        assert_eq!(sent(4, &[b"abc", b"def", b"ghi"]), b"abcd");
        assert_eq!(sent(0, &[b"abc"]), b"");
        assert_eq!(sent(5000, &vec![&b"ab"[..]; 2000]), b"ab".repeat(2000));
    }
}
