//! Names that the kernel caches: nobody gets in who may not search their directory, changes by
//! others are seen, and nothing waits for ever.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use curt_tests::curt::{CurtMount, CurtServe, MountedExport, program};
use curt_tests::kernel::{KernelNumber, linux_client};
use curt_tests::network::Network;
use curt_tests::process::RunningProcess;
use rustix::process::Signal;

const LIMIT: Duration = Duration::from_secs(120);

/// `$m` is a mount, `$s` the exported directory. `stranger` runs a command as user 2000, and
/// `is_refused` one that has to fail with EACCES.
const BEGIN: &str = r#"
    export LC_ALL=C
    stranger() { setpriv --reuid=2000 --regid=2000 --clear-groups "$@"; }
    is_refused() {
        if said=$(stranger "$@" 2>&1); then echo "$* is not refused"; return 1; fi
        [[ $said == *"Permission denied"* ]] || { echo "$*: $said"; return 1; }
    }
    makes() { mkdir -m 755 $m/$1 $m/$1/below; echo text >$m/$1/below/file; chmod 666 $m/$1/below/file; mkfifo -m 666 $m/$1/below/fifo; }
    knows() { for i in {1..20}; do stranger stat $m/$1/below/file $m/$1/below/fifo >/dev/null; stranger cat $m/$1/below/file >/dev/null; done; }
    is_all_refused() {
        is_refused stat $m/$1/below/file; is_refused cat $m/$1/below/file; is_refused cat $m/$1/below/fifo
        is_refused ls $m/$1/below
        is_refused touch $m/$1/below/file; is_refused truncate -s 0 $m/$1/below/file; is_refused mkdir $m/$1/below/new
        is_refused rm -f $m/$1/below/file; is_refused mv $m/$1/below/file $m/$1/below/other; is_refused ln $m/$1/below/file $m/other
        is_refused /usr/bin/python3 -c "import os; os.open('$m/$1/below/file', os.O_PATH)"
    }
"#;

fn script(options: &str, text: &str) -> Result<()> {
    for access in ["accesscheck", "noaccesscheck"] {
        let served = MountedExport::start(0o755, &[], &format!("{access},{options}"))?;
        let (m, s) = (served.mount.directory().display(), served.export.display());
        served.network.shell(&format!("m={m} s={s}\nchmod 777 $m\n{BEGIN}{text}"), LIMIT)?;
        served.mount.unmount()?;
    }
    Ok(())
}

// SEMANTICS: perm-7.
#[test]
fn after_a_directory_was_closed_here_nobody_else_sees_a_name_below() -> Result<()> {
    script(
        "kernelnames=3",
        r"
        waits_to_close() { local begun=${EPOCHREALTIME/./}; chmod 700 $1; (( ${EPOCHREALTIME/./} - begun > 1000000 )); }
        # The kernel renews a name once it has expired: this one has just been renewed. On a busy
        # machine it may have expired again.
        for round in {1..10}; do
            one=one$round; makes $one; knows $one; sleep 3.2; stranger stat $m/$one/below/file >/dev/null
            if waits_to_close $m/$one; then break; fi
            (( round < 10 )) || { echo 'no name was cached'; exit 1; }
        done
        is_all_refused $one
        makes two; knows two; chown 1000:1000 $m/two; chmod 711 $m/two; knows two; chmod 701 $m/two; chmod 600 $m/two
        is_all_refused two
        mkdir -m 700 $m/closed; makes three; knows three; mv $m/three $m/closed/three; is_all_refused closed/three
        ",
    )
}

/// The names on Linux 6.1, whose kernel knows fewer features of FUSE.
// SEMANTICS: perm-7, perm-10.
#[test]
fn nobody_else_sees_a_name_below_a_closed_directory_on_an_old_kernel() -> Result<()> {
    let network = Network::new()?;
    let export = network.make_directory("export")?;
    let server = CurtServe::start(&network, &export, &[])?;
    let script = format!(
        "set -e; modprobe fuse; {} mount {} /mnt/nfs -o {},allow_other,kernelnames=2; m=/mnt/nfs; chmod 777 $m
        {BEGIN}
        makes one; knows one; chmod 700 $m/one; is_all_refused one
        makes two; knows two; ln -s two $m/link; [[ $(stranger cat $m/link/below/file) == text ]]
        mv $m/two $m/three; [[ ! -e $m/two/below ]]; cat $m/three/below/file; umount $m",
        program("curt")?.display(),
        server.source(),
        server.ports()
    );
    let said = linux_client(&network, KernelNumber(0), LIMIT, &script)?;
    ensure!(said.contains("text"), "{said}");
    Ok(())
}

