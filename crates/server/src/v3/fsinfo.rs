//! FSINFO (RFC 1813 section 3.3.19).

use curt_proto::nfs3::{DATA_MAX, Fattr, FsProperties, FsinfoArguments, FsinfoOk, NfsResult, NfsTime};

use crate::request::{NfsRequest, Refusal};
use crate::status;

/// The largest READ, WRITE and READDIR, in bytes.
const TRANSFER_MAX: u32 = 1 << 20;
const _: () = assert!(TRANSFER_MAX as usize == DATA_MAX);
/// Sizes should be multiples of this: a page, in bytes.
const TRANSFER_MULTIPLE: u32 = 4096;

pub(super) fn run(
    request: &mut NfsRequest<'_, '_>,
    arguments: FsinfoArguments,
) -> Result<NfsResult<FsinfoOk, Option<Fattr>>, Refusal> {
    let target = request.resolve(&arguments.root)?;
    request.may_block_on_metadata(&target);
    let answer = target.vfs().limits(&target.node);
    let attributes = target.post_op(answer.attributes);
    Ok(match answer.value {
        Ok(limits) => NfsResult::Ok(FsinfoOk {
            attributes,
            rtmax: TRANSFER_MAX,
            rtpref: TRANSFER_MAX,
            rtmult: TRANSFER_MULTIPLE,
            wtmax: TRANSFER_MAX,
            wtpref: TRANSFER_MAX,
            wtmult: TRANSFER_MULTIPLE,
            dtpref: TRANSFER_MAX,
            maxfilesize: limits.file_size_max,
            time_delta: NfsTime {
                seconds: u32::try_from(limits.time_delta.as_secs()).unwrap_or(u32::MAX),
                nanoseconds: limits.time_delta.subsec_nanos(),
            },
            properties: properties(&limits),
        }),
        Err(error) => NfsResult::Failed(status::of_error(error), attributes),
    })
}

fn properties(limits: &curt_vfs::Limits) -> FsProperties {
    let mut properties = FsProperties::HOMOGENEOUS.or(FsProperties::CANSETTIME);
    if limits.links {
        properties = properties.or(FsProperties::LINK);
    }
    if limits.symlinks {
        properties = properties.or(FsProperties::SYMLINK);
    }
    properties
}
