//! Permissions on a mount: the kernel leaves all checks to the daemon, so the daemon has to refuse
//! execve(2), access(2), chdir(2) and path walks without permission, and has to allow whatever the
//! server permits, whatever the mode bits are.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use curt_tests::curt::{CurtMount, CurtServe, program};
use curt_tests::network::{ADDRESS, Network};
use curt_tests::process::{self, RunningProcess};

const MINUTE: Duration = Duration::from_secs(60);
const OPTIONS: [&str; 2] = ["accesscheck", "noaccesscheck"];

/// Becomes user 2000 and prints the result of each attempt below a given directory.
const PROGRAM: &str = r#"
import errno, os, subprocess, sys
os.chdir(sys.argv[1])
top = os.open(".", os.O_RDONLY)
os.setgroups([])
os.setgid(2000)
os.setuid(2000)
def say(what, call):
    try:
        call()
        print(what, "ok")
    except OSError as error:
        print(what, errno.errorcode[error.errno])
    os.fchdir(top)
def read(name):
    say("read " + name, lambda: open(name).close())
def run(name):
    say("run " + name, lambda: subprocess.run(["./" + name], check=False))
def may(name, right, word):
    print("may", word, name, os.access(name, right))
for name in sys.argv[2:]:
    {"read": read, "run": run,
     "list": lambda name: say("list " + name, lambda: os.listdir(name)),
     "enter": lambda name: say("enter " + name, lambda: os.chdir(name)),
     "may-run": lambda name: may(name, os.X_OK, "run"),
     "may-read": lambda name: may(name, os.R_OK, "read")}[name.split(":")[0]](name.split(":")[1])
"#;

/// The results of user 2000's attempts, one line each.
fn attempt(network: &Network, mount: &CurtMount, attempts: &[&str]) -> Result<Vec<String>> {
    let program = network.directory().join("program.py");
    fs::write(&program, PROGRAM)?;
    let script =
        format!("python3 {} {} {}", program.display(), mount.directory().display(), attempts.join(" "));
    let said = network.shell(&script, MINUTE)?;
    Ok(said.lines().map(str::to_owned).collect())
}

fn set_mode(path: &Path, mode: u32) -> Result<()> {
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(mode))?)
}

// SEMANTICS: perm-9.
#[test]
fn running_entering_and_asking_are_decided_for_each_user() -> Result<()> {
    // The kernel itself refuses to execute a file without any x bit: here the owner has it.
    let cases = [
        ("run:tool", "run tool ok"),
        ("read:tool", "read tool EACCES"),
        ("run:text", "run text EACCES"),
        ("read:text", "read text ok"),
        ("may-run:tool", "may run tool True"),
        ("may-read:tool", "may read tool False"),
        ("may-run:text", "may run text False"),
        ("may-read:text", "may read text True"),
        ("enter:passage", "enter passage ok"),
        ("list:passage", "list passage EACCES"),
        ("read:passage/inside", "read passage/inside ok"),
        ("enter:private", "enter private EACCES"),
        ("read:private/inside", "read private/inside EACCES"),
    ];
    for options in OPTIONS {
        let network = Network::new()?;
        let export = network.make_directory("export")?;
        set_mode(&export, 0o755)?;
        for (name, mode) in [("tool", 0o711), ("text", 0o744)] {
            fs::copy("/bin/true", export.join(name))?;
            set_mode(&export.join(name), mode)?;
        }
        for (name, mode) in [("passage", 0o711), ("private", 0o700)] {
            fs::create_dir(export.join(name))?;
            fs::write(export.join(name).join("inside"), "x")?;
            set_mode(&export.join(name), mode)?;
        }
        let server = CurtServe::start(&network, &export, &[])?;
        let options = format!("{},{options}", server.ports());
        let mount = CurtMount::start(&network, "mount", &server.source(), &options)?;
        // Root has accessed everything: entries that the kernel has cached give others no access.
        network.shell(&format!("ls -lR {}", mount.directory().display()), MINUTE)?;
        let said = attempt(&network, &mount, &cases.map(|(attempt, _)| attempt))?;
        ensure!(said == cases.map(|(_, answer)| answer), "{options}: {said:#?}");
        mount.unmount()?;
    }
    Ok(())
}

// SEMANTICS: perm-1.
#[test]
fn access_granted_by_the_server_is_not_refused_by_mode_bits() -> Result<()> {
    for options in OPTIONS {
        let network = Network::new()?;
        let export = network.make_directory("export")?;
        let state = network.make_directory("state")?;
        fs::write(export.join("file"), "x")?;
        set_mode(&export.join("file"), 0o600)?;
        set_mode(&export, 0o700)?;
        for path in [&export, &state, &export.join("file")] {
            chown(path, Some(1000), Some(1000))?;
        }
        // All callers are mapped to the user who started it, so it permits more than the mode bits.
        let mut command = network.command("setpriv");
        command.args(["--reuid", "1000", "--regid", "1000", "--clear-groups", "--"]);
        command.arg(program("curt")?).arg("serve").arg(&export);
        command.args(["--bind", &format!("{ADDRESS}:2049"), "--mount-port", "2049"]);
        command.args(["--insecure", "--state"]).arg(&state);
        let mut server = RunningProcess::start("curt serve", &mut command)?;
        network.wait_for_port(ADDRESS, 2049)?;
        let source = format!("{ADDRESS}:{}", export.display());
        let options = format!("port=2049,mountport=2049,{options}");
        let mount = CurtMount::start(&network, "mount", &source, &options)?;
        let said = attempt(&network, &mount, &["list:.", "read:file", "may-read:file"])?;
        ensure!(said == ["list . ok", "read file ok", "may read file True"], "{options}: {said:#?}");
        mount.unmount()?;
        server.stop()?;
    }
    Ok(())
}

// SEMANTICS: perm-7.
#[test]
fn lost_search_permission_takes_effect_at_once() -> Result<()> {
    let network = Network::new()?;
    let export = network.make_directory("export")?;
    set_mode(&export, 0o777)?;
    let server = CurtServe::start(&network, &export, &[])?;
    for options in OPTIONS {
        let options = format!("{},{options}", server.ports());
        let mount = CurtMount::start(&network, "mount", &server.source(), &options)?;
        let as_user =
            |user: u32, script: &str| {
                let mut command = network.command("setpriv");
                command
                    .args([&format!("--reuid={user}"), &format!("--regid={user}"), "--clear-groups"])
                    .args(["sh", "-c", &format!("cd {} && {script}", mount.directory().display())]);
                process::finish(&mut command, MINUTE)
            };
        let well = |user, script: &str| -> Result<()> {
            let (status, _, errors) = as_user(user, script)?;
            ensure!(status.success(), "{options}: {script}: {errors}");
            Ok(())
        };
        well(1000, "mkdir -p d/e && echo text > d/e/f && chmod -R 777 d")?;
        for (closing, kept_out) in [("chmod 700 d", 1001), ("chmod 000 d", 1000)] {
            well(1000, "chmod 777 d")?;
            well(kept_out, "cat d/e/f && cat d/e/f")?;
            well(1000, closing)?;
            let (status, _, errors) = as_user(kept_out, "cat d/e/f")?;
            ensure!(
                !status.success() && errors.contains("Permission denied"),
                "{options}, {closing}: {status} {errors}"
            );
        }
        well(0, "rm -r d")?;
        mount.unmount()?;
    }
    Ok(())
}