// SEMANTICS: perm-10.
#[test]
fn after_another_client_closed_a_directory_nobody_opens_a_name_below_by_its_path() -> Result<()> {
    script(
        "kernelnames=60,actimeo=600,dirfill=off",
        r"
        makes one; knows one; chmod 700 $s/one
        # A reply of the server says so.
        [[ ! -e $m/one/missing ]]
        stranger stat $m/one/below/file >/dev/null
        is_refused cat $m/one/below/file; is_refused ls $m/one/below; is_refused touch $m/one/below/file
        is_refused mkdir $m/one/below/new; is_refused truncate -s 0 $m/one/below/file
        ",
    )
}

// SEMANTICS: perm-10.
#[test]
fn whoever_works_below_a_closed_directory_goes_on() -> Result<()> {
    script(
        "kernelnames=1",
        r"
        makes one; chmod 777 $m/one/below; mkdir -m 755 $s/bound; mount --bind $m/one/below $s/bound
        cd $m/one/below; exec 3<file; chmod 700 $m/one
        works() {
            stranger cat file >/dev/null; stranger stat file >/dev/null; stranger ls . >/dev/null; stranger mkdir new; stranger rmdir new
            stranger cat /proc/self/fd/3 >/dev/null; stranger cat $s/bound/file >/dev/null
        }
        works; works; cd /; umount $s/bound; is_all_refused one
        ",
    )
}

/// `seen.py MOUNT EXPORT SECONDS`: another client changes names that the kernel caches. A change in
/// the same directory shows it to this client.
const SEEN: &str = r#"
import os, sys, time
mount, export, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])

def inode(path):
    try:
        return os.stat(path).st_ino
    except FileNotFoundError:
        return None

def round(number):
    here, there = f"{mount}/{number}", f"{export}/{number}"
    os.mkdir(here, 0o755)
    for name in ["removed", "renamed", "replaced", "new"]:
        open(f"{here}/{name}", "w").close()
    names = ["created", "removed", "renamed", "target", "replaced"]
    # Older than any change from now on.
    time.sleep(1.5)
    known = {name: inode(f"{here}/{name}") for name in names}
    begun = time.monotonic()
    while time.monotonic() < begun + 1.5:
        assert {name: inode(f"{here}/{name}") for name in names} == known, "nobody has told it"
    open(f"{there}/created", "w").close()
    os.unlink(f"{there}/removed")
    os.rename(f"{there}/renamed", f"{there}/target")
    os.rename(f"{there}/new", f"{there}/replaced")
    assert {name: inode(f"{here}/{name}") for name in names} == known, "nobody has told it"
    os.mkdir(f"{here}/own")
    told = time.monotonic()
    expected = {name: inode(f"{there}/{name}") for name in names}
    assert expected["removed"] is None and expected["created"]
    last = 0
    while True:
        before = time.monotonic()
        if {name: inode(f"{here}/{name}") for name in names} == expected:
            return last
        last = before - told
        assert last < 60, "the changes are seen"
        time.sleep(0.002)

ages = [round(number) for number in range(3)]
print("stale for", *(f"{age:.3f}" for age in ages), "s")
assert max(ages) <= seconds + 0.2, ages
"#;

