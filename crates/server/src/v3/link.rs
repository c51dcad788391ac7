//! LINK (RFC 1813 section 3.3.15).

use curt_proto::nfs3::{LinkArguments, LinkWcc, Outcome, Status};

use crate::name::{Purpose, check};
use crate::request::{Pair, Refusal, Request, Target};
use crate::status;

pub(super) fn run(
    request: &mut Request<'_, '_>,
    arguments: &LinkArguments<'_>,
) -> Result<Outcome<LinkWcc, LinkWcc>, Refusal> {
    let (file, directory) = match request.resolve_both(&arguments.file, &arguments.place.directory)? {
        Pair::Both(file, directory) => (file, directory),
        Pair::Not(status, file, directory) => {
            return Ok(not_begun(status, file.as_ref(), directory.as_ref()));
        }
    };
    let name = match directory
        .writable()
        .and_then(|()| check(arguments.place.name, Purpose::Make))
    {
        Ok(name) => name,
        Err(status) => return Ok(not_begun(status, Some(&file), Some(&directory))),
    };
    request.may_wait(&file);
    let linked = file.vfs().link(&file.caller(), &file.node, &directory.node, name);
    let wcc = LinkWcc {
        attributes: file.post_op(linked.node),
        directory: directory.wcc(linked.directory.before, linked.directory.after),
    };
    Ok(match linked.directory.value {
        Ok(()) => Outcome::Ok(wcc),
        Err(error) => Outcome::Failed(status::of_error(error), wcc),
    })
}

fn not_begun(
    status: Status,
    file: Option<&Target<'_>>,
    directory: Option<&Target<'_>>,
) -> Outcome<LinkWcc, LinkWcc> {
    let attributes = file.and_then(Target::present);
    let directory = directory.map(Target::unchanged).unwrap_or_default();
    Outcome::Failed(
        status,
        LinkWcc {
            attributes,
            directory,
        },
    )
}
