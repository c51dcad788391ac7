//! `curt mount` of other people's servers: what is written is kept, what others change is seen.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use curt_tests::curt::{Mount, program};
use curt_tests::ganesha::Ganesha;
use curt_tests::kernel::{ClientJob, KernelNumber, Knfsd, KnfsdOptions};
use curt_tests::network::Network;
use curt_tests::process::{self, Running};

/// How long anything here may take: a hundred thousand operations against a kernel whose every system call is slow need three
/// minutes where nothing else runs.
const MINUTES: Duration = Duration::from_secs(900);

/// The random writer on a mount.
struct Writer {
    program: String,
    seed: u64,
    operations: u64,
}

impl Writer {
    fn new(seed: u64, operations: u64) -> Result<Self> {
        Ok(Self {
            program: program("random-writer")?.display().to_string(),
            seed,
            operations,
        })
    }

    fn start(&self, network: &Network, directory: &Path) -> Result<Running> {
        let mut command = network.command(&self.program);
        command.args([
            "--seed",
            &self.seed.to_string(),
            "--operations",
            &self.operations.to_string(),
        ]);
        Running::start(
            "random-writer",
            command.args(["--keep", "--progress", "1000"]).arg(directory),
        )
    }

    fn finish(&self, mut running: Running) -> Result<()> {
        let status = running.wait(MINUTES)?;
        ensure!(status.success(), "{}", running.output());
        Ok(())
    }

    /// Compares the files in another directory with what this writer leaves.
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
    let mount = Mount::start(&network, "mount", &source, "")?;
    let writer = Writer::new(5, 100_000)?;
    writer.finish(writer.start(&network, mount.directory())?)?;
    mount.unmount()?;
    // A mount that never saw the files written.
    let again = Mount::start(&network, "again", &source, "")?;
    writer.verify(&network, again.directory())?;
    again.unmount()
}

#[test]
fn power_cut_of_knfsd_loses_nothing_that_was_synced() -> Result<()> {
    let network = Network::new()?;
    let _rpcbind = network.rpcbind()?;
    let options = KnfsdOptions {
        image: Some(network.directory().join("disk.img")),
        ..KnfsdOptions::default()
    };
    let number = KernelNumber(1);
    let server = Knfsd::start(&network, number, MINUTES, &options)?;
    let source = format!("{}:/export", server.address());
    let mount = Mount::start(&network, "mount", &source, "")?;
    let writer = Writer::new(6, 12_000)?;
    let running = writer.start(&network, mount.directory())?;
    running.wait_for("\n3000\n", MINUTES)?;
    server.power_off(&network)?;
    let server = Knfsd::start(&network, number, MINUTES, &options)?;
    writer.finish(running)?;
    mount.unmount()?;
    // Another cut: what is compared is what reached the disk.
    server.power_off(&network)?;
    let _server = Knfsd::start(&network, number, MINUTES, &options)?;
    let again = Mount::start(&network, "again", &source, "")?;
    writer.verify(&network, again.directory())?;
    again.unmount()
}

#[test]
fn killed_ganesha_loses_nothing_that_was_synced() -> Result<()> {
    let network = Network::new()?;
    let _rpcbind = network.rpcbind()?;
    let export = network.make_directory("export")?;
    let server = Ganesha::start(&network, &export)?;
    let mount = Mount::start(&network, "mount", &server.source(), "")?;
    let writer = Writer::new(7, 12_000)?;
    let running = writer.start(&network, mount.directory())?;
    running.wait_for("\n3000\n", MINUTES)?;
    server.kill()?;
    let _server = Ganesha::start(&network, &export)?;
    writer.finish(running)?;
    mount.unmount()?;
    writer.verify(&network, &export)
}

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
    // Attributes that are believed for a minute: it is the open that has to see the change.
    let mount = Mount::start(&network, "mount", &source, "actimeo=60")?;
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
