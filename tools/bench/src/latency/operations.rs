//! The operations: the prepared calls of each (a call is only copied, numbered and sent), the
//! expected replies, and the system calls that each needs.
//!
//! A reply is correct if it equals one that was decoded and checked; a different one is decoded. So
//! every byte is checked, and the work is the same for every server.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use curt_bench::content::ContentPattern;
use curt_proto::nfs3::{
    AccessArguments, AccessMask, AccessOk, Cookie, CookieVerf3, CreateArguments, CreateHow, CreateOk,
    DirOpArgs, DirectoryEntryPlus, Fattr, Filename, LookupOk, NfsFh3, NfsProcedure, NfsStat3, PROGRAM,
    ReadArguments, ReadOk, ReaddirOk, ReaddirPlusArguments, Sattr, StableHow, VERSION, WccData,
    WriteArguments, WriteOk,
};
use curt_rpc::auth::RpcCredential;
use curt_rpc::message::{AcceptStatus, decode_reply_header, encode_call_header};
use curt_rpc::record::{self, MARK_SIZE};
use curt_xdr::{Decode, Decoder, Encode, Opaque, decode_all};

use super::echo::EchoWork;
use super::load::{BLOCK_BYTES, LISTED_NAMES, LatencyOperation};
use super::tree::{self, LatencyTree};

/// Bits of the xid that contain the slot; the others are a counter.
const SLOT_BITS: u32 = 8;
/// Digits of a name that is created and removed.
const NAME_DIGITS: usize = 8;
/// Maximum size of a listing in bytes: all names fit in one reply.
const LISTING_BYTES: u32 = 64 << 10;

/// The contents of files: they differ in each block and each generation.
pub(super) fn block(number: usize, generation: u64, bytes: usize) -> Vec<u8> {
    let mut block = vec![0; bytes];
    ContentPattern::of(format!("{number} {generation}").as_bytes()).fill(0, &mut block);
    block
}

/// A call of NFS as a record; the xid is set when it is sent.
pub(super) fn call(credential: &RpcCredential, procedure: NfsProcedure, arguments: &dyn Encode) -> Vec<u8> {
    let mut out = Vec::new();
    let body = record::begin_record(&mut out);
    encode_call_header(&mut out, 0, PROGRAM, VERSION, procedure.number(), credential);
    arguments.encode(&mut out);
    record::finish_record(&mut out, body, 0);
    out
}

/// A READ of so many bytes.
pub(super) fn read(credential: &RpcCredential, file: NfsFh3, offset: usize, count: usize) -> Result<Vec<u8>> {
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
    let arguments = WriteArguments {
        file,
        offset: offset as u64,
        count: u32::try_from(data.len())?,
        stable,
        data: Opaque::new(data)?,
    };
    Ok(call(credential, NfsProcedure::Write, &arguments))
}

/// The calls of one connection, one for each slot.
pub(super) struct PreparedCalls {
    slots: Vec<Vec<u8>>,
    /// The offset of the name in a call, if it differs between calls: it ends in digits.
    name: Option<Range<usize>>,
    next_name: u32,
    next_number: u32,
}

impl PreparedCalls {
    /// Constant calls.
    pub(super) fn ready(slots: Vec<Vec<u8>>) -> Self {
        Self { slots, name: None, next_name: 0, next_number: 1 }
    }

