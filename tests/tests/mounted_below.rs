//! File systems mounted below a mount's directories, and programs that run from there, are not
//! affected by changes around them.

use std::time::Duration;

use anyhow::{Result, ensure};
use curt_tests::curt::{CurtMount, CurtServe};
use curt_tests::network::Network;
use rustix::process::Signal;

const LIMIT: Duration = Duration::from_secs(60);

/// `$m` is a mount, `$s` the exported directory, `$w` a directory for an overlay.
const SCRIPT: &str = r#"
    mkdir -p $m/here/dir $m/here/lower $m/elsewhere; chmod 755 $m/here
    echo ours >$m/here/file; echo conf >$m/here/lower/conf; cp $(command -v sleep) $m/here/program
    $m/here/program 600 & running=$!; trap "kill $running" EXIT
    mount -t tmpfs none $m/here/dir; echo inside >$m/here/dir/inside
    echo bound >$w/bound; mount --bind $w/bound $m/here/file
    mount -t tmpfs none $w; mkdir $w/upper $w/work $w/merged
    mount -t overlay -o lowerdir=$m/here/lower,upperdir=$w/upper,workdir=$w/work none $w/merged
    exec 3<$m/here/lower/conf
    stays() {
        [[ $(<$m/here/dir/inside) == inside && $(<$m/here/file) == bound && $(<$w/merged/conf) == conf ]]
        [[ $(readlink /proc/$running/exe) == $m/here/program && $(readlink /proc/self/fd/3) == $m/here/lower/conf ]]
    }
    ls -R $m >/dev/null; stays
    # Somebody else changes directories, which is noticed here.
    touch $s/elsewhere/new $s/here/new
    until [[ -n $(ls $m/elsewhere) && -e $m/here/new ]]; do sleep 0.1; done
    stays
    # So does this mount.
    chmod 700 $m/elsewhere; chmod 711 $m/here; mv $m/elsewhere $m/here/moved; rm -r $m/here/moved
    ls -R $m >/dev/null; stays
    exec 3<&-; kill $running; trap - EXIT; wait $running || true
    umount $w/merged $w $m/here/file $m/here/dir
"#;

fn what_is_mounted_below_stays(options: &str) -> Result<()> {
    let network = Network::new()?;
    let export = network.make_directory("export")?;
    let room = network.make_directory("room")?;
    let server = CurtServe::start(&network, &export, &[])?;
    let options = format!("{},actimeo=1,{options}", server.ports());
    let mount = CurtMount::start(&network, "mount", &server.source(), &options)?;
    let places = format!("m={} s={} w={}\n", mount.directory().display(), export.display(), room.display());
    network.shell(&(places + SCRIPT), LIMIT)?;
    mount.unmount()
}

// SEMANTICS: attr-5.
#[test]
fn what_is_mounted_below_a_mount_stays() -> Result<()> {
    what_is_mounted_below_stays("accesscheck")
}

// SEMANTICS: attr-5.
#[test]
fn what_is_mounted_below_a_mount_stays_where_names_need_no_access_check() -> Result<()> {
    what_is_mounted_below_stays("noaccesscheck")
}

