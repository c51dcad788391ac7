//! Files that other clients extend or shrink, and what their next user sees at once: bytes, sizes,
//! mappings.
#![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

use std::time::Duration;

use curt_tests::curt::{CurtMount, CurtServe};
use curt_tests::network::Network;
use curt_tests::process;

const LIMIT: Duration = Duration::from_secs(120);

/// Two arguments: a directory on the mount, and the same on the server. Each check is repeated
/// because the kernel works on several things at once: earlier faults occurred in one of five
/// attempts or fewer.
const PYTHON: &str = r#"
import ctypes, fcntl, os, signal, sys, threading, time
mount, export, claim, server = sys.argv[1:4] + [int(sys.argv[4])]
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

def known(number):
    here, there = f"{mount}/{claim}-{number}", f"{export}/{claim}-{number}"
    with open(here, "wb") as file:
        file.write(b"x" * 100)
    with open(here, "rb") as file:
        assert file.read() == b"x" * 100
    return here, there

def grown(number):
    here, there = known(number)
    with open(there, "ab") as file:
        file.write(b"y" * 20000)
    return here, there

def at_open(number):
    here, _ = grown(number)
    fd = os.open(here, os.O_RDONLY)
    assert os.read(fd, 100000) == b"x" * 100 + b"y" * 20000
    os.close(fd)

def ends(number):
    here, there = grown(number)
    fd = os.open(here, os.O_RDONLY)
    assert os.lseek(fd, 0, os.SEEK_END) == 20100
    os.truncate(there, 10)
    again = os.open(here, os.O_RDONLY)
    assert os.lseek(again, 0, os.SEEK_END) == 10
    os.lseek(again, 0, os.SEEK_SET)
    assert os.read(again, 100) == b"x" * 10
    os.close(again)
    os.close(fd)

def mapped(number):
    here, there = grown(number)
    fd = os.open(here, os.O_RDWR)
    place = libc.mmap(None, 20100, 3, 1, fd, 0)
    for at in (2500, 15000, 20090):
        ctypes.memmove(place + at, b"stored here", 10)
    assert libc.munmap(place, 20100) == 0
    os.close(fd)
    with open(there, "rb") as file:
        data = file.read()
    for at in (2500, 15000, 20090):
        assert data[at:at + 10] == b"stored her", (at, data[at:at + 10])

def cut(number):
    here, there = grown(number)
    with open(here, "rb") as file:
        assert len(file.read()) == 20100
    os.truncate(there, 100)
    for at, signal in ((2500, 0), (15000, 7)):
        child = os.fork()
        if child == 0:
            fd = os.open(here, os.O_RDWR)
            place = libc.mmap(None, 20100, 3, 1, fd, 0)
            ctypes.memmove(place + at, b"stored", 6)
            libc.munmap(place, 20100)
            os.close(fd)
            os._exit(0)
        assert os.waitpid(child, 0)[1] & 0x7F == signal, at
        with open(there, "rb") as file:
            assert file.read() == b"x" * 100

def shrunk(number):
    here, there = f"{mount}/{claim}-{number}", f"{export}/{claim}-{number}"
    with open(here, "wb") as file:
        file.write(b"x" * 500000)
    with open(here, "rb") as file:
        assert len(file.read()) == 500000
    with open(there, "wb") as file:
        file.write(b"y" * 300001)
    if number % 2:
        fd = os.open(here, os.O_WRONLY | os.O_APPEND)
        assert os.write(fd, b"appended") == 8
        assert os.lseek(fd, 0, os.SEEK_CUR) == 300009
        assert os.lseek(fd, 0, os.SEEK_END) == 300009
    else:
        fd = os.open(here, os.O_RDONLY)
        data = b""
        while piece := os.read(fd, 131072):
            data += piece
        assert data == b"y" * 300001, (len(data), data[300001:][:10])
    os.close(fd)

def kept_open(number):
    here, there = known(number)
    fd = os.open(here, os.O_RDONLY)
    assert os.read(fd, 1000) == b"x" * 100
    with open(there, "ab") as file:
        file.write(b"more")
    assert os.read(fd, 1000) == b"more"
    with open(there, "ab") as file:
        file.write(b"again")
    assert os.lseek(fd, 0, os.SEEK_END) == 109
    os.close(fd)

