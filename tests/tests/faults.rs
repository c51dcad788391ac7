//! Failing disks of the server: full, over quota, with I/O errors, suddenly read-only. Programs on
//! a mount get one error, at write, fsync or close, and continue when the disk does.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use curt_tests::curt::{CurtMount, CurtServe, program};
use curt_tests::kernel::{KernelNumber, Knfsd, KnfsdOptions};
use curt_tests::network::Network;
use curt_tests::process::RunningProcess;

const LIMIT: Duration = Duration::from_secs(300);
/// Time limit of the kernels.
const KERNEL: Duration = Duration::from_secs(900);
/// The writing user: quotas do not apply to root.
const USER: &str = "1000";

/// Opens a file while the disk works and prints `ready`; then, at a line of input, writes until an
/// error or 8 MiB, and calls fsync, fsync again and close. If write has reported an error, fsync
/// reports bytes that were lost later: these two count as one. At another line, when the disk works
/// again, it writes again.
const PROGRAM: &str = r#"
import errno, os, sys
def said(name, call):
    try:
        call()
    except OSError as error:
        print(name, "says", error, flush=True)
        return [errno.errorcode[error.errno]]
    return []
os.chdir(sys.argv[1])
name = sys.argv[2]
file = os.open(name, os.O_RDWR | os.O_CREAT)
os.pwrite(file, b"before", 0)
os.fsync(file)
print("ready", flush=True)
sys.stdin.readline()
told = []
for number in range(8):
    told += said("write", lambda: os.pwrite(file, b"x" * (1 << 20), number << 20))
    if told:
        break
again = said("fsync", lambda: os.fsync(file))
told = again or told
more = said("fsync", lambda: os.fsync(file)) + said("close", lambda: os.close(file))
print("told", *told, *more, ".", flush=True)
sys.stdin.readline()
file = os.open(name, os.O_RDWR | os.O_TRUNC)
os.pwrite(file, b"fits", 0)
os.fsync(file)
os.close(file)
print("holds", open(name).read(), flush=True)
"#;

/// Runs the program on `directory` as [`USER`]: `break_` is called once its file is open, `mend`
/// once it has got an error.
fn is_told(
    network: &Network,
    directory: &Path,
    name: &str,
    error: &str,
    break_: impl FnOnce() -> Result<()>,
    mend: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let script = network.directory().join("program.py");
    std::fs::write(&script, PROGRAM)?;
    let mut command = network.command("setpriv");
    command.args(["--reuid", USER, "--regid", USER, "--clear-groups", "/usr/bin/python3"]);
    command.arg(&script).arg(directory).arg(name);
    let mut writer = RunningProcess::start("the writer", &mut command)?;
    writer.wait_for("ready", LIMIT)?;
    break_()?;
    writer.say("\n")?;
    writer.wait_for(" .\n", LIMIT)?;
    let told = format!("told {error} .\n");
    ensure!(writer.output().contains(&told), "not {told:?}: {}", writer.output());
    mend()?;
    writer.say("\n")?;
    let status = writer.wait(LIMIT)?;
    ensure!(status.success() && writer.output().contains("holds fits"), "{status}: {}", writer.output());
    Ok(())
}

fn nothing() -> Result<()> {
    Ok(())
}

// SEMANTICS: write-6.
#[test]
fn full_disk_is_reported_once_and_later_writes_are_stored() -> Result<()> {
    let network = Network::new()?;
    let export = network.make_directory("export")?;
    network.shell(&format!("mount -t tmpfs -o size=3m,mode=777 tmpfs {}", export.display()), LIMIT)?;
    let serve = CurtServe::start(&network, &export, &[])?;
    let mount = CurtMount::start(&network, "mount", &serve.source(), &serve.ports())?;
    is_told(&network, mount.directory(), "file", "ENOSPC", nothing, nothing)?;
    mount.unmount()
}

// SEMANTICS: write-6.
#[test]
fn read_only_remount_of_a_directory_is_reported_once_and_later_writes_are_stored() -> Result<()> {
    let network = Network::new()?;
    let export = network.make_directory("export")?;
    let shell = |script: &str| network.shell(script, LIMIT).map(drop);
    let place = export.display();
    shell(&format!("mount -t tmpfs -o mode=777 tmpfs {place}"))?;
    let serve = CurtServe::start(&network, &export, &[])?;
    let mount = CurtMount::start(&network, "mount", &serve.source(), &serve.ports())?;
    is_told(
        &network,
        mount.directory(),
        "file",
        "EROFS",
        // While the server has the file open for writing, the file system cannot be remounted.
        || {
            shell(&format!(
                "timeout 200 sh -c 'until mount -o remount,ro {place} 2>/dev/null; do sleep 0.1; done'"
            ))
        },
        || shell(&format!("mount -o remount,rw {place}")),
    )?;
    mount.unmount()
}

