//! `dirfill=auto` on real mounts: `dirfill=off` behaves as before, fills cost little where they
//! have no benefit, and changes are visible as soon as without fills.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use curt_bench::report::RunReport;
use curt_bench::workload::Workload;
use curt_proto::nfs3::NfsProcedure;
use curt_tests::curt::{CurtMount, CurtServe, program, tree};
use curt_tests::network::Network;
use curt_tests::process;

const MINUTE: Duration = Duration::from_secs(60);
const MINUTES: Duration = Duration::from_secs(300);

/// The output of a benchmark with these arguments in a separate network.
fn bench(network: &Network, name: &str, arguments: &[&str]) -> Result<String> {
    let mut command = network.command(program(name)?);
    command.args(arguments).arg("--json");
    process::run(&mut command, MINUTES)
}

#[test]
fn dirfill_off_sends_what_was_sent_without_it() -> Result<()> {
    let network = Network::new()?;
    for workload in Workload::ALL {
        let top = tree(workload)?.display().to_string();
        let options = "noaccesscheck,sloppycto=3,dirfill=off";
        let text =
            bench(&network, "curt", &["bench", workload.name(), "--tree", &top, "--options", options])?;
        let report: RunReport = serde_json::from_str(&text)?;
        ensure!(report.wrong == 0, "{text}");
        let lookups = match workload {
            Workload::Page => 1408,
            Workload::Build => 1174,
        };
        // A name that is looked up repeatedly and not used may be about to be created: in a slow
        // run LOOKUPs are sent after 1, 2, 4 and 8 s.
        let sent = report.rpc.value(NfsProcedure::Lookup);
        ensure!((lookups * 98..=lookups * 104).contains(&(sent * 100)), "{text}");
        ensure!(report.rpc.value(NfsProcedure::Access) == 0, "{text}");
        let listings = report.rpc.value(NfsProcedure::ReaddirPlus);
        ensure!(listings == 0 || workload == Workload::Build, "{text}");
    }
    Ok(())
}

#[test]
fn bench_fill_stays_within_its_bounds_on_a_small_tree() -> Result<()> {
    let network = Network::new()?;
    let top = network.make_directory("fill")?.display().to_string();
    // Nothing expires, however busy the machine is: each GETATTR would count on one side alone.
    for options in ["actimeo=600", "noaccesscheck,sloppycto=3,actimeo=600"] {
        let text = bench(
            &network,
            "curt-tools-bench",
            &[
                "fill",
                "--directories",
                "200",
                "--names",
                "200",
                "--huge",
                "20000",
                "--files",
                "1000",
                "--rounds",
                "0",
                "--tree",
                &top,
                "--options",
                options,
            ],
        )?;
        let report: serde_json::Value = serde_json::from_str(&text)?;
        let cases = report["cases"].as_array().context("cases")?;
        ensure!(cases.len() == 4, "{text}");
        for case in cases {
            ensure!(case["holds"] == true, "{case}");
            ensure!(case["off"]["requests"].as_u64() > Some(1), "{case}");
        }
    }
    Ok(())
}

#[test]
fn bench_fill_times_views_over_ways_of_any_length() -> Result<()> {
    let network = Network::new()?;
    let top = tree(Workload::Page)?.display().to_string();
    let mut command = network.command(program("curt-tools-bench")?);
    command.args(["fill", "--json", "--no-cases", "--rounds", "1", "--delays", "0,1"]);
    // This test does not compare times, because the machine may be busy.
    let (_, text, _) = process::finish(command.arg("--page-tree").arg(&top), MINUTES)?;
    let json = text.lines().find(|line| line.starts_with('{')).context("no JSON")?;
    let report: serde_json::Value = serde_json::from_str(json)?;
    let views = report["views"].as_array().context("views")?;
    ensure!(views.len() == 2, "{text}");
    for view in views {
        let requests = |mode: &str| view["requests"][mode].as_u64();
        ensure!(requests("auto") > Some(100) && requests("auto") < requests("off"), "{view}");
    }
    let seconds = |index: usize, mode: &str| views[index][mode][0].as_f64();
    ensure!(
        seconds(1, "off") > views[1]["requests"]["off"].as_f64().map(|requests| requests / 2000.0),
        "a longer way takes longer: {text}"
    );
    Ok(())
}

/// The lifetimes of cached state on the mounts of the next test.
const BELIEVED: Duration = Duration::from_secs(1);

/// Maximum delay by the kernel's timers and the scheduling of the daemon: the kernel's timeout
/// starts when it gets the reply. Missing names are cached for a minute unless the directory
/// changes, so a change that is not visible in time stays invisible for long.
const MARGIN: Duration = Duration::from_secs(5);

/// A change by a second client, and the first client's result of a query before and after.
struct Case {
    change: fn(&Path) -> std::io::Result<()>,
    /// A shell command about the directory `$1`.
    question: &'static str,
    before: &'static str,
    after: &'static str,
}

