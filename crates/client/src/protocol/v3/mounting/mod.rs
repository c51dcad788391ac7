//! Mounting over NFSv3: from a server name and a path to the root's handle and an RPC client.
//!
//! Owns the requests of mounting: to the portmapper for ports, to MOUNT for the root's handle, to
//! NFS for the server's limits, and UMNT at the end. Each has a time limit, so that the caller can
//! retry or fail the mount. Must not know inodes or caches.

mod error;
mod portmap;
#[cfg(test)]
mod scripted;
#[cfg(test)]
mod tests;

use std::{
    fmt, io,
    net::{IpAddr, ToSocketAddrs},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use curt_proto::{
    mount3::{self, DirPath, MountOk, MountReply},
    nfs3,
};
use curt_rpc::{
    auth::RpcCredential,
    client::{
        AddressFamily, CallError, Interrupt, NoTransportEvents, PortSource, RpcRequest, ServerName,
        TcpOptions, TcpTransport, Transport, TransportEvents, Wake,
    },
};
use curt_types::FileHandle;
use curt_xdr::{Encode, Opaque};
use parking_lot::{Condvar, Mutex};

use super::NfsV3;
use crate::{
    protocol::{Fsinfo, Pathconf, Protocol, RpcCaller, RpcClient, v4::NfsV4},
    threads::Clock,
};

pub use error::{MountError, MountRetry, OfferedVersions, ServiceKind};
pub(super) use portmap::ask as ask_port;

/// Longest results of MNT: a handle and 64 flavours, in bytes.
const MOUNT_RESULTS_MAX: usize = 1024;

/// RPC authentication flavours (RFC 5531, section 13.4.2).
const FLAVOR_NONE: u32 = 0;
const FLAVOR_SYS: u32 = 1;

/// An export, and how its services are found.
#[derive(Clone, Debug)]
pub struct ExportSource {
    /// The path in MNT.
    pub path: Vec<u8>,
    /// The transport options of NFS requests; `nfs_port` determines the port source.
    pub transport: TcpOptions,
    /// `port=`; `None`: the portmapper is queried for each new connection, and 2049 is used if
    /// there is no portmapper.
    pub nfs_port: Option<u16>,
    /// `mounthost=`; `None`: the NFS server.
    pub mount_server: Option<ServerName>,
    /// The addresses of the MOUNT server that are tried (`mountproto=`).
    pub mount_family: AddressFamily,
    /// `mountport=`; `None`: the portmapper is queried, and the NFS port is tried if there is no
    /// portmapper.
    pub mount_port: Option<u16>,
    /// The credential of the mount requests; AUTH_NONE for `sec=none`.
    pub credential: RpcCredential,
    /// Time limit of each request.
    pub timeout: Duration,
}

impl ExportSource {
    /// The export `path` of the server of `transport`, with all else found through it.
    #[must_use]
    pub fn new(path: &[u8], transport: TcpOptions, credential: RpcCredential, timeout: Duration) -> Self {
        Self {
            path: path.to_vec(),
            transport,
            nfs_port: None,
            mount_server: None,
            mount_family: AddressFamily::Any,
            mount_port: None,
            credential,
            timeout,
        }
    }
}

/// A mounted export.
pub struct MountedExport {
    /// The root's handle.
    pub root: FileHandle,
    /// The root's FSINFO.
    pub limits: Fsinfo,
    /// The root's PATHCONF; zeros if the server did not return it.
    pub path_limits: Pathconf,
    /// The RPC client; its statistics include the requests above.
    pub rpc: Arc<RpcClient>,
    /// The transport of the RPC client.
    pub transport: Arc<TcpTransport>,
    /// The version of NFS, with what is needed at the end.
    pub version: MountedVersion,
}

/// The version of a mounted export.
#[derive(Debug)]
pub enum MountedVersion {
    /// NFSv3, with the service to which UMNT is sent at the end.
    V3(MountService),
    /// NFSv4, with the client whose session ends with the mount.
    V4(Arc<NfsV4>),
}

impl MountedExport {
    /// Tells the server that the mount ends, for at most `timeout`.
    pub fn end(&self, timeout: Duration, interrupt: &Interrupt) {
        match &self.version {
            MountedVersion::V3(service) => service.unmount(timeout, interrupt),
            MountedVersion::V4(protocol) => protocol.end(timeout),
        }
    }
}

/// The service that answered MNT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountService {
    /// The address.
    pub address: IpAddr,
    /// The port.
    pub port: u16,
    path: Vec<u8>,
    credential: RpcCredential,
    reserved_port: bool,
}

/// Mounts `export`: finds the services, requests the root's handle, connects, and requests the
/// limits.
///
/// # Errors
/// [`MountError`].
pub fn mount(
    export: &ExportSource,
    events: Arc<dyn TransportEvents>,
    clock: Arc<dyn Clock>,
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
    let wire = Arc::new(RpcClient::new(carrier, clock));
    let root = FileHandle::from(answer.root);
    let nfs = NfsV3::new(Arc::clone(&wire));
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
    let version = MountedVersion::V3(mount_service);
    Ok(MountedExport { root, limits, path_limits, rpc: wire, transport, version })
}

impl MountService {
    /// Sends UMNT. Errors are ignored: a server that misses the request only lists the client
    /// longer in `showmount -a`.
    pub fn unmount(&self, timeout: Duration, interrupt: &Interrupt) {
        let path = DirPath(Opaque::new(&self.path).unwrap_or_default());
        let answer = self.call(mount3::MountProcedure::Unmount, &path, timeout, interrupt).map(drop);
        if let Err(error) = answer {
            tracing::debug!(address = %self.address, port = self.port, %error, "UMNT failed");
        }
    }

