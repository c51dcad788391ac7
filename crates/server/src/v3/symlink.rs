//! SYMLINK (RFC 1813 section 3.3.10).

use curt_proto::nfs3::{CreateOk, NfsResult, SymlinkArguments, WccData};

use crate::attributes::set_from_wire;
use crate::name::{NamePurpose, check};
use crate::request::{NfsRequest, Refusal};

pub(super) fn run(
    request: &mut NfsRequest<'_, '_>,
    arguments: &SymlinkArguments<'_>,
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
    let target = arguments.target.bytes();
    let changed = directory
        .vfs()
        .make_symlink(&directory.caller(), &directory.node, name, target, &set);
    Ok(super::created(&directory, name, changed))
}
