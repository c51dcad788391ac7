//! FSINFO (RFC 1813 section 3.3.19).

use curt_proto::nfs3::{DATA_MAX, Fattr, FsinfoArguments, FsinfoOk, NfsTime, Outcome, Properties};

use crate::request::{Refusal, Request};
use crate::status;

/// The largest READ, WRITE and READDIR, in bytes.
const TRANSFER_MAX: u32 = 1 << 20;
const _: () = assert!(TRANSFER_MAX as usize == DATA_MAX);
/// Sizes should be multiples of this: a page, in bytes.
const TRANSFER_MULTIPLE: u32 = 4096;

pub(super) fn run(
    request: &mut Request<'_, '_>,
    arguments: FsinfoArguments,
) -> Result<Outcome<FsinfoOk, Option<Fattr>>, Refusal> {
    let target = request.resolve(&arguments.root)?;
    request.may_wait_for(&target);
    let answer = target.vfs().limits(&target.node);
    let attributes = target.post_op(answer.attributes);
    Ok(match answer.value {
        Ok(limits) => Outcome::Ok(FsinfoOk {
            attributes,
            read_max: TRANSFER_MAX,
            read_preferred: TRANSFER_MAX,
            read_multiple: TRANSFER_MULTIPLE,
            write_max: TRANSFER_MAX,
            write_preferred: TRANSFER_MAX,
            write_multiple: TRANSFER_MULTIPLE,
            directory_preferred: TRANSFER_MAX,
            file_size_max: limits.file_size_max,
            time_delta: NfsTime {
                seconds: u32::try_from(limits.time_step.as_secs()).unwrap_or(u32::MAX),
                nanoseconds: limits.time_step.subsec_nanos(),
            },
            properties: properties(&limits),
        }),
        Err(error) => Outcome::Failed(status::of_error(error), attributes),
    })
}

fn properties(limits: &curt_vfs::Limits) -> Properties {
    let mut properties = Properties::HOMOGENEOUS.or(Properties::CANSETTIME);
    if limits.links {
        properties = properties.or(Properties::LINK);
    }
    if limits.symlinks {
        properties = properties.or(Properties::SYMLINK);
    }
    properties
}
