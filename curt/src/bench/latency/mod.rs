//! `curt bench latency`: what an operation costs beside the least that it could cost.
//!
//! Everything is measured in turns within one run: an echo of the same sizes, the floor (the echo with the system calls that the
//! operation cannot do without), our server, the same without its file cache, and whichever other servers are named.

mod calls;
mod check;
mod client;
mod content;
pub(super) mod echo;
mod line;
mod mounted;
mod processors;
mod report;
mod rounds;
mod shape;
mod sizes;
mod slow;
mod statistics;
mod subject;
mod tree;

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use curt_rpc::auth::{Credential, Groups, MachineName, SysCredential};
use indicatif::{ProgressBar, ProgressStyle};

use self::mounted::Mounted;
use self::processors::Processors;
use self::report::Report;
use self::rounds::{Cell, Effort, GROUPS};
use self::shape::{Placement, SHAPES};
use self::subject::{Peer, Place, Role, Subject};
use super::times::Machine;

/// As whom root asks: servers treat root itself specially.
const USER: u32 = 1000;
/// Where temporary files cost no disk.
const MEMORY: &str = "/dev/shm";
/// Pairs of a slow and a quick call, of each kind.
const SLOW_PAIRS: usize = 300;
/// The magic number of tmpfs (statfs(2)).
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// What `curt bench latency` takes.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  curt bench latency --peer ganesha=127.0.0.1:2049/srv/data,pid=$(pidof ganesha.nfsd) --svg latency.svg"
)]
pub(crate) struct LatencyArguments {
    /// Rounds, each of everything that is compared
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Another NFSv3 server: NAME=HOST:PORT/PATH, and pid=N if it runs here; files are made below PATH. May be given more than once
    #[arg(long, value_name = "NAME=HOST:PORT/PATH[,pid=N]")]
    peer: Vec<Peer>,
    /// Measure system calls on a mount of our server, too (as root)
    #[arg(long)]
    mount: bool,
    /// Where our servers keep the files; default: a temporary directory in memory
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// As which user to ask; default: 1000 where root runs this, else who runs this
    #[arg(long, value_name = "UID")]
    user: Option<u32>,
    /// Leave out the table of sizes
    #[arg(long)]
    no_sizes: bool,
    /// Measure instead how much a slow operation on one export delays a quick one on another (as root)
    #[arg(long, conflicts_with_all = ["peer", "mount", "directory", "svg"])]
    slow: bool,
    /// Few operations in few shapes: shows that it works, and not how fast anything is
    #[arg(long)]
    quick: bool,
    /// Write the picture there
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &LatencyArguments) -> Result<bool> {
    if arguments.slow {
        let pairs = if arguments.quick { 20 } else { SLOW_PAIRS };
        return slow::run(&credential(user(arguments)), pairs, arguments.json);
    }
    let report = measure(arguments)?;
    if let Some(path) = &arguments.svg {
        std::fs::write(path, report.picture()?).with_context(|| path.display().to_string())?;
    }
    if arguments.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        println!("{}\n\n{}", Machine::this().line(), report.text());
    }
    Ok(true)
}

fn effort(arguments: &LatencyArguments) -> Effort {
    Effort {
        rounds: usize::from(arguments.rounds),
        sample: Duration::from_millis(if arguments.quick { 1 } else { 8 }),
        operations_min: if arguments.quick { 16 } else { 100 },
    }
}

fn measure(arguments: &LatencyArguments) -> Result<Report> {
    let (directory, _ours) = directory(arguments)?;
    let state = tempfile::Builder::new().prefix("curt-latency-").tempdir()?;
    let user = user(arguments);
    // Whoever asks makes the files.
    let permissions = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(&directory, permissions)
        .with_context(|| format!("{} must be this user's", directory.display()))?;
    let credential = credential(user);
    let place = Place {
        directory: &directory,
        state: state.path(),
        credential: &credential,
        prefix: &format!("latency-{}", std::process::id()),
    };
    let mut subjects = subjects(arguments, &place)?;
    let mounted = arguments.mount.then(|| mount(&place, &subjects)).transpose()?;
    let processors = Processors::allowed()?;
    let measured = all(
        arguments,
        &mut subjects,
        mounted.as_ref(),
        &processors,
        &credential,
    );
    // Whatever happened, what was made is taken away.
    processors.place(Placement::Any, &[])?;
    if let Some(mounted) = mounted {
        mounted.end()?;
    }
    let ended = subjects
        .into_iter()
        .map(Subject::end)
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
    let in_memory = rustix::fs::statfs(MEMORY).is_ok_and(|found| found.f_type == TMPFS_MAGIC);
    let mut builder = tempfile::Builder::new();
    builder.prefix("curt-latency-");
    let ours = if in_memory {
        builder.tempdir_in(MEMORY)
    } else {
        builder.tempdir()
    }?;
    Ok((ours.path().to_owned(), Some(ours)))
}

