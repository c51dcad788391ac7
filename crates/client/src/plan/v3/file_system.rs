//! FSSTAT, FSINFO and PATHCONF (RFC 1813 §3.3.18 to 3.3.20).

use curt_proto::nfs3::{
    Fattr, FileHandle, FsinfoArguments, FsinfoOk, FsstatOk, PathconfOk, Procedure, Properties,
};
use curt_rpc::client::CallError;

use super::ask;
use crate::plan::{Answer, Asker, Attributes, PathLimits, ServerLimits, Space, Wire};

/// FSSTAT: how full the file system is.
///
/// # Errors
/// No answer, or one that makes no sense.
pub fn fsstat(
    wire: &Wire,
    asker: Asker<'_>,
    object: &FileHandle,
) -> Result<Answer<Space, Option<Attributes>>, CallError> {
    let success = |ok: FsstatOk| {
        let space = Space {
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
    ask(wire, asker, Procedure::Fsstat, object, success, attributes)
}

/// FSINFO: what the server can do, and likes best.
///
/// # Errors
/// No answer, or one that makes no sense.
pub fn fsinfo(
    wire: &Wire,
    asker: Asker<'_>,
    root: &FileHandle,
) -> Result<Answer<ServerLimits, Option<Attributes>>, CallError> {
    let success = |ok: FsinfoOk| {
        let limits = ServerLimits {
            read_max: ok.read_max,
            read_preferred: ok.read_preferred,
            read_multiple: ok.read_multiple,
            write_max: ok.write_max,
            write_preferred: ok.write_preferred,
            write_multiple: ok.write_multiple,
            listing_preferred: ok.directory_preferred,
            file_size_max: ok.file_size_max,
            time_step: ok.time_delta.into(),
            links: ok.properties.contains(Properties::LINK),
            symlinks: ok.properties.contains(Properties::SYMLINK),
            homogeneous: ok.properties.contains(Properties::HOMOGENEOUS),
            sets_times: ok.properties.contains(Properties::CANSETTIME),
        };
        (limits, ok.attributes.map(Attributes::from))
    };
    ask(
        wire,
        asker,
        Procedure::Fsinfo,
        &FsinfoArguments { root: *root },
        success,
        attributes,
    )
}

/// PATHCONF: what pathconf(3) tells.
///
/// # Errors
/// No answer, or one that makes no sense.
pub fn pathconf(
    wire: &Wire,
    asker: Asker<'_>,
    object: &FileHandle,
) -> Result<Answer<PathLimits, Option<Attributes>>, CallError> {
    let success = |ok: PathconfOk| {
        let limits = PathLimits {
            links_max: ok.link_max,
            name_max: ok.name_max,
            no_truncation: ok.no_truncation,
            chown_restricted: ok.chown_restricted,
            case_insensitive: ok.case_insensitive,
            case_preserving: ok.case_preserving,
        };
        (limits, ok.attributes.map(Attributes::from))
    };
    ask(wire, asker, Procedure::Pathconf, object, success, attributes)
}

fn attributes(fattr: Option<Fattr>) -> Option<Attributes> {
    fattr.map(Attributes::from)
}
