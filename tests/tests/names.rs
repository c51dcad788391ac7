//! Names in the kernel's cache: not longer than this client itself caches them.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use curt_tests::curt::{CurtMount, CurtServe, MountedExport, program};
use curt_tests::network::Network;
use curt_tests::process::{self, until};

const MINUTE: Duration = Duration::from_secs(60);

/// Number of LOOKUPs by the kernel.
fn lookups(network: &Network, mount: &Path) -> Result<u64> {
    counted(network, mount, "fuse", "LOOKUP")
}

/// Requests by the kernel (`fuse`), or to the server (`requests`).
fn counted(network: &Network, mount: &Path, whose: &str, request: &str) -> Result<u64> {
    let text = process::run(network.command(program("curt")?).args(["stat", "--json"]).arg(mount), MINUTE)?;
    let value: serde_json::Value = serde_json::from_str(&text)?;
    let calls = find(&value, whose).with_context(|| text.clone())?;
    // A missing counter means 0.
    Ok(find(calls, request).and_then(serde_json::Value::as_u64).unwrap_or(0))
}

fn find<'a>(value: &'a serde_json::Value, key: &str) -> Option<&'a serde_json::Value> {
    match value {
        serde_json::Value::Object(fields) => {
            fields.get(key).or_else(|| fields.values().find_map(|field| find(field, key)))
        }
        serde_json::Value::Array(items) => items.iter().find_map(|item| find(item, key)),
        _ => None,
    }
}

fn exists(network: &Network, path: &Path) -> Result<bool> {
    let status = process::finish(network.command("test").arg("-e").arg(path), MINUTE)?.0;
    Ok(status.success())
}

// SEMANTICS: list-9.
#[test]
fn what_a_listing_shows_is_there_although_it_was_known_as_missing() -> Result<()> {
    let served = MountedExport::start(0o755, &[], "noaccesscheck,actimeo=600")?;
    let (network, directory) = (&served.network, served.mount.directory());
    let seen = directory.join("name");
    until("the missing name is kept", MINUTE, || {
        let before = counted(network, directory, "requests", "LOOKUP")?;
        ensure!(!exists(network, &seen)?);
        Ok((counted(network, directory, "requests", "LOOKUP")? == before).then_some(()))
    })?;
    fs::write(served.export.join("name"), b"x")?;
    ensure!(!exists(network, &seen)?, "nobody has asked the server");
    let listed = process::run(network.command("ls").arg(directory), MINUTE)?;
    ensure!(listed.contains("name"), "opening a directory asks: {listed:?}");
    ensure!(exists(network, &seen)?, "it was listed and is said to be missing");
    served.mount.unmount()
}

/// Removes a file while it is open, closes it, and removes or replaces its directory, a hundred
/// times each.
const CLOSING: &str = r#"
import os, sys
def empty(number):
    directory = f"{sys.argv[1]}/{number}"
    os.mkdir(directory)
    file = os.open(directory + "/file", os.O_CREAT | os.O_WRONLY)
    os.unlink(directory + "/file")
    os.close(file)
    return directory
for number in range(100):
    os.rmdir(empty(number))
    os.mkdir(sys.argv[1] + "/other")
    directory = empty(number)
    os.rename(sys.argv[1] + "/other", directory)
    os.rmdir(directory)
"#;

// SEMANTICS: name-13.
#[test]
fn a_directory_whose_removed_file_was_closed_can_be_removed_and_replaced_at_once() -> Result<()> {
    let network = Network::new()?;
    let export = network.make_directory("export")?;
    let server = CurtServe::start(&network, &export, &[])?;
    for (name, options) in [("checked", ""), ("unchecked", ",noaccesscheck,sloppycto=3")] {
        let options = format!("{}{options}", server.ports());
        let mount = CurtMount::start(&network, name, &server.source(), &options)?;
        let program = network.directory().join("closing.py");
        fs::write(&program, CLOSING)?;
        process::run(network.command("python3").args([&program, mount.directory()]), MINUTE)?;
        mount.unmount()?;
    }
    Ok(())
}

/// LOOKUPs by the kernel for ten walks to `name`, after one that is not counted.
fn ten_walks(network: &Network, mount: &CurtMount, name: &str) -> Result<u64> {
    exists(network, &mount.directory().join(name))?;
    let before = lookups(network, mount.directory())?;
    for _ in 0..10 {
        exists(network, &mount.directory().join(name))?;
    }
    Ok(lookups(network, mount.directory())? - before)
}