    /// Calls of `operation` on the objects of connection `connection` in `tree`.
    pub(super) fn new(
        operation: LatencyOperation,
        tree: &LatencyTree,
        connection: usize,
        slots_count: usize,
        credential: &RpcCredential,
        generation: u64,
    ) -> Result<Self> {
        let ([file, written], made) = (tree.files[connection], made_name(connection));
        let call = |procedure, arguments: &dyn Encode| Ok(call(credential, procedure, arguments));
        let write = |slot, stable| {
            let (offset, data) = (slot * BLOCK_BYTES, block(slot, generation, BLOCK_BYTES));
            write(credential, written, offset, stable, &data)
        };
        let call_of = |slot| match operation {
            LatencyOperation::Getattr => call(NfsProcedure::Getattr, &file),
            LatencyOperation::Access => {
                let (object, access) = (file, AccessMask::ALL);
                call(NfsProcedure::Access, &AccessArguments { object, access })
            }
            LatencyOperation::Lookup => {
                let name = tree::file_name(connection);
                call(NfsProcedure::Lookup, &named(tree.directory, name.as_bytes())?)
            }
            LatencyOperation::Read => read(credential, file, slot * BLOCK_BYTES, BLOCK_BYTES),
            LatencyOperation::WriteUnstable => write(slot, StableHow::Unstable),
            LatencyOperation::WriteFileSync => write(slot, StableHow::FileSync),
            LatencyOperation::Create => {
                let place = named(tree.made, &made)?;
                let how = CreateHow::Guarded(Sattr { mode: Some(0o644), ..Sattr::default() });
                call(NfsProcedure::Create, &CreateArguments { place, how })
            }
            LatencyOperation::Remove => call(NfsProcedure::Remove, &named(tree.made, &made)?),
            LatencyOperation::ReaddirPlus => {
                let listing = ReaddirPlusArguments {
                    directory: tree.listed,
                    cookie: Cookie(0),
                    verifier: CookieVerf3([0; 8]),
                    directory_count: LISTING_BYTES,
                    max_count: LISTING_BYTES,
                };
                call(NfsProcedure::ReaddirPlus, &listing)
            }
        };
        let mut calls = Self::ready((0..slots_count).map(call_of).collect::<Result<_>>()?);
        if operation.changes_names() {
            calls.name = Some(find(calls.sample(), &made)?);
        }
        Ok(calls)
    }

    /// Maximum number of calls in progress.
    pub(super) fn slots_count(&self) -> usize {
        self.slots.len()
    }

    /// The length of a slot's calls, in bytes.
    pub(super) fn length(&self, slot: usize) -> usize {
        self.slots[slot].len()
    }

    /// The first call.
    pub(super) fn sample(&self) -> &[u8] {
        &self.slots[0]
    }

    /// Restarts the names: the created ones are removed now.
    pub(super) fn rewind(&mut self) {
        self.next_name = 0;
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
            put_digits(&mut out[start + name.end - NAME_DIGITS..start + name.end], self.next_name);
            self.next_name += 1;
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
        let (call, file) = (self.sample(), tree::file_name(connection));
        let (name, offset_at, data) = match operation {
            LatencyOperation::Getattr | LatencyOperation::Access => (file, 0, 0..0),
            // The offset and the count are the end of the call.
            LatencyOperation::Read => (file, call.len() - 12, find(reply, &block(0, 0, BLOCK_BYTES))?),
            // Offset, count, stability, length and data are the end of the call.
            LatencyOperation::WriteUnstable | LatencyOperation::WriteFileSync => {
                let data_at = call.len() - BLOCK_BYTES;
                (tree::written_name(connection), data_at - 20, data_at..call.len())
            }
            LatencyOperation::Lookup => (String::new(), 0, find(call, file.as_bytes())?),
            LatencyOperation::Create | LatencyOperation::Remove => {
                let name = self.name.clone();
                (tree::MADE.to_owned(), 0, name.context("the call has no name")?)
            }
            LatencyOperation::ReaddirPlus => (tree::LISTED.to_owned(), 0, 0..0),
        };
        Ok(EchoWork { operation, path: directory.join(name), offset_at, data })
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

fn put_digits(digits: &mut [u8], number: u32) {
    for (position, digit) in digits.iter_mut().rev().enumerate() {
        *digit = b"0123456789abcdef"[(number >> (4 * position)) as usize & 15];
    }
}

fn find(record: &[u8], part: &[u8]) -> Result<Range<usize>> {
    let at = record.windows(part.len()).position(|window| window == part);
    let at = at.context("a record without its data or name")?;
    Ok(at..at + part.len())
}

pub(super) fn named(directory: NfsFh3, name: &[u8]) -> Result<DirOpArgs<'_>> {
    Ok(DirOpArgs { directory, name: Filename::new(name)? })
}

/// The expected replies of one connection.
#[derive(Clone, Copy)]
enum ExpectedReply {
    /// These bytes, as from an echo.
    Known,
    /// Any success.
    Success,
    /// The correct reply to this operation.
    Of(LatencyOperation),
}

/// Checks the replies of one connection.
pub(super) struct ReplyChecks {
    expected: ExpectedReply,
    /// The result of LOOKUP.
    found: Option<NfsFh3>,
    /// For READ: each slot's data.
    blocks: Vec<Vec<u8>>,
    /// The length of each READ and WRITE, and the size of the file.
    block_bytes: usize,
    file_bytes: u64,
    /// The last correct reply of each slot, without its record mark and xid.
    verified: Vec<Vec<u8>>,
}

impl ReplyChecks {
    fn expecting(expected: ExpectedReply, slots_count: usize) -> Self {
        Self {
            expected,
            found: None,
            blocks: Vec::new(),
            block_bytes: BLOCK_BYTES,
            file_bytes: tree::FILE_BYTES,
            verified: vec![Vec::new(); slots_count],
        }
    }

