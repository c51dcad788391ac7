//! Output to a socket, and how much of it was written.

use std::{io::IoSlice, os::fd::OwnedFd};

use rustix::{io::Errno, net::SendFlags};

/// A record to send: its mark, header and arguments, and within them bulk data, which are sent
/// without a copy, with their padding.
#[derive(Clone, Copy, Default)]
pub(super) struct OutgoingRecord<'a> {
    parts: [&'a [u8]; 4],
}

impl<'a> OutgoingRecord<'a> {
    /// The first part begins with the record mark, whose length covers all parts.
    pub(super) const fn new(parts: [&'a [u8]; 4]) -> Self {
        Self { parts }
    }

    pub(super) const fn len(&self) -> usize {
        let [before, bulk, padding, behind] = self.parts;
        before.len() + bulk.len() + padding.len() + behind.len()
    }

    /// Appends all bytes after the first `skip` to `out`.
    pub(super) fn copy_rest(&self, skip: usize, out: &mut Vec<u8>) {
        for part in self.rest(skip) {
            out.extend_from_slice(part);
        }
    }

    fn rest(&self, mut skip: usize) -> [&'a [u8]; 4] {
        self.parts.map(|part| {
            let skipped = skip.min(part.len());
            skip -= skipped;
            &part[skipped..]
        })
    }
}

/// The output of the caller that has the writing role: first the pending bytes of others, then its
/// own record.
#[derive(Default)]
pub(super) struct RecordWriter {
    others: Vec<u8>,
    others_sent: usize,
    own_sent: usize,
    own: bool,
}

impl RecordWriter {
    /// Writes `others` first, then, if `own`, the caller's record.
    pub(super) fn new(others: Vec<u8>, own: bool) -> Self {
        Self { others, others_sent: 0, own_sent: 0, own }
    }

    /// Writes as much as the socket accepts; returns whether this was all of it.
    pub(super) fn push(&mut self, socket: &OwnedFd, own: &OutgoingRecord<'_>) -> Result<bool, Errno> {
        loop {
            let own = if self.own { *own } else { OutgoingRecord::default() };
            let [before, bulk, padding, behind] = own.rest(self.own_sent);
            let parts = [&self.others[self.others_sent..], before, bulk, padding, behind].map(IoSlice::new);
            let left: usize = parts.iter().map(|part| part.len()).sum();
            if left == 0 {
                return Ok(true);
            }
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match rustix::net::sendmsg(socket, &parts, &mut Default::default(), flags) {
                Ok(sent) => self.advance(sent),
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    fn advance(&mut self, sent: usize) {
        let of_others = sent.min(self.others.len() - self.others_sent);
        self.others_sent += of_others;
        self.own_sent += sent - of_others;
    }

    /// Whether the caller's record was written completely.
    pub(super) const fn own_done(&self, own: &OutgoingRecord<'_>) -> bool {
        self.own && self.own_sent == own.len()
    }

    /// Whether any byte of the caller's record was written.
    pub(super) const fn own_begun(&self) -> bool {
        self.own_sent > 0
    }

    /// The bytes that must still be sent when the caller leaves: a record that was begun is
    /// completed, others are dropped.
    pub(super) fn leave(mut self, own: &OutgoingRecord<'_>) -> Vec<u8> {
        self.others.drain(..self.others_sent);
        if self.own_sent > 0 {
            own.copy_rest(self.own_sent, &mut self.others);
        }
        self.others
    }
}

#[cfg(test)]
mod tests {
    use curt_xdr::{Encode, put_fixed};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

    use super::*;
    use crate::{
        connection::{BulkAtEnd, BulkData, CallArguments, RpcRequest},
        message::ProcedureId,
        security::credential::{CallFlavor, RpcCredential},
    };

    /// An opaque between two numbers, as its own encoding.
    struct Copied<'a>(&'a [u8]);

    impl Encode for Copied<'_> {
        fn encode(&self, out: &mut Vec<u8>) {
            Length(self.0).encode(out);
            put_fixed(out, self.0);
            0x0506_0708_u32.encode(out);
        }
    }

    struct Length<'a>(&'a [u8]);

    impl Encode for Length<'_> {
        fn encode(&self, out: &mut Vec<u8>) {
            0x0102_0304_u32.encode(out);
            u32::try_from(self.0.len()).unwrap_or(u32::MAX).encode(out);
        }
    }

