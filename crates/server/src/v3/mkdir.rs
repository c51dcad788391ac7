//! MKDIR (RFC 1813 section 3.3.9).

use curt_proto::nfs3::{CreateOk, MkdirArguments, NfsResult, WccData};

use crate::attributes::set_from_wire;
use crate::name::{NamePurpose, check};
use crate::request::{NfsRequest, Refusal};

pub(super) fn run(
    request: &mut NfsRequest<'_, '_>,
    arguments: &MkdirArguments<'_>,
) -> Result<NfsResult<CreateOk, WccData>, Refusal> {
    let directory = request.resolve(&arguments.place.directory)?;
    let wanted = directory.writable().and_then(|()| {
        let name = check(arguments.place.name, NamePurpose::Create)?;
        let set = set_from_wire(&arguments.attributes)?;
        Ok((name, set))
    });
    let (name, set) = match wanted {
        Ok(wanted) => wanted,
        Err(status) => return super::not_begun(&directory, status),
    };
    request.may_block(&directory);
    let changed = directory
        .vfs()
        .make_directory(&directory.caller(), &directory.node, name, &set);
    Ok(super::created(&directory, name, changed))
}
