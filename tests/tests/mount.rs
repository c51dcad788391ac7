//! `curt mount` of other servers: written data are stored, changes of others are visible.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use curt_tests::curt::{CurtMount, CurtServe, program};
use curt_tests::ganesha::Ganesha;
use curt_tests::kernel::{ClientJob, KernelNumber, Knfsd, KnfsdOptions};
use curt_tests::network::Network;
use curt_tests::process::{self, RunningProcess};
use rustix::process::Signal;

/// Timeout: a hundred thousand operations on a slow kernel take three minutes on an idle machine.
const MINUTES: Duration = Duration::from_secs(900);

/// The random writer on a mount.
struct Writer {
    program: String,
    seed: u64,
    operations: u64,
}

impl Writer {
    fn new(seed: u64, operations: u64) -> Result<Self> {
        Ok(Self { program: program("random-writer")?.display().to_string(), seed, operations })
    }

    fn start(&self, network: &Network, directory: &Path) -> Result<RunningProcess> {
        let mut command = network.command(&self.program);
        command.args(["--seed", &self.seed.to_string(), "--operations", &self.operations.to_string()]);
        RunningProcess::start("random-writer", command.args(["--keep", "--progress", "1000"]).arg(directory))
    }

    fn finish(&self, mut running: RunningProcess) -> Result<()> {
        let status = running.wait(MINUTES)?;
        ensure!(status.success(), "{}", running.output());
        Ok(())
    }

    /// Compares the files in another directory with the result of this writer.
    fn verify(&self, network: &Network, directory: &Path) -> Result<()> {
        let mut command = network.command(&self.program);
        command.args([
            "--verify",
            "--seed",
            &self.seed.to_string(),
            "--operations",
            &self.operations.to_string(),
        ]);
        process::run(command.arg(directory), MINUTES).map(drop)
    }
}

#[test]
fn random_writer_on_a_mount_of_knfsd_finds_nothing_wrong() -> Result<()> {
    let network = Network::new()?;
    let _rpcbind = network.rpcbind()?;
    let server = Knfsd::start(&network, KernelNumber(1), MINUTES, &KnfsdOptions::default())?;
    let source = format!("{}:/export", server.address());
    let mount = CurtMount::start(&network, "mount", &source, "")?;
    // Each operation takes milliseconds on this kernel.
    let is_full = std::env::var_os("CURT_FULL").is_some();
    let writer = Writer::new(5, if is_full { 100_000 } else { 10_000 })?;
    writer.finish(writer.start(&network, mount.directory())?)?;
    mount.unmount()?;
    // A mount that did not see the files written.
    let again = CurtMount::start(&network, "again", &source, "")?;
    writer.verify(&network, again.directory())?;
    again.unmount()
}

// SEMANTICS: write-3.
#[test]
fn power_cut_of_knfsd_loses_nothing_that_was_synced() -> Result<()> {
    let network = Network::new()?;
    let _rpcbind = network.rpcbind()?;
    let options =
        KnfsdOptions { image: Some(network.directory().join("disk.img")), ..KnfsdOptions::default() };
    let number = KernelNumber(1);
    let server = Knfsd::start(&network, number, MINUTES, &options)?;
    let source = format!("{}:/export", server.address());
    let mount = CurtMount::start(&network, "mount", &source, "")?;
    let writer = Writer::new(6, 12_000)?;
    let running = writer.start(&network, mount.directory())?;
    running.wait_for("\n3000\n", MINUTES)?;
    server.power_off(&network)?;
    let server = Knfsd::start(&network, number, MINUTES, &options)?;
    writer.finish(running)?;
    mount.unmount()?;
    // Another power failure: the comparison is with the data on the disk.
    server.power_off(&network)?;
    let _server = Knfsd::start(&network, number, MINUTES, &options)?;
    let again = CurtMount::start(&network, "again", &source, "")?;
    writer.verify(&network, again.directory())?;
    again.unmount()
}

// SEMANTICS: write-3.
#[test]
fn killed_ganesha_loses_nothing_that_was_synced() -> Result<()> {
    let network = Network::new()?;
    let _rpcbind = network.rpcbind()?;
    let export = network.make_directory("export")?;
    let server = Ganesha::start(&network, &export)?;
    let mount = CurtMount::start(&network, "mount", &server.source(), "")?;
    let writer = Writer::new(7, 12_000)?;
    let running = writer.start(&network, mount.directory())?;
    running.wait_for("\n3000\n", MINUTES)?;
    server.kill()?;
    let _server = Ganesha::start(&network, &export)?;
    writer.finish(running)?;
    mount.unmount()?;
    writer.verify(&network, &export)
}

