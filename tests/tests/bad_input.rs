//! `curt serve` and clients that send what no client should: each harms itself at most, and costs one log line.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use curt_proto::{mount3, nfs3};
use curt_rpc::auth::{Credential, Groups, MachineName, SysCredential};
use curt_rpc::client::{
    Interrupt, NoEvents, PortSource, Request, Server, TcpOptions, TcpTransport, Transport,
};
use curt_rpc::message::{AcceptStatus, decode_reply_header, encode_call_header};
use curt_rpc::record;
use curt_tests::curt::program;
use curt_tests::process::{Running, until};
use curt_xdr::{Decoder, Encode, put_fixed, put_opaque};
use rustix::process::Signal;

const SOON: Duration = Duration::from_secs(20);
const THREADS: usize = 16;

/// `curt serve` of memory on a free port.
struct Victim {
    running: Running,
    address: SocketAddr,
    root: Vec<u8>,
}

/// Bytes that are arguments already.
struct Raw(Vec<u8>);

impl Encode for Raw {
    fn encode(&self, out: &mut Vec<u8>) {
        put_fixed(out, &self.0);
    }
}

impl Victim {
    fn start(arguments: &[&str]) -> Result<Self> {
        let mut command = Command::new(program("curt")?);
        command.args([
            "serve",
            "--memory",
            "--insecure",
            "--no-rpcbind",
            "--bind",
            "127.0.0.1:0",
        ]);
        command.args(["--threads", &THREADS.to_string()]).args(arguments);
        let running = Running::start("curt serve", &mut command)?;
        running.wait_for("listening on", SOON)?;
        let output = running.output();
        let address = output
            .split_whitespace()
            .skip_while(|word| *word != "on")
            .nth(1)
            .and_then(|address| address.parse().ok())
            .with_context(|| format!("no address in: {output}"))?;
        let mut victim = Self {
            running,
            address,
            root: Vec::new(),
        };
        let mut path = Vec::new();
        put_opaque(&mut path, b"/memory");
        let mounted = victim.call(mount3::PROGRAM, 1, path)?;
        let mut decoder = Decoder::new(&mounted);
        ensure!(decoder.u32()? == 0, "not mounted: {output}");
        victim.root = decoder.opaque(64)?.to_vec();
        Ok(victim)
    }

    fn connect(&self) -> Result<TcpStream> {
        let stream = TcpStream::connect(self.address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SOON))?;
        stream.set_write_timeout(Some(SOON))?;
        Ok(stream)
    }

    /// A good client's call.
    fn call(&self, program: u32, procedure: u32, arguments: Vec<u8>) -> Result<Vec<u8>> {
        let options = TcpOptions::new(
            Server::Address(self.address.ip()),
            PortSource::Fixed(self.address.port()),
        );
        let transport = TcpTransport::connect(options, Arc::new(NoEvents), &Interrupt::never())?;
        let request = Request {
            program,
            version: 3,
            procedure,
            credential: &credential(),
            arguments: &Raw(arguments),
            bulk: &[],
            results_max: 1 << 20,
        };
        Ok(transport.call(&request, &Interrupt::never())?.results().to_vec())
    }

    /// Makes a file of 1 MiB, and returns the arguments of a READ of all of it.
    fn make_large_file(&self) -> Result<Vec<u8>> {
        let mut create = Vec::new();
        put_opaque(&mut create, &self.root);
        put_opaque(&mut create, b"large");
        for word in [0u32, 1, 0o666, 0, 0, 1, 0, 1 << 20, 0, 0] {
            word.encode(&mut create);
        }
        let created = self.call(nfs3::PROGRAM, 8, create)?;
        let mut decoder = Decoder::new(&created);
        ensure!(
            (decoder.u32()?, decoder.bool()?) == (0, true),
            "not created: {created:?}"
        );
        let mut read = Vec::new();
        put_opaque(&mut read, decoder.opaque(64)?);
        for word in [0u32, 0, 1 << 20] {
            word.encode(&mut read);
        }
        Ok(read)
    }

    /// Good clients are served, and quickly; the process has not grown out of bounds.
    fn expect_unharmed(&mut self) -> Result<()> {
        let started = Instant::now();
        for _ in 0..20 {
            let mut root = Vec::new();
            put_opaque(&mut root, &self.root);
            let attributes = self.call(nfs3::PROGRAM, 1, root)?;
            ensure!(
                attributes.first_chunk() == Some(&[0; 4]),
                "GETATTR of the root failed"
            );
        }
        ensure!(
            started.elapsed() < SOON / 4,
            "20 calls took {:?}",
            started.elapsed()
        );
        ensure!(self.running.is_running()?, "it ended: {}", self.running.output());
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.running.pid()))?;
        let of = |name: &str| -> Option<usize> {
            status
                .lines()
                .find_map(|line| line.strip_prefix(name))?
                .split_whitespace()
                .next()?
                .parse()
                .ok()
        };
        let (memory, threads) = (of("VmRSS:").context("VmRSS")?, of("Threads:").context("Threads")?);
        ensure!(memory < 400 << 10, "{memory} KiB of memory");
        ensure!(threads <= THREADS + 4, "{threads} threads");
        ensure!(
            !self.running.output().contains("panicked"),
            "{}",
            self.running.output()
        );
        Ok(())
    }

    fn warnings(&self) -> usize {
        self.running
            .output()
            .lines()
            .filter(|line| line.contains("WARN") || line.contains("ERROR"))
            .count()
    }
}

