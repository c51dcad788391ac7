//! MOUNT version 3 (RFC 1813 appendix I), and version 1 but for its MNT.

#[cfg(test)]
mod askers;
mod clients;
mod mount;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;

use curt_proto::mount3::{
    ClientName, ENTRIES_MAX, ExportEntry, ExportList, ExportPath, MountEntry, MountList, PROGRAM, Procedure,
    Status, VERSION, VERSION_1,
};
use curt_rpc::message::{Call, Versions};
use curt_rpc::server::{CallFailure, Context};
use curt_xdr::{Chain, Encode, Opaque, decode_all};

pub(crate) use clients::Clients;

use crate::dispatch::NfsService;
use crate::exports::{Client, Export};

/// Runs one procedure and appends its results.
pub(crate) fn call(
    service: &NfsService,
    call: &Call<'_>,
    context: &mut Context<'_>,
    reply: &mut Vec<u8>,
) -> Result<(), CallFailure> {
    debug_assert_eq!(call.program, PROGRAM);
    if call.version != VERSION && call.version != VERSION_1 {
        return Err(CallFailure::ProgramMismatch(Versions {
            low: VERSION_1,
            high: VERSION,
        }));
    }
    let procedure = Procedure::from_number(call.procedure).ok_or(CallFailure::ProcedureUnavailable)?;
    let path = match procedure {
        Procedure::Mount | Procedure::Unmount => {
            decode_all::<ExportPath<'_>>(call.arguments)
                .map_err(|_| CallFailure::GarbageArguments)?
                .0
        }
        Procedure::Null | Procedure::Dump | Procedure::UnmountAll | Procedure::Export => Opaque::default(),
    };
    match procedure {
        Procedure::Null => {}
        // A handle of version 1 has 32 bytes, ours have more.
        Procedure::Mount if call.version == VERSION_1 => Status::Acces.number().encode(reply),
        // It may wait for a name service, and for the disk that the path is on.
        Procedure::Mount => {
            context.may_block();
            mount::mount(service, context, path.bytes()).encode(reply);
        }
        Procedure::Dump => dump(service, reply),
        Procedure::Unmount => service.clients.forget(context.peer().ip(), path.bytes()),
        Procedure::UnmountAll => service.clients.forget_all(context.peer().ip()),
        // For a name service, too.
        Procedure::Export => {
            context.may_block();
            exports(service, context.peer(), reply);
        }
    }
    Ok(())
}

fn dump(service: &NfsService, reply: &mut Vec<u8>) {
    let mounts = service.clients.list();
    let entries = mounts.iter().filter_map(|(client, path)| {
        let (client, path) = (Opaque::new(client.as_bytes()).ok()?, Opaque::new(path).ok()?);
        Some(MountEntry {
            client: ClientName(client),
            path: ExportPath(path),
        })
    });
    let entries = Chain::new(entries.collect()).expect("fewer clients are remembered than a list may have");
    MountList(entries).encode(reply);
}

/// The exports that have a line for this client, each with all its clients, as written. Others are not listed; an administrator
/// can use `curt exports`. If no name service answers in time, the export is listed: it may be one for this client.
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
        Some(ExportEntry {
            path: ExportPath(Opaque::new(path).ok()?),
            groups: Chain::new(groups.collect()).ok()?,
        })
    });
    let entries = Chain::new(entries.take(ENTRIES_MAX).collect());
    let entries = entries.expect("no more were taken than a list may have");
    ExportList(entries).encode(reply);
}

/// The clients of an export as they were written; none at all where everybody is the only one, as older clients expect.
fn groups(export: &Export) -> Vec<String> {
    match export.clients() {
        [only] if only.client == Client::Anyone => Vec::new(),
        clients => clients.iter().map(|client| client.client.to_string()).collect(),
    }
}
