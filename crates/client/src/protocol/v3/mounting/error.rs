//! Why a mount did not come to be, in enough detail for a user to act on it.

use std::{fmt, io};

use curt_proto::mount3;
use curt_rpc::{client::CallError, message::VersionRange};

/// A service that a mount needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ServiceKind {
    /// The directory of services: portmap or rpcbind.
    Portmapper,
    /// MOUNT, which turns paths into handles.
    Mount,
    /// NFS itself.
    Nfs,
}

impl fmt::Display for ServiceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Portmapper => "portmapper",
            Self::Mount => "MOUNT service",
            Self::Nfs => "NFS service",
        })
    }
}

/// Whether a failed mount is worth another try, by mount.nfs's rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MountRetry {
    /// The server may just be away.
    Always,
    /// The server may just be starting; after the third time in a row it is not.
    Thrice,
    /// Trying again changes nothing.
    Never,
}

/// Why a mount did not come to be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// The server's name has no address (of the family that was asked for).
    #[error("Failed to resolve server {0}: Name or service not known")]
    UnknownHost(String),
    /// Nobody listens there.
    #[error("Connection refused by {service} of {server} (port {port})")]
    Refused {
        /// Who was to be reached.
        service: ServiceKind,
        /// Where.
        server: String,
        /// At which port.
        port: u16,
    },
    /// The connection could not be made for another reason.
    #[error("{service} of {server} (port {port}) cannot be reached: {kind}")]
    Unreachable {
        /// Who was to be reached.
        service: ServiceKind,
        /// Where.
        server: String,
        /// At which port.
        port: u16,
        /// Why.
        kind: io::ErrorKind,
    },
    /// No answer in time.
    #[error("Connection timed out: no answer from {service} of {server}")]
    TimedOut {
        /// Who was asked.
        service: ServiceKind,
        /// Where.
        server: String,
    },
    /// This process may not use a port below 1024 (`resvport`).
    #[error("not permitted to use a reserved port (try noresvport)")]
    ReservedPort,
    /// The portmapper does not know the service.
    #[error("RPC: Program not registered: {server} has no {service} over TCP")]
    NotRegistered {
        /// What was looked for.
        service: ServiceKind,
        /// Where.
        server: String,
    },
    /// The service is there, but not in version 3.
    #[error(
        "requested NFS version or transport protocol is not supported: {service} of {server} offers {versions}"
    )]
    Version {
        /// Who was asked.
        service: ServiceKind,
        /// Where.
        server: String,
        /// What it offers instead.
        versions: OfferedVersions,
    },
    /// The server does not let us have it.
    #[error("access denied by server ({status})")]
    AccessDenied {
        /// What MNT said.
        status: mount3::MountStat3,
    },
    /// There is no such export.
    #[error("No such file or directory on the server")]
    NoSuchPath,
    /// The path is no directory.
    #[error("Not a directory on the server")]
    NotADirectory,
    /// The path is longer than MOUNT allows (1024 bytes).
    #[error("File name too long")]
    PathTooLong,
    /// MNT failed in another way.
    #[error("reason given by server: {0}")]
    Mount(mount3::MountStat3),
    /// The server refused what was asked of the root.
    #[error("reason given by server: {0}")]
    Nfs(curt_proto::nfs3::NfsStat3),
    /// The export takes other authentication than what was asked for.
    #[error("the server accepts none of the requested security flavours; it offers {}", flavors(.offered))]
    Flavors {
        /// Numbers of RPC authentication flavours.
        offered: Vec<u32>,
    },
    /// A call failed in another way.
    #[error("{service} of {server}: {error}")]
    Call {
        /// Who was asked.
        service: ServiceKind,
        /// Where.
        server: String,
        /// What happened.
        error: CallError,
    },
    /// It was called off.
    #[error("interrupted")]
    Interrupted,
}

/// Versions that are offered instead of the wanted one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfferedVersions {
    /// The program is not served at all.
    None,
    /// These.
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
    /// Whether another try is worth it.
    #[must_use]
    pub fn retry(&self) -> MountRetry {
        match self {
            Self::Refused { .. } | Self::Unreachable { .. } | Self::TimedOut { .. } => MountRetry::Always,
            Self::NotRegistered { .. } => MountRetry::Thrice,
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
            | Self::Flavors { .. }
            | Self::Interrupted => MountRetry::Never,
        }
    }

    /// What a failed call to `service` means.
    pub(super) fn of_call(service: ServiceKind, server: String, port: u16, error: CallError) -> Self {
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
