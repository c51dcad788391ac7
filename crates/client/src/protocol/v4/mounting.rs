//! Mounting over NFSv4: from a server name and a path to the root's handle and a client with a
//! session. There is no MOUNT service and no portmapper: the path is looked up from the root of all
//! exports (RFC 8881 section 7).

use std::sync::Arc;

use curt_proto::nfs4::{
    Component, CompoundEncoder, GetattrOk4, GetfhOk4, LookupArgs4, Nfs4Operation, NfsStat4, Stateid,
};
use curt_rpc::{
    client::{
        CallError, Interrupt, PortSource, RecoveryMode, Retransmission, TcpOptions, TcpTransport, Transport,
        TransportEvents,
    },
    server::RpcService,
};
use curt_types::FileHandle;

use super::{
    NfsV4, attributes,
    callback::{self, CallbackService},
    compound::request::{CompoundRequest, get_attributes, put_fh},
    identity::ClientIdentity,
    recovery::RecoveryError,
    results::{CompoundResultReader, outcome},
    session::RecoveryStep,
};
use crate::{
    protocol::{
        Fsinfo, Pathconf, RpcCaller, RpcClient,
        deadline::within,
        mounting::{ExportSource, MountError, MountedExport, ServiceKind},
    },
    threads::{Background, Clock},
};

/// The port of NFS.
const PORT: u16 = 2049;

/// The most components that are looked up in one compound.
const COMPONENTS_MAX: usize = 16;

/// The parameters of a mount over NFSv4 in addition to the [`ExportSource`].
#[derive(Debug)]
pub struct Nfs4Mount {
    /// 1 or 2.
    pub minor_version: u32,
    /// The client's name.
    pub identity: ClientIdentity,
    /// Runs the renewal of the lease.
    pub background: Arc<dyn Background>,
    /// The clock of the requests.
    pub clock: Arc<dyn Clock>,
}

/// A mounted export.
#[derive(Debug)]
pub struct Nfs4Export {
    /// The root's handle.
    pub root: FileHandle,
    /// The limits of the root's file system.
    pub limits: Fsinfo,
    /// Its limits as for pathconf(3).
    pub path_limits: Pathconf,
    /// The client.
    pub protocol: Arc<NfsV4>,
}

/// Mounts `export`: connects, creates a session, and looks the path up.
///
/// # Errors
/// [`MountError`].
pub fn mount(
    export: &ExportSource,
    mount: Nfs4Mount,
    events: Arc<dyn TransportEvents>,
    interrupt: &Interrupt,
) -> Result<MountedExport, MountError> {
    let port = export.nfs_port.unwrap_or(PORT);
    let server = export.transport.server.to_string();
    let failed = |error| MountError::of_call(ServiceKind::Nfs, server.clone(), port, error);
    let callbacks = Arc::<CallbackService>::default();
    let options = TcpOptions {
        port: PortSource::Fixed(port),
        callbacks: Some(callback::handler(&callbacks)),
        retransmission: Retransmission::ConnectionLoss,
        ..export.transport.clone()
    };
    let transport = Arc::new(TcpTransport::connect(options, events, interrupt).map_err(failed)?);
    let carrier: Arc<dyn Transport> = Arc::<TcpTransport>::clone(&transport);
    let mounted =
        within(export.timeout, interrupt, |ends| establish(carrier, callbacks, export, mount, ends));
    match mounted {
        Ok(Nfs4Export { root, limits, path_limits, protocol }) => {
            Ok(MountedExport { root, limits, path_limits, protocol, transport })
        }
        // The time limit ended the requests, not the user.
        Err(EstablishError::Call(CallError::Interrupted)) if !interrupt.is_raised() => {
            Err(MountError::TimedOut { service: ServiceKind::Nfs, server })
        }
        Err(EstablishError::Call(error)) => Err(failed(error)),
        Err(EstablishError::Refused(status)) => Err(MountError::Session(status)),
        Err(EstablishError::TooSmall) => Err(MountError::SessionTooSmall),
        Err(EstablishError::Path(NfsStat4::Noent)) => Err(MountError::NoSuchPath),
        Err(EstablishError::Path(NfsStat4::Notdir | NfsStat4::Symlink)) => Err(MountError::NotADirectory),
        Err(EstablishError::Path(status)) => Err(MountError::Nfs4(status)),
    }
}

/// Why there is no mount.
#[derive(Debug)]
pub enum EstablishError {
    /// There is no reply.
    Call(CallError),
    /// The server refuses the client or its session.
    Refused(NfsStat4),
    /// Its sessions are too small.
    TooSmall,
    /// The path cannot be looked up.
    Path(NfsStat4),
}

/// The service that executes the calls of the server of a mount.
#[derive(Clone, Debug, Default)]
pub struct Callbacks(Arc<CallbackService>);

impl Callbacks {
    /// The service that the transport passes them to.
    #[must_use]
    pub fn service(&self) -> Arc<dyn RpcService> {
        Arc::clone(&self.0) as Arc<dyn RpcService>
    }
}

