//! Programs of many processes that lock, and what they print.

use anyhow::{Context, Result, ensure};

/// Many processes that take turns, each holding the lock for a while; each checks that no other is
/// inside.
pub const TURNS: &str = r#"
import fcntl, os, sys, time
path, processes, hold, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
inside = os.open(sys.argv[5], os.O_RDWR)
readers = []
wait, go = os.pipe()
for number in range(processes):
    read, write = os.pipe()
    if os.fork() == 0:
        file = os.open(path, os.O_RDWR)
        os.close(go)
        # Until the last process is there.
        os.read(wait, 1)
        end = time.monotonic() + seconds
        grabs, wrong = 0, 0
        while time.monotonic() < end:
            fcntl.lockf(file, fcntl.LOCK_EX)
            before = os.pread(inside, 1, 0)
            os.pwrite(inside, b"1", 0)
            wrong += before == b"1"
            time.sleep(hold)
            os.pwrite(inside, b"0", 0)
            grabs += 1
            fcntl.lockf(file, fcntl.LOCK_UN)
            time.sleep(hold)
        os.write(write, f"{grabs} {wrong}".encode())
        os._exit(0)
    os.close(write)
    readers.append(read)
os.close(go)
counts = [tuple(map(int, os.read(read, 100).split())) for read in readers]
print("GRABS", sum(grabs for grabs, _ in counts), "WRONG", sum(wrong for _, wrong in counts),
      "LEAST", min(grabs for grabs, _ in counts), "MOST", max(grabs for grabs, _ in counts))
"#;

/// Holds a lock of each kind and mode in one directory, and tries to place one of each kind and
/// mode in another: by the same process through another descriptor, and by another process.
pub const PAIRS: &str = r#"
import errno, fcntl, os, struct, sys
one, other = (os.path.join(directory, "file") for directory in sys.argv[1:])
LOCKS = [(kind, mode) for kind in ("fcntl", "ofd", "flock") for mode in ("read", "write")]
def change(file, kind, mode, wait):
    if kind == "flock":
        operation = {"read": fcntl.LOCK_SH, "write": fcntl.LOCK_EX, "none": fcntl.LOCK_UN}[mode]
        return fcntl.flock(file, operation | (0 if wait else fcntl.LOCK_NB))
    wanted = {"read": fcntl.F_RDLCK, "write": fcntl.F_WRLCK, "none": fcntl.F_UNLCK}[mode]
    command = {("fcntl", True): fcntl.F_SETLKW, ("fcntl", False): fcntl.F_SETLK,
               ("ofd", True): fcntl.F_OFD_SETLKW, ("ofd", False): fcntl.F_OFD_SETLK}[kind, wait]
    fcntl.fcntl(file, command, struct.pack("hhqqi4x", wanted, os.SEEK_SET, 0, 0, 0))
def attempt(kind, mode):
    file = os.open(other, os.O_RDWR)
    try:
        change(file, kind, mode, False)
        change(file, kind, "none", True)
        return "granted"
    except OSError as error:
        return errno.errorcode[error.errno]
    finally:
        os.close(file)
def held_by_this(held, wanted):
    file = os.open(one, os.O_RDWR)
    change(file, *held, True)
    found = attempt(*wanted)
    change(file, held[0], "none", True)
    os.close(file)
    return found
def held_by_another(held, wanted):
    (is_held, holds), (may_end, ends) = os.pipe(), os.pipe()
    if os.fork() == 0:
        os.close(ends)
        file = os.open(one, os.O_RDWR)
        change(file, *held, True)
        os.write(holds, b"1")
        os.read(may_end, 1)
        change(file, held[0], "none", True)
        os._exit(0)
    os.read(is_held, 1)
    found = attempt(*wanted)
    os.close(ends)
    os.wait()
    for end in (is_held, holds, may_end):
        os.close(end)
    return found
for held in LOCKS:
    for wanted in LOCKS:
        for place in (held_by_this, held_by_another):
            print("PAIR", place.__name__, *held, *wanted, place(held, wanted), flush=True)
