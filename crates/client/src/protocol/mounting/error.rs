//! Errors of mounting, with the details that a user needs to resolve them.

use std::{fmt, io};

use curt_proto::{mount3, nfs4::NfsStat4};
use curt_rpc::{client::CallError, message::VersionRange};

/// A service that a mount uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ServiceKind {
    /// The portmapper (portmap or rpcbind).
    Portmapper,
    /// MOUNT, which maps paths to handles.
    Mount,
    /// NFS.
    Nfs,
    /// NLM.
    LockManager,
    /// NSM.
    StatusMonitor,
}

impl fmt::Display for ServiceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::StatusMonitor => "status monitor",
            Self::Portmapper => "portmapper",
            Self::Mount => "MOUNT service",
            Self::Nfs => "NFS service",
            Self::LockManager => "lock manager",
        })
    }
}

/// Whether a failed mount is retried, by the rules of mount.nfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MountRetry {
    /// Retried: the server may be temporarily unreachable.
    Always,
    /// Retried until the third consecutive failure: the server may be starting.
    Thrice,
    /// Not retried: the error is permanent.
    Never,
}

/// An error of mounting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// The server's name has no address of the requested family.
    #[error("Failed to resolve server {0}: Name or service not known")]
    UnknownHost(String),
    /// No process listens at the port.
    #[error("Connection refused by {service} of {server} (port {port})")]
    Refused {
        /// The service.
        service: ServiceKind,
        /// The server.
        server: String,
        /// Its port.
        port: u16,
    },
    /// The connection failed for another reason.
    #[error("{service} of {server} (port {port}) cannot be reached: {kind}")]
    Unreachable {
        /// The service.
        service: ServiceKind,
        /// The server.
        server: String,
        /// Its port.
        port: u16,
        /// The error.
        kind: io::ErrorKind,
    },
    /// There was no reply within the time limit.
    #[error("Connection timed out: no answer from {service} of {server}")]
    TimedOut {
        /// The service.
        service: ServiceKind,
        /// The server.
        server: String,
    },
    /// This process may not bind a port below 1024 (`resvport`).
    #[error("not permitted to use a reserved port (try noresvport)")]
    ReservedPort,
    /// The service is not registered with the portmapper.
    #[error("RPC: Program not registered: {server} has no {service} over TCP")]
    NotRegistered {
        /// The service.
        service: ServiceKind,
        /// The server.
        server: String,
    },
    /// The service does not support version 3.
    #[error(
        "requested NFS version or transport protocol is not supported: {service} of {server} offers {versions}"
    )]
    Version {
        /// The service.
        service: ServiceKind,
        /// The server.
        server: String,
        /// The versions that it supports.
        versions: OfferedVersions,
    },
    /// The server denies access to the export.
    #[error("access denied by server ({status})")]
    AccessDenied {
        /// The status of MNT.
        status: mount3::MountStat3,
    },
    /// The export does not exist.
    #[error("No such file or directory on the server")]
    NoSuchPath,
    /// The path is not a directory.
    #[error("Not a directory on the server")]
    NotADirectory,
    /// The path is longer than MOUNT allows (1024 bytes).
    #[error("File name too long")]
    PathTooLong,
    /// MNT failed with another status.
    #[error("reason given by server: {0}")]
    Mount(mount3::MountStat3),
    /// A request for the root failed.
    #[error("reason given by server: {0}")]
    Nfs(curt_proto::nfs3::NfsStat3),
    /// A request of NFSv4 for the root failed.
    #[error("reason given by server: {0}")]
    Nfs4(NfsStat4),
    /// The server does not let this client have a session of NFSv4.
    #[error("the server refuses this client: {0}")]
    Session(NfsStat4),
    /// The sessions of the server are too small for the compounds of this client.
    #[error("the server's sessions are too small: fewer than 11 operations or 4096 bytes")]
    SessionTooSmall,
    /// The export does not accept the requested security flavour.
    #[error("the server accepts none of the requested security flavours; it offers {}", flavors(.offered))]
    Flavors {
        /// The accepted RPC authentication flavours.
        offered: Vec<u32>,
    },
    /// A call failed with another error.
    #[error("{service} of {server}: {error}")]
    Call {
        /// The service.
        service: ServiceKind,
        /// The server.
        server: String,
        /// The error.
        error: CallError,
    },
    /// The mount was interrupted.
    #[error("interrupted")]
    Interrupted,
}

/// The versions that a server supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfferedVersions {
    /// The server does not support the program.
    None,
    /// This range.
    Versions(VersionRange),
}

impl fmt::Display for OfferedVersions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("no version"),
            Self::Versions(VersionRange { low, high }) => write!(f, "versions {low} to {high}"),
        }
    }
}

impl MountError {
    /// Whether the mount is retried after this error.
    #[must_use]
    pub fn retry(&self) -> MountRetry {
        match self {
            Self::Refused { .. } | Self::Unreachable { .. } | Self::TimedOut { .. } => MountRetry::Always,
            Self::NotRegistered { .. } | Self::Nfs4(NfsStat4::Stale) => MountRetry::Thrice,
            Self::Nfs(curt_proto::nfs3::NfsStat3::Stale) => MountRetry::Thrice,
            Self::Call { error, .. } => match error {
                CallError::Closed | CallError::SystemError => MountRetry::Always,
                _ => MountRetry::Never,
            },
            Self::UnknownHost(_)
            | Self::ReservedPort
            | Self::Version { .. }
            | Self::AccessDenied { .. }
            | Self::NoSuchPath
            | Self::NotADirectory
            | Self::PathTooLong
            | Self::Mount(_)
            | Self::Nfs(_)
            | Self::Nfs4(_)
            | Self::Session(_)
            | Self::SessionTooSmall
            | Self::Flavors { .. }
            | Self::Interrupted => MountRetry::Never,
        }
    }

    /// The error for a failed call to `service`.
    pub(in crate::protocol) fn of_call(
        service: ServiceKind,
        server: String,
        port: u16,
        error: CallError,
    ) -> Self {
        match error {
            CallError::Interrupted => Self::Interrupted,
            CallError::TimedOut { .. } => Self::TimedOut { service, server },
            CallError::Unreachable(kind) => match kind {
                io::ErrorKind::ConnectionRefused => Self::Refused { service, server, port },
                io::ErrorKind::TimedOut => Self::TimedOut { service, server },
                io::ErrorKind::NotFound => Self::UnknownHost(server),
                io::ErrorKind::PermissionDenied => Self::ReservedPort,
                kind => Self::Unreachable { service, server, port, kind },
            },
            CallError::ProgramUnavailable => {
                Self::Version { service, server, versions: OfferedVersions::None }
            }
            CallError::ProgramMismatch(versions) => {
                Self::Version { service, server, versions: OfferedVersions::Versions(versions) }
            }
            error => Self::Call { service, server, error },
        }
    }
}

fn flavors(offered: &[u32]) -> String {
    let name = |flavor: &u32| match flavor {
        0 => "none".to_owned(),
        1 => "sys".to_owned(),
        390_003 => "krb5".to_owned(),
        390_004 => "krb5i".to_owned(),
        390_005 => "krb5p".to_owned(),
        other => format!("flavour {other}"),
    };
    offered.iter().map(name).collect::<Vec<_>>().join(", ")
}
