//! Programs that lock files, for tests of several servers.

use anyhow::{Context, Result};

/// Processes that add rows to a database in transactions. Arguments: the database, their number,
/// and for how many seconds.
pub const DATABASE: &str = r#"
import os, sqlite3, sys, time
path, processes, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
children = []
for number in range(processes):
    read, write = os.pipe()
    if os.fork() == 0:
        database = sqlite3.connect(path, timeout=120, isolation_level=None)
        end, rows, refused = time.monotonic() + seconds, 0, 0
        while time.monotonic() < end:
            try:
                database.execute("begin immediate")
                database.execute("insert into rows values (?)", (os.getpid(),))
                database.execute("commit")
                rows += 1
            except sqlite3.OperationalError as error:
                print(error, flush=True)
                refused += 1
        os.write(write, f"{rows} {refused}".encode())
        os._exit(0)
    os.close(write)
    children.append(read)
counts = [tuple(map(int, os.read(read, 100).split())) for read in children]
print("ROWS", sum(rows for rows, _ in counts), "REFUSED", sum(refused for _, refused in counts), flush=True)
"#;

/// Many processes that hold or wait for a lock each, and check what is in its bytes. Arguments: the
/// file, `hold` or `wait`, and their number.
pub const MANY: &str = r#"
import fcntl, os, sys
path, what, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
ready, tells = os.pipe()
waits, go = os.pipe()
for number in range(count):
    if os.fork() == 0:
        os.close(go)
        file = os.open(path, os.O_RDWR)
        if what == "wait":
            os.write(tells, b"1")
        fcntl.lockf(file, fcntl.LOCK_EX, 8, number * 8)
        if what == "hold":
            os.pwrite(file, b"h%07d" % number, number * 8)
            os.write(tells, b"1")
            os.read(waits, 1)
        right = os.pread(file, 8, number * 8) == b"h%07d" % number
        if what == "wait":
            os.pwrite(file, b"w%07d" % number, number * 8)
        fcntl.lockf(file, fcntl.LOCK_UN, 8, number * 8)
        os._exit(0 if right else 1)
for number in range(count):
    os.read(ready, 1)
print("READY", flush=True)
if what == "hold":
    sys.stdin.readline()
    os.close(go)
wrong = sum(os.wait()[1] != 0 for number in range(count))
print("ENDED", count, "WRONG", wrong, flush=True)
"#;

/// Whether the long runs are wanted.
#[must_use]
pub fn is_full() -> bool {
    std::env::var_os("CURT_FULL").is_some()
}

/// The number behind a word of a script's output.
///
/// # Errors
/// The output has none.
pub fn number_behind(word: &str, output: &str) -> Result<u64> {
    let value = output.split(&format!("{word} ")).nth(1).and_then(|rest| rest.split_whitespace().next());
    value.with_context(|| output.to_owned())?.parse().with_context(|| output.to_owned())
}
