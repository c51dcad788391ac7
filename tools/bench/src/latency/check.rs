//! Whether a reply is what was asked for: its status, its length and each byte.
//!
//! What does not change from one reply to the next is compared as a whole with one that was decoded
//! and found right; what differs from it is decoded in turn. So every byte is looked at, and the
//! same is done for every server.

use anyhow::{Context, Result, bail, ensure};
use curt_proto::nfs3::{
    AccessOk, CreateOk, DirectoryEntryPlus, Fattr, LookupOk, NfsFh3, NfsResult, ReadOk, ReaddirOk, StableHow,
    WccData, WriteOk,
};
use curt_rpc::message::{self, AcceptStatus};
use curt_rpc::record::MARK_SIZE;
use curt_xdr::{Decode, Decoder, decode_all};

use super::calls::slot_of;
use super::content;
use super::load::{BLOCK_BYTES, LISTED_NAMES, LatencyOperation};
use super::tree::{FILE_BYTES, LatencyTree, listed_name};

/// RPC's header and the status of NFS, from a record's number on.
const HEAD_BYTES: usize = 28;

/// What the replies of one connection are to be.
#[derive(Clone, Copy)]
enum ExpectedReply {
    /// The bytes that are known, whatever they mean. So an echo replies.
    Known,
    /// A success, whatever it says.
    Success,
    /// What this operation is to be answered with.
    Of(LatencyOperation),
}

/// What the replies of one connection are held against.
pub(super) struct ReplyChecks {
    expected: ExpectedReply,
    /// What LOOKUP finds.
    found: Option<NfsFh3>,
    /// Of READ: each slot's data, and how long the file is.
    blocks: Vec<Vec<u8>>,
    file_bytes: u64,
    /// How much each WRITE writes.
    written: usize,
    /// The last reply of each slot that was found right, without its mark and number.
    verified: Vec<Vec<u8>>,
}

impl ReplyChecks {
    /// For the replies to calls of `operation`.
    pub(super) fn new(
        operation: LatencyOperation,
        tree: &LatencyTree,
        connection: usize,
        slots_count: usize,
    ) -> Self {
        let blocks = match operation {
            LatencyOperation::Read => (0..slots_count).map(|slot| content::block(slot, 0)).collect(),
            _ => Vec::new(),
        };
        Self {
            expected: ExpectedReply::Of(operation),
            found: Some(tree.files[connection].read),
            blocks,
            file_bytes: FILE_BYTES,
            written: BLOCK_BYTES,
            verified: vec![Vec::new(); slots_count],
        }
    }

    /// For replies that are this record, but for the number.
    pub(super) fn echo(record: &[u8], slots_count: usize) -> Self {
        let known = vec![record[MARK_SIZE + 4..].to_vec(); slots_count];
        Self {
            verified: known,
            ..Self::new_expecting(ExpectedReply::Known)
        }
    }

    /// For replies that are a success and may differ otherwise.
    pub(super) fn success() -> Self {
        Self::new_expecting(ExpectedReply::Success)
    }

    fn new_expecting(expected: ExpectedReply) -> Self {
        Self {
            expected,
            ..Self::of_file(LatencyOperation::Read, Vec::new(), 0)
        }
    }

    /// For READs of a whole file of these blocks, or for unstable WRITEs of blocks as long as they
    /// are.
    pub(super) fn of_file(operation: LatencyOperation, blocks: Vec<Vec<u8>>, piece: usize) -> Self {
        Self {
            expected: ExpectedReply::Of(operation),
            found: None,
            file_bytes: (blocks.len() * piece) as u64,
            written: piece,
            verified: vec![Vec::new(); blocks.len()],
            blocks,
        }
    }

    /// Checks the record that answers the call with this number.
    #[inline]
    pub(super) fn check(&mut self, number: u32, record: &[u8]) -> Result<()> {
        let slot = slot_of(number);
        let bytes = &record[MARK_SIZE + 4..];
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
        // Replies to changes never repeat; remembering them would only cost time.
        if !operation.changes() {
            self.verified[slot].clear();
            self.verified[slot].extend_from_slice(bytes);
        }
        Ok(())
    }

