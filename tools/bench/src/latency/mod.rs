//! `cargo xtask bench latency`: the time of an operation compared with its lower limit.
//!
//! Everything is measured in alternation within one run: an echo of the same sizes, the floor (the
//! echo with the system calls that the operation needs), Curt's server, the same without its file
//! cache, and other servers on request.

pub(super) mod connection;
pub(super) mod echo;
mod mounted;
pub(super) mod operations;
mod rounds;
pub(super) mod session;
mod sizes;
pub(super) mod subject;

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use curt_bench::processes::progress_bar;
use curt_client::caller::{Caller, RpcSecurity};
use curt_rpc::auth::{MachineName, RpcCredential};
use serde_json::{Value, json};

use self::mounted::LatencyMount;
use self::operations::LatencyOperation;
use self::rounds::{GROUPS, Measurement, MeasurementCell, Placement, ProcessorSets, SESSION_GROUPS, SHAPES};
use self::subject::{LatencySubject, LatencyVersion, PeerServer, SubjectRole, SubjectSetup};

/// The caller if this program runs as root: servers treat root specially.
const USER: u32 = 1000;
/// The directory for temporary files in memory.
pub(super) const MEMORY: &str = "/dev/shm";

/// Arguments of `cargo xtask bench latency`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  cargo xtask bench latency --peer ganesha=127.0.0.1:2049/srv/data,pid=$(pidof ganesha.nfsd)"
)]
pub(crate) struct LatencyArguments {
    /// Rounds; each measures every server and operation
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// The version of NFS; 4.1 measures each operation after SEQUENCE and PUTFH, in one session
    /// for each connection, and no sizes
    #[arg(long, value_enum, default_value = "3")]
    vers: LatencyVersion,
    /// Another server, with NFSv3 too: NAME=HOST:PORT/PATH, with pid=N if it runs on this machine;
    /// files are made below PATH, which is exported to ports above 1023 (`insecure`). May be
    /// repeated
    #[arg(long, value_name = "NAME=HOST:PORT/PATH[,pid=N]", value_parser = PeerServer::parse)]
    peer: Vec<PeerServer>,
    /// Also measure system calls on a mount of our server (as root)
    #[arg(long)]
    mount: bool,
    /// Where our servers keep the files; default: a temporary directory in memory
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Measure only this operation, such as LOOKUP or "WRITE UNSTABLE", and no sizes; may be
    /// repeated. CREATE and REMOVE come together
    #[arg(long, value_name = "OPERATION", ignore_case = true)]
    only: Vec<LatencyOperation>,
    /// Few operations in few shapes, to test the benchmark itself; the times mean nothing
    #[arg(long)]
    quick: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &LatencyArguments) -> Result<bool> {
    let report = measure(arguments)?;
    crate::print_rows(arguments.json, &report)?;
    Ok(true)
}

fn measure(arguments: &LatencyArguments) -> Result<Value> {
    let mut ours = None;
    let directory = match &arguments.directory {
        Some(given) => std::fs::canonicalize(given)?,
        None => {
            let made = tempfile::Builder::new().prefix("curt-latency-").tempdir_in(MEMORY)?;
            ours.insert(made).path().to_owned()
        }
    };
    // The caller owns the files.
    let permissions = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(&directory, permissions)
        .with_context(|| format!("{} must be this user's", directory.display()))?;
    let prefix = &format!("latency-{}", std::process::id());
    let setup =
        SubjectSetup { directory: &directory, credential: &credential(), prefix, version: arguments.vers };
    let mut subjects = subjects(arguments, &setup)?;
    let curt = subjects.iter_mut().find(|subject| subject.role == SubjectRole::Curt);
    let has_mount = arguments.mount && arguments.vers == LatencyVersion::V3;
    let mounted = curt.filter(|_| has_mount).map(LatencyMount::new).transpose()?;
    let processors = ProcessorSets::allowed()?;
    let measured = all(arguments, &setup, &subjects, mounted.as_ref(), &processors);
    // Remove the files on success and on failure.
    processors.place(Placement::Any, &[])?;
    if let Some(mount) = mounted {
        mount.mounted.end()?;
    }
    let ended = subjects.into_iter().try_for_each(|subject| subject.tree.remove());
    let report = measured?;
    ended.context("removing what was measured with")?;
    Ok(report)
}