// SEMANTICS: name-16.
#[test]
fn changes_by_another_client_are_seen_when_the_cached_names_have_expired() -> Result<()> {
    for (options, seconds) in [("actimeo=600", 1.0), ("actimeo=600,noaccesscheck", 0.3), ("actimeo=600", 0.0)]
    {
        let served = MountedExport::start(0o755, &[], &format!("{options},kernelnames={seconds}"))?;
        let program = served.network.directory().join("seen.py");
        std::fs::write(&program, SEEN)?;
        let (m, s) = (served.mount.directory().display(), served.export.display());
        let said =
            served.network.shell(&format!("python3 {} {m} {s} {seconds}", program.display()), LIMIT)?;
        println!("kernelnames={seconds}: {said}");
        served.mount.unmount()?;
    }
    Ok(())
}

/// `crowd.py DIRECTORY CONTROL COUNT`: COUNT processes, whose calls need the server in one
/// directory. `stuck` is printed when all wait. With CONTROL/kill each gets SIGKILL; with
/// CONTROL/wait the results of those that end by themselves are printed.
const CROWD: &str = r#"
import errno, os, signal, sys, time
directory, control, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
begin, go = os.pipe()
results, result = os.pipe()

def call(number):
    name = f"{directory}/new-{number}"
    # The kernel answers for these names.
    os.stat(f"{directory}/known-{number % 100}")
    match number % 10:
        case 0: os.mkdir(name)
        case 1: os.open(name, os.O_CREAT | os.O_EXCL)
        case 2: os.listdir(directory)
        case 3: os.open(f"{directory}/known-{number % 100}", os.O_RDONLY)
        case 4: os.rename(f"{directory}/known-{number % 100}", name)
        case _: os.stat(name)

children = []
for number in range(count):
    child = os.fork()
    if child == 0:
        os.close(go)
        os.read(begin, 1)
        try:
            call(number)
            said = "ok"
        except OSError as error:
            said = errno.errorcode[error.errno]
        os.write(result, f"{said}\n".encode())
        os._exit(0)
    children.append(child)
os.close(result)
for number in range(100):
    os.stat(f"{directory}/known-{number}")
print("prepared", flush=True)

def appears(name):
    while not os.path.exists(f"{control}/{name}"):
        time.sleep(0.01)

def waits(child):
    # For a reply, or for the lock of the directory; not for the pipe any more.
    where = open(f"/proc/{child}/wchan").read()
    return where not in ["", "0"] and "pipe" not in where

appears("go")
for number in range(100):
    os.stat(f"{directory}/known-{number}")
os.close(go)
deadline = time.monotonic() + 120
while not all(map(waits, children)):
    late = [open(f"/proc/{child}/wchan").read() for child in children if not waits(child)]
    assert time.monotonic() < deadline, late[:20]
    time.sleep(0.01)
print("stuck", flush=True)
if sys.argv[4] == "kill":
    appears("kill")
    begun = time.monotonic()
    for child in children:
        os.kill(child, signal.SIGKILL)
    for child in children:
        os.waitpid(child, 0)
    took = time.monotonic() - begun
    print(f"dead after {took:.3f} s", flush=True)
else:
    said = b""
    while part := os.read(results, 65536):
        said += part
    for child in children:
        os.waitpid(child, 0)
    print("ended:", *sorted(set(said.decode().split())), flush=True)
"#;

const PROCESSES: usize = 1000;

