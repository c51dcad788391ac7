//! Files that are written with O_DIRECT and read through the kernel's page cache at the same time.

use std::time::Duration;

use anyhow::Result;
use curt_tests::curt::MountedExport;
use curt_tests::process;

const LIMIT: Duration = Duration::from_secs(300);

/// One argument: a file on the mount. Its pages are written one after another, asynchronously and
/// with O_DIRECT, while other processes read them; a read of a page after its write has completed
/// must return the written data. Only asynchronous writes show the fault: after others the kernel
/// drops its pages itself.
const PYTHON: &str = r#"
import ctypes, mmap, os, platform, signal, struct, sys
PAGE, PAGES, ROUNDS = 4096, 4, 1000
path = sys.argv[1]
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
SETUP, GETEVENTS, SUBMIT = (206, 208, 209) if platform.machine() == "x86_64" else (0, 4, 2)

def call(*arguments):
    result = libc.syscall(*arguments)
    assert result >= 0, os.strerror(ctypes.get_errno())
    return result

with open(path, "wb") as file:
    file.write(bytes(PAGE * PAGES))
readers = []
for _ in range(3):
    child = os.fork()
    if child == 0:
        fd = os.open(path, os.O_RDONLY)
        while os.getppid() != 1:
            for page in range(PAGES):
                os.pread(fd, PAGE, page * PAGE)
        os._exit(0)
    readers.append(child)
context = ctypes.c_ulong(0)
call(SETUP, 16, ctypes.byref(context))
direct, plain = os.open(path, os.O_RDWR | os.O_DIRECT), os.open(path, os.O_RDONLY)
buffer = mmap.mmap(-1, PAGE)
address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
old = 0
for round in range(ROUNDS):
    page, value = round % PAGES, bytes([1 + round % 251])
    buffer[:] = value * PAGE
    # struct iocb, to write; struct io_event.
    write = struct.pack("=QIIHhIQQqQII", 0, 0, 0, 1, 0, direct, address, PAGE, page * PAGE, 0, 0, 0)
    block = ctypes.create_string_buffer(write)
    blocks = (ctypes.c_void_p * 1)(ctypes.addressof(block))
    call(SUBMIT, context, ctypes.c_long(1), blocks)
    event = ctypes.create_string_buffer(32)
    assert call(GETEVENTS, context, ctypes.c_long(1), ctypes.c_long(1), event, None) == 1
    assert struct.unpack("=QQqq", event.raw)[2] == PAGE
    old += os.pread(plain, PAGE, page * PAGE) != value * PAGE
for child in readers:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
assert old == 0, f"{old} of {ROUNDS} reads found less than had been written"
"#;

// SEMANTICS: cto-8.
#[test]
fn a_page_read_after_an_asynchronous_direct_write_shows_what_was_written() -> Result<()> {
    let served = MountedExport::start(0o755, &[], "")?;
    let mut command = served.network.command("python3");
    command.args(["-c", PYTHON]).arg(served.mount.directory().join("file"));
    process::run(&mut command, LIMIT)?;
    served.mount.unmount()
}
