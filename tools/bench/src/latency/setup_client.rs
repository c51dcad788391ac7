//! One call after the other to a server, for what comes before and after measuring: mounting,
//! making files, reading back.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use curt_proto::{mount3, nfs3, portmap};
use curt_rpc::auth::RpcCredential;
use curt_rpc::client::{
    Interrupt, NoTransportEvents, PortSource, RecoveryMode, RpcRequest, ServerName, TcpOptions, TcpTransport,
    Transport,
};
use curt_xdr::{Decode, Decoder, Encode, Opaque, decode_all};

/// How long a server may take to answer.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);
/// The most bytes of results: of the longest listing, or of a READ of one block.
const RESULTS_MAX: usize = 1 << 20;

/// A connection for calls that wait for their replies.
pub(super) struct SetupClient {
    transport: TcpTransport,
    address: SocketAddr,
    credential: RpcCredential,
}

impl SetupClient {
    pub(super) fn connect(address: SocketAddr, credential: &RpcCredential) -> Result<Self> {
        let (server, port) = (
            ServerName::Address(address.ip()),
            PortSource::Fixed(address.port()),
        );
        let options = TcpOptions {
            timeout: REPLY_TIMEOUT,
            retrans: 0,
            recovery: RecoveryMode::Soft,
            ..TcpOptions::new(server, port)
        };
        let transport = TcpTransport::connect(options, Arc::new(NoTransportEvents), &Interrupt::never());
        Ok(Self {
            transport: transport.with_context(|| format!("cannot connect to {address}"))?,
            address,
            credential: credential.clone(),
        })
    }

    /// Where the server is.
    pub(super) const fn address(&self) -> SocketAddr {
        self.address
    }

    fn call(
        &self,
        program: u32,
        version: u32,
        procedure: u32,
        arguments: &(dyn Encode + Sync),
    ) -> Result<Vec<u8>> {
        let request = RpcRequest {
            program,
            version,
            procedure,
            credential: &self.credential,
            arguments,
            bulk: &[],
            results_max: RESULTS_MAX,
        };
        let reply = self.transport.call(&request, &Interrupt::never())?;
        Ok(reply.results().to_vec())
    }

    /// Calls a procedure of NFS and returns its results, which are to be a success.
    pub(super) fn nfs(
        &self,
        procedure: nfs3::NfsProcedure,
        arguments: &(dyn Encode + Sync),
    ) -> Result<Vec<u8>> {
        let results = self.call(nfs3::PROGRAM, nfs3::VERSION, procedure.number(), arguments)?;
        let status = Decoder::new(&results).get::<nfs3::NfsStat3>()?;
        ensure!(status == nfs3::NfsStat3::Ok, "{procedure}: {status:?}");
        Ok(results[4..].to_vec())
    }

    /// The handle of an export's root.
    pub(super) fn mount(&self, path: &[u8]) -> Result<nfs3::NfsFh3> {
        let procedure = mount3::MountProcedure::Mount.number();
        let path_argument = mount3::DirPath(Opaque::new(path)?);
        let reply = self.call(mount3::PROGRAM, mount3::VERSION, procedure, &path_argument)?;
        match decode_all::<mount3::MountReply>(&reply)? {
            mount3::MountReply::Ok(ok) => Ok(ok.root),
            mount3::MountReply::Failed(status) => bail!("MNT of {}: {status}", path.escape_ascii()),
        }
    }
}

/// Decodes the results of [`SetupClient::nfs`].
pub(super) fn decoded<'a, T: Decode<'a>>(results: &'a [u8]) -> Result<T> {
    Ok(decode_all(results)?)
}

/// Where the server of `nfs` answers MOUNT: what its portmapper says, or its port of NFS if it has
/// none.
pub(super) fn mount_address(nfs: SocketAddr) -> SocketAddr {
    let asked = || -> Result<u16> {
        let address = SocketAddr::new(nfs.ip(), portmap::PORT);
        let mapping = portmap::Mapping {
            program: mount3::PROGRAM,
            version: mount3::VERSION,
            protocol: portmap::PROTOCOL_TCP,
            port: 0,
        };
        let reply = SetupClient::connect(address, &RpcCredential::None)?.call(
            portmap::PROGRAM,
            portmap::RpcbindVersion::Portmap2 as u32,
            portmap::PortmapProcedure::Lookup as u32,
            &mapping,
        )?;
        Ok(u16::try_from(decode_all::<u32>(&reply)?)?)
    };
    match asked() {
        Ok(port) if port != 0 => SocketAddr::new(nfs.ip(), port),
        _ => nfs,
    }
}