/// A server that was stopped while a thousand processes use one directory, whose names the kernel
/// caches. `end`: what the crowd waits for.
fn crowd(
    end: &str,
    then: impl FnOnce(&Network, &mut CurtMount, &mut RunningProcess, &Path) -> Result<()>,
) -> Result<()> {
    let network = Network::new()?;
    let export = network.make_directory("export")?;
    let control = network.make_directory("control")?;
    std::fs::set_permissions(&export, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    for number in 0..100 {
        std::fs::write(export.join(format!("known-{number}")), b"x")?;
    }
    let mut server = CurtServe::start(&network, &export, &[])?;
    let options = format!("{},actimeo=600,kernelnames=60,dirfill=off", server.ports());
    let mut mount = CurtMount::start(&network, "mount", &server.source(), &options)?;
    let program = network.directory().join("crowd.py");
    std::fs::write(&program, CROWD)?;
    let mut command = network.command("python3");
    command.arg(&program).arg(mount.directory()).arg(&control).arg(PROCESSES.to_string()).arg(end);
    let mut processes = RunningProcess::start("crowd.py", &mut command)?;
    processes.wait_for("prepared", LIMIT)?;
    server.process().signal(Signal::STOP)?;
    std::fs::write(control.join("go"), b"")?;
    processes.wait_for("stuck", LIMIT)?;
    then(&network, &mut mount, &mut processes, &control)?;
    println!("{}", processes.output());
    server.process().signal(Signal::CONT)?;
    if end == "kill" { mount.unmount() } else { Ok(()) }
}

// SEMANTICS: rpc-1.
#[test]
fn processes_die_in_a_directory_of_a_stopped_server_whose_names_are_cached() -> Result<()> {
    crowd("kill", |_, _, processes, control| {
        std::fs::write(control.join("kill"), b"")?;
        ensure!(processes.wait(LIMIT)?.success(), "{}", processes.output());
        Ok(())
    })
}

#[test]
fn nothing_waits_for_a_killed_daemon_although_names_are_cached() -> Result<()> {
    crowd("wait", |network, mount, processes, _| {
        mount.process().signal(Signal::KILL)?;
        mount.process().wait(LIMIT)?;
        ensure!(processes.wait(LIMIT)?.success(), "{}", processes.output());
        let said = processes.output();
        let ended = said.lines().find_map(|line| line.strip_prefix("ended: ")).unwrap_or("");
        let errors = ["ECONNABORTED", "ENOTCONN"];
        ensure!(ended.split(' ').all(|error| errors.contains(&error)), "{said}");
        let m = mount.directory().display();
        network.shell(
            &format!("! said=$(stat {m}/missing 2>&1); [[ $said == *'not connected'* ]]; umount {m}"),
            LIMIT,
        )?;
        Ok(())
    })
}

// SEMANTICS: perm-10.
#[test]
fn whoever_works_below_a_directory_that_another_client_closed_goes_on_when_names_have_expired() -> Result<()>
{
    script(
        "kernelnames=1,actimeo=600,dirfill=off",
        r"
        makes one; chmod 777 $m/one/below; knows one; cd $m/one/below; chmod 700 $s/one
        # A reply of the server says so.
        [[ ! -e $m/one/missing ]]
        works() {
            stranger cat file && stranger stat file && stranger ls . && stranger mkdir new && stranger rmdir new
        }
        begun=$EPOCHSECONDS
        until works >/dev/null 2>&1; do (( EPOCHSECONDS - begun < 60 )); sleep 0.1; done
        for i in {1..20}; do works >/dev/null; done
        cd /; is_all_refused one
        ",
    )
}

// SEMANTICS: perm-10.
#[test]
fn a_descriptor_of_a_closed_directory_gives_access_when_names_have_expired() -> Result<()> {
    script(
        "kernelnames=4,actimeo=600,dirfill=off",
        r#"
        # On a busy machine the names may have expired before the directory is closed.
        for round in {1..10}; do
        one=one$round; hands=$s/../hands$round; makes $one; knows $one; mkdir -m 777 $hands
        stranger /usr/bin/python3 -c '
import os, sys, time
directory, hands = sys.argv[1:]
path = directory + "/below/file"
# The kernel renews a name once it has expired.
time.sleep(4.2)
os.stat(path)
held = os.open(path, os.O_PATH)
open(hands + "/held", "w").close()
while not os.path.exists(hands + "/closed"):
    time.sleep(0.01)
begun, refused = time.monotonic(), 0
while True:
    try:
        os.close(os.open(f"/proc/self/fd/{held}", os.O_RDONLY))
        break
    except PermissionError:
        refused += 1
        assert time.monotonic() - begun < 60, refused
        time.sleep(0.05)
try:
    os.open(path, os.O_RDONLY)
    sys.exit("the path is open")
except PermissionError:
    sys.exit(0 if refused else 3)
' $m/$one $hands & reader=$!
        until [[ -e $hands/held ]]; do kill -0 $reader; sleep 0.01; done
        chmod 700 $s/$one; [[ ! -e $m/$one/missing ]]; touch $hands/closed
        if wait $reader; then break; else (( $? == 3 && round < 10 )); fi
        done
        "#,
    )
}
