//! Replies to the kernel: their encoding, and how they are sent.
//!
//! Small replies are built on the stack, so that a reply allocates no memory. Data are sent with
//! their header by one writev(2), without a copy.

use std::{
    fmt,
    io::IoSlice,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use rustix::io::Errno;

use crate::{
    abi::{REPLY_HEADER_BYTES, opcode, opcode_name},
    message_fields::{EntryOut, FuseAttr, LockRange, OpenOut, StatfsOut},
};

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
        settle(device, unique, opcode::READ, sent);
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
    let header = header(data.len(), 0, unique);
    rustix::io::writev(device, &[IoSlice::new(&header), IoSlice::new(data)])
}

fn send_slices(device: &OwnedFd, unique: u64, slices: &[&[u8]]) -> Result<usize, Errno> {
    let header = header(slices.iter().map(|slice| slice.len()).sum(), 0, unique);
    let mut message = Vec::with_capacity(slices.len() + 1);
    message.push(IoSlice::new(&header));
    message.extend(slices.iter().map(|slice| IoSlice::new(slice)));
    rustix::io::writev(device, &message)
}

/// Sends an error if the reply was not accepted.
pub(crate) fn settle(device: &OwnedFd, unique: u64, opcode: u32, sent: Result<usize, Errno>) {
    match sent {
        // ENOENT, ENODEV: the connection was aborted meanwhile.
        Ok(_) | Err(Errno::NOENT | Errno::NODEV) => {}
        Err(errno) => {
            let name = opcode_name(opcode);
            tracing::warn!("the kernel did not accept the reply to {name}: {errno}; replying EIO");
            send_error(device, unique, Errno::IO);
        }
    }
}

/// Replies with an error. If this fails, no process waits for the reply.
pub(crate) fn send_error(device: &OwnedFd, unique: u64, errno: Errno) {
    let _ = rustix::io::write(device, &header(0, errno.raw_os_error(), unique));
}

/// Size of `fuse_attr`.
pub(crate) const ATTRIBUTES_BYTES: usize = 88;
/// Size of `fuse_entry_out`.
pub(crate) const ENTRY_BYTES: usize = 40 + ATTRIBUTES_BYTES;
/// Size of the largest reply that is built here: the entry and open file of CREATE after the
/// header.
const SMALL_BYTES_MAX: usize = REPLY_HEADER_BYTES + ENTRY_BYTES + 16;

/// A small reply with room for its header.
#[derive(Debug)]
pub(crate) struct SmallReply {
    bytes: [u8; SMALL_BYTES_MAX],
    length: usize,
}

impl SmallReply {
    pub(crate) fn new() -> Self {
        Self { bytes: [0; SMALL_BYTES_MAX], length: REPLY_HEADER_BYTES }
    }

    fn put(&mut self, bytes: &[u8]) {
        let end = self.length + bytes.len();
        self.bytes[self.length..end].copy_from_slice(bytes);
        self.length = end;
    }

