//! Messages and exit statuses of failed mounts.

use anyhow::{Result, ensure};
use curt_tests::curt::{CurtServe, program};
use curt_tests::process::{self, RunningProcess};
use rustix::process::Signal;

use crate::host::{Done, Host, SHORT, with_ports};

fn says(done: &Done, status: i32, phrase: &str) -> Result<()> {
    ensure!(done.status == Some(status), "status {status} was due: {done:?}");
    ensure!(done.text.contains(phrase), "it should say {phrase:?}: {done:?}");
    Ok(())
}

#[test]
fn options_that_cannot_be_are_refused_by_name_and_say_what_to_do() -> Result<()> {
    let host = Host::new()?;
    // Without a server: options are parsed before any request.
    for option in ["nonsense", "vers=4.0", "vers=2", "udp", "sec=krb5p", "timeo=soon", "acl", "nconnect=17"] {
        let done = host.mount(option)?;
        says(&done, 1, option)?;
        ensure!(done.text.trim().len() > option.len() + 20, "it should say what to do: {done:?}");
    }
    ensure!(!host.is_mounted()?);
    Ok(())
}

#[test]
fn wrong_invocations_end_with_1() -> Result<()> {
    let host = Host::new()?;
    let target = host.target();
    says(&host.run(&["mount.curt", "no-colon", target])?, 1, "no-colon")?;
    says(&host.run(&["mount.curt", "server:/path"])?, 1, "mount.curt")?;
    says(&host.run(&["mount.curt", "server:/path", target, "-q"])?, 1, "-q")?;
    says(&host.run(&["mount.curt", "-h"])?, 0, "usage")?;
    let curt = program("curt")?.display().to_string();
    says(&host.run(&[&curt, "mount", "server:/path"])?, 1, "TARGET")?;
    says(&host.run(&[&curt, "mount", "server:/path", target, "--bogus"])?, 1, "--bogus")?;
    says(&host.run(&[&curt, "mount", "--help"])?, 0, "Usage")?;
    Ok(())
}

#[test]
fn mount_points_that_cannot_be_end_with_32() -> Result<()> {
    let host = Host::new()?;
    let _serve = host.serve(&[])?;
    let ports = with_ports("");
    let missing = host.network.directory().join("missing").display().to_string();
    let mount = |target: &str| host.run(&["mount.curt", &host.source(), target, "-o", &ports]);
    says(&mount(&missing)?, 32, &format!("mount point {missing} does not exist"))?;
    let file = host.export.join("hello").display().to_string();
    says(&mount(&file)?, 32, "is not a directory")?;
    host.mounted("")?;
    says(&mount(host.target())?, 32, "is busy or already mounted")?;
    host.unmount()
}

#[test]
fn refusals_of_servers_are_distinguished() -> Result<()> {
    let host = Host::new()?;
    let curt = program("curt")?.display().to_string();
    let mount = |source: &str, options: &str| {
        host.run(&[&curt, "mount", source, host.target(), "-o", &format!("retry=0,{options}")])
    };
    let down = mount(&host.source(), &with_ports(""))?;
    says(&down, 32, "Connection refused")?;
    says(&mount("nowhere.invalid:/x", "port=2049,mountport=2049")?, 32, "nowhere.invalid")?;
    let serve = host.serve(&["--secure"])?;
    says(&mount("10.77.0.1:/no/such/path", &with_ports(""))?, 32, "No such file or directory")?;
    let file = format!("{}/hello", host.source());
    says(&mount(&file, &with_ports(""))?, 32, "Not a directory")?;
    let denied = mount(&host.source(), &with_ports("noresvport"))?;
    says(&denied, 32, "access denied by server while mounting")?;
    drop(serve);
    let _rpcbind = host.network.rpcbind()?;
    let unregistered = mount(&host.source(), "timeo=10")?;
    ensure!(unregistered.status == Some(32), "{unregistered:?}");
    ensure!(
        ["not supported", "not registered"].iter().any(|phrase| unregistered.text.contains(phrase)),
        "{unregistered:?}"
    );
    Ok(())
}

#[test]
fn a_server_that_comes_later_is_mounted_in_the_background() -> Result<()> {
    let host = Host::new()?;
    let done = host.mount("bg,retry=2")?;
    says(&done, 0, "retrying in the background")?;
    ensure!(done.text.contains("Connection refused"), "{done:?}");
    ensure!(!host.is_mounted()?);
    let _serve = host.serve(&[])?;
    process::until("the server is mounted", SHORT, || Ok(host.is_mounted()?.then_some(())))?;
    ensure!(host.shell(&format!("cat {}", host.inside("hello")))? == "hello\n");
    host.unmount()
}

#[test]
fn a_mount_in_the_foreground_waits_for_the_server_for_the_time_of_retry() -> Result<()> {
    let host = Host::new()?;
    let curt = program("curt")?.display().to_string();
    let command = host.network.command(&curt);
    let source = host.source();
    let words = ["mount", &source, host.target(), "-o", &with_ports("fg,retry=1")].map(str::to_owned);
    let waiting = std::thread::spawn(move || {
        let mut command = command;
        process::finish(command.args(words), SHORT * 2)
    });
    let _serve: CurtServe = host.serve(&[])?;
    let (status, _, errors) = waiting.join().map_err(|_| anyhow::anyhow!("the thread panicked"))??;
    ensure!(status.code() == Some(0), "{errors}");
    ensure!(host.is_mounted()?);
    host.unmount()
}

#[test]
fn a_wait_for_a_server_is_reported_and_leaves_no_mount_when_interrupted() -> Result<()> {
    let host = Host::new()?;
    let curt = program("curt")?.display().to_string();
    let mut command = host.network.command(&curt);
    command.args(["mount", &host.source(), host.target(), "-o", &with_ports("retry=1")]);
    let mut waiting = RunningProcess::start("curt mount", &mut command)?;
    waiting.wait_for("Connection refused", SHORT)?;
    waiting.wait_for("retrying for up to 1 min", SHORT)?;
    waiting.signal(Signal::INT)?;
    let _ = waiting.wait(SHORT)?;
    process::until("nobody tries on", SHORT, || {
        let trying = host.run(&["pgrep", "-f", &format!("mount --ready-to-parent.*{}", host.target())])?;
        Ok((trying.status == Some(1)).then_some(()))
    })?;
    ensure!(!host.is_mounted()?);
    Ok(())
}