// SEMANTICS: cto-1.
#[test]
fn curt_and_linux_see_each_others_changes_at_the_next_open() -> Result<()> {
    let network = Network::new()?;
    let _rpcbind = network.rpcbind()?;
    let server = Knfsd::start(&network, KernelNumber(1), MINUTES, &KnfsdOptions::default())?;
    let source = format!("{}:/export", server.address());
    let meeting = network.make_directory("meeting")?;
    let script = format!(
        "MEETING={}\nmeet() {{ touch $MEETING/$1; until [[ -e $MEETING/$2 ]]; do sleep 0.05; done; }}\n\
         mount -t nfs -o vers=3,nolock {source} /mnt/nfs || exit 1\n\
         echo first >/mnt/nfs/file; meet linux-1 curt-1\n\
         echo second, longer >/mnt/nfs/file; meet linux-2 curt-2\n\
         [[ $(</mnt/nfs/file) == third ]] || exit 5; truncate -s 2 /mnt/nfs/file; meet linux-3 curt-3\n\
         ! cat /mnt/nfs/file 2>/dev/null || exit 6; umount /mnt/nfs",
        meeting.display()
    );
    let job = ClientJob::start(&network, KernelNumber(0), MINUTES, &script)?;
    // Attributes are fresh for a minute: the open has to see the change.
    let mount = CurtMount::start(&network, "mount", &source, "actimeo=60")?;
    let file = mount.directory().join("file").display().to_string();
    let reached = |name: &str| {
        let path = meeting.join(name);
        process::until(&format!("the Linux client reached {name}"), MINUTES, || {
            Ok(path.exists().then_some(()))
        })
    };
    let done = |name: &str| fs::write(meeting.join(name), "").context("meeting");
    let sees = |wanted: &str| -> Result<()> {
        let seen = network.shell(&format!("cat {file}"), MINUTES)?;
        ensure!(seen == wanted, "{seen:?}, not {wanted:?}");
        Ok(())
    };
    reached("linux-1")?;
    sees("first\n")?;
    done("curt-1")?;
    reached("linux-2")?;
    sees("second, longer\n")?;
    network.shell(&format!("echo third >{file}"), MINUTES)?;
    done("curt-2")?;
    reached("linux-3")?;
    sees("th")?;
    network.shell(&format!("rm {file}"), MINUTES)?;
    done("curt-3")?;
    let job = job.finish()?;
    ensure!(job.status == Some(0), "{job:?}");
    mount.unmount()
}

/// Another file system inside the export, with the same inode numbers as the outer one: both are
/// new tmpfs.
const INNER: &str = "mkdir inner && mount -t tmpfs tmpfs inner && for n in {1..40}; do echo $n >file-$n; echo $n >inner/file-$n; done";

// SEMANTICS: attr-7.
#[test]
fn inode_numbers_below_a_crossed_mount_point_are_unique_and_stay() -> Result<()> {
    let network = Network::new()?;
    let _rpcbind = network.rpcbind()?;
    let options = KnfsdOptions { setup: INNER.to_owned(), ..KnfsdOptions::default() };
    let server = Knfsd::start(&network, KernelNumber(1), MINUTES, &options)?;
    server.inside(
        "exportfs -u '*:/export'; exportfs -o rw,no_root_squash,no_subtree_check,insecure,fsid=0,crossmnt '*:/export'
         exportfs -o rw,no_root_squash,no_subtree_check,insecure,fsid=9 '*:/export/inner'",
        MINUTES,
    )?;
    let there =
        server.inside("cd /export; stat -c %i file-* inner/file-* | sort | uniq -d | wc -l", MINUTES)?;
    ensure!(there.trim() != "0", "the server's own numbers do not collide: nothing is shown");
    let mount = CurtMount::start(&network, "mount", &format!("{}:/export", server.address()), "")?;
    let numbers = || -> Result<String> {
        network.shell(
            &format!(
                "cd {}; cat inner/file-7 >/dev/null; stat -c '%i %d' file-* inner inner/file-* .",
                mount.directory().display()
            ),
            MINUTES,
        )
    };
    let first = numbers()?;
    let inodes: std::collections::BTreeSet<&str> = first.lines().collect();
    ensure!(inodes.len() == 82, "{} of 82 numbers are different:\n{first}", inodes.len());
    let devices: std::collections::BTreeSet<_> =
        first.lines().filter_map(|line| line.split(' ').nth(1)).collect();
    ensure!(devices.len() == 1, "one device: {devices:?}");
    ensure!(numbers()? == first, "the numbers are not the same again");
    // A listing has the same inode numbers as stat(2).
    let listed = network.shell(
        &format!(
            "cd {}/inner; diff <(ls -i | sort) <(stat -c '%i %n' * | sort)",
            mount.directory().display()
        ),
        MINUTES,
    )?;
    ensure!(listed.is_empty(), "{listed}");
    let content = network.shell(&format!("cat {}/inner/file-7", mount.directory().display()), MINUTES)?;
    ensure!(content == "7\n", "{content}");
    mount.unmount()
}