/// Another client creates, renames and removes names beside and above what is mounted, and changes
/// modes, for `$seconds`. Meanwhile two users walk through the mount, which notices the changes.
const STORM: &str = r#"
    mkdir -p $m/here/dir $m/here/deep/dir $m/here/lower; chmod 755 $m $m/here $m/here/deep
    echo conf >$m/here/lower/conf; cp $(command -v sleep) $m/here/deep/program
    $m/here/deep/program 600 & running=$!
    mount -t tmpfs none $m/here/dir; echo inside >$m/here/dir/inside
    mount -t tmpfs none $m/here/deep/dir; echo inside >$m/here/deep/dir/inside
    mount -t tmpfs none $w; mkdir $w/upper $w/work $w/merged
    mount -t overlay -o lowerdir=$m/here/lower,upperdir=$w/upper,workdir=$w/work none $w/merged
    stays() {
        [[ $(<$m/here/dir/inside) == inside && $(<$m/here/deep/dir/inside) == inside && $(<$w/merged/conf) == conf ]]
        [[ $(readlink /proc/$running/exe) == $m/here/deep/program ]]
    }
    (while [[ ! -e $w/end ]]; do
        touch $s/here/new $s/here/deep/new; mv $s/here/new $s/here/moved; mv -f $s/here/moved $s/here/deep/new
        mkdir $s/here/deep/sub; mv $s/here/deep/sub $s/sub; rmdir $s/sub; rm $s/here/deep/new
        chmod 711 $s/here; chmod 700 $s/here/deep; chmod 755 $s/here $s/here/deep; echo >>$w/rounds
    done) & storm=$!
    trap "touch $w/end; kill $running" EXIT
    seen=0; end=$((SECONDS + seconds))
    while ((SECONDS < end)); do
        for name in $m/here/{new,moved,deep/new,deep/sub} $m/sub; do if [[ -e $name ]]; then seen=1; fi; done
        ls -l $m/here $m/here/deep >/dev/null 2>&1 || true
        setpriv --reuid=2000 --regid=2000 --clear-groups stat $m/here/dir/inside $m/here/deep/dir/inside >/dev/null 2>&1 || true
        stays
    done
    touch $w/end; wait $storm; stays; ((seen)); [[ -s $w/rounds ]]
    kill $running; trap - EXIT; wait $running || true
    umount $w/merged $w $m/here/dir $m/here/deep/dir
"#;

// SEMANTICS: attr-5.
#[test]
fn what_is_mounted_below_stays_while_another_client_changes_its_directories() -> Result<()> {
    let seconds = if std::env::var_os("CURT_FULL").is_some() { 60 } else { 5 };
    let network = Network::new()?;
    let export = network.make_directory("export")?;
    let room = network.make_directory("room")?;
    let server = CurtServe::start(&network, &export, &[])?;
    for options in ["actimeo=1", "actimeo=1,noaccesscheck,kernelnames=0.2"] {
        let options = format!("{},{options}", server.ports());
        let mount = CurtMount::start(&network, "mount", &server.source(), &options)?;
        let (m, s, w) = (mount.directory().display(), export.display(), room.display());
        let places = format!("m={m} s={s} w={w} seconds={seconds}\n");
        network.shell(&(places + STORM), LIMIT + Duration::from_secs(seconds))?;
        mount.unmount()?;
    }
    Ok(())
}

