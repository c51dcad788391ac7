//! Record marking: messages in a stream (RFC 5531 section 11).
//!
//! Handles the four-byte marks, and joins fragments in place. Invariants: a record's bytes are
//! contiguous, without a copy if it is one fragment; at most the record's limit is received; empty
//! fragments cannot block a reader.

pub(crate) mod buffer_pool;
pub(crate) mod receive_buffer;

/// The size of a fragment's mark in bytes.
pub const MARK_SIZE: usize = 4;

/// Maximum number of fragments of one record. Peers send one, or one for each few kilobytes.
pub const FRAGMENTS_MAX: u32 = 4096;

const LAST: u32 = 1 << 31;

/// Writes the mark of a record of one fragment.
///
/// # Panics
/// If `length` does not fit 31 bits; records of this side are far shorter.
#[must_use]
pub fn record_mark(length: usize) -> [u8; MARK_SIZE] {
    let length = u32::try_from(length).expect("a record is shorter than 2 GiB");
    assert!(length < LAST, "a record is shorter than 2 GiB");
    (LAST | length).to_be_bytes()
}

/// Reserves space for a mark that [`finish_record`] fills in; returns the start of the record's
/// body.
pub fn begin_record(out: &mut Vec<u8>) -> usize {
    out.extend_from_slice(&[0; MARK_SIZE]);
    out.len()
}

/// Fills in the mark of the record whose body starts at `body` and ends `beyond` bytes after the
/// end of `out`.
pub fn finish_record(out: &mut [u8], body: usize, beyond: usize) {
    let length = out.len() - body + beyond;
    out[body - MARK_SIZE..body].copy_from_slice(&record_mark(length));
}

/// Why a stream is no longer a sequence of records: the bytes after it cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// A record is longer than allowed.
    #[error("a record of at least {length} bytes is above the limit of {limit}")]
    TooLong {
        /// The length announced so far.
        length: usize,
        /// The limit.
        limit: usize,
    },
    /// A record has more than [`FRAGMENTS_MAX`] fragments.
    #[error("a record of more than {FRAGMENTS_MAX} fragments")]
    TooManyFragments,
}

/// The state of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordProgress {
    /// At least this many more bytes are needed (at least 1).
    Needs(usize),
    /// The record is complete: its body is `bytes[MARK_SIZE..MARK_SIZE + body]`, and the next
    /// record starts at `consumed`.
    Complete {
        /// The length of the body.
        body: usize,
        /// The length of the record, marks included.
        consumed: usize,
    },
}

/// Joins the fragments of one record, in its receive buffer.
#[derive(Clone, Copy, Debug, Default)]
pub struct RecordAssembler {
    /// Number of joined bytes of the body, from `MARK_SIZE`.
    body: usize,
    /// The position of the next mark.
    next: usize,
    fragments: u32,
}

impl RecordAssembler {
    /// Processes `bytes`, which starts with the record's first mark; fragments after the first are
    /// moved to the end of the body. `limit` returns the maximum length of the body, given its
    /// first bytes; it is called before more bytes are requested.
    ///
    /// # Errors
    /// [`RecordError`]; the stream cannot be used any further.
    pub fn advance(
        &mut self,
        bytes: &mut [u8],
        mut limit: impl FnMut(&[u8]) -> usize,
    ) -> Result<RecordProgress, RecordError> {
        loop {
            // Checked here, so that a repeated call returns the same error.
            if self.fragments >= FRAGMENTS_MAX {
                return Err(RecordError::TooManyFragments);
            }
            let Some(mark) = bytes.get(self.next..).and_then(|rest| rest.first_chunk::<MARK_SIZE>()) else {
                return Ok(RecordProgress::Needs(self.next + MARK_SIZE - bytes.len()));
            };
            let word = u32::from_be_bytes(*mark);
            let length = usize::try_from(word & !LAST).unwrap_or(usize::MAX);
            let start = self.next + MARK_SIZE;
            let have = (bytes.len() - start).min(length);
            let total = self.body + length;
            let allowed = limit(self.beginning(bytes, start, have));
            if total > allowed {
                return Err(RecordError::TooLong { length: total, limit: allowed });
            }
            if have < length {
                return Ok(RecordProgress::Needs(length - have));
            }
            if start != MARK_SIZE + self.body {
                bytes.copy_within(start..start + length, MARK_SIZE + self.body);
            }
            self.body = total;
            self.next = start + length;
            self.fragments += 1;
            if word & LAST != 0 {
                return Ok(RecordProgress::Complete { body: self.body, consumed: self.next });
            }
        }
    }

    /// The contiguous bytes at the start of the body.
    fn beginning<'b>(&self, bytes: &'b [u8], start: usize, have: usize) -> &'b [u8] {
        if self.body == 0 { &bytes[start..start + have] } else { &bytes[MARK_SIZE..MARK_SIZE + self.body] }
    }
}
