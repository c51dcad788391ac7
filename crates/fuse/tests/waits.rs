//! Requests that wait: which callers can be killed or interrupted, and which requests continue.
#![allow(clippy::unwrap_used, reason = "a test ends where something fails")]

mod toy;

use std::{
    fs::{self, File},
    io::Write as _,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use rustix::{
    fs::{FlockOperation, flock},
    process::{Pid, Signal, kill_process},
};
use toy::{Fixture, Toy, eventually};

/// Longer than any operation that completes: a blocked request stays blocked until the test ends
/// it.
const TIMEOUT: Duration = Duration::from_secs(60);

fn fixture() -> Fixture {
    let toy = Toy::default();
    for name in ["file", "other", "free"] {
        toy.plant(name, b"hello");
    }
    Fixture::new(toy)
}

fn shell(fixture: &Fixture, script: &str) -> Child {
    Command::new("sh")
        .args(["-c", script])
        .current_dir("/")
        .env("M", fixture.root())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn pid(child: &Child) -> Pid {
    Pid::from_child(child)
}

fn dies(child: &mut Child, why: &str) {
    eventually(why, TIMEOUT, || child.try_wait().unwrap().is_some());
}

// SEMANTICS: rpc-2.
#[test]
fn a_process_stuck_in_any_operation_dies_on_sigkill() {
    for (operation, script) in [
        ("lookup", "exec cat $M/missing"),
        ("getattr", "exec stat $M/file"),
        ("setattr", "exec touch -c $M/file"),
        ("readlink", "exec readlink $M/link"),
        ("symlink", "exec ln -s a $M/new"),
        ("mknod", "exec mknod $M/new p"),
        ("mkdir", "exec mkdir $M/new"),
        ("unlink", "exec rm $M/file"),
        ("rmdir", "exec rmdir $M/directory"),
        ("rename", "exec mv $M/file $M/new"),
        ("link", "exec ln $M/file $M/new"),
        ("open", "exec cat $M/file"),
        ("create", "exec cp /etc/hostname $M/new"),
        ("read", "exec cat $M/file"),
        ("write", "exec dd if=/dev/zero of=$M/file count=1"),
        ("statfs", "exec df $M/file"),
        ("flush", "exec dd if=/dev/zero of=$M/file count=1"),
        ("fsync", "exec sync $M/file"),
        ("opendir", "exec ls $M"),
        ("readdir", "exec ls $M"),
        ("access", "cd $M"),
        ("flock", "exec flock $M/file true"),
    ] {
        let fixture = fixture();
        fs::create_dir(fixture.path("directory")).unwrap();
        std::os::unix::fs::symlink("x", fixture.path("link")).unwrap();
        fixture.toy.stuck.on(operation);
        let mut child = shell(&fixture, script);
        eventually(operation, TIMEOUT, || fixture.toy.stuck.waiting() > 0);
        child.kill().unwrap();
        dies(&mut child, operation);
    }
}

// SEMANTICS: rpc-2.
#[test]
fn a_signal_that_does_not_kill_leaves_the_request_alone_and_a_later_one_kills() {
    let fixture = fixture();
    fixture.toy.stuck.on("getattr");
    let mut child = shell(&fixture, "trap : USR1; stat $M/file; true");
    eventually("stuck", TIMEOUT, || fixture.toy.stuck.waiting() == 1);
    let stat = children(child.id());
    // stat(1) is stopped and continued: the kernel interrupts its wait once, with a signal that
    // does not kill.
    kill_process(stat, Signal::STOP).unwrap();
    kill_process(stat, Signal::CONT).unwrap();
    let looked = Instant::now();
    while looked.elapsed() < Duration::from_millis(500) {
        assert_eq!(fixture.toy.stuck.waiting(), 1);
        std::thread::sleep(Duration::from_millis(10));
    }
    kill_process(stat, Signal::KILL).unwrap();
    dies(&mut child, "death by the second signal");
}

/// The only child of a process.
fn children(parent: u32) -> Pid {
    let text = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap();
    Pid::from_raw(text.trim().parse().unwrap()).unwrap()
}

// SEMANTICS: lock-1.
#[test]
fn an_alarm_ends_a_wait_for_a_lock() {
    let fixture = fixture();
    let file = File::open(fixture.path("file")).unwrap();
    flock(&file, FlockOperation::LockExclusive).unwrap();
    let begun = Instant::now();
    // flock(1) waits with alarm(2) and returns 1 if it does not get the lock.
    let status =
        Command::new("flock").args(["-w", "1"]).arg(fixture.path("file")).arg("true").status().unwrap();
    let waited = begun.elapsed();
    assert_eq!(status.code(), Some(1));
    assert!(waited > Duration::from_millis(900), "{waited:?}");
    flock(&file, FlockOperation::Unlock).unwrap();
    let status =
        Command::new("flock").args(["-w", "60"]).arg(fixture.path("file")).arg("true").status().unwrap();
    assert!(status.success());
}

// SEMANTICS: lock-4.
#[test]
fn a_signal_that_does_not_kill_leaves_an_unlock_alone() {
    let fixture = fixture();
    // flock(LOCK_UN) without LOCK_NB, and F_SETLKW of F_UNLCK, are requests that may wait.
    for (operation, name, unlock) in [
        ("flock", "file", "fcntl.flock(file, fcntl.LOCK_UN)"),
        ("fcntl", "other", "fcntl.lockf(file, fcntl.LOCK_UN)"),
    ] {
        let script = "
import fcntl, os, signal, sys
class Interrupted(Exception): pass
def interrupt(*_): raise Interrupted
signal.signal(signal.SIGUSR1, interrupt)
file = os.open(sys.argv[1], os.O_RDWR)
lock = fcntl.flock if 'flock' in sys.argv[2] else fcntl.lockf
lock(file, fcntl.LOCK_EX)
sys.stdin.readline()
try:
    exec(sys.argv[2])
    os._exit(0)
except Interrupted:
    other = os.open(sys.argv[1], os.O_RDWR)
    # The handler runs after the call: the lock has to be free.
    try:
        lock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os._exit(0)
    except OSError:
        os._exit(1)
";
        let locked = fixture.toy.stuck.calls(operation);
        let mut child = Command::new("python3")
            .args(["-c", script])
            .arg(fixture.path(name))
            .arg(unlock)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        eventually("a lock", TIMEOUT, || fixture.toy.stuck.calls(operation) > locked);
        fixture.toy.stuck.on(operation);
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        eventually(operation, TIMEOUT, || fixture.toy.stuck.waiting() == 1);
        kill_process(pid(&child), Signal::USR1).unwrap();
        let looked = Instant::now();
        while looked.elapsed() < Duration::from_millis(300) {
            assert_eq!(fixture.toy.stuck.waiting(), 1, "{operation}");
            std::thread::sleep(Duration::from_millis(10));
        }
        fixture.toy.stuck.release();
        assert_eq!(child.wait().unwrap().code(), Some(0), "{operation}");
    }
}

// SEMANTICS: rpc-2.
#[test]
fn who_exits_with_a_file_open_is_let_go_once_the_server_is_silent() {
    let fixture = fixture();
    let mut child = Command::new("sh")
        .args(["-c", "exec head -c 1 3<$M/file"])
        .env("M", fixture.root())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // The shell itself may close a descriptor of the file before it becomes head: only the flush
    // after that is to block.
    let name = format!("/proc/{}/comm", child.id());
    eventually("head", TIMEOUT, || fs::read_to_string(&name).unwrap() == "head\n");
    fixture.toy.stuck.on("flush");
    child.stdin.take().unwrap().write_all(b"x").unwrap();
    eventually("a flush", TIMEOUT, || fixture.toy.stuck.waiting() == 1);
    // It exits by itself, so that signals no longer reach it.
    child.kill().unwrap();
    let looked = Instant::now();
    while looked.elapsed() < Duration::from_millis(400) {
        assert!(child.try_wait().unwrap().is_none(), "the server is not silent: the flush is waited for");
        std::thread::sleep(Duration::from_millis(10));
    }
    fixture.toy.stuck.set_silence(Some(Duration::from_secs(1)));
    dies(&mut child, "death of an exiting process");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

// SEMANTICS: rpc-4.
#[test]
fn a_thousand_stuck_processes_leave_the_mount_alive() {
    const COUNT: usize = 1000;
    let toy = Toy::default();
    for number in 0..COUNT {
        toy.plant(&format!("file-{number}"), b"hello");
    }
    toy.plant("free", b"hello");
    let fixture = Fixture::new(toy);
    fs::read(fixture.path("free")).unwrap();
    fixture.toy.stuck.on("open");
    let mut children: Vec<_> = (0..COUNT)
        .map(|number| {
            Command::new("cat")
                .arg(fixture.path(&format!("file-{number}")))
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    eventually("all stuck", TIMEOUT, || fixture.toy.stuck.waiting() == COUNT);
    assert_eq!(fs::metadata(fixture.path("free")).unwrap().len(), 5);
    assert!(Command::new("stat").arg(fixture.path("free")).stdout(Stdio::null()).status().unwrap().success());
    assert_eq!(fixture.toy.stuck.waiting(), COUNT, "they waited for nobody");
    for child in &children {
        kill_process(pid(child), Signal::KILL).unwrap();
    }
    eventually("all dead", TIMEOUT, || children.iter_mut().all(|child| child.try_wait().unwrap().is_some()));
    eventually("nothing stuck", TIMEOUT, || fixture.toy.stuck.waiting() == 0);
}

#[test]
fn threads_that_are_not_needed_end() {
    let options = curt_fuse::FuseSessionOptions { idle: Duration::from_millis(50), ..toy::session_options() };
    let toy = Toy::default();
    for number in 0..50 {
        toy.plant(&format!("file-{number}"), b"hello");
    }
    let fixture = Fixture::with(toy, &options);
    fixture.toy.stuck.on("open");
    let mut children: Vec<_> =
        (0..50).map(|number| shell(&fixture, &format!("exec cat $M/file-{number}"))).collect();
    eventually("all stuck", TIMEOUT, || fixture.toy.stuck.waiting() == 50);
    assert!(fixture.session.threads() > 50);
    fixture.toy.stuck.release();
    for child in &mut children {
        assert!(child.wait().unwrap().success());
    }
    eventually("few threads", TIMEOUT, || fixture.session.threads() <= options.readers);
}

// SEMANTICS: rpc-4.
#[test]
fn a_bound_on_threads_holds_requests_back_and_loses_none() {
    let options = curt_fuse::FuseSessionOptions { readers: 2, threads_max: 4, ..toy::session_options() };
    let toy = Toy::default();
    for number in 0..20 {
        toy.plant(&format!("file-{number}"), b"hello");
    }
    let fixture = Fixture::with(toy, &options);
    fixture.toy.stuck.on("open");
    let mut children: Vec<_> =
        (0..20).map(|number| shell(&fixture, &format!("exec cat $M/file-{number}"))).collect();
    eventually("four stuck", TIMEOUT, || fixture.toy.stuck.waiting() == 4);
    assert_eq!(fixture.session.threads(), 4);
    fixture.toy.stuck.release();
    for child in &mut children {
        assert!(child.wait().unwrap().success());
    }
}

// SEMANTICS: explain-2.
#[test]
fn a_request_is_in_transit_until_the_file_system_marks_it_received() {
    let toy = Toy::default();
    toy.plant("file", b"hello");
    let one_thread = curt_fuse::FuseSessionOptions { readers: 1, threads_max: 1, ..toy::session_options() };
    let fixture = Fixture::with(toy, &one_thread);
    std::os::unix::fs::symlink("x", fixture.path("link")).unwrap();
    let barrier = fixture.session.request_barrier();
    let soon = |why: &str, have_come: bool| {
        eventually(why, TIMEOUT, || barrier.is_clear() == have_come);
    };
    let stuck = |operation: &'static str, script: &str| {
        fixture.toy.stuck.on(operation);
        let child = shell(&fixture, script);
        eventually(operation, TIMEOUT, || fixture.toy.stuck.waiting() == 1);
        child
    };
    soon("nothing is asked", true);
    let mut first = stuck("lookup", "exec cat $M/one");
    soon("it has arrived, although it is not answered", true);
    let mut second = shell(&fixture, "exec cat $M/two");
    soon("the only thread has no time for it: it lies in the kernel", false);
    fixture.toy.stuck.release();
    first.wait().unwrap();
    second.wait().unwrap();
    soon("both are answered", true);
    let mut third = stuck("readlink", "exec readlink $M/link");
    assert!(!barrier.is_clear(), "the thread has it, and nobody says that it has arrived");
    fixture.toy.stuck.release();
    third.wait().unwrap();
    soon("it is answered", true);
}
