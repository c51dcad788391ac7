//! Replies on their way to the kernel.
//!
//! Owns the sending of data from where they lie: header and pieces go out in one writev(2), nothing is copied on the way.

use std::{fmt, io::IoSlice, os::fd::OwnedFd};

use rustix::io::Errno;

use crate::abi::encode;

/// Pieces of one reply at most (the kernel's UIO_MAXIOV is 1024; the header takes one).
const PIECES_MAX: usize = 1023;

/// Sends the data of a READ.
pub struct ReadReply<'a> {
    device: &'a OwnedFd,
    unique: u64,
    size: u32,
    sent: Option<Result<usize, Errno>>,
}

impl fmt::Debug for ReadReply<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadReply")
            .field("size", &self.size)
            .field("sent", &self.sent)
            .finish_non_exhaustive()
    }
}

impl<'a> ReadReply<'a> {
    pub(crate) fn new(device: &'a OwnedFd, unique: u64, size: u32) -> Self {
        Self {
            device,
            unique,
            size,
            sent: None,
        }
    }

    /// Sends `pieces`, one behind the other: all of them together are what was read. What exceeds the size that was asked for
    /// is left out; more than 1,023 pieces are first made one. A second call does nothing.
    pub fn send<'p>(&mut self, pieces: impl IntoIterator<Item = &'p [u8]>) {
        if self.sent.is_some() {
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
        self.sent = Some(match pieces.as_slice() {
            [] => send_data(self.device, self.unique, &[]),
            [piece] => send_data(self.device, self.unique, piece),
            many if many.len() > PIECES_MAX => send_data(self.device, self.unique, &many.concat()),
            many => send_pieces(self.device, self.unique, many),
        });
    }

    pub(crate) fn into_sent(self) -> Option<Result<usize, Errno>> {
        self.sent
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
        let device = OwnedFd::from(writer);
        let mut reply = ReadReply::new(&device, 7, size);
        reply.send(pieces.iter().copied());
        reply.send([&b"again"[..]]);
        assert!(matches!(reply.into_sent(), Some(Ok(_))));
        drop(device);
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
