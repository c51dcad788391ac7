//! What another client denies to Linux clients of `curt serve`. Linux denies nothing itself.

use std::fs;
use std::time::Duration;

use anyhow::{Result, ensure};
use curt_tests::curt::{CurtServe, counter, program};
use curt_tests::kernel::KernelNumber;
use curt_tests::linux_locker::LinuxLocker;
use curt_tests::network::{ADDRESS, Network};
use curt_tests::process::{self, RunningProcess};

const MINUTE: Duration = Duration::from_secs(60);
const DENY_WRITE: u32 = 2;
const DENY_BOTH: u32 = 3;

/// Has the denying client do something, which has this status.
fn tell(denying: &mut RunningProcess, line: &str, status: &str) -> Result<()> {
    denying.say(&format!("{line}\n"))?;
    denying.wait_for(&format!("{line}: {status}"), MINUTE)
}

/// A script that fails unless the command fails for want of permission.
fn refused(command: &str) -> String {
    format!("! ({command}) 2>/run/error && grep -q 'Permission denied' /run/error")
}

/// Linux gets NFS4ERR_SHARE_DENIED as EACCES. With NFSv3 it waits: NFS3ERR_JUKEBOX.
// SEMANTICS: stateful-3.
#[test]
fn linux_opens_what_another_client_denies_once_that_has_closed_it() -> Result<()> {
    let network = Network::new()?;
    let _rpcbind = network.rpcbind()?;
    let export = network.make_directory("export")?;
    for name in ["file", "read", "nothing"] {
        fs::write(export.join(name), "old\n")?;
    }
    // The denying client sends no request while the others are busy.
    let server = CurtServe::start(&network, &export, &["--lease", "600"])?;
    let source = server.source();
    let start = |number: u8, options: &str, name: &'static str| {
        LinuxLocker::start(&network, KernelNumber(number), &format!("{options} {source}"), name)
    };
    let port = CurtServe::PORT;
    let one = start(0, &format!("vers=4.1,port={port}"), "one")?;
    let two = start(1, &format!("vers=4.2,port={port}"), "two")?;
    let old = start(2, "vers=3", "old")?;
    let (mut one, mut two, mut old) = (one.mounted()?, two.mounted()?, old.mounted()?);
    let mut command = network.command(program("denying-client")?);
    let command = command.arg(format!("{ADDRESS}:{port}")).arg(&export);
    let mut denying = RunningProcess::start("a client that denies", command)?;

    tell(&mut denying, &format!("open read {DENY_WRITE}"), "NFS4_OK")?;
    tell(&mut denying, &format!("open nothing {DENY_BOTH}"), "NFS4_OK")?;
    for client in [&mut one, &mut two] {
        client.run("[[ $(</mnt/nfs/read) == old ]]")?;
        for command in ["echo new >>/mnt/nfs/read", "cat /mnt/nfs/nothing", "echo new >>/mnt/nfs/nothing"] {
            client.run(&refused(command))?;
        }
    }
    old.run("[[ $(</mnt/nfs/read) == old ]]")?;
    old.run("(echo three >>/mnt/nfs/read; touch /run/written) >/dev/null 2>&1 &")?;
    // One that was refused comes again after five seconds.
    process::until("the WRITE of NFSv3 comes again", MINUTE, || {
        Ok((counter(&network, None, "WRITE")? > 1).then_some(()))
    })?;
    old.run("[[ ! -e /run/written ]]")?;
    ensure!(fs::read(export.join("read"))? == b"old\n" && fs::read(export.join("nothing"))? == b"old\n");

    for name in ["read", "nothing"] {
        tell(&mut denying, &format!("close {name}"), "NFS4_OK")?;
    }
    old.run("until [[ -e /run/written ]]; do sleep 0.1; done; [[ $(</mnt/nfs/nothing) == old ]]")?;
    one.run("echo one >>/mnt/nfs/read; echo one >>/mnt/nfs/nothing")?;
    two.run("echo two >>/mnt/nfs/read; echo two >>/mnt/nfs/nothing")?;
    ensure!(fs::read_to_string(export.join("read"))? == "old\nthree\none\ntwo\n");
    ensure!(fs::read_to_string(export.join("nothing"))? == "old\none\ntwo\n");

    // What Linux has open, as the lockers have this file, is not denied to it.
    tell(&mut denying, &format!("open file {DENY_WRITE}"), "NFS4ERR_SHARE_DENIED")?;
    one.end()?;
    two.end()?;
    old.end()?;
    Ok(())
}
