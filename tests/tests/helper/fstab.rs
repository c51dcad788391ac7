//! mount(8), findmnt(8) and umount(8) with Curt's helper.

use anyhow::{Result, ensure};
use curt_tests::curt::program;
use curt_tests::process::{self, RunningProcess};

use crate::host::{Host, SHORT, refuses_writes, with_ports};

#[test]
fn an_fstab_line_mounts_shows_its_options_remounts_and_unmounts() -> Result<()> {
    let host = Host::new()?;
    let _serve = host.serve(&[])?;
    host.fstab(&with_ports("_netdev,noauto,noaccesscheck,sloppycto=3"))?;
    let target = host.target();
    host.shell(&format!("mount {target}"))?;
    ensure!(host.shell(&format!("cat {}", host.inside("hello")))? == "hello\n");
    ensure!(host.column(&[], "FSTYPE")? == "fuse.curt");
    ensure!(host.column(&[], "SOURCE")? == host.source());
    let shown = host.column(&["-m"], "OPTIONS")?;
    for option in ["rw", "noaccesscheck", "sloppycto=3", "vers=3", "acregmin=3", "hard", "_netdev"] {
        ensure!(shown.split(',').any(|word| word == option), "{option} is not in {shown}");
    }
    let listed = host.shell("mount")?;
    let line = listed.lines().find(|line| line.contains(target)).unwrap_or_default();
    ensure!(line.contains("sloppycto=3") && line.contains("fuse.curt"), "{listed}");
    let again = host.run(&["mount", target])?;
    ensure!(again.status == Some(32) && again.text.contains("already mounted"), "{again:?}");
    remounts(&host)?;
    host.unmount()?;
    ensure!(!host.is_mounted()?);
    ensure!(!host.shell("cat /run/mount/utab 2>/dev/null || true")?.contains(target), "utab keeps the line");
    Ok(())
}

/// `remount` finds the mount and changes only the options that may change.
fn remounts(host: &Host) -> Result<()> {
    let target = host.target();
    host.shell(&format!("mount -o remount,ro {target}"))?;
    ensure!(refuses_writes(host, &host.target)?);
    ensure!(host.column(&["-m"], "OPTIONS")?.split(',').any(|word| word == "ro"));
    host.shell(&format!("mount -o remount,rw,actimeo=7,nonegnamecache {target}"))?;
    host.shell(&format!("touch {}", host.inside("new")))?;
    let shown = host.column(&["-m"], "OPTIONS")?;
    for option in ["rw", "acregmin=7", "acdirmax=7", "negnametimeo=0", "sloppycto=3"] {
        ensure!(shown.split(',').any(|word| word == option), "{option} is not in {shown}");
    }
    for option in ["soft", "nconnect=4", "vers=4.2", "nonsense"] {
        let refused = host.run(&["mount", "-o", &format!("remount,{option}"), target])?;
        ensure!(refused.status == Some(1) && refused.text.contains(option), "{option}: {refused:?}");
    }
    ensure!(host.column(&["-m"], "OPTIONS")? == shown, "a refused remount changes nothing");
    Ok(())
}

#[test]
fn a_mount_without_an_fstab_line_is_remounted_by_its_type() -> Result<()> {
    let host = Host::new()?;
    let _serve = host.serve(&[])?;
    host.empty_fstab()?;
    let target = host.target();
    host.shell(&format!("mount -t curt -o {} {} {target}", with_ports("acregmin=5"), host.source()))?;
    host.shell(&format!("mount -o remount,ro {target}"))?;
    ensure!(refuses_writes(&host, &host.target)?);
    host.shell(&format!("mount -o remount,rw,noaccesscheck {target}"))?;
    host.shell(&format!("touch {}", host.inside("new")))?;
    let shown = host.column(&["-m"], "OPTIONS")?;
    ensure!(shown.contains("noaccesscheck") && shown.contains("acregmin=5"), "{shown}");
    host.unmount()
}