    /// For the replies to calls of `operation`.
    pub(super) fn new(
        operation: LatencyOperation,
        tree: &LatencyTree,
        connection: usize,
        slots_count: usize,
    ) -> Self {
        Self {
            found: Some(tree.files[connection][0]),
            blocks: (0..slots_count).map(|slot| block(slot, 0, BLOCK_BYTES)).collect(),
            ..Self::expecting(ExpectedReply::Of(operation), slots_count)
        }
    }

    /// For replies that equal this record, except the xid.
    pub(super) fn echo(record: &[u8], slots_count: usize) -> Self {
        Self {
            verified: vec![record[MARK_SIZE + 4..].to_vec(); slots_count],
            ..Self::expecting(ExpectedReply::Known, 0)
        }
    }

    /// For replies that are a success and may differ otherwise.
    pub(super) fn success() -> Self {
        Self::expecting(ExpectedReply::Success, 0)
    }

    /// For READs of a whole file of these blocks, or for unstable WRITEs of them.
    pub(super) fn of_file(operation: LatencyOperation, blocks: Vec<Vec<u8>>, block_bytes: usize) -> Self {
        Self {
            block_bytes,
            file_bytes: (blocks.len() * block_bytes) as u64,
            verified: vec![Vec::new(); blocks.len()],
            blocks,
            ..Self::expecting(ExpectedReply::Of(operation), 0)
        }
    }

    /// Checks the reply to the call with this xid.
    #[inline]
    pub(super) fn check(&mut self, number: u32, record: &[u8]) -> Result<()> {
        let (slot, bytes) = (slot_of(number), &record[MARK_SIZE + 4..]);
        let operation = match self.expected {
            ExpectedReply::Success => {
                ensure!(results(record)?.starts_with(&[0; 4]), "a call failed");
                return Ok(());
            }
            _ if self.verified[slot] == bytes => return Ok(()),
            ExpectedReply::Known => bail!("the echo came back changed"),
            ExpectedReply::Of(operation) => operation,
        };
        self.decode(operation, slot, record)?;
        // Replies to changes never repeat, so they are not cached.
        if !operation.writes() && !operation.changes_names() {
            self.verified[slot].clear();
            self.verified[slot].extend_from_slice(bytes);
        }
        Ok(())
    }

