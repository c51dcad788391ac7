//! RENAME (RFC 1813 section 3.3.14).

use curt_proto::nfs3::{Outcome, RenameArguments, RenameWcc, Status};

use crate::name::{Purpose, check};
use crate::request::{Pair, Refusal, Request, Target};
use crate::status;

pub(super) fn run(
    request: &mut Request<'_, '_>,
    arguments: &RenameArguments<'_>,
) -> Result<Outcome<RenameWcc, RenameWcc>, Refusal> {
    let (from, to) = match request.resolve_both(&arguments.from.directory, &arguments.to.directory)? {
        Pair::Both(from, to) => (from, to),
        Pair::Not(status, from, to) => return Ok(not_begun(status, from.as_ref(), to.as_ref())),
    };
    let names = from.writable().and_then(|()| {
        let from = check(arguments.from.name, Purpose::Rename)?;
        Ok((from, check(arguments.to.name, Purpose::Rename)?))
    });
    let (from_name, to_name) = match names {
        Ok(names) => names,
        Err(status) => return Ok(not_begun(status, Some(&from), Some(&to))),
    };
    request.may_wait(&from);
    let renamed = from
        .vfs()
        .rename(&from.caller(), &from.node, from_name, &to.node, to_name);
    let wcc = RenameWcc {
        from: from.wcc(renamed.from.0, renamed.from.1),
        to: to.wcc(renamed.to.0, renamed.to.1),
    };
    Ok(match renamed.value {
        Ok(()) => Outcome::Ok(wcc),
        Err(error) => Outcome::Failed(status::of_error(error), wcc),
    })
}

fn not_begun(
    status: Status,
    from: Option<&Target<'_>>,
    to: Option<&Target<'_>>,
) -> Outcome<RenameWcc, RenameWcc> {
    let unchanged = |directory: Option<&Target<'_>>| directory.map(Target::unchanged).unwrap_or_default();
    Outcome::Failed(
        status,
        RenameWcc {
            from: unchanged(from),
            to: unchanged(to),
        },
    )
}