fn credential() -> Credential {
    Credential::Sys(SysCredential {
        machine_name: MachineName::new(b"client"),
        uid: 1000,
        gid: 1000,
        groups: Groups::first_of(&[1000]),
    })
}

fn call_record(xid: u32, (program, version, procedure): (u32, u32, u32), arguments: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let body = record::open(&mut out);
    encode_call_header(&mut out, xid, (program, version, procedure), &credential());
    put_fixed(&mut out, arguments);
    record::close(&mut out, body, 0);
    out
}

/// The next reply's outcome, or none if the connection ended instead.
fn read_outcome(stream: &mut TcpStream) -> Result<Option<Result<AcceptStatus, String>>> {
    let mut mark = [0; 4];
    match stream.read_exact(&mut mark) {
        Ok(()) => {}
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset
            ) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(error).context("neither a reply nor the end of the connection"),
    }
    let mut body = vec![0; usize::try_from(u32::from_be_bytes(mark) & 0x7fff_ffff)?];
    stream.read_exact(&mut body)?;
    let header = decode_reply_header(&mut Decoder::new(&body))?;
    Ok(Some(header.outcome.map_err(|denial| format!("{denial:?}"))))
}

/// A generator of numbers that is the same in every run (Steele, Lea and Flood's SplitMix64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(bound).unwrap_or(1)).unwrap_or(0)
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next().to_be_bytes()[0]).collect()
    }
}

#[test]
fn every_procedure_with_cut_or_mutated_arguments_is_answered_or_rejected() -> Result<()> {
    let mut victim = Victim::start(&[])?;
    let mut numbers = Numbers(1);
    let mut stream = victim.connect()?;
    // The handle, a name, and numbers of all sizes: what most procedures begin with.
    let mut sample = Vec::new();
    put_opaque(&mut sample, &victim.root);
    put_opaque(&mut sample, b"some name");
    for word in [0u32, 1, 2, 0x7fff_ffff, 0x8000_0000, u32::MAX, 0, 0, 0, 5, 0, 0] {
        word.encode(&mut sample);
    }
    let programs = [
        (nfs3::PROGRAM, 3, 23),
        (mount3::PROGRAM, 3, 7),
        (mount3::PROGRAM, 1, 7),
        (nfs3::PROGRAM, 4, 3),
    ];
    for (program, version, procedures) in programs {
        for procedure in 0..procedures {
            for round in 0..120 {
                let mut arguments = sample.clone();
                match round {
                    0..30 => arguments.truncate(round * 4),
                    30..100 => {
                        let at = numbers.below(arguments.len());
                        arguments[at] = numbers.next().to_be_bytes()[1];
                    }
                    _ => arguments = numbers.bytes(round * 3),
                }
                stream.write_all(&call_record(7, (program, version, procedure), &arguments))?;
                let outcome = read_outcome(&mut stream)?.context("the connection was closed")?;
                let expected = match (program, version, procedure) {
                    (nfs3::PROGRAM, 4, _) => matches!(outcome, Ok(AcceptStatus::ProgramMismatch(_))),
                    (nfs3::PROGRAM, _, 22) | (mount3::PROGRAM, _, 6) => {
                        outcome == Ok(AcceptStatus::ProcedureUnavailable)
                    }
                    _ => matches!(
                        outcome,
                        Ok(AcceptStatus::Success
                            | AcceptStatus::GarbageArguments
                            | AcceptStatus::ProcedureUnavailable)
                    ),
                };
                ensure!(
                    expected,
                    "program {program} version {version} procedure {procedure}: {outcome:?}"
                );
            }
        }
    }
    ensure!(
        victim.warnings() <= 2,
        "more than a line for one client:\n{}",
        victim.running.output()
    );
    victim.expect_unharmed()
}

