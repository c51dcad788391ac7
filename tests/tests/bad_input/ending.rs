//! The end of a server by SIGTERM: written data are on its disk although no client has committed
//! them.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use curt_proto::nfs3;
use curt_tests::process::RunningProcess;
use curt_xdr::{Decoder, Encode as _, put_opaque};

use super::victim::*;

/// Number of successful syncs of the whole file system.
fn syncs(trace: &Path) -> Result<usize> {
    let text = std::fs::read_to_string(trace)?;
    let is_one = |line: &&str| line.contains("syncfs(") && line.ends_with("= 0");
    Ok(text.lines().filter(is_one).count())
}

#[test]
fn sigterm_makes_durable_what_was_written_and_not_committed() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let export = directory.path().join("export");
    std::fs::create_dir(&export)?;
    std::fs::set_permissions(&export, std::fs::Permissions::from_mode(0o777))?;
    let path = export.to_str().context("a plain path")?;
    let state = directory.path().join("state").display().to_string();
    let mut victim = Victim::serving(path, &[path, "--state", &state, "--squash", "none"])?;
    let trace = directory.path().join("trace");
    let mut command = Command::new("strace");
    command.args(["-f", "-e", "trace=syncfs", "-o"]);
    command.arg(&trace).args(["-p", &victim.running.pid().to_string()]);
    let mut strace = RunningProcess::start("strace", &mut command)?;
    strace.wait_for("attached", SOON)?;
    let read = victim.make_large_file()?;
    let mut write = Vec::new();
    put_opaque(&mut write, Decoder::new(&read).opaque(64)?);
    // Offset, count, UNSTABLE.
    for word in [0u32, 0, 8, 0] {
        word.encode(&mut write);
    }
    put_opaque(&mut write, b"precious");
    let written = victim.call(nfs3::PROGRAM, 7, write)?;
    ensure!(Decoder::new(&written).u32()? == 0, "not written: {written:?}");
    ensure!(std::fs::read(export.join("large"))?.starts_with(b"precious"));
    ensure!(syncs(&trace)? == 0, "nobody has asked for it yet");
    let status = victim.running.stop()?;
    ensure!(status.success(), "{status}\n{}", victim.running.output());
    strace.wait(SOON)?;
    ensure!(syncs(&trace)? == 1, "{}\n{}", std::fs::read_to_string(&trace)?, victim.running.output());
    Ok(())
}
