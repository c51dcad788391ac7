//! FSSTAT, FSINFO and PATHCONF (RFC 1813 §3.3.18 to 3.3.20).

use curt_proto::nfs3::{Fattr, FsProperties, FsinfoArguments, FsinfoOk, FsstatOk, NfsProcedure, PathconfOk};
use curt_rpc::client::CallError;
use curt_types::{Attributes, FileHandle};

use super::{ask, nfs_fh3};
use crate::protocol::{Fsinfo, FsstatReply, NfsReply, Pathconf, RpcCaller, RpcClient};

/// FSSTAT: how full the file system is.
///
/// # Errors
/// No answer, or one that makes no sense.
pub fn fsstat(
    wire: &RpcClient,
    asker: RpcCaller<'_>,
    object: &FileHandle,
) -> Result<NfsReply<FsstatReply, Option<Attributes>>, CallError> {
    let success = |ok: FsstatOk| {
        let space = FsstatReply {
            total_bytes: ok.total_bytes,
            free_bytes: ok.free_bytes,
            available_bytes: ok.available_bytes,
            total_files: ok.total_files,
            free_files: ok.free_files,
            available_files: ok.available_files,
            invariant_seconds: ok.invariant_seconds,
        };
        (space, ok.attributes.map(Attributes::from))
    };
    ask(
        wire,
        asker,
        NfsProcedure::Fsstat,
        &nfs_fh3(object)?,
        success,
        attributes,
    )
}

/// FSINFO: what the server can do, and likes best.
///
/// # Errors
/// No answer, or one that makes no sense.
pub fn fsinfo(
    wire: &RpcClient,
    asker: RpcCaller<'_>,
    root: &FileHandle,
) -> Result<NfsReply<Fsinfo, Option<Attributes>>, CallError> {
    let success = |ok: FsinfoOk| {
        let limits = Fsinfo {
            read_max: ok.rtmax,
            read_preferred: ok.rtpref,
            read_multiple: ok.rtmult,
            write_max: ok.wtmax,
            write_preferred: ok.wtpref,
            write_multiple: ok.wtmult,
            listing_preferred: ok.dtpref,
            file_size_max: ok.maxfilesize,
            time_step: ok.time_delta.into(),
            links: ok.properties.contains(FsProperties::LINK),
            symlinks: ok.properties.contains(FsProperties::SYMLINK),
            homogeneous: ok.properties.contains(FsProperties::HOMOGENEOUS),
            sets_times: ok.properties.contains(FsProperties::CANSETTIME),
        };
        (limits, ok.attributes.map(Attributes::from))
    };
    ask(
        wire,
        asker,
        NfsProcedure::Fsinfo,
        &FsinfoArguments { root: nfs_fh3(root)? },
        success,
        attributes,
    )
}

/// PATHCONF: what pathconf(3) tells.
///
/// # Errors
/// No answer, or one that makes no sense.
pub fn pathconf(
    wire: &RpcClient,
    asker: RpcCaller<'_>,
    object: &FileHandle,
) -> Result<NfsReply<Pathconf, Option<Attributes>>, CallError> {
    let success = |ok: PathconfOk| {
        let limits = Pathconf {
            links_max: ok.link_max,
            name_max: ok.name_max,
            no_truncation: ok.no_truncation,
            chown_restricted: ok.chown_restricted,
            case_insensitive: ok.case_insensitive,
            case_preserving: ok.case_preserving,
        };
        (limits, ok.attributes.map(Attributes::from))
    };
    ask(
        wire,
        asker,
        NfsProcedure::Pathconf,
        &nfs_fh3(object)?,
        success,
        attributes,
    )
}

fn attributes(fattr: Option<Fattr>) -> Option<Attributes> {
    fattr.map(Attributes::from)
}
