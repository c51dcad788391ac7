//! `curt serve --kernel-locks`: processes on the server and clients exclude each other.

use std::time::Duration;

use anyhow::{Result, ensure};
use curt_tests::lock_server::LockServer;
use curt_tests::locker::{self, tell};
use curt_tests::process;

const MINUTE: Duration = Duration::from_secs(60);

// SEMANTICS: lockd-13.
#[test]
fn processes_on_the_server_and_clients_exclude_each_other() -> Result<()> {
    let served = LockServer::start(&["--kernel-locks"])?;
    let (network, local, mount) = (&served.network, &served.file, served.mount("mount")?);
    let remote = mount.directory().join("file");

    let mut here = locker::start(network, local, "fcntl-write first=10 length=10")?;
    here.wait_for("locked", MINUTE)?;
    let refused = locker::start(network, &remote, "fcntl-read first=19 length=1 try=1")?;
    refused.wait_for("refused EAGAIN", MINUTE)?;
    let beside = locker::start(network, &remote, "fcntl-write first=20 length=10")?;
    beside.wait_for("locked", MINUTE)?;
    // A client waits for a process; the server asks the kernel again and again.
    let mut there = locker::start(network, &remote, "ofd-write first=0 length=20")?;
    let third = locker::start(network, &remote, "fcntl-write first=0 length=0 try=1")?;
    third.wait_for("refused EAGAIN", MINUTE)?;
    tell(&mut here, "unlock")?;
    there.wait_for("locked", MINUTE)?;

    let refused = locker::start(network, local, "fcntl-read first=5 length=1 try=1")?;
    refused.wait_for("refused EAGAIN", MINUTE)?;
    // A process waits for a client: the kernel wakes it.
    let waits = locker::start(network, local, "fcntl-write first=0 length=20")?;
    tell(&mut there, "unlock")?;
    waits.wait_for("locked", MINUTE)?;
    let refused = locker::start(network, local, "fcntl-write first=0 length=0 try=1")?;
    refused.wait_for("refused EAGAIN", MINUTE)?;
    drop((waits, beside, there));
    let all = locker::start(network, local, "fcntl-write first=0 length=0")?;
    all.wait_for("locked", MINUTE)
}

// SEMANTICS: lockd-13, stateful-11.
#[test]
fn a_file_that_is_delegated_is_locked_for_reading_when_its_delegation_is_back() -> Result<()> {
    let served = LockServer::start(&["--kernel-locks"])?;
    let reader = served.mount_with("reader", "vers=4.1")?;
    let delegated = || -> Result<bool> {
        let file = reader.directory().join("file");
        served.network.shell(&format!("cat {}", file.display()), MINUTE)?;
        Ok(served.counter(None, "delegations_granted")? > 0)
    };
    process::until("the file is delegated", MINUTE, || Ok(delegated()?.then_some(())))?;
    let mount = served.mount("mount")?;
    let locks = served.locker(&mount, "fcntl-read first=0 length=1 try=1")?;
    locks.wait_for("locked", MINUTE)
}

#[test]
fn without_the_option_they_do_not() -> Result<()> {
    let served = LockServer::start(&[])?;
    let mount = served.mount("mount")?;
    let here = locker::start(&served.network, &served.file, "fcntl-write")?;
    here.wait_for("locked", MINUTE)?;
    let there = served.locker(&mount, "fcntl-write try=1")?;
    there.wait_for("locked", MINUTE)?;
    ensure!(served.file.exists(), "the file is there");
    Ok(())
}

// SEMANTICS: lockd-13.
#[test]
fn a_program_that_a_client_has_locked_cannot_be_started_on_the_server() -> Result<()> {
    let served = LockServer::start(&["--kernel-locks"])?;
    let program = served.file.with_file_name("program");
    std::fs::copy("/bin/true", &program)?;
    let (network, mount) = (&served.network, served.mount("mount")?);
    let run = || network.shell(&program.display().to_string(), MINUTE);
    run()?;
    let mut there = locker::start(network, &mount.directory().join("program"), "fcntl-read")?;
    there.wait_for("locked", MINUTE)?;
    let refused = run();
    ensure!(refused.as_ref().is_err_and(|error| format!("{error:#}").contains("busy")), "{refused:?}");
    tell(&mut there, "unlock")?;
    run().map(drop)
}