const CASES: [Case; 5] = [
    Case {
        change: |top| fs::write(top.join("missing"), "x"),
        question: "test -e $1/missing && echo there || echo missing",
        before: "missing",
        after: "there",
    },
    Case {
        change: |top| fs::remove_file(top.join("name1")),
        question: "test -e $1/name1 && echo there || echo missing",
        before: "there",
        after: "missing",
    },
    Case {
        change: |top| fs::rename(top.join("name2"), top.join("renamed")),
        question: "test -e $1/renamed && echo there || echo missing",
        before: "missing",
        after: "there",
    },
    Case {
        change: |top| {
            fs::write(top.join("new"), "four")?;
            fs::rename(top.join("new"), top.join("name3"))
        },
        question: "stat -c %s $1/name3",
        before: "0",
        after: "4",
    },
    Case {
        change: |top| fs::write(top.join("name4"), "seven  "),
        question: "stat -c %s $1/name4",
        before: "0",
        after: "7",
    },
];

/// Counters that must be nonzero with `dirfill=auto`, and zero without: fills, used names of fills,
/// complete directories, and names found to be missing by them.
const COUNTERS: [&str; 5] =
    ["dirfill_fills", "dirfill_names", "dirfill_used", "dirfill_complete", "dirfill_missing"];

/// The counters of a mount.
fn counters(network: &Network, mount: &CurtMount) -> Result<serde_json::Value> {
    let mut stat = network.command(program("curt")?);
    let text = process::run(stat.args(["stat", "--json"]).arg(mount.directory()), MINUTE)?;
    let mut mounts: serde_json::Value = serde_json::from_str(&text)?;
    Ok(mounts[0]["counters"]["events"].take())
}

/// A directory of forty empty files, which is old enough.
fn make(export: &Path) -> Result<PathBuf> {
    let directory = export.join("directory");
    fs::create_dir(&directory)?;
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o777))?;
    for number in 0..40 {
        let path = directory.join(format!("name{number}"));
        fs::write(&path, "")?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666))?;
    }
    Ok(directory)
}

/// Lists a directory and looks up missing names, until these are answered without a request.
fn says_what_is_missing(network: &Network, mount: &CurtMount, directory: &Path) -> Result<()> {
    let mut number = 0;
    process::until("the directory answers for what is missing", MINUTE, || {
        number += 1;
        let script = format!("cd {}; ls -l; [ ! -e none-{number} ]", directory.display());
        network.shell(&script, MINUTE)?;
        let missing = counters(network, mount)?["dirfill_missing"].as_u64();
        Ok((missing > Some(0)).then_some(()))
    })
}

#[test]
fn a_second_clients_changes_are_seen_when_attributes_expire_and_not_later() -> Result<()> {
    let network = Network::new()?;
    for mode in ["off", "auto"] {
        let export = network.make_directory(&format!("export-{mode}"))?;
        let directory = make(&export)?;
        let server = CurtServe::start(&network, &export, &[])?;
        let options = format!("{},noaccesscheck,actimeo=1,dirfill={mode}", server.ports());
        let mount = CurtMount::start(&network, &format!("mount-{mode}"), &server.source(), &options)?;
        let seen = mount.directory().join("directory");
        // The second look-up fills the directory.
        let unlisted = (10..20).map(|number| seen.join(format!("name{number}")));
        process::run(network.command("stat").args(unlisted), MINUTE)?;
        for Case { change, question, before, after } in CASES {
            let ask = || -> Result<(Instant, String)> {
                let began = Instant::now();
                let mut shell = network.command("sh");
                shell.args(["-c", question, "sh"]).arg(&seen);
                Ok((began, process::run(&mut shell, MINUTE)?.trim().to_owned()))
            };
            // All names and their attributes have just been cached.
            process::run(network.command("ls").arg("-l").arg(&seen), MINUTE)?;
            ensure!(ask()?.1 == before, "{mode}: {question}");
            change(&directory)?;
            let changed = Instant::now();
            loop {
                let (began, answer) = ask()?;
                if answer == after {
                    break;
                }
                ensure!(answer == before, "{mode}: {question} says {answer}");
                let age = began.saturating_duration_since(changed);
                ensure!(age <= BELIEVED + MARGIN, "{mode}: {question} says {answer} after {age:?}");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        if mode == "auto" {
            says_what_is_missing(&network, &mount, &seen)?;
        }
        let counted = counters(&network, &mount)?;
        mount.unmount()?;
        drop(server);
        for counter in COUNTERS {
            let count = counted[counter].as_u64();
            ensure!(
                count.is_some_and(|count| (count > 0) == (mode == "auto")),
                "{mode}: {counter}: {counted}"
            );
        }
        ensure!(counted["dirfill_wasted"] == 0, "{mode}: {counted}");
    }
    Ok(())
}
