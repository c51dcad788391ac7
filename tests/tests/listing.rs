//! Large directories: `curt bench list` on a small one, and a Linux client and Curt list each name
//! once and remove all of them, while the directory changes.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use curt_tests::curt::{CurtMount, CurtServe, program};
use curt_tests::kernel::{KernelNumber, Knfsd, KnfsdOptions, linux_client};
use curt_tests::network::Network;
use curt_tests::process;
use serde_json::Value;

const MINUTES: Duration = Duration::from_secs(300);
/// Timeout of a run with half a million names, the former behaviour of clients and programs that
/// list.
const LONG: Duration = Duration::from_secs(1800);

/// Sizes of directories. With `CURT_FULL` in the environment they are those of the benchmarks,
/// which takes minutes.
struct Sizes {
    listed: u32,
    removed: u32,
    /// Minimum duration of a listing with delayed replies.
    pass_seconds: &'static str,
    is_full: bool,
}

impl Sizes {
    fn new() -> Self {
        if std::env::var_os("CURT_FULL").is_some() {
            return Self { listed: 500_000, removed: 100_000, pass_seconds: "20", is_full: true };
        }
        Self { listed: 20_000, removed: 5000, pass_seconds: "3", is_full: false }
    }
}

fn fill(directory: &Path, names: u32) -> Result<()> {
    fs::create_dir(directory)?;
    fs::set_permissions(directory, fs::Permissions::from_mode(0o777))?;
    for number in 0..names {
        fs::File::create(directory.join(format!("{number:012}")))?;
    }
    Ok(())
}

/// Creates files in `directory` while `run` runs, the first one before.
fn while_changing<T>(directory: &Path, run: impl FnOnce() -> Result<T>) -> Result<T> {
    let create = move |number: u32| fs::File::create(directory.join(format!("created-{number}")));
    let (stop, stopped) = mpsc::channel::<()>();
    create(0)?;
    std::thread::scope(|scope| {
        let writer = scope.spawn(move || -> Result<()> {
            let mut number = 1;
            while stopped.recv_timeout(Duration::from_millis(2)) == Err(mpsc::RecvTimeoutError::Timeout) {
                create(number)?;
                number += 1;
            }
            ensure!(number > 1, "nothing changed");
            Ok(())
        });
        let result = run();
        drop(stop);
        writer.join().map_err(|_| anyhow::anyhow!("the writer failed"))??;
        result
    })
}

/// Checks that each name is listed once, whatever was created meanwhile.
fn check(listed: &str, names: u32) -> Result<()> {
    let mut seen = BTreeSet::new();
    let lines =
        listed.lines().filter(|line| line.len() == 12 && line.bytes().all(|byte| byte.is_ascii_digit()));
    for line in lines {
        ensure!(seen.insert(line), "{line} was listed twice");
    }
    ensure!(seen.len() == names as usize, "{} names of {names} were listed", seen.len());
    Ok(())
}

/// The JSON output of `curt bench list` with these arguments.
fn bench_list(network: &Network, sizes: &Sizes, arguments: &[&str]) -> Result<Value> {
    let mut command = network.command(program("curt")?);
    command.args(["bench", "list", "--vers", "3", "--json", "--count"]);
    command.arg(sizes.listed.to_string());
    command.args(["--pass-seconds", sizes.pass_seconds]).args(arguments);
    let text = process::run(&mut command, LONG)?;
    serde_json::from_str(&text).with_context(|| text.clone())
}

fn number(report: &Value, key: &str) -> Result<u64> {
    report[key].as_u64().with_context(|| format!("{key} in {report}"))
}

/// Checks that a pass with a writer sends no more requests than one without and takes no longer;
/// none starts again, misses a name or returns one twice, or sends more than `most` requests.
fn check_passes(report: &Value, sizes: &Sizes, most: u64) -> Result<()> {
    let full_speed = &report["full_speed"];
    for (idle, changing) in
        [(&report["idle"], &report["changing"]), (&full_speed["idle"], &full_speed["changing"])]
    {
        for pass in [idle, changing] {
            ensure!(number(pass, "cookie_zero")? == 1, "{report}");
            ensure!(number(pass, "missing")? == 0 && number(pass, "doubled")? == 0, "{report}");
            ensure!(number(pass, "readdir")? <= most, "{report}");
        }
        let asked = |pass| -> Result<f64> { Ok(number(pass, "readdir")? as f64) };
        ensure!(asked(changing)? <= 1.05 * asked(idle)?, "{report}");
    }
    let (idle, changing) = (&report["idle"], &report["changing"]);
    // One before it begins, one after it; a short pass on a busy machine has no time for more.
    let created = if sizes.is_full { 5 } else { 2 };
    ensure!(number(idle, "expired")? >= 2 && number(changing, "created")? >= created, "{report}");
    let seconds = |pass: &Value| pass["seconds"].as_f64().with_context(|| report.to_string());
    // Times of a short pass are not compared.
    if sizes.is_full {
        ensure!(seconds(idle)? >= 20.0, "{report}");
        ensure!(seconds(changing)? <= 1.1 * seconds(idle)?, "{report}");
    }
    Ok(())
}