#[test]
fn fake_checks_and_mounts_nothing() -> Result<()> {
    let host = Host::new()?;
    // Without a server: no request is needed.
    host.fstab(&with_ports("noauto,noaccesscheck"))?;
    host.shell(&format!("mount -f {}", host.target()))?;
    ensure!(!host.is_mounted()?);
    host.fstab(&with_ports("noauto,nonsense"))?;
    let refused = host.run(&["mount", "-f", host.target()])?;
    ensure!(refused.status == Some(1) && refused.text.contains("nonsense"), "{refused:?}");
    let helper = host.run(&["mount.curt", &host.source(), host.target(), "-fv", "-o", "noacl"])?;
    ensure!(helper.status == Some(0) && helper.text.contains("noacl"), "{helper:?}");
    Ok(())
}

#[test]
fn all_of_fstab_is_mounted_and_sloppy_lines_pass() -> Result<()> {
    let host = Host::new()?;
    let _serve = host.serve(&[])?;
    host.fstab(&with_ports("_netdev,nofail,comment=x,x-systemd.automount,X-mount.mkdir,user,exec"))?;
    host.shell("mount -a -t curt")?;
    ensure!(host.is_mounted()?);
    host.shell("mount -a -t curt")?;
    host.unmount()?;
    let line = ["mount.curt", &host.source(), host.target(), "-s", "-o", &with_ports("nonsense=1")];
    let sloppy = host.run(&line)?;
    ensure!(sloppy.status == Some(0) && sloppy.text.contains("nonsense"), "{sloppy:?}");
    host.unmount()
}

#[test]
fn without_a_table_nothing_is_written_and_another_namespace_can_be_mounted_in() -> Result<()> {
    let host = Host::new()?;
    let _serve = host.serve(&[])?;
    let line = ["mount.curt", &host.source(), host.target(), "-n", "-o", &with_ports("")];
    let done = host.run(&line)?;
    ensure!(done.status == Some(0), "{done:?}");
    ensure!(!host.shell("cat /run/mount/utab 2>/dev/null || true")?.contains(host.target()));
    host.unmount()?;
    // A separate namespace, kept by a sleeping process.
    let script = format!(
        "unshare --mount --propagation private sleep 600 & other=$!
         until [[ $(</proc/$other/comm) == sleep ]]; do sleep 0.02; done
         mount.curt {source} {target} -N $other -o {ports}
         ! mountpoint -q {target}; nsenter --mount=/proc/$other/ns/mnt cat {target}/hello
         nsenter --mount=/proc/$other/ns/mnt umount {target}; kill $other",
        source = host.source(),
        target = host.target(),
        ports = with_ports("")
    );
    ensure!(host.shell(&script)?.contains("hello"));
    process::until("that mount's daemon is gone", SHORT, || {
        let left = host.shell("ls /run/curt/*.socket 2>/dev/null | wc -l")?;
        Ok((left.trim() == "0").then_some(()))
    })
}

#[test]
fn addresses_of_ipv6_stand_in_brackets() -> Result<()> {
    let host = Host::new()?;
    host.shell("ip link set lo up")?;
    let state = host.network.make_directory("state6")?;
    let mut command = host.network.command(program("curt")?);
    command.arg("serve").arg(&host.export).args(["--bind", "[::1]:2050", "--mount-port", "2050"]);
    command.args(["--insecure", "--squash", "none", "--state"]).arg(state);
    let serve = RunningProcess::start("curt serve", &mut command)?;
    serve.wait_for("listening", SHORT)?;
    let source = format!("[::1]:{}", host.export.display());
    let ports = "port=2050,mountport=2050";
    for options in [ports.to_owned(), format!("{ports},proto=tcp6")] {
        let done = host.run(&["mount", "-t", "curt", "-o", &options, &source, host.target()])?;
        ensure!(done.status == Some(0), "{done:?}");
        ensure!(host.column(&[], "SOURCE")? == source);
        ensure!(host.shell(&format!("cat {}", host.inside("hello")))? == "hello\n");
        host.unmount()?;
    }
    let refused = host.run(&["mount.curt", "::1:/x", host.target(), "-o", ports])?;
    ensure!(refused.status == Some(1) && refused.text.contains("::1:/x"), "{refused:?}");
    Ok(())
}