// SEMANTICS: mount-1.
#[test]
fn two_mounts_of_one_export_see_each_other_as_two_clients_would() -> Result<()> {
    let network = Network::new()?;
    let export = network.make_directory("export")?;
    let server = CurtServe::start(&network, &export, &[])?;
    let options = format!("{},actimeo=60,nolock", server.ports());
    let one = CurtMount::start(&network, "one", &server.source(), &options)?;
    let two = CurtMount::start(&network, "two", &server.source(), &options)?;
    let script = format!(
        "one={} two={}
         echo first >$one/file; [[ $(<$two/file) == first ]]
         echo longer than that >$two/file; [[ $(<$one/file) == 'longer than that' ]]
         # A change is seen at the next open, and by fstat of what was opened before it only then.
         exec 3<$one/file; echo third >$two/file; [[ $(<$one/file) == third ]]
         # Local locks are of one mount.
         exec 4>$one/file 5>$two/file; flock -xn 4; flock -xn 5; exec 6>$one/file; ! flock -xn 6
         # Names: each has its own memory of what is missing, and asks when it makes one.
         ! stat $two/new 2>/dev/null; echo x >$one/new; ! (set -C; echo y >$two/new) 2>/dev/null; [[ $(<$two/new) == x ]]
         rm $two/new; ! cat $one/new 2>/dev/null
         stat -c %d $one/file $two/file",
        one.directory().display(),
        two.directory().display()
    );
    let devices = network.shell(&script, MINUTES)?;
    let devices: std::collections::BTreeSet<&str> = devices.lines().collect();
    ensure!(devices.len() == 2, "they are one device: {devices:?}");
    one.unmount()?;
    let alone = network.shell(&format!("ls {}", two.directory().display()), MINUTES)?;
    ensure!(alone == "file\n", "{alone}");
    two.unmount()
}

// SEMANTICS: name-12.
#[test]
fn processes_read_what_they_opened_while_others_replace_and_remove_it() -> Result<()> {
    let network = Network::new()?;
    let export = network.make_directory("export")?;
    let server = CurtServe::start(&network, &export, &[])?;
    for (name, options) in [("checked", ""), ("unchecked", ",noaccesscheck,sloppycto=3")] {
        let options = format!("{}{options}", server.ports());
        let mount = CurtMount::start(&network, name, &server.source(), &options)?;
        process::until("a removal met an open", MINUTES, || {
            Ok((replace_and_read(&network, &mount)? > 0).then_some(()))
        })?;
        // The last close removes a file that was removed while open; the kernel sends RELEASE
        // asynchronously.
        let stays = |name: &str| matches!(name, "shared" | "lasting") || name.starts_with("new-");
        process::until("nothing is left", MINUTES, || {
            let left = network.shell(&format!("ls -A {}", export.display()), MINUTES)?;
            Ok(left.lines().all(stays).then_some(()))
        })?;
        mount.unmount()?;
    }
    Ok(())
}

/// Number of removals that coincided with an open.
fn replace_and_read(network: &Network, mount: &CurtMount) -> Result<u64> {
    const PROCESSES: &str = "12";
    const MILLISECONDS: &str = "4000";
    let mut command = network.command(program("replacing-processes")?);
    command.arg(mount.directory()).args([PROCESSES, MILLISECONDS]);
    let done = process::run(&mut command, MINUTES)?;
    println!("{done}");
    let counts: Vec<u64> = done.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    ensure!(counts.len() == 3, "{done}");
    if counts.contains(&0) {
        return Ok(0);
    }
    let figures = network.shell(
        &format!("{} stat --json {}", program("curt")?.display(), mount.directory().display()),
        MINUTES,
    )?;
    let figures: serde_json::Value = serde_json::from_str(&figures)?;
    let renamed = figures[0]["counters"]["events"]["sillyrename"].as_u64();
    renamed.with_context(|| figures.to_string())
}

// SEMANTICS: rpc-13.
#[test]
fn who_asks_for_the_space_of_a_silent_server_waits_for_it() -> Result<()> {
    let network = Network::new()?;
    let export = network.make_directory("export")?;
    let mut server = CurtServe::start(&network, &export, &[])?;
    let mount = CurtMount::start(&network, "mount", &server.source(), &server.ports())?;
    server.process().signal(Signal::STOP)?;
    let mut waiting =
        RunningProcess::start("stat", network.command("stat").arg("-f").arg(mount.directory()))?;
    // A process with this name is treated like umount(8), and gets a reply at once.
    let hasty = network.directory().join("umount");
    std::os::unix::fs::symlink("/usr/bin/stat", &hasty)?;
    let nothing =
        process::run(network.command(&hasty).args(["-f", "-c", "%b"]).arg(mount.directory()), MINUTES)?;
    ensure!(nothing.trim() == "0", "nothing is known of it: {nothing}");
    ensure!(waiting.is_running()?, "{}", waiting.output());
    server.process().signal(Signal::CONT)?;
    ensure!(waiting.wait(MINUTES)?.success(), "{}", waiting.output());
    ensure!(waiting.output().contains("Blocks"));
    mount.unmount()
}