#[test]
fn garbage_ends_its_connection_and_no_other() -> Result<()> {
    let mut victim = Victim::start(&[])?;
    let mut numbers = Numbers(2);
    let mut good = victim.connect()?;
    for round in 0..400 {
        let mut stream = victim.connect()?;
        let bytes = match round % 4 {
            // Bytes of any kind; a record of any kind; a call that was changed; many empty fragments.
            0 => {
                let count = 8 + numbers.below(3000);
                numbers.bytes(count)
            }
            1 => {
                let body = {
                    let count = numbers.below(600);
                    numbers.bytes(count)
                };
                [record::mark(body.len()).to_vec(), body].concat()
            }
            2 => {
                let mut call = call_record(1, (nfs3::PROGRAM, 3, 1), &numbers.bytes(40));
                for _ in 0..3 {
                    let at = numbers.below(call.len());
                    call[at] = numbers.next().to_be_bytes()[2];
                }
                call
            }
            _ => vec![0; 4 * 5000],
        };
        // It may have been closed before all was written.
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
        if round % 20 == 0 {
            good.write_all(&call_record(9, (nfs3::PROGRAM, 3, 0), &[]))?;
            ensure!(
                read_outcome(&mut good)? == Some(Ok(AcceptStatus::Success)),
                "another client was harmed"
            );
        }
    }
    ensure!(victim.warnings() <= 400, "more than a line for each client");
    victim.expect_unharmed()
}

#[test]
fn records_above_their_programs_limit_end_the_connection() -> Result<()> {
    let mut victim = Victim::start(&[])?;
    // What is announced, for which program, is above its limit; little of it is ever sent.
    for (program, announced) in [
        (nfs3::PROGRAM, 2 << 20),
        (mount3::PROGRAM, 5000),
        (1, 5000),
        (nfs3::PROGRAM, 0x7fff_ffff),
    ] {
        let mut stream = victim.connect()?;
        let mut start = record::mark(announced).to_vec();
        start.extend(
            [1, 0, 2, program, 3, 1]
                .iter()
                .flat_map(|word: &u32| word.to_be_bytes()),
        );
        stream.write_all(&start)?;
        ensure!(
            read_outcome(&mut stream)?.is_none(),
            "{announced} bytes for program {program} were waited for"
        );
    }
    victim.expect_unharmed()
}

#[test]
fn half_records_and_idle_connections_hold_no_thread() -> Result<()> {
    let mut victim = Victim::start(&[])?;
    let call = call_record(3, (nfs3::PROGRAM, 3, 0), &[]);
    let mut slow: Vec<TcpStream> = (0..400).map(|_| victim.connect()).collect::<Result<_>>()?;
    // Byte for byte, as slow as the server lets them be.
    for (at, byte) in call.iter().enumerate().take(call.len() - 1) {
        for stream in &mut slow[..200] {
            stream.write_all(&[*byte])?;
        }
        if at % 16 == 0 {
            victim.expect_unharmed()?;
        }
    }
    for stream in &mut slow[..200] {
        stream.write_all(&call[call.len() - 1..])?;
        ensure!(
            read_outcome(stream)? == Some(Ok(AcceptStatus::Success)),
            "a slow call was not answered"
        );
    }
    victim.expect_unharmed()
}

