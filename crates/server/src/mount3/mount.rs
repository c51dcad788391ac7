//! MNT: from a path to the handle of a directory, an export's root or one below it.

use curt_proto::mount3::{MountOk, MountReply, Status};
use curt_rpc::server::Context;
use curt_vfs::{Caller, Error, FileKind, NodeHandle};
use curt_xdr::List;
use rustix::io::Errno;

use crate::dispatch::NfsService;
use crate::export::Export;
use crate::file_handle::Signed;
use crate::status;

/// RPC's number of the flavour that exports take (RFC 5531 section 8.1).
const AUTH_SYS: u32 = 1;
/// The longest component of a path, in bytes.
const COMPONENT_MAX: usize = 255;

/// Answers MNT and remembers who mounted what.
pub(super) fn mount(service: &NfsService, context: &Context<'_>, path: &[u8]) -> MountReply {
    match find(service, context, path) {
        Ok((export, node)) => {
            let (id, file_system) = (export.id, export.file_system);
            let root = service.key.sign(&Signed {
                export: id,
                file_system,
                node,
            });
            service.clients.remember(context.peer().ip(), path);
            tracing::info!(client = %context.peer(), path = %path.escape_ascii(), "mounted");
            let flavors = List::new(vec![AUTH_SYS]).expect("one flavour is not too many");
            MountReply::Ok(MountOk { root, flavors })
        }
        Err(status) => {
            tracing::info!(client = %context.peer(), path = %path.escape_ascii(), %status, "mount refused");
            MountReply::Failed(status)
        }
    }
}

fn find<'s>(
    service: &'s NfsService,
    context: &Context<'_>,
    path: &[u8],
) -> Result<(&'s Export, NodeHandle), Status> {
    let (export, below) = service.exports.by_path(path).ok_or(Status::Noent)?;
    export.rules_for(context.peer()).ok_or(Status::Acces)?;
    let node = walk(export, &below).map_err(status::of_mount_error)?;
    Ok((export, node))
}

/// Walks down as root, as mounting is root's business on the client; what the directory then lets its user do is
/// decided at each request. Symbolic links are not followed: they would lead out of the export.
fn walk(export: &Export, below: &[&[u8]]) -> Result<NodeHandle, Error> {
    let mut at = export.vfs.root();
    for name in below {
        if *name == b".." || name.contains(&0) {
            return Err(Errno::NOENT.into());
        }
        if name.len() > COMPONENT_MAX {
            return Err(Errno::NAMETOOLONG.into());
        }
        let node = export.vfs.lookup(&Caller::ROOT, &at, name).value?;
        if node.attributes.kind != FileKind::Directory {
            return Err(Errno::NOTDIR.into());
        }
        at = node.handle;
    }
    // An export whose root is gone is told now rather than at the first request.
    export.vfs.attributes(&at)?;
    Ok(at)
}