/// Mounts over a transport that is there.
///
/// # Errors
/// [`EstablishError`].
pub fn mount_over(
    carrier: Arc<dyn Transport>,
    callbacks: &Callbacks,
    export: &ExportSource,
    mount: Nfs4Mount,
) -> Result<Nfs4Export, EstablishError> {
    establish(carrier, Arc::clone(&callbacks.0), export, mount, &Interrupt::never())
}

fn establish(
    carrier: Arc<dyn Transport>,
    callbacks: Arc<CallbackService>,
    export: &ExportSource,
    mount: Nfs4Mount,
    interrupt: &Interrupt,
) -> Result<Nfs4Export, EstablishError> {
    let rpc = Arc::new(RpcClient::new(carrier, mount.clock));
    let nfs = NfsV4::new(
        rpc,
        mount.minor_version,
        mount.identity,
        export.credential.clone(),
        export.transport.recovery == RecoveryMode::Hard,
        callbacks,
        &mount.background,
    );
    nfs.recover_steps(interrupt, false, RecoveryStep::None).map_err(|error| match error {
        RecoveryError::Call(error) => EstablishError::Call(error),
        RecoveryError::Refused(status) => EstablishError::Refused(status),
        RecoveryError::TooSmall => EstablishError::TooSmall,
    })?;
    let caller = RpcCaller { credential: &export.credential, interrupt };
    let names: Vec<&[u8]> =
        export.path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b".")).collect();
    let mut at = None;
    // Beside them there are SEQUENCE, the start of the walk and GETFH.
    let most = usize::try_from(nfs.session.lock().limits.operations_max.saturating_sub(3)).unwrap_or(1);
    for names in names.chunks(COMPONENTS_MAX.min(most.max(1))) {
        at = Some(walk(&nfs, caller, at.as_ref(), names)?);
    }
    let root = match at {
        Some(root) => root,
        None => walk(&nfs, caller, None, &[])?,
    };
    let (limits, path_limits) = root_limits(&nfs, caller, &root)?;
    nfs.keep_lease();
    Ok(Nfs4Export { root, limits, path_limits, protocol: nfs })
}

/// Looks `names` up, one after the other.
fn walk(
    nfs: &NfsV4,
    caller: RpcCaller<'_>,
    from: Option<&FileHandle>,
    names: &[&[u8]],
) -> Result<FileHandle, EstablishError> {
    let components: Result<Vec<_>, _> = names.iter().map(|name| Component::new(name)).collect();
    let components = components.map_err(|_| EstablishError::Path(NfsStat4::Nametoolong))?;
    let append = |operations: &mut CompoundEncoder<'_>, _: Stateid| {
        match from {
            Some(from) => put_fh(operations, from),
            None => operations.bare(Nfs4Operation::Putrootfh),
        }
        for name in &components {
            operations.push(&LookupArgs4 { name: *name });
        }
        operations.bare(Nfs4Operation::Getfh);
    };
    let request = CompoundRequest::idempotent(caller, Nfs4Operation::Lookup, &append);
    let reply = nfs.send(&request).map_err(EstablishError::Call)?;
    let mut results = CompoundResultReader::new(
        nfs.decoded(reply.results()).map_err(EstablishError::Call)?,
        reply.generation(),
    );
    let first = if from.is_some() { Nfs4Operation::Putfh } else { Nfs4Operation::Putrootfh };
    let operations = std::iter::once(first).chain(components.iter().map(|_| Nfs4Operation::Lookup));
    for operation in operations {
        let result =
            nfs.decoded(outcome(results.operations.next::<()>(operation))).map_err(EstablishError::Call)?;
        result.map_err(EstablishError::Path)?;
    }
    let handle = nfs.decoded(outcome(results.operations.next::<GetfhOk4<'_>>(Nfs4Operation::Getfh)));
    handle.map_err(EstablishError::Call)?.map(|ok| ok.object.into()).map_err(EstablishError::Path)
}

fn root_limits(
    nfs: &NfsV4,
    caller: RpcCaller<'_>,
    root: &FileHandle,
) -> Result<(Fsinfo, Pathconf), EstablishError> {
    let append = |operations: &mut CompoundEncoder<'_>, _: Stateid| {
        put_fh(operations, root);
        get_attributes(operations, attributes::LIMITS);
    };
    let request = CompoundRequest::idempotent(caller, Nfs4Operation::Getattr, &append);
    let reply = nfs.send(&request).map_err(EstablishError::Call)?;
    let mut results = nfs.decoded(reply.results()).map_err(EstablishError::Call)?;
    let found = nfs.decoded(outcome(results.next::<()>(Nfs4Operation::Putfh)));
    found.map_err(EstablishError::Call)?.map_err(EstablishError::Path)?;
    let ok = nfs.decoded(outcome(results.next::<GetattrOk4<'_>>(Nfs4Operation::Getattr)));
    let ok = ok.map_err(EstablishError::Call)?.map_err(EstablishError::Path)?;
    let values = attributes::values(&ok.attributes, attributes::LIMITS);
    let values = nfs.decoded(values).map_err(EstablishError::Call)?;
    let mut session = nfs.session.lock();
    session.lease.set_length(values.lease_time.unwrap_or(0));
    Ok(attributes::limits(&values, session.limits.read_max(), session.limits.write_max()))
}
