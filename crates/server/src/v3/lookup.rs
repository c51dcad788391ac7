//! LOOKUP (RFC 1813 section 3.3.3).

use curt_proto::nfs3::{DirectoryName, Fattr, LookupOk, Outcome};

use super::crossing;
use crate::name::{Purpose, check};
use crate::request::{Refusal, Request};
use crate::status;

pub(super) fn run(
    request: &mut Request<'_, '_>,
    arguments: DirectoryName<'_>,
) -> Result<Outcome<LookupOk, Option<Fattr>>, Refusal> {
    let directory = request.resolve(&arguments.directory)?;
    let name = match check(arguments.name, Purpose::Find) {
        Ok(name) => name,
        Err(status) => return Ok(Outcome::Failed(status, directory.present())),
    };
    if let Some(left) = crossing::leave(request, &directory, name) {
        return left.map(Outcome::Ok);
    }
    let (vfs, caller) = (directory.vfs(), directory.caller());
    let found = vfs
        .lookup_at_hand(&caller, &directory.node, name)
        .unwrap_or_else(|| {
            request.context.may_block();
            vfs.lookup(&caller, &directory.node, name)
        });
    let attributes = directory.post_op(found.attributes);
    Ok(match found.value {
        Ok(node) => {
            if let Some(entered) = crossing::enter(request, &directory, &node.handle) {
                return Ok(Outcome::Ok(entered));
            }
            let (object, of_object) = directory.introduce(&node, name);
            Outcome::Ok(LookupOk {
                object,
                attributes: Some(of_object),
                directory: attributes,
            })
        }
        Err(error) => Outcome::Failed(status::of_error(error), attributes),
    })
}
