//! FSSTAT, FSINFO, PATHCONF (RFC 1813 sections 3.3.18 to 3.3.20).

use curt_proto::nfs3::{
    Fattr, FsProperties, FsinfoArguments, FsinfoOk, FsstatOk, NfsFh3, NfsTime, PathconfOk,
};

use super::{Results, post_op};
use crate::ops;
use crate::request::NfsRequest;

/// Preferred multiple of transfer sizes: a page, in bytes.
const TRANSFER_MULTIPLE: u32 = 4096;

pub(super) fn fsstat(request: &mut NfsRequest<'_, '_>, root: NfsFh3) -> Results<FsstatOk, Option<Fattr>> {
    let current = request.resolve(root.as_bytes())?;
    Ok(post_op(ops::space(request, &current), |space, attributes| {
        FsstatOk {
            attributes,
            total_bytes: space.bytes_total,
            free_bytes: space.bytes_free,
            available_bytes: space.bytes_available,
            total_files: space.files_total,
            free_files: space.files_free,
            available_files: space.files_available,
            // `invarsec`: no period without changes is promised.
            invariant_seconds: 0,
        }
    }))
}

pub(super) fn fsinfo(
    request: &mut NfsRequest<'_, '_>,
    arguments: FsinfoArguments,
) -> Results<FsinfoOk, Option<Fattr>> {
    let current = request.resolve(arguments.root.as_bytes())?;
    Ok(post_op(ops::limits(request, &current), |limits, attributes| FsinfoOk {
        attributes,
        rtmax: ops::TRANSFER_MAX,
        rtpref: ops::TRANSFER_MAX,
        rtmult: TRANSFER_MULTIPLE,
        wtmax: ops::TRANSFER_MAX,
        wtpref: ops::TRANSFER_MAX,
        wtmult: TRANSFER_MULTIPLE,
        dtpref: ops::TRANSFER_MAX,
        maxfilesize: limits.file_size_max,
        time_delta: NfsTime {
            seconds: u32::try_from(limits.time_delta.as_secs()).unwrap_or(u32::MAX),
            nanoseconds: limits.time_delta.subsec_nanos(),
        },
        properties: properties(&limits),
    }))
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

pub(super) fn pathconf(
    request: &mut NfsRequest<'_, '_>,
    object: NfsFh3,
) -> Results<PathconfOk, Option<Fattr>> {
    let current = request.resolve(object.as_bytes())?;
    Ok(post_op(ops::limits(request, &current), |limits, attributes| PathconfOk {
        attributes,
        link_max: limits.link_max,
        name_max: limits.name_max,
        no_truncation: true,
        chown_restricted: true,
        case_insensitive: limits.case_insensitive,
        case_preserving: limits.case_preserving,
    }))
}