/// Creates a file system on a disk that can be made to fail, at /mnt/disk inside a kernel, and a
/// directory of [`USER`] in it. It has no journal, because ext4 stops all writing once the journal
/// fails; and quotas of 1 MiB for [`USER`].
const DISK: &str = r#"
set -e
modprobe -a loop dm_mod dm_flakey quota_v2 fuse
truncate -s 64M /dev/shm/disk.img
loop=$(losetup --find --show /dev/shm/disk.img)
sectors=$(blockdev --getsz $loop)
echo $loop $sectors >/run/disk
dmsetup --noudevsync --noudevrules create disk --table "0 $sectors linear $loop 0"
dmsetup mknodes
mkfs.ext4 -q -O quota,^has_journal /dev/mapper/disk
mkdir -p /mnt/disk
mount -o usrquota /dev/mapper/disk /mnt/disk
chmod 755 /mnt/disk
mkdir /mnt/disk/quota /mnt/disk/error /mnt/disk/remount
chown 1000:1000 /mnt/disk/*
"#;

/// Sets another device-mapper table for the disk; `$1` is the target, followed by its arguments.
fn table(target: &str, arguments: &str) -> String {
    format!(
        "set -e; read loop sectors </run/disk; dmsetup --noudevsync suspend --nolockfs disk
         dmsetup reload disk --table \"0 $sectors {target} $loop 0 {arguments}\"; dmsetup --noudevsync resume disk"
    )
}

/// A kernel with that disk, mounts of it through knfsd and `curt serve` inside, and the scripts
/// that break and repair the disk.
fn on_both_servers(directory: &str, error: &str, broken: &str, mended: &str) -> Result<()> {
    let network = Network::new()?;
    let _rpcbind = network.rpcbind()?;
    let options = KnfsdOptions { setup: DISK.to_owned(), ..KnfsdOptions::default() };
    let kernel = Knfsd::start(&network, KernelNumber(0), KERNEL, &options)?;
    let inside = |script: &str| kernel.inside(script, LIMIT).map(drop);
    inside("exportfs -o rw,no_root_squash,no_subtree_check,insecure,fsid=7 '*:/mnt/disk'")?;
    let address = kernel.address();
    let curt = program("curt")?.display().to_string();
    inside(&format!(
        "setsid {curt} serve /mnt/disk --bind {address}:2050 --mount-port 2050 --squash none --insecure --state /run/state \
         </dev/null >/run/curt.log 2>&1 &"
    ))?;
    network.wait_for_port(&address, 2050).map_err(|error| {
        match kernel.inside("cat /run/curt.log", LIMIT) {
            Ok(log) => error.context(log),
            Err(_) => error,
        }
    })?;
    for (server, ports) in [("knfsd", "port=2049"), ("curt", "port=2050,mountport=2050")] {
        let mount = CurtMount::start(&network, server, &format!("{address}:/mnt/disk"), ports)?;
        is_told(
            &network,
            &mount.directory().join(directory),
            server,
            error,
            || inside(broken),
            || inside(mended),
        )
        .with_context(|| server.to_owned())?;
        mount.unmount()?;
    }
    Ok(())
}

// SEMANTICS: write-6.
#[test]
fn a_quota_that_is_used_up_is_reported_once_and_later_writes_are_stored() -> Result<()> {
    on_both_servers(
        "quota",
        "EDQUOT",
        &format!("setquota -u {USER} 0 1024 0 0 /mnt/disk"),
        &format!("setquota -u {USER} 0 0 0 0 /mnt/disk"),
    )
}

// SEMANTICS: write-6.
#[test]
fn an_io_error_of_the_disk_is_reported_once_and_later_writes_are_stored() -> Result<()> {
    on_both_servers("error", "EIO", &table("flakey", "0 1 1 error_writes"), &table("linear", ""))
}

// SEMANTICS: write-6.
#[test]
fn read_only_remount_of_a_disk_is_reported_once_and_later_writes_are_stored() -> Result<()> {
    on_both_servers(
        "remount",
        "EROFS",
        "timeout 200 sh -c 'until mount -o remount,ro /mnt/disk 2>/dev/null; do sleep 0.1; done'",
        "mount -o remount,rw /mnt/disk",
    )
}
