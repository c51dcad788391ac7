//! Mounts of root and of other users, and permission to use them.

use anyhow::{Result, ensure};
use curt_tests::curt::program;

use crate::host::{Done, Host, with_ports};

/// Mounts as a user other than root, in the background.
fn mount_as_user(host: &Host, options: &str) -> Result<Done> {
    let curt = program("curt")?.display().to_string();
    let options = with_ports(options);
    host.run_as_user(&[&curt, "mount", &host.source(), host.target(), "-o", &options])
}

fn cat(host: &Host, as_user: bool) -> Result<bool> {
    let path = host.inside("hello");
    let done = if as_user { host.run_as_user(&["cat", &path])? } else { host.run(&["cat", &path])? };
    Ok(done.status == Some(0) && done.text == "hello\n")
}

#[test]
fn a_mount_of_root_is_open_to_everybody_unless_allow_root_is_given() -> Result<()> {
    let host = Host::new()?;
    let _serve = host.serve(&[])?;
    host.mounted("")?;
    ensure!(cat(&host, true)? && cat(&host, false)?);
    host.unmount()?;
    host.mounted("allow_root")?;
    ensure!(!cat(&host, true)? && cat(&host, false)?);
    host.unmount()
}

#[test]
fn somebodys_mount_is_his_own_without_suid_bits_and_devices() -> Result<()> {
    let host = Host::new()?;
    let _serve = host.serve(&[])?;
    let done = mount_as_user(&host, "suid,dev")?;
    ensure!(done.status == Some(0), "{done:?}");
    let shown = host.column(&[], "OPTIONS")?;
    for option in ["nosuid", "nodev", "user_id=1000"] {
        ensure!(shown.split(',').any(|word| word == option), "{option} is not in {shown}");
    }
    ensure!(cat(&host, true)? && !cat(&host, false)?, "root may not use it");
    let refused = host.run_as_user(&["touch", &host.inside("new")])?;
    ensure!(refused.text.contains("Permission denied"), "the server decides: {refused:?}");
    let curt = program("curt")?.display().to_string();
    let remounted =
        host.run_as_user(&[&curt, "mount", &host.source(), host.target(), "-o", "remount,actimeo=9"])?;
    ensure!(remounted.status == Some(0), "{remounted:?}");
    let text = host.run_as_user(&[&curt, "stat", host.target()])?;
    ensure!(text.text.contains("acregmin=9"), "{text:?}");
    let unmounted = host.run_as_user(&["fusermount3", "-u", host.target()])?;
    ensure!(unmounted.status == Some(0), "{unmounted:?}");
    ensure!(!host.is_mounted()?);
    Ok(())
}

#[test]
fn others_may_use_somebodys_mount_only_where_fuse_conf_allows_it() -> Result<()> {
    let host = Host::new()?;
    let _serve = host.serve(&[])?;
    host.fuse_conf("")?;
    let refused = mount_as_user(&host, "allow_other")?;
    ensure!(refused.status != Some(0) && refused.text.contains("user_allow_other"), "{refused:?}");
    ensure!(!host.is_mounted()?);
    host.fuse_conf("user_allow_other\n")?;
    let done = mount_as_user(&host, "allow_other")?;
    ensure!(done.status == Some(0), "{done:?}");
    ensure!(cat(&host, true)? && cat(&host, false)?);
    host.shell(&format!("umount {}", host.target())).map(drop)
}

#[test]
fn a_line_with_user_lets_anybody_mount_and_unmount() -> Result<()> {
    let host = Host::new()?;
    let _serve = host.serve(&[])?;
    host.fstab(&with_ports("noauto,user"))?;
    let done = host.run_as_user(&["mount", host.target()])?;
    ensure!(done.status == Some(0), "{done:?}");
    ensure!(cat(&host, true)?);
    let shown = host.column(&[], "OPTIONS")?;
    for option in ["nosuid", "nodev", "noexec"] {
        ensure!(shown.split(',').any(|word| word == option), "{option} is not in {shown}");
    }
    let unmounted = host.run_as_user(&["umount", host.target()])?;
    ensure!(unmounted.status == Some(0), "{unmounted:?}");
    Ok(())
}