fn user(arguments: &LatencyArguments) -> u32 {
    let own = rustix::process::geteuid();
    arguments
        .user
        .unwrap_or_else(|| if own.is_root() { USER } else { own.as_raw() })
}

/// Who asks.
fn credential(user: u32) -> Credential {
    Credential::Sys(SysCredential {
        machine_name: MachineName::new(b"curt-bench"),
        uid: user,
        gid: user,
        groups: Groups::first_of(&[]),
    })
}

fn subjects(arguments: &LatencyArguments, place: &Place<'_>) -> Result<Vec<Subject>> {
    let curt = Subject::serving(place, Role::Curt, &[])?;
    let mut subjects = vec![
        Subject::bare(place, Role::Echo, &curt)?,
        Subject::bare(place, Role::Floor, &curt)?,
        curt,
        Subject::serving(place, Role::Uncached, &["--filecache", "off"])?,
    ];
    for peer in &arguments.peer {
        let known = |subject: &Subject| subject.name == peer.name;
        ensure!(
            !subjects.iter().any(known),
            "{} is measured twice: name each peer differently",
            peer.name
        );
        subjects.push(Subject::peer(place, peer)?);
    }
    Ok(subjects)
}

fn mount(place: &Place<'_>, subjects: &[Subject]) -> Result<Mounted> {
    let curt = subjects.iter().find(|subject| subject.role == Role::Curt);
    let curt = curt.context("our server is not measured")?;
    let source = format!("127.0.0.1:{}", place.directory.display());
    Mounted::new(&source, curt.port(), &curt.tree.name).context("the mount")
}

fn all(
    arguments: &LatencyArguments,
    subjects: &mut [Subject],
    mounted: Option<&Mounted>,
    processors: &Processors,
    credential: &Credential,
) -> Result<Report> {
    let effort = effort(arguments);
    let shapes = if arguments.quick { &SHAPES[..2] } else { &SHAPES };
    let largest = match (arguments.no_sizes, arguments.quick) {
        (true, _) => 0,
        (false, true) => 64 << 10,
        (false, false) => sizes::MOST,
    };
    let cells = Placement::ALL.len() * shapes.len() * GROUPS.len();
    let bar = progress(cells + sizes::all(largest).count());
    let mut report = Report {
        rows: Vec::new(),
        sizes: Vec::new(),
    };
    for placement in Placement::ALL {
        for shape in shapes {
            for operations in GROUPS {
                bar.set_message(format!("{} {shape} {placement}", operations[0]));
                let cell = Cell {
                    operations,
                    shape: *shape,
                    placement,
                    generation: 1 + bar.position(),
                };
                let rows = rounds::measure(cell, &effort, subjects, mounted, processors);
                report
                    .rows
                    .extend(rows.with_context(|| format!("{} {shape} {placement}", operations[0]))?);
                bar.inc(1);
            }
        }
    }
    let pids: Vec<u32> = subjects.iter().filter_map(|subject| subject.pid).collect();
    processors.place(Placement::Any, &pids)?;
    for size in sizes::all(largest) {
        bar.set_message(format!("{} KiB", size >> 10));
        let Some((on, off)) = both(subjects) else { break };
        let rows = sizes::measure(size, effort.rounds, on, off, credential);
        report
            .sizes
            .extend(rows.with_context(|| format!("{} KiB", size >> 10))?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(report)
}

/// Our server with its file cache and without.
fn both(subjects: &mut [Subject]) -> Option<(&mut Subject, &mut Subject)> {
    let (mut on, mut off) = (None, None);
    for subject in subjects {
        match subject.role {
            Role::Curt => on = Some(subject),
            Role::Uncached => off = Some(subject),
            Role::Echo | Role::Floor | Role::Peer => {}
        }
    }
    on.zip(off)
}

fn progress(steps: usize) -> ProgressBar {
    let bar = ProgressBar::new(steps as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} of {duration}  {msg}") {
        bar.set_style(style);
    }
    bar
}
