//! The tested server, a valid client, and the parts of an invalid one.

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use curt_proto::{mount3, nfs3};
use curt_rpc::auth::{AuthSysCredential, AuthSysGids, MachineName, RpcCredential};
use curt_rpc::client::{
    Interrupt, NoTransportEvents, PortSource, RpcRequest, ServerName, TcpOptions, TcpTransport, Transport,
};
use curt_rpc::message::{AcceptStatus, decode_reply_header, encode_call_header};
use curt_rpc::record;
use curt_tests::curt::program;
use curt_tests::process::RunningProcess;
use curt_xdr::{Decoder, Encode, put_fixed, put_opaque};

pub(crate) const SOON: Duration = Duration::from_secs(60);
pub(crate) const THREADS: usize = 16;
/// Maximum number of its other threads: timers, signals, control, callbacks and the like.
const OTHER_THREADS: usize = 16;

/// `curt serve` on a free port.
pub(crate) struct Victim {
    pub(crate) running: RunningProcess,
    pub(crate) address: SocketAddr,
    pub(crate) root: Vec<u8>,
}

/// Encoded arguments.
pub(crate) struct Raw(Vec<u8>);

impl Encode for Raw {
    fn encode(&self, out: &mut Vec<u8>) {
        put_fixed(out, &self.0);
    }
}

impl Victim {
    /// A server of a tree in memory.
    pub(crate) fn start(arguments: &[&str]) -> Result<Self> {
        Self::serving("/memory", &[&["--memory"], arguments].concat())
    }

    /// A server of `export`, as `arguments` specify.
    pub(crate) fn serving(export: &str, arguments: &[&str]) -> Result<Self> {
        let mut command = Command::new(program("curt")?);
        command.args(["serve", "--insecure", "--no-rpcbind", "--bind", "127.0.0.1:0"]);
        command.args(["--threads", &THREADS.to_string()]).args(arguments);
        let running = RunningProcess::start("curt serve", &mut command)?;
        running.wait_for("listening on", SOON)?;
        let output = running.output();
        let address = output
            .split_whitespace()
            .skip_while(|word| *word != "on")
            .nth(1)
            .and_then(|address| address.parse().ok())
            .with_context(|| format!("no address in: {output}"))?;
        let mut victim = Self { running, address, root: Vec::new() };
        let mut path = Vec::new();
        put_opaque(&mut path, export.as_bytes());
        let mounted = victim.call(mount3::PROGRAM, 1, path)?;
        let mut decoder = Decoder::new(&mounted);
        ensure!(decoder.u32()? == 0, "not mounted: {output}");
        victim.root = decoder.opaque(64)?.to_vec();
        Ok(victim)
    }

    pub(crate) fn connect(&self) -> Result<TcpStream> {
        let stream = TcpStream::connect(self.address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SOON))?;
        stream.set_write_timeout(Some(SOON))?;
        Ok(stream)
    }

    /// A valid client's call.
    pub(crate) fn call(&self, program: u32, procedure: u32, arguments: Vec<u8>) -> Result<Vec<u8>> {
        let options =
            TcpOptions::new(ServerName::Address(self.address.ip()), PortSource::Fixed(self.address.port()));
        let transport = TcpTransport::connect(options, Arc::new(NoTransportEvents), &Interrupt::never())?;
        let request = RpcRequest {
            program,
            version: 3,
            procedure,
            credential: &credential(),
            arguments: &Raw(arguments),
            results_max: 1 << 20,
        };
        Ok(transport.call(&request, &Interrupt::never())?.results().to_vec())
    }

    /// Creates a file of 1 MiB, and returns the arguments of a READ of the whole file.
    pub(crate) fn make_large_file(&self) -> Result<Vec<u8>> {
        let mut create = Vec::new();
        put_opaque(&mut create, &self.root);
        put_opaque(&mut create, b"large");
        for word in [0u32, 1, 0o666, 0, 0, 1, 0, 1 << 20, 0, 0] {
            word.encode(&mut create);
        }
        let created = self.call(nfs3::PROGRAM, 8, create)?;
        let mut decoder = Decoder::new(&created);
        ensure!((decoder.u32()?, decoder.bool()?) == (0, true), "not created: {created:?}");
        let mut read = Vec::new();
        put_opaque(&mut read, decoder.opaque(64)?);
        for word in [0u32, 0, 1 << 20] {
            word.encode(&mut read);
        }
        Ok(read)
    }

    /// Checks that valid clients are served, and that the process's memory is bounded.
    pub(crate) fn expect_unharmed(&mut self) -> Result<()> {
        for _ in 0..20 {
            let mut root = Vec::new();
            put_opaque(&mut root, &self.root);
            let attributes = self.call(nfs3::PROGRAM, 1, root)?;
            ensure!(attributes.first_chunk() == Some(&[0; 4]), "GETATTR of the root failed");
        }
        ensure!(self.running.is_running()?, "it ended: {}", self.running.output());
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.running.pid()))?;
        let of = |name: &str| -> Option<usize> {
            status.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
        };
        let (memory, threads) = (of("VmRSS:").context("VmRSS")?, of("Threads:").context("Threads")?);
        ensure!(memory < 400 << 10, "{memory} KiB of memory");
        ensure!(threads <= THREADS + OTHER_THREADS, "{threads} threads");
        ensure!(!self.running.output().contains("panicked"), "{}", self.running.output());
        Ok(())
    }

    pub(crate) fn warnings(&self) -> usize {
        self.running.output().lines().filter(|line| line.contains("WARN") || line.contains("ERROR")).count()
    }
}

pub(crate) fn credential() -> RpcCredential {
    RpcCredential::Sys(AuthSysCredential {
        machine_name: MachineName::new(b"client"),
        uid: 1000,
        gid: 1000,
        groups: AuthSysGids::first_of(&[1000]),
    })
}

pub(crate) fn call_record(
    xid: u32,
    (program, version, procedure): (u32, u32, u32),
    arguments: &[u8],
) -> Vec<u8> {
    let mut out = Vec::new();
    let body = record::begin_record(&mut out);
    encode_call_header(&mut out, xid, program, version, procedure, &credential());
    put_fixed(&mut out, arguments);
    record::finish_record(&mut out, body, 0);
    out
}

/// The status of the next reply, or `None` if the connection ended instead.
pub(crate) fn read_outcome(stream: &mut TcpStream) -> Result<Option<Result<AcceptStatus, String>>> {
    let mut mark = [0; 4];
    match stream.read_exact(&mut mark) {
        Ok(()) => {}
        Err(error) if matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => {
            return Ok(None);
        }
        Err(error) => return Err(error).context("neither a reply nor the end of the connection"),
    }
    let mut body = vec![0; usize::try_from(u32::from_be_bytes(mark) & 0x7fff_ffff)?];
    stream.read_exact(&mut body)?;
    let header = decode_reply_header(&mut Decoder::new(&body))?;
    Ok(Some(header.outcome.map_err(|denial| format!("{denial:?}"))))
}

/// A generator of pseudorandom numbers (Steele, Lea and Flood's SplitMix64).
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(bound).unwrap_or(1)).unwrap_or(0)
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next().to_be_bytes()[0]).collect()
    }
}
