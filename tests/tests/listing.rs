//! Large directories: `curt bench list` on a small one, and that a Linux client and ours list every name once and remove all of
//! them, while the directory changes.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use curt_tests::curt::{Mount, Serve, program};
use curt_tests::kernel::{KernelNumber, linux_client};
use curt_tests::network::Network;
use curt_tests::process;

const MINUTES: Duration = Duration::from_secs(300);
const NAMES: u32 = 20_000;

fn fill(directory: &Path, names: u32) -> Result<()> {
    fs::create_dir(directory)?;
    fs::set_permissions(directory, fs::Permissions::from_mode(0o777))?;
    for number in 0..names {
        fs::File::create(directory.join(format!("{number:012}")))?;
    }
    Ok(())
}

/// Makes a file in `directory` every now and then while `run` does, the first before it begins.
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
        writer
            .join()
            .map_err(|_| anyhow::anyhow!("the writer failed"))??;
        result
    })
}

/// Every name once, whatever was made meanwhile.
fn check(listed: &str, names: u32) -> Result<()> {
    let mut seen = BTreeSet::new();
    let lines = listed
        .lines()
        .filter(|line| line.len() == 12 && line.bytes().all(|byte| byte.is_ascii_digit()));
    for line in lines {
        ensure!(seen.insert(line), "{line} was listed twice");
    }
    ensure!(
        seen.len() == names as usize,
        "{} names of {names} were listed",
        seen.len()
    );
    Ok(())
}

#[test]
fn bench_list_sends_as_much_while_the_directory_changes_as_while_it_does_not() -> Result<()> {
    let network = Network::new()?;
    let tree = network.make_directory("tree")?;
    let mut command = network.command(program("curt")?);
    command.args([
        "bench",
        "list",
        "--count",
        &NAMES.to_string(),
        "--pass-seconds",
        "3",
        "--no-restart",
        "--json",
        "--tree",
    ]);
    let text = process::run(command.arg(tree), MINUTES)?;
    let report: serde_json::Value = serde_json::from_str(&text)?;
    let number =
        |pass: &serde_json::Value, key: &str| pass[key].as_u64().with_context(|| format!("{key} in {text}"));
    let [idle, changing] = [&report["idle"], &report["changing"]];
    for pass in [
        idle,
        changing,
        &report["full_speed"]["idle"],
        &report["full_speed"]["changing"],
    ] {
        ensure!(number(pass, "cookie_zero")? == 1, "{text}");
        ensure!(
            number(pass, "missing")? == 0 && number(pass, "doubled")? == 0,
            "{text}"
        );
        ensure!(number(pass, "readdir")? <= 12, "{text}");
    }
    ensure!(number(changing, "readdir")? <= number(idle, "readdir")?, "{text}");
    ensure!(
        number(idle, "expired")? >= 2 && number(changing, "created")? >= 5,
        "{text}"
    );
    for tool in ["ls -l", "find", "rm -r"] {
        ensure!(number(&report["tools"][tool], "rpc")? > 0, "{text}");
    }
    Ok(())
}

#[test]
fn linux_lists_each_name_once_while_others_are_made_and_removes_all() -> Result<()> {
    let network = Network::new()?;
    let export = network.make_directory("export")?;
    fill(&export.join("list"), NAMES)?;
    fill(&export.join("removed"), 1000)?;
    let server = Serve::start(&network, &export, &[])?;
    let script = format!(
        "mount -t nfs -o vers=3,nolock,proto=tcp,acdirmin=1,acdirmax=2,{} {} /mnt/nfs || exit 1\n\
         ls -f -1 /mnt/nfs/list && rm -r /mnt/nfs/removed && umount /mnt/nfs",
        server.ports(),
        server.source()
    );
    let output = while_changing(&export.join("list"), || {
        linux_client(&network, KernelNumber(0), MINUTES, &script)
    })?;
    check(&output, NAMES)?;
    ensure!(!export.join("removed").exists(), "rm -r left something behind");
    Ok(())
}

#[test]
fn a_mount_lists_each_name_once_while_others_are_made_and_removes_all() -> Result<()> {
    let network = Network::new()?;
    let export = network.make_directory("export")?;
    fill(&export.join("list"), NAMES)?;
    fill(&export.join("removed"), 5000)?;
    let server = Serve::start(&network, &export, &[])?;
    let options = format!("{},acdirmin=1,acdirmax=2", server.ports());
    let mount = Mount::start(&network, "mount", &server.source(), &options)?;
    let listed = while_changing(&export.join("list"), || {
        process::run(
            network
                .command("ls")
                .args(["-f", "-1"])
                .arg(mount.directory().join("list")),
            MINUTES,
        )
    })?;
    check(&listed, NAMES)?;
    process::run(
        network
            .command("rm")
            .arg("-r")
            .arg(mount.directory().join("removed")),
        MINUTES,
    )?;
    ensure!(!export.join("removed").exists(), "rm -r left something behind");
    // What is made here is listed at once, and what is removed is not.
    let made = mount.directory().join("list").join("mine");
    process::run(network.command("touch").arg(&made), MINUTES)?;
    let listed = process::run(network.command("ls").arg(mount.directory().join("list")), MINUTES)?;
    ensure!(listed.lines().any(|line| line == "mine"));
    process::run(network.command("rm").arg(&made), MINUTES)?;
    let listed = process::run(network.command("ls").arg(mount.directory().join("list")), MINUTES)?;
    ensure!(!listed.lines().any(|line| line == "mine"));
    mount.unmount()
}
