//! READ (RFC 1813 section 3.3.6). Data go straight from the file into the reply: small amounts are
//! copied from the page cache, large ones are sent from it to the socket. Before waiting for a
//! disk, the thread leaves the connection to others.

use curt_proto::nfs3::{DATA_MAX, Fattr, NfsResult, NfsStat3, ReadArguments, ReadFail, ReadOk};
use curt_rpc::server::{CallFailure, SendfileRange};
use curt_trace::stages::{self, RequestStage};
use curt_trace::{ServerCounter, probe};
use curt_vfs::{FetchOptions, FetchResult, FileRange, PostOpResult as Answer};
use curt_xdr::{Encode, Opaque, put_padding};

use crate::attributes::MAX_SIZE;
use crate::request::{NfsRequest, Refusal, VerifiedHandle};
use crate::status;

/// Where data cannot be sent from files: the size in bytes from which copying alone justifies
/// handing the connection over.
const LARGE_COPY: u32 = 256 << 10;

/// Status, the flag of the attributes, the attributes, count, eof, and the length of the data.
const HEAD: usize = 4 + 4 + Fattr::ENCODED + 4 + 4 + 4;

pub(super) fn run(
    request: &mut NfsRequest<'_, '_>,
    arguments: ReadArguments,
    reply: &mut Vec<u8>,
) -> Result<(), CallFailure> {
    let target = match request.resolve(&arguments.file) {
        Ok(target) => target,
        Err(refusal) => return fail(Err(refusal), reply),
    };
    let count = arguments.count.min(u32::try_from(DATA_MAX).unwrap_or(u32::MAX));
    // No file reaches beyond the largest offset, and system calls would return an error instead of
    // no data.
    let Some(end) = arguments
        .offset
        .checked_add(u64::from(count))
        .filter(|end| *end <= MAX_SIZE)
    else {
        return beyond_the_largest_offset(&target, reply);
    };
    debug_assert!(end >= arguments.offset);
    let start = reply.len();
    reply.resize(start + HEAD, 0);
    let (vfs, caller) = (target.vfs(), target.caller());
    let pieces = request.context.allows_sendfile();
    let fetch = |wait, reply: &mut Vec<u8>| {
        let how = FetchOptions {
            sendfile: pieces,
            wait,
        };
        vfs.fetch(&caller, &target.node, arguments.offset, count, how, reply)
    };
    let ready = if pieces || count < LARGE_COPY {
        fetch(false, reply)
    } else {
        None
    };
    let answer = ready.or_else(|| {
        request.context.may_block();
        fetch(true, reply)
    });
    match answer {
        Some(answer) => finish_read(request, &target, answer, start, arguments.offset, reply),
        None => Err(CallFailure::SystemError),
    }
}

/// Fills in the head that was left blank, or replaces it with a failure.
fn finish_read(
    request: &mut NfsRequest<'_, '_>,
    target: &VerifiedHandle<'_>,
    answer: Answer<FetchResult>,
    start: usize,
    offset: u64,
    reply: &mut Vec<u8>,
) -> Result<(), CallFailure> {
    stages::proceed(RequestStage::Encode);
    let attributes = target.post_op(answer.attributes);
    let (read, piece) = match answer.value {
        Ok(FetchResult::Copied(read)) => (read, None),
        Ok(FetchResult::FileRange(piece)) => (piece.read, Some(piece)),
        Err(error) => {
            reply.truncate(start);
            let failed = ReadFail { attributes };
            return fail(
                Ok(NfsResult::Failed(status::of_error_on_data(error), failed)),
                reply,
            );
        }
    };
    let copied = reply.len() - start - HEAD;
    debug_assert_eq!(copied, if piece.is_some() { 0 } else { read.count as usize });
    // Encoded behind the data and then moved before them, since only now is the head's content
    // known.
    let tail = reply.len();
    NfsStat3::Ok.encode(reply);
    attributes.encode(reply);
    for word in [read.count, u32::from(read.eof), read.count] {
        word.encode(reply);
    }
    let head = reply.len() - tail;
    reply.copy_within(tail.., start);
    reply.truncate(tail);
    if head < HEAD {
        reply.drain(start + head..start + HEAD);
    }
    if let Some(FileRange { file, failed, .. }) = piece {
        let piece = SendfileRange {
            file,
            offset,
            length: read.count,
            failed,
        };
        request.context.attach(reply.len(), piece);
    }
    put_padding(reply, usize::try_from(read.count).unwrap_or(0));
    probe!(NfsdRead {
        fhandle: target.handle_hash(),
        offset,
        res: read.count,
        eof: read.eof
    });
    request
        .service
        .counters
        .add(ServerCounter::ReadBytes, u64::from(read.count));
    Ok(())
}

fn beyond_the_largest_offset(target: &VerifiedHandle<'_>, reply: &mut Vec<u8>) -> Result<(), CallFailure> {
    // Reading nothing still checks whether the caller may read.
    let mut nothing = Vec::new();
    let answer = target
        .vfs()
        .read(&target.caller(), &target.node, MAX_SIZE, 0, &mut nothing);
    let attributes = target.post_op(answer.attributes);
    let outcome = match answer.value {
        Ok(_) => NfsResult::Ok(ReadOk {
            attributes,
            count: 0,
            eof: true,
            data: Opaque::default(),
        }),
        Err(error) => NfsResult::Failed(status::of_error_on_data(error), ReadFail { attributes }),
    };
    fail(Ok(outcome), reply)
}

fn fail(
    result: Result<NfsResult<ReadOk<'_>, ReadFail>, Refusal>,
    reply: &mut Vec<u8>,
) -> Result<(), CallFailure> {
    super::finish(result, reply)
}
