//! One call after the other to a server, for what comes before and after measuring: mounting,
//! making files, reading back.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use curt_proto::{mount3, nfs3, portmap};
use curt_rpc::auth::RpcCredential;
use curt_rpc::message::{self, AcceptStatus};
use curt_rpc::record;
use curt_xdr::{Decode, Decoder, Encode, Opaque, decode_all};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

/// How long a server may take to answer.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest reply.
const REPLY_MAX: usize = 4 << 20;
/// Ports that some servers insist on; those of well-known services are left alone.
const RESERVED: std::ops::RangeInclusive<u16> = 665..=1023;

/// A connection for calls that wait for their replies.
pub(super) struct BlockingClient {
    stream: TcpStream,
    credential: RpcCredential,
    xid: u32,
}

/// Prepares a connection for short calls and replies. Between processes of one machine both ends
/// send without pacing, as `curt serve` does by itself there: so the echo and the floor, which do
/// it at their ends as well, stay the least that can be had.
pub(super) fn prepare(stream: &TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    if stream.peer_addr()?.ip().is_loopback() {
        // Where there is no such choice, it is nobody's.
        let _same = sockopt::set_tcp_congestion(stream, "reno");
    }
    Ok(())
}

impl BlockingClient {
    pub(super) fn connect(address: SocketAddr, credential: &RpcCredential) -> Result<Self> {
        let stream = connect(address)?;
        stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
        stream.set_write_timeout(Some(REPLY_TIMEOUT))?;
        Ok(Self {
            stream,
            credential: credential.clone(),
            xid: 1,
        })
    }

    pub(super) const fn credential(&self) -> &RpcCredential {
        &self.credential
    }

    /// Sends a call of NFS that was made elsewhere; returns the whole record that answers it, its
    /// mark included.
    pub(super) fn exchange(&mut self, call: &[u8]) -> Result<Vec<u8>> {
        self.send(call)?;
        self.receive()
    }

    pub(super) fn send(&mut self, calls: &[u8]) -> Result<()> {
        Ok(self.stream.write_all(calls)?)
    }

    pub(super) fn receive(&mut self) -> Result<Vec<u8>> {
        let mut reply = vec![0; record::MARK_SIZE];
        self.stream
            .read_exact(&mut reply)
            .context("the server closed the connection or says nothing")?;
        let mark = u32::from_be_bytes([reply[0], reply[1], reply[2], reply[3]]);
        ensure!(mark >> 31 == 1, "a reply of more than one fragment");
        let length = usize::try_from(mark & 0x7fff_ffff)?;
        ensure!(length <= REPLY_MAX, "a reply of {length} bytes");
        reply.resize(record::MARK_SIZE + length, 0);
        self.stream.read_exact(&mut reply[record::MARK_SIZE..])?;
        Ok(reply)
    }

    fn call(&mut self, program: (u32, u32, u32), arguments: &impl Encode) -> Result<Vec<u8>> {
        self.xid += 1;
        let mut call = Vec::new();
        encode(&mut call, self.xid, program, &self.credential, arguments);
        self.exchange(&call)
    }

    /// Calls a procedure of NFS and returns its results, which are to be a success.
    pub(super) fn nfs(&mut self, procedure: nfs3::NfsProcedure, arguments: &impl Encode) -> Result<Vec<u8>> {
        let program = (nfs3::PROGRAM, nfs3::VERSION, procedure.number());
        let reply = self.call(program, arguments)?;
        let body = results(&reply)?;
        let status = Decoder::new(body).get::<nfs3::NfsStat3>()?;
        ensure!(status == nfs3::NfsStat3::Ok, "{procedure}: {status:?}");
        Ok(body[4..].to_vec())
    }

    /// The handle of an export's root.
    pub(super) fn mount(&mut self, path: &[u8]) -> Result<nfs3::NfsFh3> {
        let program = (
            mount3::PROGRAM,
            mount3::VERSION,
            mount3::MountProcedure::Mount.number(),
        );
        let reply = self.call(program, &mount3::DirPath(Opaque::new(path)?))?;
        match decode_all::<mount3::MountReply>(results(&reply)?)? {
            mount3::MountReply::Ok(ok) => Ok(ok.root),
            mount3::MountReply::Failed(status) => bail!("MNT of {}: {status}", path.escape_ascii()),
        }
    }
}

/// Appends a whole record.
pub(super) fn encode(
    out: &mut Vec<u8>,
    xid: u32,
    program: (u32, u32, u32),
    credential: &RpcCredential,
    arguments: &dyn Encode,
) {
    let body = record::begin_record(out);
    let (program, version, procedure) = program;
    message::encode_call_header(out, xid, program, version, procedure, credential);
    arguments.encode(out);
    record::finish_record(out, body, 0);
}

/// The results in a record, if the call was executed.
pub(super) fn results(record: &[u8]) -> Result<&[u8]> {
    let mut decoder = Decoder::new(record.get(record::MARK_SIZE..).context("no record")?);
    let header = message::decode_reply_header(&mut decoder)?;
    match header.outcome {
        Ok(AcceptStatus::Success) => Ok(decoder.remaining()),
        other => bail!("the server refuses the call: {other:?}"),
    }
}

/// Decodes the results of [`BlockingClient::nfs`].
pub(super) fn decoded<'a, T: Decode<'a>>(results: &'a [u8]) -> Result<T> {
    Ok(decode_all(results)?)
}

/// Where the server of `nfs` answers MOUNT: what its portmapper says, or its port of NFS if it has
/// none.
pub(super) fn mount_address(nfs: SocketAddr) -> SocketAddr {
    let asked = || -> Result<u16> {
        let mut line =
            BlockingClient::connect(SocketAddr::new(nfs.ip(), portmap::PORT), &RpcCredential::None)?;
        let mapping = portmap::Mapping {
            program: mount3::PROGRAM,
            version: mount3::VERSION,
            protocol: portmap::PROTOCOL_TCP,
            port: 0,
        };
        let program = (
            portmap::PROGRAM,
            portmap::RpcbindVersion::Portmap2 as u32,
            portmap::PortmapProcedure::Lookup as u32,
        );
        let reply = line.call(program, &mapping)?;
        Ok(u16::try_from(decode_all::<u32>(results(&reply)?)?)?)
    };
    match asked() {
        Ok(port) if port != 0 => SocketAddr::new(nfs.ip(), port),
        _ => nfs,
    }
}

/// Connects, from a reserved port if whoever asks is root: there are servers that want it.
pub(super) fn connect(address: SocketAddr) -> Result<TcpStream> {
    let stream = if rustix::process::geteuid().is_root() {
        from_reserved_port(address)
    } else {
        TcpStream::connect(address)
    };
    let stream = stream.with_context(|| format!("cannot connect to {address}"))?;
    prepare(&stream)?;
    Ok(stream)
}

fn from_reserved_port(address: SocketAddr) -> std::io::Result<TcpStream> {
    let (family, any) = match address {
        SocketAddr::V4(_) => (AddressFamily::INET, IpAddr::from([0_u8; 4])),
        SocketAddr::V6(_) => (AddressFamily::INET6, IpAddr::from([0_u8; 16])),
    };
    for port in RESERVED {
        let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        let bound = rustix::net::bind(&socket, &SocketAddr::new(any, port));
        match bound.and_then(|()| rustix::net::connect(&socket, &address)) {
            Ok(()) => return Ok(socket.into()),
            Err(Errno::ADDRINUSE | Errno::ADDRNOTAVAIL) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    TcpStream::connect(address)
}
