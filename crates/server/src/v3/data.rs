//! READ, WRITE, COMMIT (RFC 1813 sections 3.3.6, 3.3.7, 3.3.21).

use curt_observe::stages::{self, RequestStage};
use curt_proto::nfs3::{
    CommitArguments, CommitOk, DATA_MAX, Fattr, NfsResult, NfsStat3, ReadArguments, ReadFail, ReadOk,
    WccData, WriteArguments, WriteOk, WriteVerf3,
};
use curt_rpc::server::{CallFailure, SendfileRange};
use curt_types::Fault;
use curt_vfs::{FetchResult, FileRange};
use curt_xdr::{Encode, put_padding};

use super::{Results, finish, not_begun, on_data, wcc};
use crate::ops::{self, OpResult};
use crate::request::NfsRequest;
use crate::state::{ChangeKind, IoDirection};

/// The size of status, flag of the attributes, attributes, count, eof, and length of the data.
const HEAD: usize = 4 + 4 + Fattr::ENCODED + 4 + 4 + 4;

const _: () = assert!(ops::TRANSFER_MAX as usize == DATA_MAX);

pub(super) fn read(
    request: &mut NfsRequest<'_, '_>,
    arguments: ReadArguments,
    reply: &mut Vec<u8>,
) -> Result<(), CallFailure> {
    let current = match request.resolve(arguments.file.as_bytes()) {
        Ok(current) => current,
        Err(refusal) => return finish::<ReadOk<'_>, ReadFail>(Err(refusal), reply),
    };
    let start = reply.len();
    reply.resize(start + HEAD, 0);
    let fetched = match current.not_denied(IoDirection::Read) {
        Ok(()) => on_data(ops::read(request, &current, arguments.offset, arguments.count, reply)),
        Err(fault) => OpResult { attributes: current.attributes(), value: Err(fault) },
    };
    stages::proceed(RequestStage::Encode);
    let attributes = fetched.attributes.map(Fattr::from);
    let (read, piece) = match fetched.value {
        Ok(FetchResult::Copied(read)) => (read, None),
        Ok(FetchResult::FileRange(piece)) => (piece.read, Some(piece)),
        Err(fault) => {
            reply.truncate(start);
            let failed = NfsResult::<ReadOk<'_>, _>::Failed(fault.into(), ReadFail { attributes });
            return finish(Ok(failed), reply);
        }
    };
    let copied = reply.len() - start - HEAD;
    debug_assert_eq!(copied, if piece.is_some() { 0 } else { read.count as usize });
    // The head is encoded after the data and then moved before them, because its contents are known
    // only now.
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
        let piece = SendfileRange { file, offset: arguments.offset, length: read.count, failed };
        request.context.attach(reply.len(), piece);
    }
    put_padding(reply, usize::try_from(read.count).unwrap_or(0));
    Ok(())
}

pub(super) fn write(
    request: &mut NfsRequest<'_, '_>,
    arguments: &WriteArguments<'_>,
) -> Results<WriteOk, WccData> {
    let current = request.resolve(arguments.file.as_bytes())?;
    let data = arguments.data.bytes();
    if usize::try_from(arguments.count) != Ok(data.len()) {
        return Ok(not_begun(&current, Fault::Inval));
    }
    let allowed = current
        .not_denied(IoDirection::Write)
        .and_then(|()| request.begin_change(&current, ChangeKind::Data));
    let _change = match allowed {
        Ok(change) => change,
        Err(fault) => return Ok(not_begun(&current, fault)),
    };
    let written = ops::write(request, &current, arguments.offset, data, arguments.stable.into());
    Ok(wcc(on_data(written), |written, wcc| WriteOk {
        wcc,
        count: written.count,
        committed: written.committed.into(),
        verifier: WriteVerf3(written.verifier),
    }))
}

pub(super) fn commit(
    request: &mut NfsRequest<'_, '_>,
    arguments: CommitArguments,
) -> Results<CommitOk, WccData> {
    let current = request.resolve(arguments.file.as_bytes())?;
    let committed = match current.writable() {
        Ok(()) => ops::commit(request, &current, arguments.offset, arguments.count),
        Err(fault) => current.not_begun(fault),
    };
    Ok(wcc(on_data(committed), |verifier, wcc| CommitOk { wcc, verifier: WriteVerf3(verifier) }))
}
