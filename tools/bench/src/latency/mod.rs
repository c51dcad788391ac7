//! `cargo xtask bench latency`: what an operation costs beside the least that it could cost.
//!
//! Everything is measured in turns within one run: an echo of the same sizes, the floor (the echo
//! with the system calls that the operation cannot do without), our server, the same without its
//! file cache, and whichever other servers are named.

mod calls;
mod check;
mod client;
mod content;
pub(super) mod echo;
mod load;
mod mounted;
mod processors;
mod report;
mod rounds;
mod setup_client;
mod sizes;
mod slow;
mod subject;
mod tree;

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use curt_bench::processes::progress_bar;
use curt_rpc::auth::{AuthSysCredential, AuthSysGids, MachineName, RpcCredential};
use serde_json::json;

use self::load::{LatencyOperation, LoadShape, Placement, SHAPES};
use self::mounted::LatencyMount;
use self::processors::ProcessorSets;
use self::report::LatencyReport;
use self::rounds::{GROUPS, MeasurementCell, SampleSize};
use self::slow::SlowRow;
use self::subject::{LatencySubject, PeerServer, SubjectRole, SubjectSetup};

/// As whom root asks: servers treat root itself specially.
const USER: u32 = 1000;
/// Where temporary files cost no disk.
const MEMORY: &str = "/dev/shm";
/// Pairs of a slow and a quick call, of each kind.
const SLOW_PAIRS: usize = 300;

/// What `cargo xtask bench latency` takes.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  cargo xtask bench latency --peer ganesha=127.0.0.1:2049/srv/data,pid=$(pidof ganesha.nfsd)"
)]
pub(crate) struct LatencyArguments {
    /// Rounds; each measures every server and operation
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Another NFSv3 server: NAME=HOST:PORT/PATH, with pid=N if it runs on this machine; files are
    /// made below PATH, which is exported to ports above 1023 (`insecure`). May be repeated
    #[arg(long, value_name = "NAME=HOST:PORT/PATH[,pid=N]")]
    peer: Vec<PeerServer>,
    /// Also measure system calls on a mount of our server (as root)
    #[arg(long)]
    mount: bool,
    /// Where our servers keep the files; default: a temporary directory in memory
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Measure only this operation, such as LOOKUP or "WRITE UNSTABLE", and no sizes; may be
    /// repeated. CREATE and REMOVE come together
    #[arg(long, value_name = "OPERATION", ignore_case = true, conflicts_with = "slow")]
    only: Vec<LatencyOperation>,
    /// Measure instead how much a slow operation on one export delays a quick one on another (as
    /// root)
    #[arg(long, conflicts_with_all = ["peer", "mount", "directory"])]
    slow: bool,
    /// Few operations in few shapes, to test the benchmark itself; the times mean nothing
    #[arg(long)]
    quick: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &LatencyArguments) -> Result<bool> {
    let credential = credential();
    if arguments.slow {
        let pairs = if arguments.quick { 20 } else { SLOW_PAIRS };
        let rows = slow::measure(&credential, pairs)?;
        crate::print_rows(arguments.json, &json!({ "slow": rows }))?;
        return Ok(rows.iter().all(SlowRow::holds));
    }
    let report = measure(arguments, &credential)?;
    crate::print_rows(arguments.json, &serde_json::to_value(&report)?)?;
    Ok(true)
}

fn measure(arguments: &LatencyArguments, credential: &RpcCredential) -> Result<LatencyReport> {
    let (directory, _ours) = directory(arguments)?;
    let state = tempfile::Builder::new().prefix("curt-latency-").tempdir()?;
    // Whoever asks makes the files.
    let permissions = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(&directory, permissions)
        .with_context(|| format!("{} must be this user's", directory.display()))?;
    let place = SubjectSetup {
        directory: &directory,
        state: state.path(),
        credential,
        prefix: &format!("latency-{}", std::process::id()),
    };
    let mut subjects = subjects(arguments, &place)?;
    let mounted = arguments.mount.then(|| mount(&place, &subjects)).transpose()?;
    let processors = ProcessorSets::allowed()?;
    let measured = all(arguments, &mut subjects, mounted.as_ref(), &processors, &place);
    // Whatever happened, what was made is taken away.
    processors.place(Placement::Any, &[])?;
    if let Some(mounted) = mounted {
        mounted.end()?;
    }
    let ended = subjects
        .into_iter()
        .map(LatencySubject::end)
        .collect::<Result<Vec<()>>>();
    let report = measured?;
    ended.context("removing what was measured with")?;
    Ok(report)
}

/// Where the files are, and the temporary directory if it is one.
fn directory(arguments: &LatencyArguments) -> Result<(PathBuf, Option<tempfile::TempDir>)> {
    if let Some(directory) = &arguments.directory {
        return Ok((std::fs::canonicalize(directory)?, None));
    }
    let ours = tempfile::Builder::new()
        .prefix("curt-latency-")
        .tempdir_in(MEMORY)?;
    Ok((ours.path().to_owned(), Some(ours)))
}

