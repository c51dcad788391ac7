//! Mounting over NFSv3: from a server name and a path to the root's handle and an RPC client.
//!
//! Owns the requests of mounting: to the portmapper for ports, to MOUNT for the root's handle, and
//! to NFS for the server's limits. Each has a time limit, so that the caller can retry or fail the
//! mount. Must not know inodes or caches.

#[cfg(test)]
mod scripted;
#[cfg(test)]
mod tests;

use std::{fmt, io, sync::Arc};

use curt_proto::{
    mount3::{self, MountOk},
    nfs3,
};
use curt_rpc::{
    auth::RpcCredential,
    client::{Interrupt, PortSource, TcpOptions, TcpTransport, Transport, TransportEvents},
};
use curt_types::FileHandle;
use parking_lot::Mutex;

use super::{NfsV3, mount_service::MountService, nlm::NlmClient, portmap};
use crate::{
    protocol::{
        RpcCaller, RpcClient,
        deadline::within,
        mounting::{ExportSource, MountError, MountedExport, ServiceKind, first_of},
    },
    threads::Clock,
};

/// RPC authentication flavours (RFC 5531, section 13.4.2).
const FLAVOR_NONE: u32 = 0;
const FLAVOR_SYS: u32 = 1;

/// The parameters of a mount over NFSv3 in addition to the [`ExportSource`].
pub struct Nfs3Mount<'a> {
    /// The lock manager of the mount, asked for when everything else is there; `None`: no locks.
    pub locks: &'a dyn Fn() -> Option<NlmClient>,
    /// The clock of the requests.
    pub clock: Arc<dyn Clock>,
}

impl fmt::Debug for Nfs3Mount<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nfs3Mount").finish_non_exhaustive()
    }
}

/// Mounts `export`: finds the services, requests the root's handle, connects, and requests the
/// limits.
///
/// # Errors
/// [`MountError`].
pub fn mount(
    export: &ExportSource,
    mount: Nfs3Mount<'_>,
    events: Arc<dyn TransportEvents>,
    interrupt: &Interrupt,
) -> Result<MountedExport, MountError> {
    let (mount_service, answer) = ask_root(export, interrupt)?;
    check_flavors(&answer.flavors, &export.credential)?;
    let nfs_port = find_nfs_port(export, interrupt)?;
    let server = export.transport.server.to_string();
    let failed = |error| MountError::of_call(ServiceKind::Nfs, server.clone(), nfs_port, error);
    let options = TcpOptions { port: nfs_ports(export, nfs_port), ..export.transport.clone() };
    let transport = Arc::new(TcpTransport::connect(options, events, interrupt).map_err(failed)?);
    let carrier: Arc<dyn Transport> = Arc::<TcpTransport>::clone(&transport);
    let rpc = Arc::new(RpcClient::new(carrier, mount.clock));
    let root = FileHandle::from(answer.root);
    let nfs = NfsV3::new(Arc::clone(&rpc));
    let limits = within(export.timeout, interrupt, |ends| {
        let caller = RpcCaller { credential: &export.credential, interrupt: ends };
        let limits = nfs.limits(caller, &root).map_err(failed)?;
        limits.outcome.map_err(|fault| MountError::Nfs(fault.into()))
    });
    let (limits, path_limits) = match limits {
        // The time limit ended the requests, not the user.
        Err(MountError::Interrupted) if !interrupt.is_raised() => {
            return Err(MountError::TimedOut { service: ServiceKind::Nfs, server });
        }
        limits => limits?,
    };
    let protocol = NfsV3::of(rpc, (mount.locks)(), Some(mount_service));
    Ok(MountedExport { root, limits, path_limits, protocol, transport })
}

/// Sends MNT to each address of the MOUNT server until one replies.
fn ask_root(export: &ExportSource, interrupt: &Interrupt) -> Result<(MountService, MountOk), MountError> {
    let server = export.mount_server.as_ref().unwrap_or(&export.transport.server);
    first_of(server, export.mount_family, |address| {
        let (program, version) = (mount3::PROGRAM, mount3::VERSION);
        let port = match export.mount_port {
            Some(port) => port,
            None => match (
                portmap::ask(address, ServiceKind::Mount, program, version, export.timeout, interrupt),
                export.nfs_port,
            ) {
                (Ok(port), _) => port,
                // Without a portmapper, MOUNT may share the port of NFS.
                (Err(error), Some(port)) if is_portmapper_away(&error) => port,
                (Err(error), _) => return Err(error),
            },
        };
        let service = MountService::new(export, address, port);
        let answer = service.ask(export.timeout, interrupt)?;
        Ok((service, answer))
    })
}

fn find_nfs_port(export: &ExportSource, interrupt: &Interrupt) -> Result<u16, MountError> {
    if let Some(port) = export.nfs_port {
        return Ok(port);
    }
    let (program, version) = (nfs3::PROGRAM, nfs3::VERSION);
    let found = first_of(&export.transport.server, export.transport.family, |address| {
        portmap::ask(address, ServiceKind::Nfs, program, version, export.timeout, interrupt)
    });
    match found {
        Err(error) if is_portmapper_away(&error) => Ok(nfs3::PORT),
        found => found,
    }
}

/// The port source of the transport: the port already found for the first connection, a new query
/// for later ones.
fn nfs_ports(export: &ExportSource, found: u16) -> PortSource {
    if export.nfs_port.is_some() {
        return PortSource::Fixed(found);
    }
    let first = Mutex::new(Some(found));
    let timeout = export.timeout;
    PortSource::Lookup(Arc::new(move |address| {
        if let Some(port) = first.lock().take() {
            return Ok(port);
        }
        let (program, version) = (nfs3::PROGRAM, nfs3::VERSION);
        match portmap::ask(address, ServiceKind::Nfs, program, version, timeout, &Interrupt::never()) {
            Ok(port) => Ok(port),
            Err(error) if is_portmapper_away(&error) => Ok(nfs3::PORT),
            Err(error) => Err(io::Error::other(error)),
        }
    }))
}

fn is_portmapper_away(error: &MountError) -> bool {
    matches!(error, MountError::Refused { service: ServiceKind::Portmapper, .. })
}

/// Checks that the export accepts the flavour of `credential`. An empty list, or AUTH_NONE in it,
/// accepts any flavour: the server then ignores the credential.
fn check_flavors(offered: &[u32], credential: &RpcCredential) -> Result<(), MountError> {
    let ours = match credential {
        RpcCredential::None => FLAVOR_NONE,
        RpcCredential::Sys(_) => FLAVOR_SYS,
        // No mount option creates a security context.
        RpcCredential::Context(_) => return Ok(()),
    };
    if offered.is_empty() || offered.contains(&ours) || offered.contains(&FLAVOR_NONE) {
        return Ok(());
    }
    Err(MountError::Flavors { offered: offered.to_vec() })
}
