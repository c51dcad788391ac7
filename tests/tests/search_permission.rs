//! Users who are kept out of a directory by its mode, by an access control list at the server or by
//! root squashing, while the kernel has names of it in its cache.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use curt_tests::curt::{MountedExport, program};

const LIMIT: Duration = Duration::from_secs(300);

/// `search_permission.py KIND MOUNT EXPORT CURT table|window SECONDS`. Each directory belongs to
/// user 1000; the stranger is user 2000, or root where root is squashed.
const PROGRAM: &str = r#"
import errno, json, os, shutil, socket, stat, subprocess, sys, time

kind, mount, export, curt, what = sys.argv[1:6]
seconds = float(sys.argv[6])
stranger = 0 if kind == "squash" else 2000

def as_user(uid, work):
    """The result of work in a process of uid: a text."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if uid:
                os.setgroups([]); os.setgid(uid); os.setuid(uid)
            said = work()
        except OSError as error:
            said = errno.errorcode[error.errno]
        os.write(write, str(said).encode())
        os._exit(0)
    os.close(write)
    said = os.read(read, 4096).decode()
    os.close(read)
    os.waitpid(child, 0)
    # execve(2) closes the pipe.
    return said or "ok"

def make(name):
    top = f"{export}/{name}"
    below = top + "/below"
    os.makedirs(below + "/empty")
    open(below + "/file", "w").write("text")
    shutil.copy(shutil.which("true"), below + "/program")
    os.symlink("file", below + "/link")
    os.mkfifo(below + "/fifo")
    socket.socket(socket.AF_UNIX).bind(below + "/socket")
    for path in [top, below, below + "/empty"]:
        os.chmod(path, 0o777)
    for path in ["file", "program", "fifo", "socket"]:
        os.chmod(f"{below}/{path}", 0o777)
    os.chown(top, 1000, 1000)
    if kind == "acl":
        os.chmod(top, 0o755)
        subprocess.check_call(["setfacl", "-m", "u:2000:---", top])
        assert stat.S_IMODE(os.stat(top).st_mode) == 0o755
    else:
        os.chmod(top, 0o700)

def walk(name):
    below = f"{mount}/{name}/below"
    for path in ["/file", "/program", "/empty"]:
        os.stat(below + path)
    os.readlink(below + "/link")
    open(below + "/file").close()
    os.listdir(below)
    return "ok"

def lookups():
    value = json.loads(subprocess.check_output([curt, "stat", "--json", mount]))
    def find(value, key):
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
        if isinstance(value, dict) and key in value:
            return value[key]
        return next((found for item in inner if (found := find(item, key)) is not None), None)
    return find(value, "fuse")["LOOKUP"]

def connects(path):
    socket.socket(socket.AF_UNIX).connect(path)

# Answered by the kernel alone while it caches the names.
unseen = {
    "stat": lambda at: os.stat(at + "/file"), "lstat": lambda at: os.lstat(at + "/link"),
    "O_PATH": lambda at: os.open(at + "/file", os.O_PATH), "readlink": lambda at: os.readlink(at + "/link"),
}
seen = {
    "look up": lambda at: os.stat(at + "/fifo"), "look up a missing name": lambda at: os.stat(at + "/missing"),
    "O_PATH of a FIFO": lambda at: os.open(at + "/fifo", os.O_PATH), "connect": lambda at: connects(at + "/socket"),
    "open a FIFO": lambda at: os.open(at + "/fifo", os.O_RDWR | os.O_NONBLOCK),
    "open": lambda at: os.open(at + "/file", os.O_RDONLY), "open to write": lambda at: os.open(at + "/file", os.O_WRONLY),
    "execve": lambda at: os.execv(at + "/program", ["program"]), "access": lambda at: os.access(at + "/file", os.R_OK) or os.stat(at + "/fifo"),
    "chdir": lambda at: os.chdir(at), "opendir": os.listdir, "create": lambda at: os.open(at + "/new", os.O_CREAT | os.O_EXCL | os.O_RDWR),
    "mkdir": lambda at: os.mkdir(at + "/new"), "symlink": lambda at: os.symlink("x", at + "/new"), "mkfifo": lambda at: os.mkfifo(at + "/new"),
    "unlink": lambda at: os.unlink(at + "/file"), "rmdir": lambda at: os.rmdir(at + "/empty"),
    "rename": lambda at: os.rename(at + "/file", at + "/new"), "rename away": lambda at: os.rename(at + "/file", mount + "/open/new"),
    "rename into": lambda at: os.rename(mount + "/open/mine", at + "/new"), "link": lambda at: os.link(at + "/file", mount + "/open/new"),
    "statvfs": lambda at: os.statvfs(at + "/file"), "access F_OK": lambda at: os.access(at + "/file", os.F_OK) or os.stat(at + "/fifo"),
    "chmod": lambda at: os.chmod(at + "/file", 0o600), "truncate": lambda at: os.truncate(at + "/file", 0), "utime": lambda at: os.utime(at + "/file"),
}

def table():
    os.mkdir(export + "/open"); os.chmod(export + "/open", 0o777); open(export + "/open/mine", "w")
    os.chown(export + "/open/mine", 2000, 2000)
    names = {f"{number}": operation for number, operation in enumerate(unseen | seen)}
    for name in names:
        make(name)
    deadline = time.monotonic() + 60
    if kind == "acl":
        while True:
            before = lookups()
            assert all(as_user(1000, lambda: walk(name)) == "ok" for name in names)
            if lookups() - before == 0:
                break
            assert time.monotonic() < deadline, "the kernel keeps the names"
    else:
        assert all(as_user(1000, lambda: walk(name)) == "ok" for name in names)
    for name, operation in names.items():
        at = f"{mount}/{name}/below"
        def attempt():
            # The stranger gets as far as the kernel alone lets him.
            try:
                os.stat(at + "/file"); is_open = True
            except PermissionError:
                is_open = False
            assert is_open == (kind == "acl"), (operation, is_open)
            (unseen | seen)[operation](at)
            return "ok"
        said = as_user(stranger, attempt)
        expected = "ok" if kind == "acl" and operation in unseen else "EACCES"
        print(f"{kind}: {operation}: {said}")
        assert said == expected, f"{operation}: {said}"
    for name in names:
        assert sorted(os.listdir(f"{export}/{name}/below")) == ["empty", "fifo", "file", "link", "program", "socket"], name
        assert open(f"{export}/{name}/below/file").read() == "text"

def window():
    longest = 0
    for number in range(20):
        make(f"w{number}")
    time.sleep(2)
    for number in range(20):
        at = f"{mount}/w{number}/below"
        assert as_user(1000, lambda: walk(f"w{number}")) == "ok"
        begun = time.monotonic()
        def poll():
            last = 0
            while True:
                before = time.monotonic()
                try:
                    os.stat(at + "/file")
                except PermissionError:
                    return last
                last = before - begun
                time.sleep(0.002)
        longest = max(longest, float(as_user(stranger, poll)))
        if number >= 2 and longest > 0:
            break
    print(f"{kind}: a stranger's stat succeeded for at most {longest:.3f} s")
    assert 0 < longest <= seconds + 0.2, longest

globals()[what]()
"#;

fn kept_out(kind: &str, squash: &str, what: &str, seconds: f64, options: &str) -> Result<String> {
    let served = MountedExport::start(0o755, &[squash], &format!("kernelnames={seconds},{options}"))?;
    let text = served.network.directory().join("search_permission.py");
    fs::write(&text, PROGRAM)?;
    let shown = |path: &Path| path.display().to_string();
    let script = format!(
        "python3 {} {kind} {} {} {} {what} {seconds}",
        shown(&text),
        shown(served.mount.directory()),
        shown(&served.export),
        shown(&program("curt")?)
    );
    let said = served.network.shell(&script, LIMIT)?;
    println!("{said}");
    served.mount.unmount()?;
    Ok(said)
}

fn table(kind: &str, squash: &str, options: &str) -> Result<()> {
    let said = kept_out(kind, squash, "table", 60.0, options)?;
    ensure!(said.lines().count() == 30, "{said}");
    Ok(())
}

// SEMANTICS: perm-10.
#[test]
fn whom_the_mode_keeps_out_gets_nothing_although_names_are_cached() -> Result<()> {
    table("mode", "--squash=none", "actimeo=600")?;
    table("mode", "--squash=none", "actimeo=600,noaccesscheck")
}

// SEMANTICS: perm-10.
#[test]
fn whom_an_access_control_list_keeps_out_gets_attributes_at_most() -> Result<()> {
    table("acl", "--squash=none", "actimeo=600")
}

// SEMANTICS: perm-10.
#[test]
fn root_gets_nothing_where_it_is_squashed() -> Result<()> {
    table("squash", "--squash=root", "actimeo=600")
}

// SEMANTICS: perm-10.
#[test]
fn whom_an_access_control_list_keeps_out_gets_attributes_for_as_long_as_names_are_cached() -> Result<()> {
    kept_out("acl", "--squash=none", "window", 1.0, "actimeo=600").map(drop)
}
