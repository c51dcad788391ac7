//! RMDIR (RFC 1813 section 3.3.13).

use curt_proto::nfs3::{DirectoryName, Outcome, WccData};

use crate::name::{Purpose, check};
use crate::request::{Refusal, Request};

pub(super) fn run(
    request: &mut Request<'_, '_>,
    arguments: DirectoryName<'_>,
) -> Result<Outcome<WccData, WccData>, Refusal> {
    let directory = request.resolve(&arguments.directory)?;
    let name = match directory
        .writable()
        .and_then(|()| check(arguments.name, Purpose::RemoveDirectory))
    {
        Ok(name) => name,
        Err(status) => return super::not_begun(&directory, status),
    };
    request.may_wait(&directory);
    let changed = directory
        .vfs()
        .remove_directory(&directory.caller(), &directory.node, name);
    Ok(super::removed(&directory, changed))
}
