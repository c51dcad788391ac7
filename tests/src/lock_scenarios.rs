//! What programs of several clients do with the locks of one server, whichever that is.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::curt::{self, CurtMount};
use crate::kernel::{ClientJob, KernelNumber};
use crate::lock_scripts::{DATABASE, MANY, PAIRS, PairClients, check_pairs, is_full, number_behind};
use crate::network::Network;
use crate::process::{self, RunningProcess};

const MINUTE: Duration = Duration::from_secs(60);
const MINUTES: Duration = Duration::from_secs(300);

fn script(network: &Network, text: &str, path: &Path, words: &[&str]) -> Result<RunningProcess> {
    let mut command: Command = network.command("python3");
    RunningProcess::start("python3", command.args(["-c", text]).arg(path).args(words))
}

/// The rows that the writers of one side have added to a database, from their output. SQLite polls
/// and then gives up, on a local file, too: for 5 s where nothing else runs on the machine, and for
/// a minute on a busy one, which is longer than the others write.
fn rows(output: &str) -> Result<u64> {
    ensure!(output.contains("REFUSED 0 "), "{output}");
    let (rows, late) = (number_behind("ROWS", output)?, number_behind("LATE", output)?);
    println!(
        "the longest transaction: {} ms; {late} waited longer than SQLite does",
        number_behind("LONGEST", output)?
    );
    ensure!(rows > 0 && (late == 0 || is_full()), "{output}");
    Ok(rows)
}

/// Processes write a database of SQLite: on two mounts, and then on the first one and on a Linux
/// client, which mounts with the options and the source `linux`. Nothing is lost.
///
/// # Errors
/// A row is missing, the database is damaged, or a process did not get a lock in time.
pub fn write_database(
    network: &Network,
    mounts: [&CurtMount; 2],
    kernel: KernelNumber,
    linux: &str,
) -> Result<()> {
    let (seconds, patience) = if is_full() { ("60", "5") } else { ("5", "60") };
    let database = |mount: &CurtMount| mount.directory().join("database");
    let sql = |text: &str| -> Result<String> {
        process::run(network.command("sqlite3").arg(database(mounts[0])).arg(text), MINUTE)
    };
    sql("create table rows (writer integer)")?;
    network.shell(&format!("chmod 666 {}", database(mounts[0]).display()), MINUTE)?;
    let program = network.directory().join("database.py");
    std::fs::write(&program, DATABASE)?;
    let mut expected = 0;
    for with_linux in [false, true] {
        let linux = if with_linux {
            let script = format!(
                "mount -t nfs -o {linux} /mnt/nfs && python3 {} /mnt/nfs/database 4 {seconds} {patience}",
                program.display()
            );
            Some(ClientJob::start(network, kernel, MINUTES, &script)?)
        } else {
            None
        };
        let writing = if with_linux { &mounts[..1] } else { &mounts[..] };
        let start =
            |mount: &&CurtMount| script(network, DATABASE, &database(mount), &["4", seconds, patience]);
        let mut writers = writing.iter().map(start).collect::<Result<Vec<_>>>()?;
        for writer in &mut writers {
            writer.wait_for("ROWS", MINUTES)?;
            writer.wait(MINUTE)?;
            let count = rows(&writer.output())?;
            println!("{count} rows by 4 processes of a mount, Linux client beside: {with_linux}");
            expected += count;
        }
        if let Some(linux) = linux {
            linux.wait_for("ROWS")?;
            let count = rows(&linux.finish()?.output)?;
            println!("{count} rows by 4 processes of the Linux client");
            expected += count;
        }
        let found = sql("pragma integrity_check; select count(*) from rows")?;
        ensure!(found.trim() == format!("ok\n{expected}"), "{found}, {expected} rows");
    }
    Ok(())
}

/// Locks of all kinds conflict as in the table of SEMANTICS.md: on one mount, and on two.
///
/// # Errors
/// A pair does not.
pub fn try_pairs(network: &Network, mounts: [&CurtMount; 2]) -> Result<()> {
    let [one, other] = mounts.map(CurtMount::directory);
    for (wanting, clients) in [(one, PairClients::One), (other, PairClients::Two)] {
        let mut running = script(network, PAIRS, one, &[&wanting.display().to_string()])?;
        running.wait_for("END", MINUTES)?;
        running.wait(MINUTE)?;
        check_pairs(&running.output(), clients)?;
    }
    Ok(())
}

/// Processes of one mount hold `count` locks, and those of another wait for them, while the server
/// is restarted by `restart`: all locks are reclaimed, and each is granted once.
///
/// # Errors
/// A lock is lost, or granted twice.
pub fn restart_under_locks(
    network: &Network,
    mounts: [&CurtMount; 2],
    count: u64,
    restart: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let [one, other] = mounts;
    let many = |mount: &CurtMount, what: &str| {
        script(network, MANY, &mount.directory().join("file"), &[what, &count.to_string()])
    };
    let mut holders = many(one, "hold")?;
    holders.wait_for("READY", MINUTES)?;
    let waiters = many(other, "wait")?;
    waiters.wait_for("READY", MINUTES)?;
    process::until("all waiters have asked", MINUTES, || {
        Ok((curt::counter(network, Some(other), "lock_denied")? >= count).then_some(()))
    })?;
    let begun = Instant::now();
    restart()?;
    process::until("all locks are reclaimed", MINUTES, || {
        let reclaimed = curt::counter(network, Some(one), "lock_reclaimed")?;
        let lost = curt::counter(network, Some(one), "lock_lost")?;
        ensure!(lost == 0, "{lost} locks are lost, {reclaimed} reclaimed");
        Ok((reclaimed >= count).then_some(()))
    })?;
    println!("{count} locks are reclaimed {:?} after the end of the server", begun.elapsed());
    ensure!(!waiters.output().contains("ENDED"), "{}", waiters.output());
    // The holders find their own bytes, and the waiters those of the holders.
    holders.say("unlock\n")?;
    holders.wait_for(&format!("ENDED {count} WRONG 0"), MINUTES)?;
    waiters.wait_for(&format!("ENDED {count} WRONG 0"), MINUTES)
}