    fn decode(&self, operation: LatencyOperation, slot: usize, record: &[u8]) -> Result<()> {
        match operation {
            LatencyOperation::Getattr => is_file(Some(&decoded::<Fattr>(record)?)),
            LatencyOperation::Access => {
                let reply = decoded::<AccessOk>(record)?;
                // Read, modify and extend: the rights of the owner of a file of mode 0644, and only
                // requested ones.
                let granted = reply.access.0;
                ensure!(granted & 0x0d == 0x0d && granted <= 0x3f, "access {granted:#x}");
                is_file(reply.attributes.as_ref())
            }
            LatencyOperation::Lookup => {
                let reply = decoded::<LookupOk>(record)?;
                ensure!(Some(reply.object) == self.found, "another handle than before");
                is_file(reply.attributes.as_ref())
            }
            LatencyOperation::Read => {
                let reply = decoded::<ReadOk<'_>>(record)?;
                let is_whole = usize::try_from(reply.count)? == self.block_bytes;
                let is_same = is_whole && reply.data.bytes() == self.blocks[slot];
                ensure!(is_same, "other data than were written");
                let at_end = ((slot + 1) * self.block_bytes) as u64 >= self.file_bytes;
                ensure!(reply.eof == at_end, "end of file: {}", reply.eof);
                Ok(())
            }
            LatencyOperation::WriteUnstable | LatencyOperation::WriteFileSync => {
                let reply = decoded::<WriteOk>(record)?;
                let written = usize::try_from(reply.count)?;
                ensure!(written == self.block_bytes, "{written} bytes written");
                let is_stable = reply.committed == StableHow::FileSync;
                let is_enough = is_stable || operation == LatencyOperation::WriteUnstable;
                ensure!(is_enough, "committed as {:?}", reply.committed);
                Ok(())
            }
            LatencyOperation::Create => {
                let reply = decoded::<CreateOk>(record)?;
                ensure!(reply.object.is_some(), "no handle of the new file");
                Ok(())
            }
            LatencyOperation::Remove => decoded::<WccData>(record).map(drop),
            LatencyOperation::ReaddirPlus => is_listing(record),
        }
    }
}

/// The results in a record, if the call was executed.
fn results(record: &[u8]) -> Result<&[u8]> {
    let mut decoder = Decoder::new(&record[MARK_SIZE..]);
    match decode_reply_header(&mut decoder)?.outcome {
        Ok(AcceptStatus::Success) => Ok(decoder.remaining()),
        other => bail!("the server refuses the call: {other:?}"),
    }
}

/// The results in a record, if it is a success.
pub(super) fn decoded<'a, T: Decode<'a>>(record: &'a [u8]) -> Result<T> {
    let mut decoder = Decoder::new(results(record)?);
    let status = decoder.get::<NfsStat3>()?;
    ensure!(status == NfsStat3::Ok, "status {status:?}");
    Ok(decode_all(decoder.remaining())?)
}

fn is_file(attributes: Option<&Fattr>) -> Result<()> {
    let Fattr { size, mode, nlink, .. } = *attributes.context("no attributes")?;
    let is_ours = size == tree::FILE_BYTES && mode == 0o644 && nlink == 1;
    ensure!(is_ours, "{size} bytes, mode {mode:o}, {nlink} links");
    Ok(())
}

fn is_listing(record: &[u8]) -> Result<()> {
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
    let made = (0..LISTED_NAMES).map(|number| tree::listed_name(number).into_bytes());
    ensure!(entries.eof() == Some(true), "the listing is not whole");
    ensure!(names == made.collect(), "other names than were made");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_count_in_hexadecimal_digits() {
        let mut digits = *b"........";
        put_digits(&mut digits, 0x12ab);
        assert_eq!(&digits, b"000012ab");
    }

    #[test]
    fn numbers_tell_their_slot_and_differ() {
        let mut calls = PreparedCalls::ready(vec![vec![0; 40]; 3]);
        let mut out = Vec::new();
        let (one, other) = (calls.put(2, &mut out), calls.put(2, &mut out));
        assert_ne!(one, other);
        assert_eq!((slot_of(one), slot_of(other), out.len()), (2, 2, 80));
        assert_eq!(out[4..8], one.to_be_bytes());
    }

    #[test]
    fn blocks_and_generations_differ() {
        assert_ne!(block(0, 0, 64), block(1, 0, 64));
        assert_ne!(block(0, 0, 64), block(0, 1, 64));
        assert_eq!(block(5, 7, 80)[..64], block(5, 7, 64));
    }
}
