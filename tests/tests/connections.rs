//! Many thousand connections that send nothing, or half a call, beside working ones.
//!
//! If one process may not have enough descriptors for all of them at once, there are two rounds,
//! each with all of one kind and as many of the other as fit.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use curt_proto::nfs3;
use curt_rpc::auth::RpcCredential;
use curt_rpc::message::encode_call_header;
use curt_rpc::record;
use curt_tests::curt::program;
use curt_tests::network::Network;
use curt_tests::process::{RunningProcess, until};
use rustix::process::{Resource, getrlimit, setrlimit};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Number of connections of each kind.
const EACH: u64 = 10_000;
/// Other descriptors of a server.
const OTHERS: u64 = 400;
/// Number of clients.
const CLIENTS: u64 = 4;
/// Maximum number of threads of the server.
const THREADS_MAX: u64 = 100;
/// Number of new connections meanwhile.
const NEW: u32 = 200;
const PORT: u16 = 2049;
const SECONDS: Duration = Duration::from_secs(120);

#[test]
fn thousands_of_idle_and_half_open_calls_cost_no_thread_and_delay_nobody() -> Result<()> {
    // No other process uses its ports. This thread's sockets are in that network, too.
    let network = Network::new()?;
    let space = File::open(Path::new("/run/netns").join(network.name()))?;
    move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network))?;
    for round in rounds() {
        hang_beside_new_ones(&network, round)?;
    }
    Ok(())
}

/// Silent connections.
#[derive(Clone, Copy)]
struct Hanging {
    idle: u64,
    /// Number with half a call.
    half: u64,
}

fn hang_beside_new_ones(network: &Network, Hanging { idle, half }: Hanging) -> Result<()> {
    let server = serve(network)?;
    let before = Memory::of(&server)?;
    let mut threads_most = 0;
    let mut clients = Vec::new();
    for client in 0..CLIENTS {
        let first = 1 + client * 20;
        let mut command = network.command(program("many-connections")?);
        let numbers = [PORT.into(), idle / CLIENTS, half / CLIENTS, first];
        command.args(numbers.map(|number: u64| number.to_string()));
        clients.push(RunningProcess::start("many-connections", &mut command)?);
    }
    for client in &clients {
        until("all are connected", SECONDS, || {
            threads_most = threads_most.max(threads(&server)?);
            Ok(client.output().contains("ready").then_some(()))
        })
        .with_context(|| client.output())?;
    }
    let all = idle / CLIENTS * CLIENTS + half / CLIENTS * CLIENTS;
    until("the server has accepted them all", SECONDS, || {
        threads_most = threads_most.max(threads(&server)?);
        Ok((descriptors(&server)? >= all).then_some(()))
    })?;
    for number in 0..NEW {
        answered(number)?;
        threads_most = threads_most.max(threads(&server)?);
    }
    let memory = Memory::of(&server)?;
    println!(
        "{idle} idle connections and {half} with half a call: {} KiB of memory ({} KiB without them, {} bytes each), \
         {threads_most} threads at most",
        memory.resident,
        before.resident,
        memory.resident.saturating_sub(before.resident) * 1024 / all,
    );
    ensure!(threads_most < THREADS_MAX, "{threads_most} threads");
    // All new ones got their replies, and the others are still open.
    for client in &mut clients {
        client.say("end\n")?;
        client.wait(SECONDS)?;
        ensure!(client.output().contains("closed 0"), "{}", client.output());
    }
    until("the server has let go of them", SECONDS, || Ok((descriptors(&server)? < OTHERS).then_some(())))
}

/// All of both kinds, or all of each kind with as many of the other as one process may have.
fn rounds() -> Vec<Hanging> {
    let mut limit = getrlimit(Resource::Nofile);
    let wanted = 2 * EACH + OTHERS;
    if limit.maximum.is_some_and(|most| most < wanted) {
        limit.maximum = Some(wanted);
    }
    limit.current = limit.maximum;
    if setrlimit(Resource::Nofile, limit).is_ok() {
        return vec![Hanging { idle: EACH, half: EACH }];
    }
    let most = getrlimit(Resource::Nofile).maximum.unwrap_or(wanted);
    let rest = most.saturating_sub(OTHERS + EACH);
    println!(
        "one process may have {most} descriptors here, and no more: {EACH} of each kind beside {rest} of the other"
    );
    vec![Hanging { idle: EACH, half: rest }, Hanging { idle: rest, half: EACH }]
}

fn serve(network: &Network) -> Result<RunningProcess> {
    let mut command = network.command(program("curt")?);
    let bind = format!("127.0.0.1:{PORT}");
    command.args(["serve", "--memory", "--insecure", "--no-rpcbind", "--bind", &bind]);
    command.args(["--mount-port", &PORT.to_string(), "--max-connections", "50000"]);
    // However long it takes to open them all.
    command.args(["--half-record-timeout", "1000", "--idle-timeout", "1000"]);
    let running = RunningProcess::start("curt serve --memory", &mut command)?;
    running.wait_for("listening on", SECONDS)?;
    Ok(running)
}

/// Connects and gets a reply to a call.
fn answered(xid: u32) -> Result<()> {
    let mut stream = TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, PORT)))?;
    stream.set_read_timeout(Some(SECONDS))?;
    let mut call = Vec::new();
    let body = record::begin_record(&mut call);
    encode_call_header(&mut call, xid, nfs3::PROGRAM, nfs3::VERSION, 0, &RpcCredential::None);
    record::finish_record(&mut call, body, 0);
    stream.write_all(&call)?;
    let mut reply = [0; 28];
    stream.read_exact(&mut reply)?;
    ensure!(reply[4..8] == xid.to_be_bytes(), "a reply to another call");
    Ok(())
}

/// Memory of a process from /proc, in KiB.
struct Memory {
    resident: u64,
}

impl Memory {
    fn of(process: &RunningProcess) -> Result<Self> {
        Ok(Self { resident: status(process, "VmRSS:")? })
    }
}

fn threads(process: &RunningProcess) -> Result<u64> {
    status(process, "Threads:")
}

fn status(process: &RunningProcess, row: &str) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid()))?;
    let value = status.lines().find_map(|line| line.strip_prefix(row));
    let value = value.and_then(|value| value.split_whitespace().next());
    Ok(value.context("no such row")?.parse()?)
}

fn descriptors(process: &RunningProcess) -> Result<u64> {
    let listed = std::fs::read_dir(format!("/proc/{}/fd", process.pid()))?;
    Ok(u64::try_from(listed.count())?)
}
