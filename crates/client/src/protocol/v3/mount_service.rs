//! The MOUNT service (RFC 1813, appendix I): MNT, which maps a path to the root's handle, and UMNT
//! at the end of a mount.

use std::{net::IpAddr, sync::Arc, time::Duration};

use curt_proto::mount3::{self, DirPath, MountOk, MountReply};
use curt_rpc::{
    auth::RpcCredential,
    client::{
        CallArguments, CallError, CallReply, Interrupt, NoTransportEvents, RpcRequest, ServerName,
        TcpOptions, TcpTransport, Transport,
    },
};
use curt_xdr::{Opaque, decode_all};

use crate::protocol::mounting::{ExportSource, MountError, ServiceKind};

/// Longest results of MNT: a handle and 64 flavours, in bytes.
const MOUNT_RESULTS_MAX: usize = 1024;

/// The service that answered MNT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MountService {
    address: IpAddr,
    port: u16,
    path: Vec<u8>,
    credential: RpcCredential,
    reserved_port: bool,
}

impl MountService {
    /// The MOUNT service of `export` at an address.
    pub(super) fn new(export: &ExportSource, address: IpAddr, port: u16) -> Self {
        Self {
            address,
            port,
            path: export.path.clone(),
            credential: export.credential.clone(),
            reserved_port: export.transport.reserved_port,
        }
    }

    /// Sends UMNT. Errors are ignored: a server that misses the request only lists the client
    /// longer in `showmount -a`.
    pub(super) fn unmount(&self, timeout: Duration) {
        let path = DirPath(Opaque::new(&self.path).unwrap_or_default());
        let answer =
            self.call(mount3::MountProcedure::Unmount, &path, timeout, &Interrupt::never()).map(drop);
        if let Err(error) = answer {
            tracing::debug!(address = %self.address, port = self.port, %error, "UMNT failed");
        }
    }

    /// Sends MNT.
    pub(super) fn ask(&self, timeout: Duration, interrupt: &Interrupt) -> Result<MountOk, MountError> {
        let path = DirPath(Opaque::new(&self.path).map_err(|_| MountError::PathTooLong)?);
        let failed =
            |error| MountError::of_call(ServiceKind::Mount, self.address.to_string(), self.port, error);
        let reply = self.call(mount3::MountProcedure::Mount, &path, timeout, interrupt).map_err(failed)?;
        let decoded = decode_all(reply.results()).map_err(CallError::Malformed);
        let status = match decoded.map_err(failed)? {
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
        arguments: &dyn CallArguments,
        timeout: Duration,
        interrupt: &Interrupt,
    ) -> Result<CallReply, CallError> {
        let options = TcpOptions {
            reserved_port: self.reserved_port,
            ..TcpOptions::single_calls(ServerName::Address(self.address), self.port, timeout)
        };
        let transport = TcpTransport::connect(options, Arc::new(NoTransportEvents), interrupt)?;
        let request = RpcRequest {
            program: mount3::PROGRAM,
            version: mount3::VERSION,
            procedure: procedure.number(),
            credential: &self.credential,
            arguments,
            results_max: MOUNT_RESULTS_MAX,
        };
        transport.call(&request, interrupt)
    }
}
