//! Output to a socket, and how much of it was written.

use std::{io::IoSlice, os::fd::OwnedFd};

use rustix::{io::Errno, net::SendFlags};

/// A record to send: its mark, header and arguments, and bulk data that are sent without a copy.
#[derive(Clone, Copy)]
pub(super) struct OutgoingRecord<'a> {
    head: &'a [u8],
    bulk: &'a [u8],
    padding: &'static [u8],
}

impl<'a> OutgoingRecord<'a> {
    /// `head` includes the record mark, whose length covers `bulk` and its padding.
    pub(super) const fn new(head: &'a [u8], bulk: &'a [u8], padding: &'static [u8]) -> Self {
        Self { head, bulk, padding }
    }

    pub(super) const fn len(&self) -> usize {
        self.head.len() + self.bulk.len() + self.padding.len()
    }

    /// Appends all bytes after the first `skip` to `out`.
    pub(super) fn copy_rest(&self, skip: usize, out: &mut Vec<u8>) {
        for part in self.rest(skip) {
            out.extend_from_slice(part);
        }
    }

    fn rest(&self, mut skip: usize) -> [&'a [u8]; 3] {
        [self.head, self.bulk, self.padding].map(|part| {
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
            let [head, bulk, padding] = if self.own { own.rest(self.own_sent) } else { [&[][..]; 3] };
            let parts = [&self.others[self.others_sent..], head, bulk, padding].map(IoSlice::new);
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