print("END")
"#;

/// Processes that add rows to a database in transactions, with SQLite's usual limit on waits (5 s).
/// Arguments: the database, their number, for how many seconds, and how long SQLite waits. Prints
/// how many transactions were refused before SQLite had waited that long, how many after (it polls,
/// so not each gets its turn in 5 s), and the longest one.
pub const DATABASE: &str = r#"
import os, sqlite3, sys, time
path, processes, seconds, patience = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
children = []
for number in range(processes):
    read, write = os.pipe()
    if os.fork() == 0:
        database = sqlite3.connect(path, timeout=patience, isolation_level=None)
        end, rows, refused, late, longest = time.monotonic() + seconds, 0, 0, 0, 0
        while (begun := time.monotonic()) < end:
            try:
                database.execute("begin immediate")
                database.execute("insert into rows values (?)", (os.getpid(),))
                database.execute("commit")
                rows += 1
            except sqlite3.OperationalError as error:
                waited = time.monotonic() - begun
                print(error, error.sqlite_errorname, f"after {waited:.1f} s", flush=True)
                if waited < patience * 0.98:
                    refused += 1
                else:
                    late += 1
            longest = max(longest, time.monotonic() - begun)
        os.write(write, f"{rows} {refused} {late} {int(longest * 1000)}".encode())
        os._exit(0)
    os.close(write)
    children.append(read)
counts = [tuple(map(int, os.read(read, 100).split())) for read in children]
rows, refused, late, longest = zip(*counts)
print("ROWS", sum(rows), "REFUSED", sum(refused), "LATE", sum(late), "LONGEST", max(longest), "ms", flush=True)
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
        found = os.pread(file, 8, number * 8)
        right = found == b"h%07d" % number
        if not right:
            os.write(1, b"FOUND %d %r of %d\n" % (number, found, os.fstat(file).st_size))
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

/// The clients of the two directories of [`PAIRS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairClients {
    /// Both directories are of one mount.
    One,
    /// Each is of a mount of its own, to which the other's processes are of another client.
    Two,
}

/// The table of SEMANTICS.md: a lock conflicts with one of another owner, whatever their kinds,
/// unless both are for reading. fcntl(2) locks of a process have one owner at each client.
fn expected_pairs(clients: PairClients) -> Vec<String> {
    let kinds = ["fcntl", "ofd", "flock"];
    let locks: Vec<_> = kinds.iter().flat_map(|kind| ["read", "write"].map(|mode| (*kind, mode))).collect();
    let mut lines = Vec::new();
    for held in &locks {
        for wanted in &locks {
            for place in ["held_by_this", "held_by_another"] {
                let is_own_client = clients == PairClients::One && place == "held_by_this";
                let is_own = is_own_client && held.0 == "fcntl" && wanted.0 == "fcntl";
                let is_shared = held.1 == "read" && wanted.1 == "read";
                let result = if is_own || is_shared { "granted" } else { "EAGAIN" };
                lines.push(format!("PAIR {place} {} {} {} {} {result}", held.0, held.1, wanted.0, wanted.1));
            }
        }
    }
    lines
}

/// The pairs in the output of [`PAIRS`].
///
/// # Errors
/// They are not those of the table.
pub fn check_pairs(output: &str, clients: PairClients) -> Result<()> {
    let found: Vec<_> = output.lines().filter(|line| line.starts_with("PAIR")).collect();
    ensure!(found == expected_pairs(clients), "{clients:?}: {found:#?}");
    Ok(())
}

/// Whether the long runs are wanted.
#[must_use]
pub fn is_full() -> bool {
    std::env::var_os("CURT_FULL").is_some()
}

/// The number behind a word of a script's output.
///
/// # Errors
/// There is none.
pub fn number_behind(word: &str, output: &str) -> Result<u64> {
    let value = output.split(&format!("{word} ")).nth(1).and_then(|rest| rest.split_whitespace().next());
    value.with_context(|| output.to_owned())?.parse().with_context(|| output.to_owned())
}
