//! RENAME (RFC 1813 section 3.3.14).

use curt_proto::nfs3::{NfsResult, NfsStat3, RenameArguments, RenameWcc};

use crate::name::{NamePurpose, check};
use crate::request::{HandlePair, NfsRequest, Refusal, VerifiedHandle};
use crate::status;

pub(super) fn run(
    request: &mut NfsRequest<'_, '_>,
    arguments: &RenameArguments<'_>,
) -> Result<NfsResult<RenameWcc, RenameWcc>, Refusal> {
    let (from, to) = match request.resolve_both(&arguments.from.directory, &arguments.to.directory)? {
        HandlePair::Both(from, to) => (from, to),
        HandlePair::Unusable(status, from, to) => return Ok(not_begun(status, from.as_ref(), to.as_ref())),
    };
    let names = from.writable().and_then(|()| {
        let from = check(arguments.from.name, NamePurpose::Rename)?;
        Ok((from, check(arguments.to.name, NamePurpose::Rename)?))
    });
    let (from_name, to_name) = match names {
        Ok(names) => names,
        Err(status) => return Ok(not_begun(status, Some(&from), Some(&to))),
    };
    request.may_block(&from);
    let renamed = from
        .vfs()
        .rename(&from.caller(), &from.node, from_name, &to.node, to_name);
    let wcc = RenameWcc {
        from: from.wcc(renamed.from.0, renamed.from.1),
        to: to.wcc(renamed.to.0, renamed.to.1),
    };
    Ok(match renamed.value {
        Ok(()) => NfsResult::Ok(wcc),
        Err(error) => NfsResult::Failed(status::of_error(error), wcc),
    })
}

fn not_begun(
    status: NfsStat3,
    from: Option<&VerifiedHandle<'_>>,
    to: Option<&VerifiedHandle<'_>>,
) -> NfsResult<RenameWcc, RenameWcc> {
    let unchanged = |directory: Option<&VerifiedHandle<'_>>| {
        directory.map(VerifiedHandle::unchanged_wcc).unwrap_or_default()
    };
    NfsResult::Failed(
        status,
        RenameWcc {
            from: unchanged(from),
            to: unchanged(to),
        },
    )
}