/// The caller: this user, or another one if that is root.
pub(super) fn credential() -> RpcCredential {
    let own = rustix::process::geteuid();
    let user = if own.is_root() { USER } else { own.as_raw() };
    RpcSecurity::Sys(MachineName::new(b"curt-bench")).credential(&Caller::new(user, user, &[]))
}

fn subjects(arguments: &LatencyArguments, setup: &SubjectSetup<'_>) -> Result<Vec<LatencySubject>> {
    let curt = LatencySubject::serving(setup, SubjectRole::Curt)?;
    let mut subjects = vec![
        LatencySubject::bare(setup, SubjectRole::Echo, &curt)?,
        LatencySubject::bare(setup, SubjectRole::Floor, &curt)?,
        curt,
        LatencySubject::serving(setup, SubjectRole::Uncached)?,
    ];
    for peer in &arguments.peer {
        let is_new = subjects.iter().all(|subject| subject.name != peer.name);
        ensure!(is_new, "{} is measured twice: name each peer differently", peer.name);
        subjects.push(LatencySubject::peer(setup, peer)?);
    }
    Ok(subjects)
}

/// The measurements: groups of operations, in each shape and placement.
fn cells(arguments: &LatencyArguments) -> Vec<MeasurementCell> {
    let shapes = if arguments.quick { &SHAPES[..2] } else { &SHAPES };
    let is_wanted = |operation| arguments.only.is_empty() || arguments.only.contains(operation);
    let groups: &[_] = match arguments.vers {
        LatencyVersion::V3 => &GROUPS,
        LatencyVersion::V41 => &SESSION_GROUPS,
    };
    let groups = groups.iter().copied().filter(|operations| operations.iter().any(is_wanted));
    let mut cells = Vec::new();
    for placement in [Placement::Any, Placement::OneCpu] {
        for shape in shapes {
            for operations in groups.clone() {
                let generation = 1 + cells.len() as u64;
                cells.push(MeasurementCell { operations, shape: *shape, placement, generation });
            }
        }
    }
    cells
}

fn all(
    arguments: &LatencyArguments,
    setup: &SubjectSetup<'_>,
    subjects: &[LatencySubject],
    mounted: Option<&LatencyMount>,
    processors: &ProcessorSets,
) -> Result<Value> {
    let (sample_ms, operations_min, largest) = match arguments.quick {
        true => (1, 16, 64 << 10),
        false => (8, 100, sizes::MOST),
    };
    let (rounds, sample) = (arguments.rounds, Duration::from_millis(sample_ms));
    let measurement = Measurement { subjects, mounted, processors, rounds, sample, operations_min };
    let has_sizes = arguments.only.is_empty() && arguments.vers == LatencyVersion::V3;
    let cells = cells(arguments);
    let rounds_of_sizes = if has_sizes { arguments.rounds } else { 0 };
    let bar = progress_bar("latencies");
    bar.set_length(cells.len() as u64 + u64::from(rounds_of_sizes));
    let mut rows = Vec::new();
    for cell in cells {
        let what = format!("{} {} {:?}", cell.operations[0].name(), cell.shape, cell.placement);
        bar.set_message(what.clone());
        rows.extend(measurement.measure(cell).context(what)?);
        bar.inc(1);
    }
    place(processors, Placement::Any, subjects)?;
    bar.set_message("sizes");
    // Curt's server with its file cache and without, on the processor of this thread.
    let servers = |round| {
        let setup = SubjectSetup { prefix: &format!("{}-{round}", setup.prefix), ..*setup };
        let serving = |role| LatencySubject::serving(&setup, role);
        let servers = [serving(SubjectRole::Curt)?, serving(SubjectRole::Uncached)?];
        place(processors, Placement::OneCpu, &servers)?;
        Ok(servers)
    };
    let largest = if has_sizes { largest } else { 0 };
    let sizes = sizes::measure(rounds_of_sizes, largest, servers, || bar.inc(1))?;
    bar.finish_and_clear();
    let vers = match arguments.vers {
        LatencyVersion::V3 => "3",
        LatencyVersion::V41 => "4.1",
    };
    Ok(json!({ "vers": vers, "rows": rows, "sizes": sizes }))
}

fn place(processors: &ProcessorSets, placement: Placement, subjects: &[LatencySubject]) -> Result<()> {
    let pids: Vec<u32> = subjects.iter().filter_map(|subject| subject.pid).collect();
    processors.place(placement, &pids)
}