def half_known(number):
    here, there = f"{mount}/{claim}-{number}", f"{export}/{claim}-{number}"
    old, new = sizes(number)
    # Its attributes and rights are known then, and no bytes.
    os.close(os.open(here, os.O_RDONLY))
    with open(there, "wb") as file:
        file.write(b"n" * new)
    with open(here, "rb", buffering=0) as file:
        data = file.readall()
    assert data in (b"o" * old, b"n" * new), (len(data), data[:20], data[-20:])

def states(pid):
    return {open(f"/proc/{pid}/task/{task}/stat").read().rpartition(") ")[2][0]
            for task in os.listdir(f"/proc/{pid}/task")}

def until(condition):
    while not condition():
        time.sleep(0.001)

# A thread reads behind the end that the kernel knows, and its request for the size is at the
# server when `meanwhile` returns.
def read_during(fd, offset, meanwhile):
    data, reader = [], []
    def read():
        reader.append(threading.get_native_id())
        data.append(os.pread(fd, 8, offset))
    os.kill(server, signal.SIGSTOP)
    until(lambda: states(server) == {"T"})
    thread = threading.Thread(target=read)
    thread.start()
    pread = lambda: reader and open(f"/proc/self/task/{reader[0]}/syscall").read().startswith("17 ")
    until(pread)
    meanwhile()
    os.kill(server, signal.SIGCONT)
    thread.join()
    return data[0]

def locked_beside_a_writer(number):
    here, _ = grown(number)
    fd, other = os.open(here, os.O_RDWR), os.open(here, os.O_RDWR)
    with open(f"{export}/{claim}-{number}", "ab") as file:
        file.write(b"z" * 1000)
    fcntl.lockf(fd, fcntl.LOCK_EX, 8, 20900)
    data = read_during(fd, 20900, lambda: os.pwrite(other, b"written.", 50))
    assert data == b"z" * 8, (number, data)
    os.close(fd)
    os.close(other)

def sizes(number):
    return [(20000, 11), (11, 20000), (11, 300)][number % 3]

# Before the mount knows the directory, which answers for its names then.
for number in range(150):
    if claim == "half_known":
        with open(f"{export}/{claim}-{number}", "wb") as file:
            file.write(b"o" * sizes(number)[0])

for number in range(150):
    globals()[claim](number)
    os.unlink(f"{mount}/{claim}-{number}")
"#;

fn claim(options: &str, claim: &str) {
    let network = Network::new().unwrap();
    let export = network.make_directory("export").unwrap();
    let mut serve = CurtServe::start(&network, &export, &[]).unwrap();
    let options = format!("{},{options}", serve.ports());
    let mount = CurtMount::start(&network, "mount", &serve.source(), options.trim_end_matches(',')).unwrap();
    let mut command = network.command("python3");
    command.args(["-c", PYTHON]);
    command.arg(mount.directory()).arg(&export).arg(claim).arg(serve.process().pid().to_string());
    process::run(&mut command, LIMIT).unwrap();
}

// SEMANTICS: cto-2.
#[test]
fn the_first_read_after_an_open_reaches_the_end_of_what_grew_elsewhere() {
    claim("", "at_open");
}

// SEMANTICS: cto-2.
#[test]
fn the_end_that_is_sought_after_an_open_is_that_of_what_grew_or_shrank_elsewhere() {
    claim("", "ends");
}

// SEMANTICS: cto-2.
#[test]
fn what_is_stored_through_a_mapping_of_what_grew_elsewhere_reaches_the_server() {
    claim("", "mapped");
}

// SEMANTICS: cto-2.
#[test]
fn a_store_behind_the_end_of_what_shrank_elsewhere_makes_it_no_larger() {
    claim("", "cut");
}

// SEMANTICS: cto-2.
#[test]
fn what_shrank_elsewhere_is_read_and_appended_to_at_its_new_end() {
    claim("", "shrunk");
}

// SEMANTICS: cto-6.
#[test]
fn with_noac_a_file_that_stays_open_is_read_to_its_new_end() {
    claim("noac", "kept_open");
}

// SEMANTICS: cto-4.
#[test]
fn what_an_open_within_the_window_of_sloppycto_reads_was_the_files_content_once() {
    claim("sloppycto=3", "half_known");
}

// SEMANTICS: lock-5.
#[test]
fn a_read_under_a_new_lock_reaches_what_was_appended_elsewhere_while_another_process_writes() {
    claim("lockport=2049", "locked_beside_a_writer");
}