// SEMANTICS: name-16.
#[test]
fn the_kernel_keeps_names_of_directories_that_everybody_may_search_if_it_may() -> Result<()> {
    let network = Network::new()?;
    let export = network.make_directory("export")?;
    for (name, mode) in [("open", 0o711), ("closed", 0o710)] {
        fs::create_dir(export.join(name))?;
        fs::write(export.join(name).join("name"), b"x")?;
        fs::set_permissions(export.join(name), fs::Permissions::from_mode(mode))?;
    }
    fs::set_permissions(&export, fs::Permissions::from_mode(0o755))?;
    let server = CurtServe::start(&network, &export, &[])?;
    for option in ["accesscheck", "noaccesscheck"] {
        let options = |seconds| format!("{},actimeo=600,{option},kernelnames={seconds}", server.ports());
        let mount = CurtMount::start(&network, "mount", &server.source(), &options(60))?;
        for name in ["open/name", "open/missing"] {
            until(
                "the name is kept",
                MINUTE,
                || Ok((ten_walks(&network, &mount, name)? == 0).then_some(())),
            )?;
        }
        for name in ["closed/name", "closed/missing"] {
            until("the directory is kept, and not its names", MINUTE, || {
                Ok((ten_walks(&network, &mount, name)? == 10).then_some(()))
            })?;
        }
        mount.unmount()?;
        let mount = CurtMount::start(&network, "mount", &server.source(), &options(0))?;
        ensure!(ten_walks(&network, &mount, "open/name")? == 20, "{option}");
        mount.unmount()?;
    }
    Ok(())
}

/// Each way of creating a name that fails if the name exists, as a program without other
/// operations.
const MAKERS: [(&str, &[&str]); 5] = [
    ("directory", &["mkdir", "{}"]),
    ("exclusive", &["dd", "if=/dev/null", "of={}", "conv=excl", "status=none"]),
    ("symlink", &["ln", "-sT", "anything", "{}"]),
    ("link", &["ln", "-T", "{}.source", "{}"]),
    ("fifo", &["mknod", "{}", "p"]),
];

/// Runs the program `how` for `path`; returns whether it succeeded.
fn make(network: &Network, how: &[&str], path: &Path) -> Result<bool> {
    let filled = |word: &str| word.replace("{}", &path.display().to_string());
    let mut command = network.command(filled(how[0]));
    command.args(how[1..].iter().map(|word| filled(word)));
    Ok(process::finish(&mut command, MINUTE)?.0.success())
}

/// A server, and two mounts that cache names for ten minutes.
fn two_mounts(network: &Network, options: &str) -> Result<(CurtServe, CurtMount, CurtMount)> {
    let export = network.make_directory("export")?;
    fs::set_permissions(&export, fs::Permissions::from_mode(0o755))?;
    for (name, _) in MAKERS {
        fs::create_dir(export.join(name))?;
        fs::write(export.join(format!("{name}.source")), b"x")?;
    }
    let server = CurtServe::start(network, &export, &[])?;
    let options = format!("{},actimeo=600,nametimeo=600{options}", server.ports());
    let one = CurtMount::start(network, "one", &server.source(), &options)?;
    let other = CurtMount::start(network, "other", &server.source(), &options)?;
    Ok((server, one, other))
}

// SEMANTICS: name-6.
#[test]
fn who_tries_to_make_a_name_again_and_again_can_after_another_client_removed_it() -> Result<()> {
    let network = Network::new()?;
    let (_server, one, other) = two_mounts(&network, "")?;
    for (name, how) in MAKERS.iter().filter(|(name, _)| *name != "link") {
        let path = one.directory().join(name);
        ensure!(exists(&network, &path)?);
        ensure!(!make(&network, how, &path)?, "{name} is there");
        process::run(network.command("rmdir").arg(other.directory().join(name)), MINUTE)?;
        // Otherwise the name would be cached for ten minutes.
        until("the name is made", MINUTE, || Ok(make(&network, how, &path)?.then_some(())))?;
    }
    other.unmount()?;
    one.unmount()
}

