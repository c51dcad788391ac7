//! RMDIR (RFC 1813 section 3.3.13).

use curt_proto::nfs3::{DirOpArgs, NfsResult, WccData};

use crate::name::{NamePurpose, check};
use crate::request::{NfsRequest, Refusal};

pub(super) fn run(
    request: &mut NfsRequest<'_, '_>,
    arguments: DirOpArgs<'_>,
) -> Result<NfsResult<WccData, WccData>, Refusal> {
    let directory = request.resolve(&arguments.directory)?;
    let name = match directory
        .writable()
        .and_then(|()| check(arguments.name, NamePurpose::RemoveDirectory))
    {
        Ok(name) => name,
        Err(status) => return super::not_begun(&directory, status),
    };
    request.may_block(&directory);
    let changed = directory
        .vfs()
        .remove_directory(&directory.caller(), &directory.node, name);
    Ok(super::removed(&directory, changed))
}
