//! `cargo xtask bench read`: a large file through a mount, compared with libnfs and the same
//! server.
//!
//! Every round mounts again, so that the client is cold; the server has the file in memory for both
//! sides. For comparison, a FUSE file system with the file in its own memory shows the upper limit
//! of a mount, and reads with O_DIRECT show the cost of the kernel's page cache. The processor time
//! of each process is reported as well: it depends less on the load of the machine.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use curt_bench::content::ContentPattern;
use curt_bench::processes::{Curt, Testbed};
use rustix::fs::{Mode, OFlags};
use serde_json::{Value, json};

use super::fuse_baseline::{self, BareBehaviour, BareMount};
use super::resource_use::{ProcessorShare, ResourceUse, measure};
use curt_bench::statistics::{ComparedSide, compared, median};

/// Size of one read(2) or write(2) in bytes.
const PIECE_BYTES: usize = 1 << 20;
/// The file, and the seed of its contents.
const SOURCE: &str = "source";

/// Arguments of `cargo xtask bench read`.
#[derive(Debug, clap::Args)]
pub(crate) struct BenchReadArguments {
    /// The file's size in MiB
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..))]
    mib: u64,
    /// Rounds; each measures both sides
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = super::at_least_one())]
    rounds: usize,
    /// Mount options [default: none]
    #[arg(long, value_name = "OPTIONS", default_value = "", hide_default_value = true)]
    options: String,
    /// Where the server keeps the files [default: a temporary directory]
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &BenchReadArguments) -> Result<bool> {
    let own = match &arguments.directory {
        Some(parent) => tempfile::tempdir_in(parent),
        None => tempfile::tempdir(),
    }?;
    let source = own.path().join(SOURCE);
    make(&source, arguments.mib)?;
    // libnfs writes there as the current user, whom the server may squash.
    let written = own.path().join("written");
    fs::create_dir(&written)?;
    fs::set_permissions(&written, PermissionsExt::from_mode(0o777))?;
    fs::set_permissions(own.path(), PermissionsExt::from_mode(0o755))?;
    let mut world = Testbed::serving(&Curt::in_same_directory()?, own.path(), None)?;
    // In the first round only the contents are compared.
    let mounted = world.mount("3", &arguments.options)?;
    compare(&mounted.directory().join(SOURCE))?;
    mounted.end()?;
    let mut rounds = ReadRounds::default();
    for round in 0..arguments.rounds {
        // Recently used memory costs less than memory that the host has to provide first, so the
        // order alternates.
        if round.is_multiple_of(2) {
            rounds.through_mount(&mut world, arguments)?;
            rounds.compare(&world, own.path(), arguments.mib)?;
        } else {
            rounds.compare(&world, own.path(), arguments.mib)?;
            rounds.through_mount(&mut world, arguments)?;
        }
    }
    super::print_compared(arguments.json, &rounds.compared(arguments.mib as f64))?;
    Ok(true)
}