// SEMANTICS: list-1.
#[test]
fn a_listing_on_a_mount_returns_lasting_names_once_while_others_come_and_go() -> Result<()> {
    const LASTING: usize = 1000;
    let network = Network::new()?;
    let export = network.make_directory("export")?;
    let directory = export.join("large");
    fs::create_dir(&directory)?;
    for number in 0..LASTING {
        fs::write(directory.join(format!("stays-{number}")), b"")?;
    }
    let server = CurtServe::start(&network, &export, &[])?;
    // Its attributes always expire: each listing is requested from the server.
    let options = format!("{},acdirmax=0,acdirmin=0", server.ports());
    let mount = CurtMount::start(&network, "mount", &server.source(), &options)?;
    let mut command = network.command("bash");
    let script = format!(
        "cd {}; echo begun; while :; do for n in {{1..40}}; do : >goes-$RANDOM; done; rm -f goes-*; sleep 0.05; done",
        directory.display()
    );
    command.args(["-euc", &script]);
    let changes = process::RunningProcess::start("who changes it", &mut command)?;
    changes.wait_for("begun", MINUTE)?;
    let (mut passes, mut others) = (0, 0);
    until("a listing during which names come and go", MINUTE, || {
        let listed =
            process::run(network.command("ls").arg("-f").arg(mount.directory().join("large")), MINUTE)?;
        let mut names: Vec<&str> = listed.lines().filter(|name| !name.starts_with('.')).collect();
        others += names.iter().filter(|name| name.starts_with("goes-")).count();
        names.retain(|name| name.starts_with("stays-"));
        ensure!(names.len() == LASTING, "{} of {LASTING} names were told", names.len());
        names.sort_unstable();
        names.dedup();
        ensure!(names.len() == LASTING, "a name was told twice");
        passes += 1;
        Ok((passes >= 4 && others > 0).then_some(()))
    })?;
    drop(changes);
    mount.unmount()
}

/// `$m` has a directory with 300 files, and one with ten directories of 30.
const LISTED: &str = "mkdir -m 755 $m/wide $m/deep; touch $m/wide/{1..300}; mkdir $m/deep/{1..10}; touch $m/deep/{1..10}/{1..30}";

// SEMANTICS: name-16.
#[test]
fn programs_that_stat_each_listed_name_need_no_lookups_while_listings_carry_lifetimes() -> Result<()> {
    // A lifetime that ends before a program has looked at all names would be no fault.
    let served = MountedExport::start(0o755, &[], "actimeo=600,kernelnames=7")?;
    let (network, directory) = (&served.network, served.mount.directory());
    let m = directory.display();
    network.shell(&format!("m={m}\n{LISTED}"), MINUTE)?;
    for program in ["ls -l $m/wide", "ls -lR $m/deep", "find $m -size +1", "du -s $m"] {
        until("only READDIRPLUS is needed", MINUTE, || {
            // All lifetimes end: only the listing can renew those of the files.
            std::thread::sleep(Duration::from_millis(7200));
            let before = lookups(network, directory)?;
            network.shell(&format!("m={m}\n{program} >/dev/null"), MINUTE)?;
            let sent = lookups(network, directory)? - before;
            println!("{program}: {sent} LOOKUPs");
            // Those of the directories of the path.
            Ok((sent <= 5).then_some(()))
        })?;
    }
    served.mount.unmount()
}

// SEMANTICS: name-17.
#[test]
fn the_kernel_reads_a_link_once_until_it_changes() -> Result<()> {
    let network = Network::new()?;
    let export = network.make_directory("export")?;
    fs::set_permissions(&export, fs::Permissions::from_mode(0o755))?;
    fs::write(export.join("file"), b"x")?;
    std::os::unix::fs::symlink("file", export.join("link"))?;
    let server = CurtServe::start(&network, &export, &[])?;
    for options in ["actimeo=1", "actimeo=1,kernelnames=0"] {
        let options = format!("{},{options}", server.ports());
        let mount = CurtMount::start(&network, "mount", &server.source(), &options)?;
        let link = mount.directory().join("link");
        let readlinks = || counted(&network, mount.directory(), "fuse", "READLINK");
        // A link that was just changed is read again.
        until("the target is kept", MINUTE, || {
            let before = readlinks()?;
            for _ in 0..20 {
                ensure!(exists(&network, &link)?);
            }
            Ok((readlinks()? == before).then_some(()))
        })?;
        let before = readlinks()?;
        network.shell(&format!("chown -h 1000 {}", export.join("link").display()), MINUTE)?;
        until("the change ends the kernel's copy", MINUTE, || {
            ensure!(exists(&network, &link)?);
            Ok((readlinks()? > before).then_some(()))
        })?;
        network.shell(&format!("chown -h 0 {}", export.join("link").display()), MINUTE)?;
        mount.unmount()?;
    }
    Ok(())
}
