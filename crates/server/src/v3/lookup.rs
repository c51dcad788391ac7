//! LOOKUP (RFC 1813 section 3.3.3).

use curt_proto::nfs3::{DirOpArgs, Fattr, LookupOk, NfsResult};

use super::crossing;
use crate::name::{NamePurpose, check};
use crate::request::{NfsRequest, Refusal};
use crate::status;

pub(super) fn run(
    request: &mut NfsRequest<'_, '_>,
    arguments: DirOpArgs<'_>,
) -> Result<NfsResult<LookupOk, Option<Fattr>>, Refusal> {
    let directory = request.resolve(&arguments.directory)?;
    let name = match check(arguments.name, NamePurpose::Lookup) {
        Ok(name) => name,
        Err(status) => return Ok(NfsResult::Failed(status, directory.present())),
    };
    if let Some(left) = crossing::leave(request, &directory, name) {
        return left.map(NfsResult::Ok);
    }
    let (vfs, caller) = (directory.vfs(), directory.caller());
    let found = vfs
        .lookup_nowait(&caller, &directory.node, name)
        .unwrap_or_else(|| {
            request.context.may_block();
            vfs.lookup(&caller, &directory.node, name)
        });
    let attributes = directory.post_op(found.attributes);
    Ok(match found.value {
        Ok(node) => {
            if let Some(entered) = crossing::enter(request, &directory, &node.handle) {
                return Ok(NfsResult::Ok(entered));
            }
            let (object, of_object) = directory.child_handle(&node, name);
            NfsResult::Ok(LookupOk {
                object,
                attributes: Some(of_object),
                directory: attributes,
            })
        }
        Err(error) => NfsResult::Failed(status::of_error(error), attributes),
    })
}
