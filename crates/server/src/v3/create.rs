//! CREATE (RFC 1813 section 3.3.8).

use curt_proto::nfs3::{CreateArguments, CreateHow, CreateOk, NfsResult, WccData};
use curt_vfs::CreateMode;

use crate::attributes::set_from_wire;
use crate::name::{NamePurpose, check};
use crate::request::{NfsRequest, Refusal};

pub(super) fn run(
    request: &mut NfsRequest<'_, '_>,
    arguments: &CreateArguments<'_>,
) -> Result<NfsResult<CreateOk, WccData>, Refusal> {
    let directory = request.resolve(&arguments.place.directory)?;
    let set = match &arguments.how {
        CreateHow::Unchecked(set) | CreateHow::Guarded(set) => set_from_wire(set),
        CreateHow::Exclusive(_) => Ok(curt_types::SetAttributes::default()),
    };
    let wanted = directory.writable().and_then(|()| {
        let name = check(arguments.place.name, NamePurpose::Create)?;
        Ok((name, set?))
    });
    let (name, set) = match wanted {
        Ok(wanted) => wanted,
        Err(status) => return super::not_begun(&directory, status),
    };
    let mode = match arguments.how {
        CreateHow::Unchecked(_) => CreateMode::Unchecked(&set),
        CreateHow::Guarded(_) => CreateMode::Guarded(&set),
        CreateHow::Exclusive(verifier) => CreateMode::Exclusive(verifier.0),
    };
    request.may_block(&directory);
    let changed = directory
        .vfs()
        .create(&directory.caller(), &directory.node, name, mode);
    Ok(super::created(&directory, name, changed))
}
