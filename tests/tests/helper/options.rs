//! Effects of options on a real mount.

use anyhow::{Result, ensure};

use crate::host::{Host, refuses_writes};

#[test]
fn flags_of_every_file_system_reach_the_kernel() -> Result<()> {
    let host = Host::new()?;
    let _serve = host.serve(&[])?;
    host.shell(&format!("cp /bin/true {0}/program; chmod 755 {0}/program", host.export.display()))?;
    host.mounted("ro,noexec,nosuid,nodev,noatime,nodiratime")?;
    ensure!(refuses_writes(&host, &host.target)?);
    let executed = host.run(&[&host.inside("program")])?;
    ensure!(executed.status != Some(0) && executed.text.contains("ermission denied"), "{executed:?}");
    let shown = host.column(&[], "OPTIONS")?;
    for option in ["ro", "noexec", "nosuid", "nodev", "noatime", "allow_other"] {
        ensure!(shown.split(',').any(|word| word == option), "{option} is not in {shown}");
    }
    host.unmount()?;
    host.mounted("")?;
    ensure!(host.run(&[&host.inside("program")])?.status == Some(0));
    host.unmount()
}

// SEMANTICS: lock-1.
#[test]
fn locks_are_local_with_the_option_and_refused_by_a_server_without_a_lock_manager() -> Result<()> {
    let host = Host::new()?;
    let _serve = host.serve(&[])?;
    // flock(2), then fcntl(2).
    let fcntl = "import fcntl,sys; fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)";
    let rows = [
        ("", false, false),
        ("nolock", true, true),
        ("local_lock=all", true, true),
        ("local_lock=flock", true, false),
        ("local_lock=posix", false, true),
        ("local_lock=none", false, false),
    ];
    for (option, flock, posix) in rows {
        host.mounted(option)?;
        let file = host.inside("hello");
        let locked = host.run(&["flock", "-n", &file, "true"])?;
        ensure!((locked.status == Some(0)) == flock, "flock with {option:?}: {locked:?}");
        let locked = host.run(&["python3", "-c", fcntl, &file])?;
        ensure!((locked.status == Some(0)) == posix, "fcntl with {option:?}: {locked:?}");
        ensure!(posix || locked.text.contains("No locks available"), "{locked:?}");
        host.unmount()?;
    }
    Ok(())
}

#[test]
fn transfers_are_as_large_as_rsize_and_wsize_say_and_sync_needs_no_commit() -> Result<()> {
    let host = Host::new()?;
    let _serve = host.serve(&[])?;
    host.shell(&format!("head -c 65536 /dev/urandom > {}/data", host.export.display()))?;
    host.mounted("rsize=8192,wsize=4096")?;
    host.shell(&format!("cmp {} {}/data", host.inside("data"), host.export.display()))?;
    ensure!(host.sent("READ")? == 8, "{} READs of 8 KiB", host.sent("READ")?);
    host.shell(&format!("dd if=/dev/zero of={} bs=64k count=1 conv=fsync status=none", host.inside("new")))?;
    ensure!(host.sent("WRITE")? == 16, "{} WRITEs of 4 KiB", host.sent("WRITE")?);
    ensure!(host.sent("COMMIT")? == 1, "{} COMMITs", host.sent("COMMIT")?);
    host.unmount()?;
    host.mounted("sync")?;
    host.shell(&format!("dd if=/dev/zero of={} bs=4k count=4 status=none", host.inside("sync")))?;
    ensure!((host.sent("WRITE")?, host.sent("COMMIT")?) == (4, 0), "each write is stable by itself");
    host.unmount()
}

#[test]
fn the_figures_of_a_mount_are_shown() -> Result<()> {
    let host = Host::new()?;
    let _serve = host.serve(&[])?;
    let curt = curt_tests::curt::program("curt")?.display().to_string();
    host.mounted("noaccesscheck,sloppycto=3,dirfill=off,actimeo=600")?;
    host.shell(&format!(
        "cat {0}; cat {0}; stat {1} 2>/dev/null || true",
        host.inside("hello"),
        host.inside("missing")
    ))?;
    let text = host.run(&[&curt, "stat", host.target()])?;
    for word in ["Client nfs v3:", "getattr", "sloppycto=3", "noaccesscheck", &host.source()] {
        ensure!(text.text.contains(word), "{word} is not in {text:?}");
    }
    ensure!(host.sent("LOOKUP")? == 2, "one of a name, one of a missing name");
    ensure!(host.sent("ACCESS")? == 0 || host.sent("ACCESS")? <= 2);
    let nobody = host.run(&[&curt, "stat", "/nowhere"])?;
    ensure!(nobody.status == Some(1) && nobody.text.contains("/nowhere"), "{nobody:?}");
    host.unmount()?;
    ensure!(host.run(&[&curt, "stat"])?.text.contains("No mounts"));
    Ok(())
}