    pub(crate) fn u16(&mut self, value: u16) {
        self.put(&value.to_ne_bytes());
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.put(&value.to_ne_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.put(&value.to_ne_bytes());
    }

    pub(crate) fn entry(&mut self, entry: &EntryOut) {
        self.put(&entry_bytes(entry));
    }

    /// The body of a reply to GETATTR and SETATTR (`fuse_attr_out`).
    pub(crate) fn attributes(&mut self, attributes: &FuseAttr, valid: Duration) {
        self.u64(valid.as_secs());
        self.u32(valid.subsec_nanos());
        self.u32(0);
        self.put(&attribute_bytes(attributes));
    }

    pub(crate) fn opened(&mut self, opened: &OpenOut) {
        self.u64(opened.fh.0);
        self.u32(opened.flags);
        self.u32(0);
    }

    pub(crate) fn sizes(&mut self, sizes: &StatfsOut) {
        for value in [sizes.blocks, sizes.blocks_free, sizes.blocks_available, sizes.files, sizes.files_free]
        {
            self.u64(value);
        }
        for value in [sizes.block_size, sizes.name_max, sizes.fragment_size, 0] {
            self.u32(value);
        }
        self.put(&[0; 24]);
    }

    pub(crate) fn lock(&mut self, lock: &LockRange) {
        self.u64(lock.start);
        self.u64(lock.end);
        self.u32(lock.kind.to_wire());
        self.u32(lock.pid);
    }

    /// The complete reply, header included.
    pub(crate) fn finish(&mut self, unique: u64) -> &[u8] {
        let header = header(self.length - REPLY_HEADER_BYTES, 0, unique);
        self.bytes[..REPLY_HEADER_BYTES].copy_from_slice(&header);
        &self.bytes[..self.length]
    }
}

/// A reply's header; `error` is 0 or a positive errno.
pub(crate) fn header(body: usize, error: i32, unique: u64) -> [u8; REPLY_HEADER_BYTES] {
    let length =
        u32::try_from(REPLY_HEADER_BYTES + body).expect("a reply is no longer than a request asked for");
    let mut bytes = [0; REPLY_HEADER_BYTES];
    bytes[..4].copy_from_slice(&length.to_ne_bytes());
    bytes[4..8].copy_from_slice(&(-error).to_ne_bytes());
    bytes[8..].copy_from_slice(&unique.to_ne_bytes());
    bytes
}

/// A notification's header: `error` holds the notification code, `unique` is 0.
pub(crate) fn notification_header(body: usize, code: i32) -> [u8; REPLY_HEADER_BYTES] {
    header(body, -code, 0)
}

/// `fuse_entry_out`.
pub(crate) fn entry_bytes(entry: &EntryOut) -> [u8; ENTRY_BYTES] {
    let mut bytes = [0; ENTRY_BYTES];
    for (index, value) in
        [entry.node.0, entry.generation, entry.entry_valid.as_secs(), entry.attributes_valid.as_secs()]
            .into_iter()
            .enumerate()
    {
        bytes[index * 8..][..8].copy_from_slice(&value.to_ne_bytes());
    }
    bytes[32..36].copy_from_slice(&entry.entry_valid.subsec_nanos().to_ne_bytes());
    bytes[36..40].copy_from_slice(&entry.attributes_valid.subsec_nanos().to_ne_bytes());
    bytes[40..].copy_from_slice(&attribute_bytes(&entry.attributes));
    bytes
}

/// `fuse_attr`.
fn attribute_bytes(attributes: &FuseAttr) -> [u8; ATTRIBUTES_BYTES] {
    let mut bytes = [0; ATTRIBUTES_BYTES];
    let wide = [
        attributes.inode.to_ne_bytes(),
        attributes.size.to_ne_bytes(),
        attributes.blocks.to_ne_bytes(),
        attributes.atime.seconds.to_ne_bytes(),
        attributes.mtime.seconds.to_ne_bytes(),
        attributes.ctime.seconds.to_ne_bytes(),
    ];
    for (index, value) in wide.into_iter().enumerate() {
        bytes[index * 8..][..8].copy_from_slice(&value);
    }
    let narrow = [
        attributes.atime.nanoseconds,
        attributes.mtime.nanoseconds,
        attributes.ctime.nanoseconds,
        attributes.mode,
        attributes.links,
        attributes.uid,
        attributes.gid,
        attributes.device,
        attributes.block_size,
    ];
    for (index, value) in narrow.into_iter().enumerate() {
        bytes[48 + index * 4..][..4].copy_from_slice(&value.to_ne_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, pipe};

    use super::*;
    use crate::message_fields::{FuseFh, FuseTime, NodeId};

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

    fn word(bytes: &[u8], at: usize) -> u64 {
        u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
    }

    #[test]
    fn an_entry_lies_as_the_kernel_reads_it() {
        let entry = EntryOut {
            node: NodeId(7),
            generation: 3,
            entry_valid: Duration::new(5, 6),
            attributes_valid: Duration::new(8, 9),
            attributes: FuseAttr {
                inode: 11,
                size: 12,
                blocks: 13,
                mtime: FuseTime { seconds: -1, nanoseconds: 14 },
                mode: 0o100_644,
                block_size: 4096,
                ..FuseAttr::default()
            },
        };
        let bytes = entry_bytes(&entry);
        assert_eq!([word(&bytes, 0), word(&bytes, 8), word(&bytes, 16), word(&bytes, 24)], [7, 3, 5, 8]);
        assert_eq!(bytes[32..36], 6_u32.to_ne_bytes());
        assert_eq!([word(&bytes, 40), word(&bytes, 48), word(&bytes, 56)], [11, 12, 13]);
        assert_eq!(word(&bytes, 40 + 32), u64::MAX, "times before 1970 are negative seconds");
        assert_eq!(bytes[40 + 60..40 + 64], 0o100_644_u32.to_ne_bytes());
        assert_eq!(bytes[40 + 80..40 + 84], 4096_u32.to_ne_bytes());
    }

    #[test]
    fn the_largest_small_reply_fits() {
        let mut reply = SmallReply::new();
        reply.entry(&EntryOut::missing(Duration::ZERO));
        reply.opened(&OpenOut { fh: FuseFh(1), flags: 0 });
        assert_eq!(reply.finish(9).len(), SMALL_BYTES_MAX);
    }

    #[test]
    fn errors_are_negated_and_notifications_are_not() {
        assert_eq!(header(0, 2, 1)[4..8], (-2_i32).to_ne_bytes());
        assert_eq!(notification_header(0, 3)[4..8], 3_i32.to_ne_bytes());
    }
}
