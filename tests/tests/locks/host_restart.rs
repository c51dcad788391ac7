//! A restart of the machine on which a mount locked: its processes and /run are gone, and the boot
//! has another id.

use anyhow::{Result, ensure};
use curt_tests::curt;
use curt_tests::process::RunningProcess;
use rustix::process::Signal;

use super::{Locking, MINUTE, MINUTES};

/// Mounts in a boot of its own, and locks: process 1, /run/curt and the boot's id are its own;
/// /var/lib is kept between boots.
const BOOT: &str = r#"
directory=$1 boot=$2 program=$3 source=$4 words=$5
mkdir -p $directory/lib /run/curt $directory/booted
mount -t tmpfs -o mode=755 tmpfs /run/curt
mount --bind $directory/lib /var/lib
echo $boot > $directory/boot
mount --bind $directory/boot /proc/sys/kernel/random/boot_id
$program mount --foreground $source $directory/booted &
until mountpoint -q $directory/booted; do sleep 0.05; done
python3 $directory/locker.py $directory/booted/file $words
"#;

// SEMANTICS: lock-18.
#[test]
fn a_server_is_told_of_the_restart_of_a_machine_without_a_status_monitor() -> Result<()> {
    let locking = Locking::new()?;
    let directory = locking.network.directory();
    std::fs::write(directory.join("boot.sh"), BOOT)?;
    let boot = |id: &str, words: &str| -> Result<RunningProcess> {
        let mut command = locking.network.command("unshare");
        command.args(["--pid", "--fork", "--mount-proc", "--kill-child", "bash"]);
        command.arg(directory.join("boot.sh")).arg(directory).arg(id).arg(curt::program("curt")?);
        command.arg(format!("{}:/export", locking.server.address())).arg(words);
        RunningProcess::start("a boot", &mut command)
    };
    let first = boot("first", "fcntl-write")?;
    first.wait_for("locked", MINUTES)?;
    let stop = |mut boot: RunningProcess| -> Result<()> {
        boot.signal(Signal::KILL)?;
        boot.wait(MINUTE).map(drop)
    };
    stop(first)?;
    // The server has not heard of anything.
    let again = boot("first", "fcntl-write try=1")?;
    again.wait_for("refused EAGAIN", MINUTES)?;
    stop(again)?;
    let second = boot("second", "fcntl-write try=1")?;
    second.wait_for("locked", MINUTES)?;
    stop(second)?;
    let kept = std::fs::read_to_string(directory.join("lib/curt/nsm/state"))?;
    ensure!(kept.starts_with("boot second ") && !kept.contains("untold"), "{kept}");
    Ok(())
}