/// Who asks: this user, or some other where that is root.
fn credential() -> RpcCredential {
    let own = rustix::process::geteuid();
    let user = if own.is_root() { USER } else { own.as_raw() };
    RpcCredential::Sys(AuthSysCredential {
        machine_name: MachineName::new(b"curt-bench"),
        uid: user,
        gid: user,
        groups: AuthSysGids::first_of(&[]),
    })
}

fn subjects(arguments: &LatencyArguments, place: &SubjectSetup<'_>) -> Result<Vec<LatencySubject>> {
    let curt = LatencySubject::serving(place, SubjectRole::Curt)?;
    let mut subjects = vec![
        LatencySubject::bare(place, SubjectRole::Echo, &curt)?,
        LatencySubject::bare(place, SubjectRole::Floor, &curt)?,
        curt,
        LatencySubject::serving(place, SubjectRole::Uncached)?,
    ];
    for peer in &arguments.peer {
        let known = |subject: &LatencySubject| subject.name == peer.name;
        ensure!(
            !subjects.iter().any(known),
            "{} is measured twice: name each peer differently",
            peer.name
        );
        subjects.push(LatencySubject::peer(place, peer)?);
    }
    Ok(subjects)
}

fn mount(place: &SubjectSetup<'_>, subjects: &[LatencySubject]) -> Result<LatencyMount> {
    let curt = subjects.iter().find(|subject| subject.role == SubjectRole::Curt);
    let curt = curt.context("our server is not measured")?;
    let source = format!("127.0.0.1:{}", place.directory.display());
    LatencyMount::new(&source, curt.port(), &curt.tree.name).context("the mount")
}

/// What is measured: operations that go together, in each shape and placement.
fn cells(arguments: &LatencyArguments) -> Vec<(&'static [LatencyOperation], LoadShape, Placement)> {
    let shapes = if arguments.quick { &SHAPES[..2] } else { &SHAPES };
    let mut cells = Vec::new();
    for placement in Placement::ALL {
        for shape in shapes {
            for operations in GROUPS {
                let is_wanted = |operation| arguments.only.contains(operation);
                if arguments.only.is_empty() || operations.iter().any(is_wanted) {
                    cells.push((operations, *shape, placement));
                }
            }
        }
    }
    cells
}

fn all(
    arguments: &LatencyArguments,
    subjects: &mut [LatencySubject],
    mounted: Option<&LatencyMount>,
    processors: &ProcessorSets,
    place: &SubjectSetup<'_>,
) -> Result<LatencyReport> {
    let effort = SampleSize {
        rounds: usize::from(arguments.rounds),
        sample: Duration::from_millis(if arguments.quick { 1 } else { 8 }),
        operations_min: if arguments.quick { 16 } else { 100 },
    };
    let largest = match (arguments.only.is_empty(), arguments.quick) {
        (false, _) => 0,
        (true, true) => 64 << 10,
        (true, false) => sizes::MOST,
    };
    let cells = cells(arguments);
    let rounds_of_sizes = if largest == 0 { 0 } else { arguments.rounds };
    let bar = progress_bar("latencies");
    bar.set_length(cells.len() as u64 + u64::from(rounds_of_sizes));
    let mut report = LatencyReport::default();
    for (operations, shape, placement) in cells {
        let what = format!("{} {shape} {placement:?}", operations[0].name());
        bar.set_message(what.clone());
        let cell = MeasurementCell {
            operations,
            shape,
            placement,
            generation: 1 + bar.position(),
        };
        let rows = rounds::measure(cell, &effort, subjects, mounted, processors);
        report.rows.extend(rows.context(what)?);
        bar.inc(1);
    }
    let pids: Vec<u32> = subjects.iter().filter_map(|subject| subject.pid).collect();
    processors.place(Placement::Any, &pids)?;
    bar.set_message("sizes");
    let servers = |round| servers_of_sizes(place, processors, round);
    report.sizes = sizes::measure(rounds_of_sizes, largest, place.credential, servers, || bar.inc(1))?;
    bar.finish_and_clear();
    Ok(report)
}

/// Our server with its file cache and without, for one round of the table of sizes, on the
/// processor of this thread.
fn servers_of_sizes(
    place: &SubjectSetup<'_>,
    processors: &ProcessorSets,
    round: u16,
) -> Result<[LatencySubject; 2]> {
    let place = SubjectSetup {
        prefix: &format!("{}-{round}", place.prefix),
        ..*place
    };
    let servers = [
        LatencySubject::serving(&place, SubjectRole::Curt)?,
        LatencySubject::serving(&place, SubjectRole::Uncached)?,
    ];
    let pids: Vec<u32> = servers.iter().filter_map(|server| server.pid).collect();
    processors.place(Placement::OneCpu, &pids)?;
    Ok(servers)
}