#[test]
fn bench_list_sends_as_much_while_the_directory_changes_as_while_it_does_not() -> Result<()> {
    let sizes = Sizes::new();
    let network = Network::new()?;
    let tree = network.make_directory("tree")?.display().to_string();
    let restart: &[&str] = if sizes.is_full { &[] } else { &["--no-restart"] };
    let report = bench_list(&network, &sizes, &[&["--tree", &tree], restart].concat())?;
    check_passes(&report, &sizes, if sizes.is_full { 40 } else { 12 })?;
    for tool in ["ls -l", "find", "rm -r"] {
        ensure!(number(&report["tools"][tool], "rpc")? > 0, "{report}");
    }
    if sizes.is_full {
        let restart = &report["restart"];
        let asked = number(restart, "readdir")?;
        ensure!(restart["gave_up"] == true || asked >= 10 * number(&report["idle"], "readdir")?, "{report}");
    }
    Ok(())
}

#[test]
fn bench_list_sends_knfsd_as_much_while_its_directory_on_ext4_changes_as_while_it_does_not() -> Result<()> {
    let sizes = Sizes::new();
    let network = Network::new()?;
    let _rpcbind = network.rpcbind()?;
    let image = network.directory().join("disk.img");
    let show = |path: &Path| path.display().to_string();
    network.shell(&format!("truncate -s 2G {0}; mkfs.ext4 -q -F -N 600000 {0}", show(&image)), MINUTES)?;
    let options = KnfsdOptions {
        image: Some(image),
        setup: format!("{} bench list-tree . {}", show(&program("curt")?), sizes.listed),
        ..KnfsdOptions::default()
    };
    let server = Knfsd::start(&network, KernelNumber(1), LONG, &options)?;
    let source = format!("{}:/export", server.address());
    let report = bench_list(&network, &sizes, &["--no-restart", "--no-tools", "--server", &source])?;
    check_passes(&report, &sizes, if sizes.is_full { 120 } else { 12 })
}

#[test]
fn linux_lists_each_name_once_while_others_are_made_and_removes_all() -> Result<()> {
    let network = Network::new()?;
    let export = network.make_directory("export")?;
    let sizes = Sizes::new();
    fill(&export.join("list"), sizes.listed)?;
    // Each removal needs several requests of a slow kernel.
    let removed = if sizes.is_full { sizes.removed } else { 1000 };
    fill(&export.join("removed"), removed)?;
    let server = CurtServe::start(&network, &export, &[])?;
    let script = format!(
        "mount -t nfs -o vers=3,nolock,proto=tcp,acdirmin=1,acdirmax=2,{} {} /mnt/nfs || exit 1\n\
         ls -f -1 /mnt/nfs/list && rm -r /mnt/nfs/removed && umount /mnt/nfs",
        server.ports(),
        server.source()
    );
    let output =
        while_changing(&export.join("list"), || linux_client(&network, KernelNumber(0), LONG, &script))?;
    check(&output, sizes.listed)?;
    ensure!(!export.join("removed").exists(), "rm -r left something behind");
    Ok(())
}

#[test]
fn a_mount_lists_each_name_once_while_others_are_made_and_removes_all() -> Result<()> {
    let network = Network::new()?;
    let export = network.make_directory("export")?;
    let sizes = Sizes::new();
    fill(&export.join("list"), sizes.listed)?;
    fill(&export.join("removed"), sizes.removed)?;
    let server = CurtServe::start(&network, &export, &[])?;
    let options = format!("{},acdirmin=1,acdirmax=2", server.ports());
    let mount = CurtMount::start(&network, "mount", &server.source(), &options)?;
    let listed = while_changing(&export.join("list"), || {
        process::run(network.command("ls").args(["-f", "-1"]).arg(mount.directory().join("list")), MINUTES)
    })?;
    check(&listed, sizes.listed)?;
    process::run(network.command("rm").arg("-r").arg(mount.directory().join("removed")), MINUTES)?;
    ensure!(!export.join("removed").exists(), "rm -r left something behind");
    // Files created here are listed at once, and removed ones are not.
    let made = mount.directory().join("list").join("mine");
    process::run(network.command("touch").arg(&made), MINUTES)?;
    let listed = process::run(network.command("ls").arg(mount.directory().join("list")), MINUTES)?;
    ensure!(listed.lines().any(|line| line == "mine"));
    process::run(network.command("rm").arg(&made), MINUTES)?;
    let listed = process::run(network.command("ls").arg(mount.directory().join("list")), MINUTES)?;
    ensure!(!listed.lines().any(|line| line == "mine"));
    mount.unmount()
}
