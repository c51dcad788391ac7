//! Replies to the kernel.
//!
//! Header and data are sent by one writev(2), without a copy.

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

/// Maximum number of slices of one reply (the kernel's UIO_MAXIOV is 1024; the header takes one).
const PIECES_MAX: usize = 1023;

/// Sends the data of a READ, on any thread. Clones send the same reply.
#[derive(Clone)]
pub struct ReadReply {
    device: Arc<OwnedFd>,
    unique: u64,
    size: u32,
    state: Arc<ReadReplyState>,
}

/// The state of a reply. Relaxed: it orders no other memory.
#[derive(Debug, Default)]
struct ReadReplyState {
    /// Whether a thread has begun to send it.
    begun: AtomicBool,
    /// Number of data bytes that the kernel accepted.
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
        Self { device, unique, size, state: Arc::default() }
    }

    /// Sends the concatenation of `slices` as the data. Bytes beyond the requested size are
    /// omitted; more than 1,023 slices are copied into one. A second call does nothing.
    pub fn send<'p>(&self, slices: impl IntoIterator<Item = &'p [u8]>) {
        if self.state.begun.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut room = usize::try_from(self.size).unwrap_or(usize::MAX);
        let slices: Vec<&[u8]> = slices
            .into_iter()
            .map_while(|slice| {
                let sent_slice = slice.get(..room.min(slice.len()))?;
                room -= sent_slice.len();
                Some(sent_slice)
            })
            .filter(|slice| !slice.is_empty())
            .collect();
        let (device, unique) = (&self.device, self.unique);
        let sent = match slices.as_slice() {
            [] => send_data(device, unique, &[]),
            [slice] => send_data(device, unique, slice),
            many if many.len() > PIECES_MAX => send_data(device, unique, &many.concat()),
            many => send_slices(device, unique, many),
        };
        let bytes = sent.map_or(0, |whole| whole.saturating_sub(REPLY_HEADER_BYTES));
        self.state.bytes.store(bytes, Ordering::Relaxed);
        settle(device, unique, "READ", sent);
    }

    /// Number of data bytes sent; 0 if not sent yet, or not accepted by the kernel.
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

fn send_slices(device: &OwnedFd, unique: u64, slices: &[&[u8]]) -> Result<usize, Errno> {
    let header = encode::header(slices.iter().map(|slice| slice.len()).sum(), 0, unique);
    let mut message = Vec::with_capacity(slices.len() + 1);
    message.push(IoSlice::new(&header));
    message.extend(slices.iter().map(|slice| IoSlice::new(slice)));
    rustix::io::writev(device, &message)
}

/// Sends an error if the reply was not accepted.
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

/// Replies with an error. If this fails, no process waits for the reply.
pub(crate) fn send_error(device: &OwnedFd, unique: u64, errno: Errno) {
    let _ = rustix::io::write(device, &encode::header(0, errno.raw_os_error(), unique));
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, pipe};

    use super::*;

    fn sent(size: u32, slices: &[&[u8]]) -> Vec<u8> {
        let (mut reader, writer) = pipe().expect("a pipe");
        let reply = ReadReply::new(Arc::new(OwnedFd::from(writer)), 7, size);
        reply.send(slices.iter().copied());
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
    fn pieces_are_sent_in_order_and_never_more_than_requested() {
        assert_eq!(sent(9, &[]), b"");
        assert_eq!(sent(9, &[b"abc"]), b"abc");
        assert_eq!(sent(9, &[b"abc", b"", b"def"]), b"abcdef");
        assert_eq!(sent(4, &[b"abc", b"def", b"ghi"]), b"abcd");
        assert_eq!(sent(0, &[b"abc"]), b"");
        assert_eq!(sent(5000, &vec![&b"ab"[..]; 2000]), b"ab".repeat(2000));
    }
}
