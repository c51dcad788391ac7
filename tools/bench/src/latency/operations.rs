//! The operations: the prepared calls of each (a call is only copied, numbered and sent), the check
//! of the replies, and the system calls that each needs.
//!
//! A reply has to be a success, and to contain the data and the names that were written; written
//! data are read back at the end.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use curt_bench::content::ContentPattern;
use curt_proto::nfs3::{
    AccessArguments, Cookie, CookieVerf3, CreateArguments, CreateHow, DirOpArgs, DirectoryEntryPlus,
    Filename, NfsFh3, NfsProcedure, NfsStat3, PROGRAM, ReadArguments, ReadOk, ReaddirOk,
    ReaddirPlusArguments, Sattr, StableHow, VERSION, WriteArguments,
};
use curt_rpc::auth::RpcCredential;
use curt_rpc::message::{AcceptStatus, call_record, decode_reply_header};
use curt_rpc::record::MARK_SIZE;
use curt_types::{Access, FileHandle};
use curt_xdr::{Decode, Decoder, Encode, Opaque, decode_all};
use serde::{Deserialize, Serialize};

use super::echo::EchoWork;
use super::session::{self, LatencySession, OpenStateids};
use super::subject::{self, LatencyTree};

/// Size of a READ and a WRITE in bytes.
pub(super) const BLOCK_BYTES: usize = 4096;
/// Names in the directory that READDIRPLUS lists.
pub(super) const LISTED_NAMES: usize = 100;
/// Maximum number of connections of a shape.
pub(super) const CONNECTIONS_MAX: usize = 16;
/// Maximum number of operations in progress on one connection.
pub(super) const OUTSTANDING_MAX: usize = 64;

/// An operation that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[value(rename_all = "UPPER")]
pub(super) enum LatencyOperation {
    Getattr,
    Access,
    Lookup,
    Read,
    #[value(name = "WRITE UNSTABLE")]
    WriteUnstable,
    #[value(name = "WRITE FILE_SYNC")]
    WriteFileSync,
    Create,
    Remove,
    ReaddirPlus,
    Open,
    Close,
}

impl LatencyOperation {
    /// The procedure's name; for WRITE with its stability.
    pub(super) fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    pub(super) const fn writes(self) -> bool {
        matches!(self, Self::WriteUnstable | Self::WriteFileSync)
    }

    /// Whether it creates or removes a name, a different one in each call.
    pub(super) const fn changes_names(self) -> bool {
        matches!(self, Self::Create | Self::Remove)
    }

    /// The number of bytes of data that it transfers, if any.
    pub(super) fn bytes(self) -> Option<usize> {
        (self == Self::Read || self.writes()).then_some(BLOCK_BYTES)
    }
}

/// Bits of the xid that contain the slot; the others are a counter.
const SLOT_BITS: u32 = 8;
/// The offset of the reply in a record, after record mark and xid.
const REPLY_AT: usize = MARK_SIZE + 4;
/// Digits of a name that is created and removed, and of the owner of an OPEN.
pub(super) const NAME_DIGITS: usize = 8;
/// Size of a stateid in bytes.
const STATEID: usize = 16;
/// Maximum size of a listing in bytes: all names fit in one reply.
const LISTING_BYTES: u32 = 64 << 10;

/// The contents of files: they differ in each block and each generation.
pub(super) fn block(number: usize, generation: u64, bytes: usize) -> Vec<u8> {
    let mut block = vec![0; bytes];
    ContentPattern::of(format!("{number} {generation}").as_bytes()).fill(0, &mut block);
    block
}

/// A call of NFS as a record; the xid is set when it is sent.
pub(crate) fn call(credential: &RpcCredential, procedure: NfsProcedure, arguments: &dyn Encode) -> Vec<u8> {
    call_record(0, PROGRAM, VERSION, procedure.number(), credential, arguments)
}

/// A READ of so many bytes.
pub(crate) fn read(credential: &RpcCredential, file: NfsFh3, offset: usize, count: usize) -> Result<Vec<u8>> {
    let (offset, count) = (offset as u64, u32::try_from(count)?);
    let arguments = ReadArguments { file, offset, count };
    Ok(call(credential, NfsProcedure::Read, &arguments))
}

/// A WRITE of `data`.
pub(super) fn write(
    credential: &RpcCredential,
    file: NfsFh3,
    offset: usize,
    stable: StableHow,
    data: &[u8],
) -> Result<Vec<u8>> {
    let (offset, count, data) = (offset as u64, u32::try_from(data.len())?, Opaque::new(data)?);
    Ok(call(credential, NfsProcedure::Write, &WriteArguments { file, offset, count, stable, data }))
}