    /// Sends MNT.
    fn ask(&self, timeout: Duration, interrupt: &Interrupt) -> Result<MountOk, MountError> {
        let path = DirPath(Opaque::new(&self.path).map_err(|_| MountError::PathTooLong)?);
        let failed =
            |error| MountError::of_call(ServiceKind::Mount, self.address.to_string(), self.port, error);
        let reply = self.call(mount3::MountProcedure::Mount, &path, timeout, interrupt).map_err(failed)?;
        let status = match portmap::decoded(&reply).map_err(failed)? {
            MountReply::Ok(ok) => return Ok(ok),
            MountReply::Failed(status) => status,
        };
        Err(match status {
            mount3::MountStat3::Acces | mount3::MountStat3::Perm => MountError::AccessDenied { status },
            mount3::MountStat3::Noent => MountError::NoSuchPath,
            mount3::MountStat3::Notdir => MountError::NotADirectory,
            mount3::MountStat3::Nametoolong => MountError::PathTooLong,
            mount3::MountStat3::Ok
            | mount3::MountStat3::Io
            | mount3::MountStat3::Inval
            | mount3::MountStat3::Notsupp
            | mount3::MountStat3::Serverfault => MountError::Mount(status),
        })
    }

    fn call(
        &self,
        procedure: mount3::MountProcedure,
        arguments: &(dyn Encode + Sync),
        timeout: Duration,
        interrupt: &Interrupt,
    ) -> Result<curt_rpc::client::CallReply, CallError> {
        let options = TcpOptions {
            reserved_port: self.reserved_port,
            ..portmap::question_options(ServerName::Address(self.address), self.port, timeout)
        };
        let transport = TcpTransport::connect(options, Arc::new(NoTransportEvents), interrupt)?;
        let request = RpcRequest {
            program: mount3::PROGRAM,
            version: mount3::VERSION,
            procedure: procedure.number(),
            credential: &self.credential,
            arguments,
            bulk: &[],
            results_max: MOUNT_RESULTS_MAX,
        };
        transport.call(&request, interrupt)
    }
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
        let service = MountService {
            address,
            port,
            path: export.path.clone(),
            credential: export.credential.clone(),
            reserved_port: export.transport.reserved_port,
        };
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

/// The first success of `ask` over the addresses of `server`, or the last error.
pub(super) fn first_of<R>(
    server: &ServerName,
    family: AddressFamily,
    mut ask: impl FnMut(IpAddr) -> Result<R, MountError>,
) -> Result<R, MountError> {
    let mut last = MountError::UnknownHost(server.to_string());
    for address in addresses(server, family) {
        match ask(address) {
            Ok(found) => return Ok(found),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn addresses(server: &ServerName, family: AddressFamily) -> Vec<IpAddr> {
    let all: Vec<IpAddr> = match server {
        ServerName::Address(address) => vec![*address],
        ServerName::Name(name) => {
            let found = (name.as_str(), 0).to_socket_addrs();
            found.map(|found| found.map(|address| address.ip()).collect()).unwrap_or_default()
        }
    };
    let wanted = |address: &IpAddr| match family {
        AddressFamily::Any => true,
        AddressFamily::V4 => address.is_ipv4(),
        AddressFamily::V6 => address.is_ipv6(),
    };
    all.into_iter().filter(wanted).collect()
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

/// The READ or WRITE size in bytes: the requested one (`rsize=`, `wsize=`) or the one preferred by
/// the server, from 1024 to 1 MiB, at most the server's maximum, and above 4096 a multiple of 4096.
#[must_use]
pub fn transfer_size(asked: Option<u32>, server_preferred: u32, server_max: u32) -> u32 {
    const MAX: u32 = 1 << 20;
    const MULTIPLE: u32 = 4096;
    const MIN: u32 = 1024;
    let preferred = if server_preferred == 0 { server_max } else { server_preferred };
    let wanted = asked.unwrap_or(preferred);
    let limit = if server_max == 0 { MAX } else { server_max.min(MAX) };
    let size = wanted.clamp(MIN, MAX).min(limit);
    if size > MULTIPLE { size - size % MULTIPLE } else { size }
}

impl fmt::Debug for MountedExport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MountedExport")
            .field("root", &self.root)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

#[derive(Default)]
struct DeadlineWakeup {
    over: Mutex<bool>,
    wakeup: Condvar,
}

impl Wake for DeadlineWakeup {
    fn wake(&self) {
        // The waiter holds the lock from its check of the interrupt until it sleeps.
        drop(self.over.lock());
        self.wakeup.notify_all();
    }
}

/// Runs `work` with an interrupt that is raised when `interrupt` is, or after `limit`.
pub(in crate::protocol) fn within<R>(
    limit: Duration,
    interrupt: &Interrupt,
    work: impl FnOnce(&Interrupt) -> R,
) -> R {
    let alarm = Arc::new(DeadlineWakeup::default());
    let ends = Interrupt::new();
    thread::scope(|scope| {
        let watch = || {
            let waker: Arc<dyn Wake> = Arc::<DeadlineWakeup>::clone(&alarm);
            let _registration = interrupt.register(waker);
            let end = Instant::now() + limit;
            let mut over = alarm.over.lock();
            while !*over && !interrupt.is_raised() {
                if alarm.wakeup.wait_until(&mut over, end).timed_out() {
                    break;
                }
            }
            drop(over);
            ends.raise();
        };
        let watcher = thread::Builder::new().name("curt-deadline".into()).spawn_scoped(scope, watch);
        // If the watcher thread could not be started, only the caller's interrupt applies.
        let result = work(if watcher.is_ok() { &ends } else { interrupt });
        *alarm.over.lock() = true;
        alarm.wakeup.notify_all();
        result
    })
}
