//! A server whose disk is full: programs on a mount are told, once, at write, fsync or close, and go on when there is room.

use std::time::Duration;

use anyhow::{Result, ensure};
use curt_tests::curt::{Mount, Serve};
use curt_tests::network::Network;

const LIMIT: Duration = Duration::from_secs(280);

/// Writes more than fits, and lists what write, fsync, fsync again and close said; then makes room and writes again.
const PROGRAM: &str = r#"
import errno, os, sys
def said(call):
    try:
        call()
    except OSError as error:
        return [errno.errorcode[error.errno]]
    return []
os.chdir(sys.argv[1])
file = os.open("file", os.O_RDWR | os.O_CREAT)
told = []
for number in range(8):
    told += said(lambda: os.pwrite(file, b"x" * (1 << 20), number << 20))
    if told:
        break
told += said(lambda: os.fsync(file))
told += said(lambda: os.fsync(file))
os.ftruncate(file, 0)
told += said(lambda: os.close(file))
print("told", *told)
file = os.open("file", os.O_RDWR)
os.pwrite(file, b"fits", 0)
os.fsync(file)
os.close(file)
print("holds", open("file").read())
"#;

#[test]
fn full_disk_is_told_once_and_later_writes_are_kept() -> Result<()> {
    let network = Network::new()?;
    let export = network.make_directory("export")?;
    network.shell(
        &format!("mount -t tmpfs -o size=3m,mode=777 tmpfs {}", export.display()),
        LIMIT,
    )?;
    let serve = Serve::start(&network, &export, &[])?;
    let mount = Mount::start(&network, "mount", &serve.source(), &serve.ports())?;
    let program = network.directory().join("program.py");
    std::fs::write(&program, PROGRAM)?;
    let script = format!("python3 {} {}", program.display(), mount.directory().display());
    let said = network.shell(&script, LIMIT)?;
    ensure!(said.contains("told ENOSPC\n"), "{said}");
    ensure!(said.contains("holds fits"), "{said}");
    mount.unmount()
}
