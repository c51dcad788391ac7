//! LINK (RFC 1813 section 3.3.15).

use curt_proto::nfs3::{LinkArguments, LinkWcc, NfsResult, NfsStat3};

use crate::name::{NamePurpose, check};
use crate::request::{HandlePair, NfsRequest, Refusal, VerifiedHandle};
use crate::status;

pub(super) fn run(
    request: &mut NfsRequest<'_, '_>,
    arguments: &LinkArguments<'_>,
) -> Result<NfsResult<LinkWcc, LinkWcc>, Refusal> {
    let (file, directory) = match request.resolve_both(&arguments.file, &arguments.place.directory)? {
        HandlePair::Both(file, directory) => (file, directory),
        HandlePair::Unusable(status, file, directory) => {
            return Ok(not_begun(status, file.as_ref(), directory.as_ref()));
        }
    };
    let name = match directory
        .writable()
        .and_then(|()| check(arguments.place.name, NamePurpose::Create))
    {
        Ok(name) => name,
        Err(status) => return Ok(not_begun(status, Some(&file), Some(&directory))),
    };
    request.may_block(&file);
    let linked = file.vfs().link(&file.caller(), &file.node, &directory.node, name);
    let wcc = LinkWcc {
        attributes: file.post_op(linked.node),
        directory: directory.wcc(linked.directory.before, linked.directory.after),
    };
    Ok(match linked.directory.value {
        Ok(()) => NfsResult::Ok(wcc),
        Err(error) => NfsResult::Failed(status::of_error(error), wcc),
    })
}

fn not_begun(
    status: NfsStat3,
    file: Option<&VerifiedHandle<'_>>,
    directory: Option<&VerifiedHandle<'_>>,
) -> NfsResult<LinkWcc, LinkWcc> {
    let attributes = file.and_then(VerifiedHandle::present);
    let directory = directory.map(VerifiedHandle::unchanged_wcc).unwrap_or_default();
    NfsResult::Failed(
        status,
        LinkWcc {
            attributes,
            directory,
        },
    )
}