/// The calls of one connection, one for each slot.
pub(crate) struct PreparedCalls {
    slots: Vec<Vec<u8>>,
    /// The offset of the name in a call, if it differs between calls: it ends in digits.
    name: Option<Range<usize>>,
    next_name: u32,
    next_number: u32,
    /// The parts that differ between calls in a session.
    session: Option<SessionCalls>,
}

/// The parts that differ between the calls in a session.
struct SessionCalls {
    /// The offset of the sequence id in a call.
    sequence_at: usize,
    /// The sequence ids of the last calls, by slot.
    sequences: Vec<u32>,
    /// For CLOSE: the offset of the stateid in a call, and the opens that are left.
    closed: Option<(usize, OpenStateids)>,
}

impl PreparedCalls {
    /// Constant calls.
    pub(crate) fn ready(slots: Vec<Vec<u8>>) -> Self {
        Self { slots, name: None, next_name: 0, next_number: 1, session: None }
    }

    /// Calls of `operation` on the objects of connection `connection` in `tree`.
    pub(super) fn new(
        operation: LatencyOperation,
        tree: &LatencyTree,
        connection: usize,
        slots_count: usize,
        generation: u64,
    ) -> Result<Self> {
        let (wire, made) = (|handle: &FileHandle| NfsFh3::new(handle.as_bytes()), made_name(connection));
        let [file, written] = &tree.files[connection];
        let (file, written, credential) = (wire(file)?, wire(written)?, tree.export.credential());
        let call = |procedure, arguments: &dyn Encode| Ok(call(credential, procedure, arguments));
        let write = |slot, stable| {
            let (offset, data) = (slot * BLOCK_BYTES, block(slot, generation, BLOCK_BYTES));
            write(credential, written, offset, stable, &data)
        };
        let call_of = |slot| match operation {
            LatencyOperation::Getattr => call(NfsProcedure::Getattr, &file),
            LatencyOperation::Access => {
                let (object, access) = (file, Access::ALL.bits());
                call(NfsProcedure::Access, &AccessArguments { object, access })
            }
            LatencyOperation::Lookup => {
                let name = subject::file_name(connection);
                call(NfsProcedure::Lookup, &named(wire(&tree.directory)?, name.as_bytes())?)
            }
            LatencyOperation::Read => read(credential, file, slot * BLOCK_BYTES, BLOCK_BYTES),
            LatencyOperation::WriteUnstable => write(slot, StableHow::Unstable),
            LatencyOperation::WriteFileSync => write(slot, StableHow::FileSync),
            LatencyOperation::Create => {
                let place = named(wire(&tree.made)?, &made)?;
                let how = CreateHow::Guarded(Sattr { mode: Some(0o644), ..Sattr::default() });
                call(NfsProcedure::Create, &CreateArguments { place, how })
            }
            LatencyOperation::Remove => call(NfsProcedure::Remove, &named(wire(&tree.made)?, &made)?),
            LatencyOperation::ReaddirPlus => {
                let (directory, cookie, verifier) = (wire(&tree.listed)?, Cookie(0), CookieVerf3([0; 8]));
                let (directory_count, max_count) = (LISTING_BYTES, LISTING_BYTES);
                let listing =
                    ReaddirPlusArguments { directory, cookie, verifier, directory_count, max_count };
                call(NfsProcedure::ReaddirPlus, &listing)
            }
            LatencyOperation::Open | LatencyOperation::Close => bail!("NFSv3 has no {}", operation.name()),
        };
        let mut calls = Self::ready((0..slots_count).map(call_of).collect::<Result<_>>()?);
        if operation.changes_names() {
            calls.name = Some(find(calls.sample(), &made)?);
        }
        Ok(calls)
    }

    /// Calls of `operation` in a session; `opened` are the opens that its CLOSEs end.
    pub(super) fn in_session(
        operation: LatencyOperation,
        session: &LatencySession<'_>,
        opened: &OpenStateids,
        connection: usize,
        generation: u64,
    ) -> Result<Self> {
        let slots = 0..session.sequences().len();
        let mut calls =
            Self::ready(slots.map(|slot| session.call(operation, slot, generation)).collect::<Result<_>>()?);
        let call = calls.sample();
        let name = (operation == LatencyOperation::Open)
            .then(|| find(call, &session::open_owner(connection)))
            .transpose()?;
        // The stateid is the end of the call.
        let closed = (operation == LatencyOperation::Close)
            .then(|| (call.len() - STATEID, OpenStateids::clone(opened)));
        let sequence_at = find(call, session.id())?.end;
        let sequences = session.sequences().to_vec();
        calls.name = name;
        calls.session = Some(SessionCalls { sequence_at, sequences, closed });
        Ok(calls)
    }

    /// Maximum number of calls in progress.
    pub(super) fn slots_count(&self) -> usize {
        self.slots.len()
    }

    /// The first call.
    pub(super) fn sample(&self) -> &[u8] {
        &self.slots[0]
    }