    /// Arguments of one opaque, which is bulk data.
    struct Omitted<'a>(&'a [u8]);

    impl CallArguments for Omitted<'_> {
        fn encode_around<'a>(&'a self, out: &mut Vec<u8>) -> BulkData<'a> {
            Length(self.0).encode(out);
            let at = out.len();
            0x0506_0708_u32.encode(out);
            BulkData::new(at, self.0)
        }
    }

    /// The record of a call; what is not in the buffer is returned.
    fn encode<'a>(arguments: &'a dyn CallArguments, out: &mut Vec<u8>) -> BulkData<'a> {
        let procedure = ProcedureId { program: 1, version: 2, procedure: 3 };
        let request = RpcRequest::anonymous(procedure, arguments, 0);
        let flavor = CallFlavor::of(&RpcCredential::None);
        request.encode(out, 7, flavor.get())
    }

    /// The record of a call whose data are copied.
    fn copied(bytes: &[u8]) -> Vec<u8> {
        let mut record = Vec::new();
        assert_eq!(encode(&Copied(bytes), &mut record).encoded_len(), 0);
        record
    }

    fn written(length: u8) -> Vec<u8> {
        (0..length).collect()
    }

    #[test]
    fn bulk_data_are_sent_where_their_copy_would_be() {
        for length in 0..9 {
            let bytes = written(length);
            let (expected, arguments) = (copied(&bytes), Omitted(&bytes));
            let mut buffer = Vec::new();
            let bulk = encode(&arguments, &mut buffer);
            let record = OutgoingRecord::new(bulk.split(&buffer));
            assert_eq!(record.len(), expected.len());
            for skip in 0..=record.len() {
                let mut rest = Vec::new();
                record.copy_rest(skip, &mut rest);
                assert_eq!(rest, expected[skip..], "{length} bytes without the first {skip}");
            }
            bulk.copy_into(&mut buffer);
            assert_eq!(buffer, expected, "{length} bytes that are copied");
            let procedure = ProcedureId { program: 1, version: 2, procedure: 3 };
            let mut copy = vec![0xff; 3];
            RpcRequest::anonymous(procedure, &arguments, 0).copy_arguments(&mut copy);
            assert!(copy.starts_with(&[0xff; 3]) && expected.ends_with(&copy[3..]));
        }
    }

    #[test]
    fn bulk_data_at_the_end_are_padded() {
        let bytes = [9; 5];
        let arguments = BulkAtEnd { head: &Length(&bytes), bytes: &bytes };
        let (mut buffer, mut sent) = (Vec::new(), Vec::new());
        let bulk = encode(&arguments, &mut buffer);
        OutgoingRecord::new(bulk.split(&buffer)).copy_rest(0, &mut sent);
        // All but the number behind, and the record's length.
        let expected = copied(&bytes);
        assert_eq!(sent[4..], expected[4..expected.len() - 4]);
        assert_eq!(sent.len() - 4, usize::from(u16::from_be_bytes([sent[2], sent[3]])));
    }

    /// Two connected sockets; the first accepts little at a time.
    fn sockets() -> (OwnedFd, OwnedFd) {
        let flags = SocketFlags::CLOEXEC;
        let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let (ours, theirs) = pair.expect("a pair of sockets");
        sockopt::set_socket_send_buffer_size(&ours, 4096).expect("a small buffer");
        (ours, theirs)
    }

    /// Reads up to `most` bytes that have arrived.
    fn read(socket: &OwnedFd, most: usize, received: &mut Vec<u8>) {
        let mut bytes = vec![0; most];
        match rustix::net::recv(socket, &mut bytes[..], rustix::net::RecvFlags::DONTWAIT) {
            Ok((count, _)) => received.extend_from_slice(&bytes[..count]),
            Err(errno) => assert_eq!(errno, Errno::AGAIN),
        }
    }

    #[test]
    fn a_socket_that_accepts_little_at_a_time_gets_the_record_in_order() {
        let bytes: Vec<u8> = (0..100_003_u32).flat_map(u32::to_be_bytes).skip(1).collect();
        let arguments = Omitted(&bytes);
        let mut buffer = Vec::new();
        let bulk = encode(&arguments, &mut buffer);
        let record = OutgoingRecord::new(bulk.split(&buffer));
        let others = vec![0xee; 9001];
        let expected = [&*others, &copied(&bytes)].concat();
        let (ours, theirs) = sockets();
        let mut writer = RecordWriter::new(others, true);
        let (mut received, mut pushes) = (Vec::new(), 0);
        while !writer.push(&ours, &record).expect("the socket is open") {
            assert!(!writer.own_done(&record));
            read(&theirs, 1009, &mut received);
            pushes += 1;
        }
        assert!(pushes > 20 && writer.own_done(&record));
        while received.len() < expected.len() {
            read(&theirs, 4096, &mut received);
        }
        assert!(received == expected);
    }

    #[test]
    fn a_caller_that_leaves_wherever_its_record_is_has_the_rest_sent() {
        let bytes = written(7);
        let arguments = Omitted(&bytes);
        let mut buffer = Vec::new();
        let bulk = encode(&arguments, &mut buffer);
        let record = OutgoingRecord::new(bulk.split(&buffer));
        let expected = copied(&bytes);
        for sent in 0..=expected.len() {
            let mut writer = RecordWriter::new(vec![0xee; 3], true);
            writer.advance(3 + sent);
            assert_eq!(writer.own_begun(), sent > 0);
            let left = if sent > 0 { &expected[sent..] } else { &[] };
            assert_eq!(writer.leave(&record), left, "{sent} bytes were sent");
        }
    }
}
