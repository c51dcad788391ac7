//! MNT: from a path to the handle of a directory, an export's root or one below it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use curt_proto::mount3::{MountOk, MountReply, Status};
use curt_rpc::server::Context;
use curt_vfs::{Caller, Error, FileKind, NodeHandle};
use curt_xdr::List;
use rustix::io::Errno;

use crate::dispatch::NfsService;
use crate::exports::{CredentialFlavor, Export, ExportClient, Found};
use crate::file_handle::Signed;
use crate::status;

/// The longest component of a path, in bytes.
const COMPONENT_MAX: usize = 255;

/// What a client may mount.
struct Mountable {
    export: Arc<Export>,
    node: NodeHandle,
    flavors: Vec<u32>,
}

/// Answers MNT and remembers who mounted what.
pub(super) fn mount(service: &NfsService, context: &Context<'_>, path: &[u8]) -> MountReply {
    match find(service, context.peer(), path) {
        Ok(Mountable {
            export,
            node,
            flavors,
        }) => {
            let root = service.key.sign(&Signed {
                export: export.id,
                file_system: export.file_system,
                node,
                parent: None,
            });
            service.clients.remember(context.peer().ip(), path);
            tracing::info!(client = %context.peer(), path = %path.escape_ascii(), "mounted");
            let flavors = List::new(flavors).expect("there are two flavours at most");
            MountReply::Ok(MountOk { root, flavors })
        }
        Err(status) => {
            tracing::info!(client = %context.peer(), path = %path.escape_ascii(), %status, "mount refused");
            MountReply::Failed(status)
        }
    }
}

/// Finds the innermost export around a path that is open to the client, and what the path names in it.
fn find(service: &NfsService, client: SocketAddr, path: &[u8]) -> Result<Mountable, Status> {
    let exports = service.exports.current();
    let mut refused = Status::Noent;
    for (export, below) in exports.around(path) {
        refused = Status::Acces;
        let Some(entry) = entry_of(service, export, client, service.exports.deadline())? else {
            continue;
        };
        if entry.is_closed_to(client) {
            return Err(Status::Acces);
        }
        let flavors = entry.rules.flavors().map(CredentialFlavor::number).collect();
        let node = walk(export, &below).map_err(status::of_mount_error)?;
        let export = Arc::clone(export);
        return Ok(Mountable {
            export,
            node,
            flavors,
        });
    }
    Err(refused)
}

/// An export's rules for a client, if it has any; if need be, waits for names until `deadline`.
pub(super) fn entry_of(
    service: &NfsService,
    export: &Export,
    client: SocketAddr,
    deadline: Instant,
) -> Result<Option<ExportClient>, Status> {
    let names = service.exports.names();
    loop {
        match export.client(client.ip().to_canonical(), names) {
            Found::Client(entry) => return Ok(Some(entry.clone())),
            Found::Nobody => return Ok(None),
            Found::Unknown(question) if names.wait(&question, deadline) => {}
            // There is no "come back" in MOUNT; clients try again when the server failed.
            Found::Unknown(_) => return Err(Status::Serverfault),
        }
    }
}

/// Walks down as root, because on the client only root mounts; what a user may then do in the directory is decided at each
/// request. Symbolic links are not followed: they could lead out of the export.
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