    /// Appends the next call of `slot` and returns its xid.
    pub(super) fn put(&mut self, slot: usize, out: &mut Vec<u8>) -> u32 {
        let own = u8::try_from(slot).expect("a connection has at most 256 slots");
        let number = (self.next_number << SLOT_BITS) | u32::from(own);
        self.next_number = (self.next_number + 1) & (u32::MAX >> SLOT_BITS);
        let start = out.len();
        out.extend_from_slice(&self.slots[slot]);
        out[start + MARK_SIZE..start + MARK_SIZE + 4].copy_from_slice(&number.to_be_bytes());
        if let Some(name) = &self.name {
            let mut digits = &mut out[start + name.end - NAME_DIGITS..start + name.end];
            write!(digits, "{:0NAME_DIGITS$x}", self.next_name).expect("a number has at most eight digits");
            self.next_name += 1;
        }
        if let Some(session) = &mut self.session {
            session.number(slot, &mut out[start..]);
        }
        number
    }

    /// The system calls that `operation` needs for these calls, of which `reply` is the first
    /// reply; the tree of connection `connection` is at `directory`.
    pub(super) fn work(
        &self,
        operation: LatencyOperation,
        directory: &Path,
        connection: usize,
        reply: &[u8],
    ) -> Result<EchoWork> {
        let (call, file) = (self.sample(), subject::file_name(connection));
        let (name, offset_at, data) = match operation {
            LatencyOperation::Getattr | LatencyOperation::Access | LatencyOperation::Close => (file, 0, 0..0),
            // The offset and the count are the end of the call.
            LatencyOperation::Read => (file, call.len() - 12, find(reply, &block(0, 0, BLOCK_BYTES))?),
            // Offset, count in NFSv3, stability, length and data are the end of the call.
            LatencyOperation::WriteUnstable | LatencyOperation::WriteFileSync => {
                let data_at = call.len() - BLOCK_BYTES;
                let head = if self.session.is_some() { 16 } else { 20 };
                (subject::written_name(connection), data_at - head, data_at..call.len())
            }
            LatencyOperation::Lookup | LatencyOperation::Open => {
                (String::new(), 0, find(call, file.as_bytes())?)
            }
            LatencyOperation::Create | LatencyOperation::Remove => {
                let name = self.name.clone();
                (subject::MADE.to_owned(), 0, name.context("the call has no name")?)
            }
            LatencyOperation::ReaddirPlus => (subject::LISTED.to_owned(), 0, 0..0),
        };
        Ok(EchoWork { operation, path: directory.join(name), offset_at, data })
    }
}

impl SessionCalls {
    /// Numbers the next call of a slot.
    fn number(&mut self, slot: usize, call: &mut [u8]) {
        let sequence = &mut self.sequences[slot];
        *sequence += 1;
        call[self.sequence_at..self.sequence_at + 4].copy_from_slice(&sequence.to_be_bytes());
        if let Some((at, opened)) = &self.closed {
            // Without an open left, the server refuses the call.
            let stateid = opened.borrow_mut().pop_front().unwrap_or_default();
            call[*at..*at + 4].copy_from_slice(&stateid.seqid.to_be_bytes());
            call[*at + 4..*at + STATEID].copy_from_slice(&stateid.other);
        }
    }
}

/// The slot of the call with this xid.
pub(super) const fn slot_of(number: u32) -> usize {
    (number & ((1 << SLOT_BITS) - 1)) as usize
}

/// The first name of a connection; the others differ in the digits at the end.
fn made_name(connection: usize) -> Vec<u8> {
    format!("made-{connection:02}-{:0NAME_DIGITS$x}", 0).into_bytes()
}

fn find(record: &[u8], part: &[u8]) -> Result<Range<usize>> {
    let at = record.windows(part.len()).position(|window| window == part);
    let at = at.context("a record without its data or name")?;
    Ok(at..at + part.len())
}

fn named(directory: NfsFh3, name: &[u8]) -> Result<DirOpArgs<'_>> {
    Ok(DirOpArgs { directory, name: Filename::new(name)? })
}

/// The check of the replies of one connection.
pub(crate) enum ReplyChecks {
    /// The replies equal this record, except the xid: an echo.
    Same(Vec<u8>),
    Success,
    /// READs, which return these data of each slot.
    Data(Vec<Vec<u8>>),
    /// The data of the operation in a session.
    SessionData(Vec<Vec<u8>>),
    /// OPENs, whose stateids are kept.
    Opened(OpenStateids),
    /// Listings of the created names. The last one that was checked, without its record mark and
    /// xid: its repetition is correct.
    Listing(Vec<u8>),
}

