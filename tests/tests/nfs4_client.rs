//! `curt mount` with `vers=4.1`: of `curt serve`, knfsd and Ganesha, which are killed meanwhile.

use std::time::Duration;

use anyhow::{Result, ensure};
use curt_tests::curt::{CurtMount, CurtServe, program};
use curt_tests::ganesha::Ganesha;
use curt_tests::kernel::{KernelNumber, Knfsd, KnfsdOptions};
use curt_tests::network::Network;
use curt_tests::process::RunningProcess;

const MINUTES: Duration = Duration::from_secs(300);

/// What programs do with files; `$1` is the mount.
const EVERYTHING: &str = r##"
cd "$1" || exit 1
fail() { echo "FAILED: $*"; exit 9; }
mkdir work && cd work
echo hello >a; echo more >>a; [[ $(cat a) == $'hello\nmore' ]] || fail append
mv a b; ln b c; ln -s b soft; [[ $(stat -c '%h %s %u' b) == '2 11 0' && $(readlink soft) == b ]] || fail names
chmod 640 b; touch -d '2001-01-01 UTC' b; [[ $(stat -c '%a %Y' b) == '640 978307200' ]] || fail attributes
head -c 3000000 /dev/urandom >large; cp large copy; cmp large copy || fail large
truncate -s 1000 copy; [[ $(stat -c %s copy) == 1000 ]] || fail truncate
exec 5<>open; echo one >&5; rm open; echo two >&5; [[ $(cat /proc/self/fd/5) == $'one\ntwo' ]] || fail unlinked; exec 5>&-
for n in {1..100}; do echo $n >f$n; done; [[ $(ls f* | wc -l) == 100 && $(cat f* | wc -c) == 292 ]] || fail many
[[ $(ls -a | head -2 | tr '\n' ' ') == '. .. ' ]] || fail dots
mkfifo fifo && rmdir fifo 2>/dev/null && fail rmdir
flock large true || fail locks
cd .. && rm -r work && stat -f . >/dev/null || fail remove
echo "all as it should be"
"##;

fn everything(network: &Network, mount: &CurtMount) -> Result<()> {
    let script = network.directory().join("everything.sh");
    std::fs::write(&script, EVERYTHING)?;
    let output =
        network.shell(&format!("bash {} {}", script.display(), mount.directory().display()), MINUTES)?;
    ensure!(output.contains("all as it should be"), "{output}");
    Ok(())
}

/// The random writer, which runs while `disturb` does something to the server.
fn write(network: &Network, mount: &CurtMount, disturb: impl FnOnce() -> Result<()>) -> Result<()> {
    let mut command = network.command(program("random-writer")?);
    command.args(["--seed", "5", "--operations", "2000"]).arg(mount.directory());
    let mut writer = RunningProcess::start("random-writer", &mut command)?;
    std::thread::sleep(Duration::from_secs(1));
    disturb()?;
    let status = writer.wait(MINUTES)?;
    ensure!(status.success() && writer.output().contains("all as it should be"), "{}", writer.output());
    Ok(())
}

// SEMANTICS: sessions-2, sessions-3.
#[test]
fn curt_serve_is_used_over_4_1_and_killed() -> Result<()> {
    let network = Network::new()?;
    let export = network.make_directory("export")?;
    let mut server = CurtServe::start(&network, &export, &["--lease", "10"])?;
    let options = format!("vers=4.1,port={}", CurtServe::PORT);
    let mount = CurtMount::start(&network, "mount", &server.source(), &options)?;
    everything(&network, &mount)?;
    write(&network, &mount, || {
        for _ in 0..3 {
            server.kill()?;
            server.restart(&network)?;
            std::thread::sleep(Duration::from_secs(1));
        }
        Ok(())
    })?;
    mount.unmount()
}

#[test]
fn ganesha_is_used_over_4_1_and_killed() -> Result<()> {
    let network = Network::new()?;
    let _rpcbind = network.rpcbind()?;
    let export = network.make_directory("export")?;
    let server = Ganesha::start(&network, &export)?;
    let mount = CurtMount::start(&network, "mount", &server.source(), "vers=4.1")?;
    everything(&network, &mount)?;
    let mut next = None;
    write(&network, &mount, || {
        server.kill()?;
        next = Some(Ganesha::start(&network, &export)?);
        Ok(())
    })?;
    mount.unmount()
}

#[test]
fn knfsd_is_used_over_4_1_and_loses_power() -> Result<()> {
    let network = Network::new()?;
    let options = KnfsdOptions {
        image: Some(network.directory().join("disk.img")),
        grace: Some(10),
        ..KnfsdOptions::default()
    };
    let server = Knfsd::start(&network, KernelNumber(1), MINUTES, &options)?;
    let source = format!("{}:/", server.address());
    let mount = CurtMount::start(&network, "mount", &source, "vers=4.1")?;
    everything(&network, &mount)?;
    let mut next = None;
    write(&network, &mount, || {
        server.power_off(&network)?;
        next = Some(Knfsd::start(&network, KernelNumber(1), MINUTES, &options)?);
        Ok(())
    })?;
    mount.unmount()
}
