//! Processes of several clients that read, change and write a file under a lock, while others read
//! it without one.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use curt_tests::curt::CurtMount;
use curt_tests::kernel::{ClientJob, KernelNumber};

use super::{Locking, MINUTE, MINUTES, is_full, number_behind};

/// Processes that count up in a file, each step under a lock, and processes that read it without
/// one, so that READs are in flight when locks are granted. Prints how many steps were made, and
/// which numbers were found.
pub(crate) const COUNTER: &str = r#"
import fcntl, os, sys, time
path, kind, processes, readers, seconds = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
end = time.monotonic() + seconds
children = []
for number in range(processes + readers):
    read, write = os.pipe()
    if os.fork() == 0:
        file, found = os.open(path, os.O_RDWR), []
        lock = fcntl.flock if kind == "flock" else fcntl.lockf
        # A busy machine may take as long for the first steps.
        while time.monotonic() < end or (number < processes and len(found) < 2):
            if number >= processes:
                os.pread(file, 100, 0)
                os.fstat(file)
                continue
            lock(file, fcntl.LOCK_EX)
            found.append(int(os.pread(file, 100, 0)))
            os.pwrite(file, b"%d" % (found[-1] + 1), 0)
            lock(file, fcntl.LOCK_UN)
        with os.fdopen(write, "w") as told:
            told.write(" ".join(map(str, found)))
        os._exit(0)
    os.close(write)
    children.append(read)
for read in children:
    for number in os.fdopen(read).read().split():
        print("FOUND", number)
print("END", flush=True)
"#;

/// How a counter is used.
struct Counting {
    mounts: u8,
    /// Linux clients of other addresses than in the count before: to the server they are other
    /// hosts.
    linux_clients: std::ops::Range<u8>,
    linux_options: &'static str,
    kind: &'static str,
    readers: u8,
}

/// Counts, and checks that no step was lost: that no number was found twice.
fn count(locking: &Locking, counting: &Counting) -> Result<()> {
    let Counting { mounts, linux_clients, linux_options, kind, readers } = counting;
    let seconds = if is_full() { 60 } else { 5 };
    let words = [*kind, "2", &readers.to_string(), &seconds.to_string()].map(str::to_owned);
    let mount = |number| locking.mount(&format!("mount-{number}"), "");
    let mounts = (0..*mounts).map(mount).collect::<Result<Vec<CurtMount>>>()?;
    // The grace period of the server ends first.
    ensure!(locking.refusal(&mounts[0], "fcntl-write")?.is_none(), "it is free");
    locking.server.inside("echo -n 0 > /export/file", MINUTE)?;
    let (script, go) =
        (locking.network.directory().join("counter.py"), locking.network.directory().join("go"));
    let linux = |number| {
        let job = format!(
            "mount -t nfs -o vers=3,{linux_options} 10.77.0.2:/export /mnt/nfs || exit 1
            echo STANDS
            until [ -e {} ]; do sleep 0.1; done
            python3 {} /mnt/nfs/file {}",
            go.display(),
            script.display(),
            words.join(" ")
        );
        ClientJob::start(&locking.network, KernelNumber(number), MINUTES, &job)
    };
    let linux = linux_clients.clone().map(linux).collect::<Result<Vec<_>>>()?;
    linux.iter().try_for_each(|job| job.wait_for("STANDS"))?;
    std::fs::write(&go, "")?;
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let start = |mount: &CurtMount| locking.script("counter", &mount.directory().join("file"), &words);
    let running = mounts.iter().map(start).collect::<Result<Vec<_>>>()?;
    let mut outputs = Vec::new();
    for mut counter in running {
        counter.wait_for("END", MINUTES)?;
        counter.wait(MINUTE)?;
        outputs.push(counter.output());
    }
    for job in linux {
        outputs.push(job.finish()?.output);
    }
    std::fs::remove_file(&go)?;
    let (mut steps, mut found) = (0, BTreeSet::new());
    for output in &outputs {
        let numbers = output.lines().filter(|line| line.starts_with("FOUND"));
        let own = numbers.map(|line| number_behind("FOUND", line)).collect::<Result<Vec<_>>>()?;
        println!("{} steps of a client", own.len());
        ensure!(own.len() > 1, "{output}");
        steps += own.len();
        found.extend(own);
    }
    let end = locking.server.inside("cat /export/file", MINUTE)?;
    let end: usize = end.trim().parse().context("the counter")?;
    println!("{steps} steps with {kind} led to {end}");
    ensure!(found.len() == steps && end == steps, "{steps} steps, {} numbers, {end}", found.len());
    Ok(())
}

const THREE: Counting =
    Counting { mounts: 1, linux_clients: 1..3, linux_options: "ac", kind: "fcntl", readers: 0 };

// SEMANTICS: lock-5, lock-6.
#[test]
fn two_linux_clients_and_a_mount_that_count_under_a_lock_lose_no_step() -> Result<()> {
    let locking = Locking::new()?;
    count(&locking, &THREE)?;
    let linux_options = "noac,lookupcache=none";
    count(&locking, &Counting { linux_clients: 3..5, linux_options, kind: "flock", readers: 1, ..THREE })
}

// SEMANTICS: lock-5, lock-6.
#[test]
fn two_mounts_that_count_under_a_lock_lose_no_step() -> Result<()> {
    let locking = Locking::new()?;
    let two = Counting { mounts: 2, linux_clients: 0..0, ..THREE };
    count(&locking, &two)?;
    count(&locking, &Counting { readers: 1, kind: "flock", ..two })
}
