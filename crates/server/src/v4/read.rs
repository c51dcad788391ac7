//! READ (RFC 8881 section 18.22).

use curt_observe::stages::{self, RequestStage};
use curt_proto::nfs4::{NfsStat4, ReadArgs4};
use curt_rpc::server::SendfileRange;
use curt_vfs::{FetchResult, FileRange};
use curt_xdr::{Decoder, put_padding};

use super::{Compound, Outcome, decoded, io};
use crate::ops;
use crate::state::IoDirection;

/// The size of eof and the length of the data.
const HEAD: usize = 8;

pub(super) fn read<'r>(
    compound: &mut Compound<'r, '_>,
    arguments: &mut Decoder<'r>,
    reply: &mut Vec<u8>,
) -> Outcome {
    let ReadArgs4 { stateid, offset, count } = decoded(arguments)?;
    let object = compound.current()?;
    let target = object.exported_or(NfsStat4::Isdir)?;
    let _ = io::check_stateid(compound, target, stateid, IoDirection::Read)?;
    let room = compound.room(reply).saturating_sub(HEAD) & !3;
    let most = u32::try_from(room).unwrap_or(u32::MAX);
    if most == 0 && count > 0 {
        return Err(compound.too_big().into());
    }
    if compound.slot.as_ref().is_some_and(|slot| slot.cached_max().is_some()) {
        // The reply that is cached has to contain the data.
        compound.request.context.forbid_sendfile();
    }
    let start = reply.len();
    reply.resize(start + HEAD, 0);
    let fetched = ops::read(&mut compound.request, target, offset, count.min(most), reply);
    stages::proceed(RequestStage::Encode);
    let failed = |fault| io::failure(fault, fetched.attributes.as_ref());
    let (read, range) = match fetched.value.map_err(failed)? {
        FetchResult::Copied(read) => (read, None),
        FetchResult::FileRange(range) => (range.read, Some(range)),
    };
    reply[start..start + 4].copy_from_slice(&u32::from(read.eof).to_be_bytes());
    reply[start + 4..start + HEAD].copy_from_slice(&read.count.to_be_bytes());
    let length = usize::try_from(read.count).unwrap_or(0);
    if let Some(FileRange { file, failed, .. }) = range {
        let range = SendfileRange { file, offset, length: read.count, failed };
        compound.request.context.attach(reply.len(), range);
        compound.attached += length;
    }
    put_padding(reply, length);
    Ok(())
}