#[test]
fn a_client_that_never_reads_harms_only_itself() -> Result<()> {
    let mut victim = Victim::start(&[])?;
    let read = victim.make_large_file()?;
    let mut greedy = Vec::new();
    for _ in 0..60 {
        let mut stream = victim.connect()?;
        stream.set_nonblocking(true)?;
        for xid in 0..100 {
            if stream
                .write_all(&call_record(xid, (nfs3::PROGRAM, 3, 6), &read))
                .is_err()
            {
                break;
            }
        }
        greedy.push(stream);
    }
    victim.expect_unharmed()?;
    // Who begins to read gets all that was asked for.
    let mut stream = greedy.swap_remove(0);
    stream.set_nonblocking(false)?;
    for _ in 0..100 {
        ensure!(
            read_outcome(&mut stream)? == Some(Ok(AcceptStatus::Success)),
            "a reply is missing"
        );
    }
    drop(greedy);
    victim.expect_unharmed()
}

#[test]
fn more_connections_than_allowed_take_the_place_of_idle_ones() -> Result<()> {
    let mut victim = Victim::start(&["--connections", "50"])?;
    let mut idle: Vec<TcpStream> = (0..200).map(|_| victim.connect()).collect::<Result<_>>()?;
    victim.expect_unharmed()?;
    // The oldest are gone.
    ensure!(read_outcome(&mut idle[0])?.is_none());
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", victim.running.pid()))?.count();
    ensure!(descriptors < 80, "{descriptors} descriptors");
    Ok(())
}

#[test]
fn forged_handles_and_bad_names_get_the_rfcs_status() -> Result<()> {
    let victim = Victim::start(&[])?;
    let status = |procedure: u32, arguments: Vec<u8>| -> Result<u32> {
        Ok(Decoder::new(&victim.call(nfs3::PROGRAM, procedure, arguments)?).u32()?)
    };
    let opaque = |bytes: &[u8]| {
        let mut out = Vec::new();
        put_opaque(&mut out, bytes);
        out
    };
    for bit in 0..victim.root.len() * 8 {
        let mut forged = victim.root.clone();
        forged[bit / 8] ^= 1 << (bit % 8);
        let status = status(1, opaque(&forged))?;
        ensure!(status == 70 || status == 10_001, "a forged handle: {status}");
    }
    for length in 0..victim.root.len() {
        let status = status(1, opaque(&victim.root[..length]))?;
        ensure!(status == 70 || status == 10_001, "a cut handle: {status}");
    }
    let names: [(&[u8], u32); 7] = [
        (b"", 13),
        (b"a/b", 13),
        (b"a\0b", 13),
        (b".", 17),
        (b"..", 17),
        (&[b'x'; 256], 63),
        (&[b'x'; 1000], 63),
    ];
    for (name, expected) in names {
        let mut mkdir = opaque(&victim.root);
        put_opaque(&mut mkdir, name);
        mkdir.extend([0; 24]);
        let status = status(9, mkdir)?;
        let allowed = [expected, 22, 13];
        ensure!(
            allowed.contains(&status),
            "MKDIR of {:?}: {status}",
            name.escape_ascii().to_string()
        );
    }
    Ok(())
}

#[test]
fn a_signal_stops_a_server_in_order() -> Result<()> {
    let mut victim = Victim::start(&[])?;
    let status = victim.running.stop()?;
    ensure!(status.success(), "{status}");
    ensure!(
        victim.running.output().contains("stopped"),
        "{}",
        victim.running.output()
    );
    until("nobody answers any more", SOON, || {
        Ok(TcpStream::connect(victim.address).is_err().then_some(()))
    })
}

#[test]
fn a_second_signal_ends_a_server_at_once() -> Result<()> {
    let mut victim = Victim::start(&[])?;
    // A client that takes no replies is what a server in order waits for, for some seconds.
    let large = victim.make_large_file()?;
    let mut greedy = victim.connect()?;
    for xid in 0..20 {
        greedy.write_all(&call_record(xid, (nfs3::PROGRAM, 3, 6), &large))?;
    }
    victim.expect_unharmed()?;
    victim.running.signal(Signal::TERM)?;
    victim.running.wait_for("stopping", SOON)?;
    let second = Instant::now();
    victim.running.signal(Signal::TERM)?;
    let status = victim.running.wait(SOON)?;
    ensure!(
        second.elapsed() < Duration::from_secs(2),
        "it took {:?}",
        second.elapsed()
    );
    ensure!(status.code() == Some(1), "{status}");
    Ok(())
}