    fn decode(&self, operation: LatencyOperation, slot: usize, record: &[u8]) -> Result<()> {
        let body = results(record)?;
        match operation {
            LatencyOperation::Getattr => regular(Some(&ok::<Fattr, ()>(body)?)),
            LatencyOperation::Access => {
                let reply = ok::<AccessOk, Option<Fattr>>(body)?;
                // Read, modify and extend: the owner of a file of mode 0644 has these, and no more
                // than was asked for.
                let granted = reply.access.0;
                ensure!(granted & 0x0d == 0x0d && granted <= 0x3f, "access {granted:#x}");
                regular(reply.attributes.as_ref())
            }
            LatencyOperation::Lookup => {
                let reply = ok::<LookupOk, Option<Fattr>>(body)?;
                ensure!(Some(reply.object) == self.found, "another handle than before");
                regular(reply.attributes.as_ref())
            }
            LatencyOperation::Read => data(&self.blocks[slot], slot, self.file_bytes, body),
            LatencyOperation::WriteUnstable | LatencyOperation::WriteFileSync => {
                let reply = ok::<WriteOk, WccData>(body)?;
                let written = usize::try_from(reply.count)?;
                ensure!(written == self.written, "{written} bytes written");
                let is_firm =
                    operation == LatencyOperation::WriteUnstable || reply.committed == StableHow::FileSync;
                ensure!(is_firm, "committed as {:?}", reply.committed);
                Ok(())
            }
            LatencyOperation::Create => {
                let reply = ok::<CreateOk, WccData>(body)?;
                ensure!(reply.object.is_some(), "no handle of the new file");
                Ok(())
            }
            LatencyOperation::Remove => ok::<WccData, WccData>(body).map(drop),
            LatencyOperation::ReaddirPlus => listed(body),
        }
    }
}

/// The results in a record, if the call was executed.
fn results(record: &[u8]) -> Result<&[u8]> {
    let mut decoder = Decoder::new(&record[MARK_SIZE..]);
    match message::decode_reply_header(&mut decoder)?.outcome {
        Ok(AcceptStatus::Success) => Ok(decoder.remaining()),
        other => bail!("the server refuses the call: {other:?}"),
    }
}

/// Where a READ's data begin in the record that holds them, if it holds `length` bytes of them.
pub(super) fn data_at(record: &[u8], length: usize) -> Result<usize> {
    let attributes = record
        .get(MARK_SIZE + HEAD_BYTES..MARK_SIZE + HEAD_BYTES + 4)
        .context("no attributes")?;
    let present = attributes == 1_u32.to_be_bytes();
    let at = MARK_SIZE + HEAD_BYTES + 4 + if present { Fattr::ENCODED } else { 0 } + 12;
    ensure!(record.len() == at + length.next_multiple_of(4), "no data");
    Ok(at)
}

fn ok<'a, T: Decode<'a>, F: Decode<'a>>(body: &'a [u8]) -> Result<T> {
    match decode_all::<NfsResult<T, F>>(body)? {
        NfsResult::Ok(reply) => Ok(reply),
        NfsResult::Failed(status, _) => bail!("status {status:?}"),
    }
}

fn regular(attributes: Option<&Fattr>) -> Result<()> {
    let attributes = attributes.context("no attributes")?;
    ensure!(attributes.size == FILE_BYTES, "{} bytes", attributes.size);
    ensure!(
        attributes.mode == 0o644 && attributes.nlink == 1,
        "mode {:o}",
        attributes.mode
    );
    Ok(())
}

fn data(block: &[u8], slot: usize, file_bytes: u64, body: &[u8]) -> Result<()> {
    let reply = ok::<ReadOk<'_>, Option<Fattr>>(body)?;
    ensure!(
        reply.data.bytes() == block && usize::try_from(reply.count)? == block.len(),
        "other data than were written"
    );
    let at_end = ((slot + 1) * block.len()) as u64 >= file_bytes;
    ensure!(reply.eof == at_end, "end of file: {}", reply.eof);
    Ok(())
}

fn listed(body: &[u8]) -> Result<()> {
    let listing = ok::<ReaddirOk<'_, DirectoryEntryPlus<'_>>, Option<Fattr>>(body)?;
    let mut entries = listing.entries;
    let mut seen = [false; LISTED_NAMES];
    for entry in entries.by_ref() {
        let entry = entry?;
        let name = entry.name.bytes();
        if name == b"." || name == b".." {
            continue;
        }
        let at = (0..LISTED_NAMES).find(|number| listed_name(*number).as_bytes() == name);
        let at = at.with_context(|| format!("{} is listed", name.escape_ascii()))?;
        ensure!(!std::mem::replace(&mut seen[at], true), "a name is listed twice");
        ensure!(
            entry.handle.is_some() && entry.attributes.is_some(),
            "a name without its handle and attributes"
        );
    }
    ensure!(entries.eof() == Some(true), "the listing is not whole");
    ensure!(seen.iter().all(|seen| *seen), "a name is missing");
    Ok(())
}