/// The cost of each round, by operation.
#[derive(Debug, Default)]
struct ReadRounds(BTreeMap<&'static str, Vec<ResourceUse>>);

/// The two sides of a comparison: Curt and the reference, each with its printed name.
const COMPARED: [(&str, [(&str, &str); 2]); 4] = [
    ("cold read", [("read", "mount"), ("cat", "nfs-cat")]),
    ("read with O_DIRECT", [("direct", "mount"), ("cat", "nfs-cat")]),
    ("the same from memory, without a server", [("bare", "bare FUSE"), ("cat", "nfs-cat")]),
    ("write and fsync", [("write", "mount"), ("copy", "nfs-cp")]),
];

impl ReadRounds {
    fn add(
        &mut self,
        what: &'static str,
        who: &'static str,
        others: &[(&'static str, u32)],
        work: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let spent = measure(who, others, work)?;
        self.0.entry(what).or_default().push(spent);
        Ok(())
    }

    /// Reads and writes through a new mount.
    fn through_mount(&mut self, world: &mut Testbed, arguments: &BenchReadArguments) -> Result<()> {
        let mounted = world.mount("3", &arguments.options)?;
        let others = [("daemon", mounted.pid()), ("server", server(world)?)];
        let file = mounted.directory().join(SOURCE);
        self.add("read", "reader", &others, || read(&file, OFlags::empty()))?;
        self.add("direct", "reader", &others, || read(&file, OFlags::DIRECT))?;
        let target = mounted.directory().join("written/mount");
        self.add("write", "writer", &others, || make(&target, arguments.mib))?;
        fs::remove_file(&target)?;
        mounted.end()
    }

    /// The measurement without a mount, on the server's files at `exported`; and without a server.
    fn compare(&mut self, world: &Testbed, exported: &Path, mib: u64) -> Result<()> {
        let others = [("server", server(world)?)];
        let port = world.port().context("the server was started here")?;
        let url = |path: &str| {
            format!("nfs://127.0.0.1{}/{path}?version=3&nfsport={port}&mountport={port}", exported.display())
        };
        self.add("cat", "nfs-cat", &others, || libnfs("nfs-cat", &[&url(SOURCE)]))?;
        let bare = tempfile::tempdir()?;
        let (mount, file) = (
            BareMount::new(bare.path(), mib << 20, BareBehaviour::Quick)?,
            bare.path().join(fuse_baseline::FILE),
        );
        self.add("bare", "reader and daemon", &[], || read(&file, OFlags::empty()))?;
        mount.end()?;
        let target = "written/libnfs";
        let from = exported.join(SOURCE).display().to_string();
        self.add("copy", "nfs-cp", &others, || libnfs("nfs-cp", &[&from, &url(target)]))?;
        Ok(fs::remove_file(exported.join(target))?)
    }

    fn compared(&self, mib: f64) -> Vec<Value> {
        let mut all = Vec::new();
        for (what, sides) in COMPARED {
            let [ours, reference] = sides;
            let each = |(done, name): (_, &'static str), of: &dyn Fn(&ResourceUse) -> f64| ComparedSide {
                name,
                rounds: self.0[done].iter().map(of).collect(),
            };
            let speed = |spent: &ResourceUse| mib * 1.048_576 / spent.seconds;
            let cost = |spent: &ResourceUse| spent.processor_seconds() * 1024.0 / mib;
            all.push(compared(what, "MB/s", &each(ours, &speed), &each(reference, &speed)));
            let of_all = format!("{what}, processor time of all who take part");
            let mut costs = compared(&of_all, "s/GiB", &each(ours, &cost), &each(reference, &cost));
            costs["ours"]["shares"] = shares(&self.0[ours.0], 1024.0 / mib);
            costs["reference"]["shares"] = shares(&self.0[reference.0], 1024.0 / mib);
            all.push(costs);
        }
        all
    }
}

/// The medians of each process's share, multiplied by `factor`.
fn shares(rounds: &[ResourceUse], factor: f64) -> Value {
    let parties = rounds.first().map_or(&[][..], |first| first.shares.as_slice());
    let one = |(index, party): (usize, &ProcessorShare)| {
        let median = |part: fn(&ProcessorShare) -> f64| {
            let all = rounds.iter().map(|spent| part(&spent.shares[index]) * factor);
            median(&all.collect::<Vec<f64>>())
        };
        json!({ "who": party.who, "user": median(|share| share.user), "system": median(|share| share.system) })
    };
    parties.iter().enumerate().map(one).collect()
}

fn server(world: &Testbed) -> Result<u32> {
    world.server_pid().context("the server was started here")
}

/// Writes the file and waits until it is on disk.
fn make(path: &Path, mib: u64) -> Result<()> {
    let mut file = File::create(path).with_context(|| path.display().to_string())?;
    let mut piece = vec![0; PIECE_BYTES];
    // The contents repeat for each piece, so all pieces are equal.
    ContentPattern::of(SOURCE.as_bytes()).fill(0, &mut piece);
    for _ in 0..mib {
        file.write_all(&piece)?;
    }
    Ok(file.sync_all()?)
}

fn read(path: &Path, flags: OFlags) -> Result<()> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | flags;
    let mut file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let mut piece = vec![0; PIECE_BYTES];
    while file.read(&mut piece)? > 0 {}
    Ok(())
}

/// Reads the file and compares every byte.
fn compare(path: &Path) -> Result<()> {
    let (mut file, content, mut offset) = (File::open(path)?, ContentPattern::of(SOURCE.as_bytes()), 0);
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let got = file.read(&mut piece)?;
        if got == 0 {
            break;
        }
        let wrong = content.first_wrong(offset, &piece[..got]);
        ensure!(wrong.is_none(), "a wrong byte at {}", offset + wrong.unwrap_or(0) as u64);
        offset += got as u64;
    }
    ensure!(offset == file.metadata()?.len(), "the file ended at {offset}");
    Ok(())
}

fn libnfs(program: &str, arguments: &[&str]) -> Result<()> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let output = command.output().with_context(|| format!("{program} (Debian: libnfs-utils)"))?;
    ensure!(
        output.status.success(),
        "{program}: {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}
