//! What mounting has in common for all versions: the export, what a mount of it yields, its errors,
//! the addresses of a server, and the transfer sizes.
//!
//! The requests are those of a version: [`super::v3::mounting`] and [`super::v4::mounting`]. Must
//! not know a version.

mod error;

use std::{
    fmt,
    net::{IpAddr, ToSocketAddrs},
    sync::Arc,
    time::Duration,
};

use curt_rpc::{
    auth::RpcCredential,
    client::{AddressFamily, ServerName, TcpOptions, TcpTransport},
};
use curt_types::FileHandle;

use super::{Fsinfo, Pathconf, Protocol};

pub use error::{MountError, MountRetry, OfferedVersions, ServiceKind};

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
    /// The limits of the root's file system.
    pub limits: Fsinfo,
    /// Its limits as for pathconf(3); zeros if the server did not return them.
    pub path_limits: Pathconf,
    /// The requests of the mount; the statistics of its RPC client include those of mounting.
    pub protocol: Arc<dyn Protocol>,
    /// The transport of the RPC client.
    pub transport: Arc<TcpTransport>,
}

impl fmt::Debug for MountedExport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MountedExport")
            .field("root", &self.root)
            .field("protocol", &self.protocol)
            .finish_non_exhaustive()
    }
}

/// The first success of `ask` over the addresses of `server`, or the last error.
pub(in crate::protocol) fn first_of<R>(
    server: &ServerName,
    family: AddressFamily,
    ask: impl FnMut(IpAddr) -> Result<R, MountError>,
) -> Result<R, MountError> {
    let unknown = MountError::UnknownHost(server.to_string());
    first_of_addresses(addresses(server), family, ask).unwrap_or(Err(unknown))
}

/// `None`: there is no address of the family.
fn first_of_addresses<R>(
    all: Vec<IpAddr>,
    family: AddressFamily,
    mut ask: impl FnMut(IpAddr) -> Result<R, MountError>,
) -> Option<Result<R, MountError>> {
    let mut last = None;
    for address in all.into_iter().filter(|address| family.has(*address)) {
        let asked = ask(address);
        let is_found = asked.is_ok();
        last = Some(asked);
        if is_found {
            break;
        }
    }
    last
}

fn addresses(server: &ServerName) -> Vec<IpAddr> {
    match server {
        ServerName::Address(address) => vec![*address],
        ServerName::Name(name) => {
            let found = (name.as_str(), 0).to_socket_addrs();
            found.map(|found| found.map(|address| address.ip()).collect()).unwrap_or_default()
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfer_sizes_follow_the_options_within_the_limits_of_the_server() {
        const MIB: u32 = 1 << 20;
        for (asked, preferred, max, expected) in [
            (None, MIB, MIB, MIB),
            (None, 65536, MIB, 65536),
            (None, 0, MIB, MIB),
            (None, 4 * MIB, 4 * MIB, MIB),
            (Some(32768), MIB, MIB, 32768),
            (Some(10_000), MIB, MIB, 8192),
            (Some(MIB), 65536, 65536, 65536),
            (Some(1), MIB, MIB, 1024),
            (None, 0, 0, 1024),
            (Some(MIB), 0, 0, MIB),
            (None, 512, 512, 512),
        ] {
            assert_eq!(transfer_size(asked, preferred, max), expected, "{asked:?} of {max}");
        }
    }

    // SEMANTICS: lock-20.
    #[test]
    fn the_first_address_of_the_family_that_can_be_reached_is_used() {
        let all = ["10.0.0.1", "2001:db8::1", "10.0.0.2", "2001:db8::2"];
        let all = all.map(|address| address.parse::<IpAddr>().expect("it is an address"));
        let refused = MountError::UnknownHost("unreachable".into());
        let first = |family, reachable: &[usize]| {
            let reached = |address| reachable.iter().any(|index| all[*index] == address);
            let ask = |address| if reached(address) { Ok(address) } else { Err(refused.clone()) };
            first_of_addresses(all.to_vec(), family, ask)
        };
        assert_eq!(first(AddressFamily::Any, &[0, 1, 2, 3]), Some(Ok(all[0])));
        assert_eq!(first(AddressFamily::Any, &[1, 2]), Some(Ok(all[1])));
        assert_eq!(first(AddressFamily::V4, &[1, 2, 3]), Some(Ok(all[2])));
        assert_eq!(first(AddressFamily::V6, &[0, 1, 2]), Some(Ok(all[1])));
        assert_eq!(first(AddressFamily::V6, &[0, 2]), Some(Err(refused.clone())));
        assert_eq!(first_of_addresses::<()>(Vec::new(), AddressFamily::Any, |_| unreachable!()), None);
    }

    #[test]
    fn mount_errors_are_classified_for_retry() {
        let refused = MountError::Refused { service: ServiceKind::Nfs, server: "s".into(), port: 2049 };
        assert_eq!(refused.retry(), MountRetry::Always);
        let unregistered = MountError::NotRegistered { service: ServiceKind::Mount, server: "s".into() };
        assert_eq!(unregistered.retry(), MountRetry::Thrice);
        let denied = MountError::AccessDenied { status: curt_proto::mount3::MountStat3::Acces };
        assert_eq!(denied.retry(), MountRetry::Never);
    }
}