impl ReplyChecks {
    /// For the replies to calls of `operation`.
    pub(super) fn new(operation: LatencyOperation, slots_count: usize) -> Self {
        match operation {
            LatencyOperation::Read => {
                Self::Data((0..slots_count).map(|slot| block(slot, 0, BLOCK_BYTES)).collect())
            }
            LatencyOperation::ReaddirPlus => Self::Listing(Vec::new()),
            _ => Self::Success,
        }
    }

    /// For the replies to calls of `operation` in a session.
    pub(super) fn in_session(operation: LatencyOperation, slots_count: usize, opened: &OpenStateids) -> Self {
        match (operation, Self::new(operation, slots_count)) {
            (LatencyOperation::Open, _) => Self::Opened(OpenStateids::clone(opened)),
            (_, Self::Data(blocks)) => Self::SessionData(blocks),
            (_, checks) => checks,
        }
    }

    /// Checks the reply to the call with this xid.
    #[inline]
    pub(super) fn check(&mut self, number: u32, record: &[u8]) -> Result<()> {
        let bytes = &record[REPLY_AT..];
        match self {
            Self::Same(reply) => ensure!(reply[REPLY_AT..] == *bytes, "the echo came back changed"),
            Self::Success => ensure!(results(record)?.starts_with(&[0; 4]), "a call failed"),
            Self::Data(blocks) => {
                let reply = decoded::<ReadOk<'_>>(record)?;
                let is_same = reply.data.bytes() == blocks[slot_of(number)];
                ensure!(is_same, "other data than were written");
            }
            Self::SessionData(blocks) => {
                let is_success = results(record)?.starts_with(&[0; 4]);
                // The data are the end of the reply.
                let is_same = record.ends_with(&blocks[slot_of(number)]);
                ensure!(is_success && is_same, "other data than were written");
            }
            Self::Opened(opened) => opened.borrow_mut().push_back(session::opened(record)?),
            Self::Listing(checked) if checked == bytes => {}
            Self::Listing(checked) => {
                check_listing(record)?;
                bytes.clone_into(checked);
            }
        }
        Ok(())
    }
}

/// The results in a record, if the call was executed.
pub(super) fn results(record: &[u8]) -> Result<&[u8]> {
    let mut decoder = Decoder::new(&record[MARK_SIZE..]);
    match decode_reply_header(&mut decoder)?.outcome {
        Ok(AcceptStatus::Success) => Ok(decoder.remaining()),
        other => bail!("the server refuses the call: {other:?}"),
    }
}

/// The results in a record, if it is a success.
fn decoded<'a, T: Decode<'a>>(record: &'a [u8]) -> Result<T> {
    let mut decoder = Decoder::new(results(record)?);
    let status = decoder.get::<NfsStat3>()?;
    ensure!(status == NfsStat3::Ok, "status {status:?}");
    Ok(decode_all(decoder.remaining())?)
}

fn check_listing(record: &[u8]) -> Result<()> {
    let mut entries = decoded::<ReaddirOk<'_, DirectoryEntryPlus<'_>>>(record)?.entries;
    let mut names = BTreeSet::new();
    for entry in entries.by_ref() {
        let entry = entry?;
        let (name, is_whole) = (entry.name.bytes(), entry.handle.is_some() && entry.attributes.is_some());
        if name != b"." && name != b".." {
            ensure!(is_whole, "a name without its handle and attributes");
            ensure!(names.insert(name.to_vec()), "a name is listed twice");
        }
    }
    let made = (0..LISTED_NAMES).map(|number| subject::listed_name(number).into_bytes());
    ensure!(entries.eof() == Some(true), "the listing is not whole");
    ensure!(names == made.collect(), "other names than were made");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_tell_their_slot_and_differ() {
        let mut calls = PreparedCalls::ready(vec![vec![0; 40]; 3]);
        let mut out = Vec::new();
        let (one, other) = (calls.put(2, &mut out), calls.put(2, &mut out));
        assert_ne!(one, other);
        assert_eq!((slot_of(one), slot_of(other), out.len()), (2, 2, 80));
        assert_eq!(out[4..8], one.to_be_bytes());
        calls.name = Some(20..40);
        (0..18).for_each(|_| _ = calls.put(0, &mut out));
        assert!(out.ends_with(b"\0\0\0\x0000000011"), "names count in hexadecimal digits");
    }

    #[test]
    fn blocks_and_generations_differ() {
        assert_ne!(block(0, 0, 64), block(1, 0, 64));
        assert_ne!(block(0, 0, 64), block(0, 1, 64));
        assert_eq!(block(5, 7, 80)[..64], block(5, 7, 64));
    }

    #[test]
    fn operations_are_parsed_as_they_are_printed() {
        for operation in LatencyOperation::value_variants() {
            let name = operation.name();
            let told = LatencyOperation::from_str(&name.to_lowercase(), true);
            assert_eq!(told, Ok(*operation));
        }
        assert!(LatencyOperation::from_str("GETATT", true).is_err());
    }
}