/// `$m` is a mount with a closed directory and names in use in it: a mount point, an overlay, a
/// program and a process's working directory.
const CLOSED: &str = r#"
    mkdir -p $m/closed/{tmpfs/deep,elsewhere,lower,directory/below,cwd}; chmod 755 $m
    echo conf >$m/closed/lower/conf; echo data >$m/closed/file; ln -s file $m/closed/link; mkfifo $m/closed/fifo
    python3 -c "import socket as s; x = s.socket(s.AF_UNIX); x.bind('$m/closed/socket')"
    cp $(command -v sleep) $m/closed/program; mkdir -m 777 $m/open
    mount -t tmpfs none $m/closed/tmpfs/deep; echo inside >$m/closed/tmpfs/deep/inside
    mount -t tmpfs none $w; mkdir $w/upper $w/work $w/merged
    mount -t overlay -o lowerdir=$m/closed/lower,upperdir=$w/upper,workdir=$w/work none $w/merged
    (cd $m/closed/cwd; exec $m/closed/program 600 >/dev/null 2>&1 & echo $! >$w/running)
    # The kernel is to know all names.
    until [[ $(readlink /proc/$(<$w/running)/exe) == $m/closed/program ]]; do sleep 0.1; done
    (unshare -m --propagation private sh -ec "mount -t tmpfs none $m/closed/elsewhere; touch $m/closed/elsewhere/inside
        echo \$\$ >$w/other; exec sleep 600" >/dev/null 2>&1 &)
    until [[ -s $w/other ]]; do sleep 0.1; done
    stat $m/closed/* $m/closed/directory/below >/dev/null; chmod 700 $m/closed
"#;

/// Checks that all of them still exist.
const STAYS: &str = r#"
    [[ $(<$m/closed/tmpfs/deep/inside) == inside && $(<$w/merged/conf) == conf && $(ls $w/merged) == conf ]]
    [[ $(readlink /proc/$(<$w/running)/exe) == $m/closed/program && $(readlink /proc/$(<$w/running)/cwd) == $m/closed/cwd ]]
    nsenter --mount=/proc/$(<$w/other)/ns/mnt -- test -e $m/closed/elsewhere/inside
"#;

const END: &str = r"
    kill $(<$w/running) $(<$w/other); umount $w/merged $w $m/closed/tmpfs/deep; rm -r $m/closed $m/open
";

/// User 2000's attempts on each of the paths below a given directory, and their results.
const STRANGER: &str = r#"
import ctypes, errno, os, socket, subprocess, sys
os.chdir(sys.argv[1])
os.setgroups([]); os.setgid(2000); os.setuid(2000)
libc = ctypes.CDLL(None, use_errno=True)
def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
def statx(path, flags, mask):
    checked(libc.statx(-100, path.encode(), flags, mask, ctypes.create_string_buffer(256)))
def handle(path):
    buffer = ctypes.create_string_buffer(b"\x80\0\0\0", 136)
    checked(libc.name_to_handle_at(-100, path.encode(), buffer, ctypes.byref(ctypes.c_int()), 0))
attempts = {
    "stat": os.stat, "lstat": os.lstat, "readlink": os.readlink, "enter": os.chdir, "list": os.listdir,
    "stat what is cached": lambda path: statx(path, 0x4000, 0x7ff), "stat nothing": lambda path: statx(path, 0, 0),
    "open": lambda path: os.open(path, os.O_RDONLY | os.O_NONBLOCK), "write": lambda path: os.open(path, os.O_WRONLY | os.O_NONBLOCK),
    "refer": lambda path: os.open(path, os.O_PATH), "create": lambda path: os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR),
    "run": lambda path: os.execv(path, [path]), "connect": lambda path: socket.socket(socket.AF_UNIX).connect(path),
    "ask": lambda path: checked(libc.access(path.encode(), 0)), "ask to read": lambda path: checked(libc.access(path.encode(), 4)),
    "unlink": os.unlink, "rmdir": os.rmdir, "mkdir": os.mkdir, "mkdir in it": lambda path: os.mkdir(path + "/new"),
    "rename": lambda path: os.rename(path, "open/new"), "link": lambda path: os.link(path, "open/new"),
    "replace": lambda path: (open("open/mine", "w").close(), os.rename("open/mine", path)),
    "chmod": lambda path: os.chmod(path, 0o777), "truncate": lambda path: os.truncate(path, 0), "touch": os.utime,
    "watch": lambda path: checked(libc.inotify_add_watch(libc.inotify_init1(0), path.encode(), 2)), "name": handle,
    "go up": lambda path: os.stat(path + "/.."), "look in": lambda path: os.stat(path + "/inside"),
}
for path in sys.argv[2:]:
    for what, attempt in attempts.items():
        try:
            attempt(path)
            print(path, what, "ok")
        except OSError as error:
            print(path, what, errno.errorcode[error.errno])
"#;

/// The names in use and others, although the kernel has cached all but the last.
const IN_USE: [&str; 5] = ["tmpfs", "tmpfs/deep", "elsewhere", "program", "cwd"];
const IDLE: [&str; 6] = ["directory", "file", "link", "fifo", "socket", "missing"];

// SEMANTICS: attr-6.
#[test]
fn whoever_is_refused_takes_nothing_from_those_who_are_not_and_learns_nothing() -> Result<()> {
    let network = Network::new()?;
    let export = network.make_directory("export")?;
    let room = network.make_directory("room")?;
    let server = CurtServe::start(&network, &export, &[])?;
    for options in ["accesscheck", "noaccesscheck", "noaccesscheck,actimeo=600,lookupcache=none"] {
        let mount =
            CurtMount::start(&network, "mount", &server.source(), &format!("{},{options}", server.ports()))?;
        let places = format!("m={} w={}\n", mount.directory().display(), room.display());
        network.shell(&(places.clone() + CLOSED), LIMIT)?;
        let program = network.directory().join("stranger.py");
        std::fs::write(&program, STRANGER)?;
        let paths: Vec<String> = IN_USE.iter().chain(&IDLE).map(|name| format!("closed/{name}")).collect();
        let run = format!("python3 {} $m {}\n", program.display(), paths.join(" "));
        let said = network.shell(&(places.clone() + &run), LIMIT)?;
        for line in said.lines() {
            let is_in_use = IN_USE.iter().any(|name| line.starts_with(&format!("closed/{name} ")));
            let expected = if is_in_use { " ENOMEM" } else { " EACCES" };
            ensure!(line.ends_with(expected), "{options}: {line}");
        }
        ensure!(said.lines().count() == 29 * paths.len(), "{said}");
        network.shell(&(places + STAYS + END), LIMIT)?;
        mount.unmount()?;
    }
    Ok(())
}

// SEMANTICS: attr-6.
#[test]
fn a_server_that_is_silent_for_too_long_takes_nothing_from_a_soft_mount() -> Result<()> {
    let network = Network::new()?;
    let export = network.make_directory("export")?;
    let room = network.make_directory("room")?;
    let mut server = CurtServe::start(&network, &export, &[])?;
    let options = format!("{},noac,softerr,timeo=20,retrans=0", server.ports());
    let mount = CurtMount::start(&network, "mount", &server.source(), &options)?;
    let places = format!("m={} w={}\n", mount.directory().display(), room.display());
    network.shell(&(places.clone() + CLOSED), LIMIT)?;
    server.process().signal(Signal::STOP)?;
    let refused = network.shell(
        &(places.clone()
            + "export LC_ALL=C
               for path in open closed closed/program closed/tmpfs/deep; do stat $m/$path 2>&1 || true; done"),
        LIMIT,
    );
    server.process().signal(Signal::CONT)?;
    let refused = refused?;
    let [open, used @ ..] = &refused.lines().collect::<Vec<_>>()[..] else {
        anyhow::bail!("{refused}");
    };
    ensure!(open.ends_with("Connection timed out"), "{refused}");
    ensure!(used.iter().all(|line| line.ends_with("Cannot allocate memory")), "{refused}");
    network.shell(&(places + STAYS + END), LIMIT)?;
    mount.unmount()
}

// SEMANTICS: attr-6.
#[test]
fn whoever_the_mount_is_not_for_takes_nothing_from_whoever_it_is_for() -> Result<()> {
    let network = Network::new()?;
    let export = network.make_directory("export")?;
    let server = CurtServe::start(&network, &export, &[])?;
    let options = format!("{},allow_root", server.ports());
    let mount = CurtMount::start(&network, "mount", &server.source(), &options)?;
    let script = format!(
        "m={}; mkdir $m/directory $m/idle; mount -t tmpfs none $m/directory; touch $m/directory/inside
         export LC_ALL=C
         for name in directory/inside idle; do
             setpriv --reuid=2000 --regid=2000 --clear-groups stat $m/$name 2>&1 || true
         done
         [[ -e $m/directory/inside ]]; umount $m/directory",
        mount.directory().display()
    );
    let said = network.shell(&script, LIMIT)?;
    let expected = ["Cannot allocate memory", "Permission denied"];
    ensure!(
        said.lines().count() == 2 && said.lines().zip(expected).all(|(line, error)| line.ends_with(error)),
        "{said}"
    );
    mount.unmount()
}
