//! MOUNT version 3 (RFC 1813 appendix I), and version 1 except its MNT: decides which export a path
//! is of, and encodes the handle of its root.

#[cfg(test)]
mod client_tests;
mod mount;
mod remote_mounts;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;

use curt_proto::mount3::{
    ClientName, DirPath, ENTRIES_MAX, ExportList, ExportNode, MountBody, MountList, MountProcedure,
    MountStat3, VERSION_1,
};
use curt_rpc::message::CallMessage;
use curt_rpc::server::{CallContext, CallFailure};
use curt_xdr::{Encode, Opaque, OptionalList, decode_all};

pub(crate) use remote_mounts::RemoteMountTable;

use crate::exports::{ClientSpec, Export};
use crate::service::NfsService;

/// Executes one procedure and appends its results.
pub(crate) fn call(
    service: &NfsService,
    call: &CallMessage<'_>,
    context: &mut CallContext<'_>,
    reply: &mut Vec<u8>,
) -> Result<(), CallFailure> {
    let procedure = MountProcedure::from_number(call.procedure).ok_or(CallFailure::ProcedureUnavailable)?;
    let path = match procedure {
        MountProcedure::Mount | MountProcedure::Unmount => {
            decode_all::<DirPath<'_>>(call.arguments).map_err(|_| CallFailure::GarbageArguments)?.0
        }
        MountProcedure::Null | MountProcedure::Dump | MountProcedure::UnmountAll | MountProcedure::Export => {
            Opaque::default()
        }
    };
    match procedure {
        MountProcedure::Null => {}
        // A handle of version 1 has 32 bytes; the handles of this server are longer.
        MountProcedure::Mount if call.version == VERSION_1 => MountStat3::Acces.number().encode(reply),
        // MNT may wait for a name service, and for the disk that contains the path.
        MountProcedure::Mount => {
            context.may_block();
            mount::mount(service, context, path.bytes()).encode(reply);
        }
        MountProcedure::Dump => dump(service, reply),
        MountProcedure::Unmount => service.remote_mounts.forget(context.peer().ip(), path.bytes()),
        MountProcedure::UnmountAll => service.remote_mounts.forget_all(context.peer().ip()),
        // EXPORT may wait for a name service.
        MountProcedure::Export => {
            context.may_block();
            exports(service, context.peer(), reply);
        }
    }
    Ok(())
}

fn dump(service: &NfsService, reply: &mut Vec<u8>) {
    let mounts = service.remote_mounts.list();
    let entries = mounts.iter().filter_map(|(client, path)| {
        let (client, path) = (Opaque::new(client.as_bytes()).ok()?, Opaque::new(path).ok()?);
        Some(MountBody { client: ClientName(client), path: DirPath(path) })
    });
    let entries =
        OptionalList::new(entries.collect()).expect("fewer clients are remembered than a list may have");
    MountList(entries).encode(reply);
}

/// The exports that this client may use, each with all its clients as written. Other exports are
/// not listed; an administrator can use `curt exports`. An export is also listed if no name service
/// answers in time, because this client may be one of its clients.
fn exports(service: &NfsService, asker: SocketAddr, reply: &mut Vec<u8>) {
    let exports = service.exports.current();
    let deadline = service.exports.deadline();
    let is_for_asker =
        |export: &Export| !matches!(mount::entry_of(service, export, asker, deadline), Ok(None));
    let named: Vec<(&[u8], Vec<String>)> = exports
        .iter()
        .filter(|export| export.listed && is_for_asker(export))
        .map(|export| (export.path(), groups(export)))
        .collect();
    let entries = named.iter().filter_map(|(path, groups)| {
        let groups = groups.iter().take(ENTRIES_MAX);
        let groups = groups.filter_map(|name| Some(ClientName(Opaque::new(name.as_bytes()).ok()?)));
        Some(ExportNode {
            path: DirPath(Opaque::new(path).ok()?),
            groups: OptionalList::new(groups.collect()).ok()?,
        })
    });
    let entries = OptionalList::new(entries.take(ENTRIES_MAX).collect());
    let entries = entries.expect("no more were taken than a list may have");
    ExportList(entries).encode(reply);
}

/// The clients of an export as written. The list is empty if `*` is the only client, as older
/// clients expect.
fn groups(export: &Export) -> Vec<String> {
    match export.clients() {
        [only] if only.client == ClientSpec::Anyone => Vec::new(),
        clients => clients.iter().map(|client| client.client.to_string()).collect(),
    }
}
