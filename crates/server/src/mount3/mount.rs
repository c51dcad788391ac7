//! MNT: from a path to the handle of a directory, an export's root or one below it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use curt_proto::mount3::{MountOk, MountReply, MountStat3};
use curt_rpc::server::CallContext;
use curt_types::{Fault, FileKind};
use curt_vfs::{Error, FsCred, NodeHandle};
use curt_xdr::VarArray;
use rustix::io::Errno;

use crate::exports::{CredentialFlavor, Export, ExportClient, MatchedClient};
use crate::file_handle::HandleContents;
use crate::service::NfsService;
use crate::v3::wire_handle;

/// The longest component of a path, in bytes.
const COMPONENT_MAX: usize = 255;

/// A directory that a client may mount.
struct MountTarget {
    export: Arc<Export>,
    node: NodeHandle,
    flavors: Vec<u32>,
}

/// Answers MNT and records the client and the path for DUMP.
pub(super) fn mount(service: &NfsService, context: &CallContext<'_>, path: &[u8]) -> MountReply {
    match find(service, context.peer(), path) {
        Ok(MountTarget { export, node, flavors }) => {
            let root = service.key.sign(&HandleContents {
                export: export.id,
                file_system: export.file_system,
                node,
                parent: None,
            });
            service.remote_mounts.add(context.peer().ip(), path);
            tracing::info!(client = %context.peer(), path = %path.escape_ascii(), "mounted");
            let flavors = VarArray::new(flavors).expect("there are two flavours at most");
            MountReply::Ok(MountOk { root: wire_handle(&root), flavors })
        }
        Err(status) => {
            tracing::info!(client = %context.peer(), path = %path.escape_ascii(), %status, "mount refused");
            MountReply::Failed(status)
        }
    }
}

/// Finds the innermost export that contains a path and is open to the client, and resolves the path
/// in it.
fn find(service: &NfsService, client: SocketAddr, path: &[u8]) -> Result<MountTarget, MountStat3> {
    let exports = service.exports.current();
    let mut refused = MountStat3::Noent;
    for (export, below) in exports.containing(path) {
        refused = MountStat3::Acces;
        let Some(entry) = entry_of(service, export, client, service.exports.deadline())? else {
            continue;
        };
        if entry.refuses_port(client) {
            return Err(MountStat3::Acces);
        }
        let flavors = entry.rules.flavors().map(CredentialFlavor::number).collect();
        let node = walk(export, &below).map_err(status_of)?;
        let export = Arc::clone(export);
        return Ok(MountTarget { export, node, flavors });
    }
    Err(refused)
}

/// An export's rules for a client, if it has any. Waits for name services until `deadline`.
pub(super) fn entry_of(
    service: &NfsService,
    export: &Export,
    client: SocketAddr,
    deadline: Instant,
) -> Result<Option<ExportClient>, MountStat3> {
    let names = service.exports.names();
    loop {
        match export.client(client.ip().to_canonical(), names) {
            MatchedClient::Client(entry) => return Ok(Some(entry.clone())),
            MatchedClient::Nobody => return Ok(None),
            MatchedClient::Unknown(question) if names.wait(&question, deadline) => {}
            // MOUNT has no status like NFS3ERR_JUKEBOX; clients retry after MNT3ERR_SERVERFAULT.
            MatchedClient::Unknown(_) => return Err(MountStat3::Serverfault),
        }
    }
}

/// The status for an error in the resolution of the directory.
fn status_of(error: Error) -> MountStat3 {
    match Fault::from(error) {
        Fault::Perm => MountStat3::Perm,
        Fault::Noent | Fault::Stale => MountStat3::Noent,
        Fault::Acces => MountStat3::Acces,
        Fault::Notdir => MountStat3::Notdir,
        Fault::Inval => MountStat3::Inval,
        Fault::Nametoolong => MountStat3::Nametoolong,
        Fault::Io => MountStat3::Io,
        _ => MountStat3::Serverfault,
    }
}

/// Resolves the path as root, because only root mounts on the client. Each later request is checked
/// with its own caller. Symbolic links are not followed: they could lead out of the export.
fn walk(export: &Export, below: &[&[u8]]) -> Result<NodeHandle, Error> {
    let mut at = export.vfs.root();
    for name in below {
        if *name == b".." || name.contains(&0) {
            return Err(Errno::NOENT.into());
        }
        if name.len() > COMPONENT_MAX {
            return Err(Errno::NAMETOOLONG.into());
        }
        let node = export.vfs.lookup(&FsCred::ROOT, &at, name).value?;
        if node.attributes.kind != FileKind::Directory {
            return Err(Errno::NOTDIR.into());
        }
        at = node.handle;
    }
    // Report an export whose root is gone now rather than at the first request.
    export.vfs.attributes(&at)?;
    Ok(at)
}
