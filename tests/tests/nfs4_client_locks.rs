//! Locks of `curt mount` with `vers=4.1`: on `curt serve`, knfsd and Ganesha, between processes,
//! mounts and a Linux client, over interrupts, restarts and expired leases.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use curt_tests::curt::{self, CurtMount, CurtServe};
use curt_tests::ganesha::Ganesha;
use curt_tests::kernel::{KernelNumber, Knfsd, KnfsdOptions};
use curt_tests::lock_scenarios::try_pairs;
use curt_tests::lock_scripts::{DATABASE, TURNS, number_behind};
use curt_tests::locker::{self, tell};
use curt_tests::network::Network;
use curt_tests::process::{self, RunningProcess};
use rustix::process::Signal;

const MINUTE: Duration = Duration::from_secs(60);
const MINUTES: Duration = Duration::from_secs(300);

/// The setup of the kernel's export. A second boot must not change its files.
const SETUP: &str = "[[ -e file ]] || echo old > file; chmod 666 file; chmod 777 .";

/// Two mounts of one server.
struct Mounts<'n> {
    network: &'n Network,
    one: CurtMount,
    other: CurtMount,
}

impl<'n> Mounts<'n> {
    fn new(network: &'n Network, source: &str, options: &str) -> Result<Self> {
        for (name, text) in [("turns", TURNS), ("database", DATABASE)] {
            std::fs::write(network.directory().join(name).with_extension("py"), text)?;
        }
        let mount = |name| CurtMount::start(network, name, source, options);
        Ok(Self { network, one: mount("one")?, other: mount("other")? })
    }

    fn locker(&self, mount: &CurtMount, words: &str) -> Result<RunningProcess> {
        locker::start(self.network, &mount.directory().join("file"), words)
    }

    /// A process that ends as soon as it has the lock.
    fn passer(&self, mount: &CurtMount) -> Result<RunningProcess> {
        let mut locker = self.locker(mount, "fcntl-write")?;
        locker.say("end\n")?;
        Ok(locker)
    }

    fn holder(&self, mount: &CurtMount, words: &str) -> Result<RunningProcess> {
        let holder = self.locker(mount, words)?;
        holder.wait_for("locked", MINUTES)?;
        Ok(holder)
    }

    fn is_refused(&self, mount: &CurtMount, words: &str) -> Result<bool> {
        let locker = self.locker(mount, &format!("{words} try=1"))?;
        process::until("the lock is granted or refused", MINUTE, || {
            let output = locker.output();
            let is_refused = output.contains("refused EAGAIN");
            Ok((is_refused || output.contains("locked")).then_some(is_refused))
        })
    }

    fn counter(&self, mount: &CurtMount, name: &str) -> Result<u64> {
        curt::counter(self.network, Some(mount), name)
    }

    fn wait_for_counter(&self, mount: &CurtMount, name: &str, least: u64) -> Result<()> {
        process::until(&format!("{name} is {least}"), MINUTES, || {
            Ok((self.counter(mount, name)? >= least).then_some(()))
        })
    }

    fn script(&self, name: &str, path: &Path, words: &[&str]) -> Result<RunningProcess> {
        let mut command = self.network.command("python3");
        command.arg(self.network.directory().join(name).with_extension("py"));
        RunningProcess::start(name, command.arg(path).args(words))
    }

    /// All kinds of locks exclude those of both mounts; waiters are woken and see what was written.
    fn exclude(&self) -> Result<()> {
        let (one, other) = (&self.one, &self.other);
        for kind in ["fcntl", "ofd", "flock"] {
            let mut holder = self.holder(one, &format!("{kind}-write"))?;
            for mount in [one, other] {
                for other_kind in ["fcntl", "ofd", "flock"] {
                    let is_refused = self.is_refused(mount, &format!("{other_kind}-read"))?;
                    ensure!(is_refused, "{other_kind} beside {kind}");
                }
            }
            let waiters = [self.passer(one)?, self.passer(other)?];
            tell(&mut holder, &format!("write by-{kind}"))?;
            tell(&mut holder, "unlock")?;
            for waiter in waiters {
                waiter.wait_for(&format!("locked b'by-{kind}"), MINUTE)?;
            }
            holder.say("end\n")?;
        }
        let part = self.holder(one, "fcntl-write first=10 length=10")?;
        ensure!(self.is_refused(other, "fcntl-read first=19 length=0")?, "byte 19 is locked");
        ensure!(!self.is_refused(other, "fcntl-write first=20 length=0")?, "byte 20 is not");
        drop(part);
        try_pairs(self.network, [&self.one, &self.other])
    }

    /// Waiters behind a lock of this mount and of the other are interrupted and killed.
    fn interrupt(&self) -> Result<()> {
        let mut holder = self.holder(&self.one, "fcntl-write")?;
        let denied = self.counter(&self.other, "lock_denied")?;
        let mut waiters = Vec::new();
        for mount in [&self.one, &self.other] {
            for words in ["fcntl-write", "flock-write", "ofd-write"] {
                waiters.push(self.locker(mount, words)?);
                waiters.push(self.locker(mount, words)?);
            }
        }
        self.wait_for_counter(&self.other, "lock_denied", denied + 1)?;
        for (number, waiter) in waiters.iter_mut().enumerate() {
            if number % 2 == 0 {
                waiter.signal(Signal::KILL)?;
                waiter.wait(MINUTE)?;
            } else {
                // SA_RESTART is not set.
                waiter.signal(Signal::ALARM)?;
                waiter.wait_for("interrupted", MINUTE)?;
            }
        }
        tell(&mut holder, "unlock")?;
        process::until("the killed have left nothing", MINUTE, || {
            Ok((!self.is_refused(&self.other, "fcntl-write")?).then_some(()))
        })
    }

    /// A database is written by processes of both mounts.
    fn database(&self) -> Result<()> {
        let database = |mount: &CurtMount| mount.directory().join("database");
        let sql = |text: &str| -> Result<String> {
            process::run(self.network.command("sqlite3").arg(database(&self.one)).arg(text), MINUTE)
        };
        sql("create table rows (writer integer)")?;
        let start = |mount: &CurtMount| self.script("database", &database(mount), &["4", "5", "5"]);
        let mut writers = [start(&self.one)?, start(&self.other)?];
        let mut expected = 0;
        for writer in &mut writers {
            writer.wait_for("ROWS", MINUTES)?;
            writer.wait(MINUTE)?;
            let output = writer.output();
            ensure!(output.contains("REFUSED 0"), "{output}");
            expected += number_behind("ROWS", &output)?;
        }
        println!("{expected} rows");
        let found = sql("pragma integrity_check; select count(*) from rows")?;
        ensure!(found.trim() == format!("ok\n{expected}"), "{found}, {expected} rows");
        Ok(())
    }

    /// 200 processes take turns without a request for each.
    fn turns(&self) -> Result<()> {
        let inside = self.network.directory().join("inside");
        std::fs::write(&inside, "0")?;
        let before = self.counter(&self.one, "lock_wire")?;
        let mut command = self.network.command("python3");
        command.arg(self.network.directory().join("turns.py")).arg(self.one.directory().join("file"));
        let mut turns =
            RunningProcess::start("200 processes", command.args(["200", "0.02", "10"]).arg(&inside))?;
        turns.wait_for("GRABS", MINUTES)?;
        turns.wait(MINUTE)?;
        let output = turns.output();
        let requests = self.counter(&self.one, "lock_wire")? - before;
        let (grabs, wrong) = (number_behind("GRABS", &output)?, number_behind("WRONG", &output)?);
        println!("{requests} LOCKs for {output}");
        ensure!(wrong == 0, "two were inside: {output}");
        ensure!(requests <= grabs / 2, "{requests} LOCKs for {output}");
        let (most, least) = (number_behind("MOST", &output)?, number_behind("LEAST", &output)?);
        ensure!(most - least < 2, "it is not fair: {output}");
        Ok(())
    }

    fn everything(&self) -> Result<()> {
        self.exclude()?;
        self.interrupt()?;
        self.database()?;
        self.turns()
    }

    /// Locks that are held and waited for outlive what `restart` does to the server.
    fn outlive(&self, restart: impl FnOnce() -> Result<()>) -> Result<()> {
        let (one, other) = (&self.one, &self.other);
        let mut holder = self.holder(one, "fcntl-write")?;
        let waiters = [self.passer(one)?, self.passer(other)?];
        self.wait_for_counter(other, "lock_denied", 1)?;
        restart()?;
        tell(&mut holder, "write after")?;
        self.wait_for_counter(one, "lock_reclaimed", 1)
            .with_context(|| format!("lock_lost is {:?}", self.counter(one, "lock_lost")))?;
        ensure!(self.counter(one, "lock_lost")? == 0, "nothing is lost");
        for waiter in &waiters {
            ensure!(!waiter.output().contains("locked"), "the lock is still held");
        }
        tell(&mut holder, "unlock")?;
        for waiter in waiters {
            waiter.wait_for("locked b'after", MINUTES)?;
        }
        Ok(())
    }
}

fn serve<'n>(network: &'n Network, name: &str) -> Result<(CurtServe, Mounts<'n>)> {
    let export = network.make_directory(name)?;
    std::fs::write(export.join("file"), "old")?;
    let server = CurtServe::start(network, &export, &["--lease", "20"])?;
    let mounts = Mounts::new(network, &server.source(), &options())?;
    Ok((server, mounts))
}

/// The options of mounts of `curt serve`.
fn options() -> String {
    format!("vers=4.1,port={}", CurtServe::PORT)
}

// SEMANTICS: sessions-3, sessions-9, lock-4, lock-12, lock-16, lock-17.
#[test]
fn locks_of_curt_serve_exclude_are_interrupted_and_handed_on() -> Result<()> {
    let network = Network::new()?;
    let (_server, mounts) = serve(&network, "export")?;
    mounts.everything()?;
    ensure!(mounts.counter(&mounts.other, "lock_cb_wakeup")? > 0, "the server has notified");
    Ok(())
}

// SEMANTICS: sessions-3, sessions-9.
#[test]
fn locks_of_knfsd_exclude_are_interrupted_and_handed_on() -> Result<()> {
    let network = Network::new()?;
    let options = KnfsdOptions { setup: SETUP.into(), ..KnfsdOptions::default() };
    let server = Knfsd::start(&network, KernelNumber(1), MINUTES, &options)?;
    let mounts = Mounts::new(&network, &format!("{}:/", server.address()), "vers=4.1")?;
    mounts.everything()?;
    ensure!(mounts.counter(&mounts.other, "lock_cb_wakeup")? > 0, "the server has notified");
    Ok(())
}

// SEMANTICS: sessions-3.
#[test]
fn locks_of_ganesha_exclude_are_interrupted_and_handed_on() -> Result<()> {
    let network = Network::new()?;
    let _rpcbind = network.rpcbind()?;
    let export = network.make_directory("export")?;
    std::fs::write(export.join("file"), "old")?;
    let server = Ganesha::start(&network, &export)?;
    let mounts = Mounts::new(&network, &server.source(), "vers=4.1")?;
    mounts.everything()
}

// SEMANTICS: sessions-10.
#[test]
fn locks_outlive_a_kill_of_curt_serve() -> Result<()> {
    let network = Network::new()?;
    let (mut server, mounts) = serve(&network, "export")?;
    mounts.outlive(|| {
        server.kill()?;
        server.restart(&network)
    })
}

// SEMANTICS: sessions-10.
#[test]
fn locks_outlive_a_power_failure_of_knfsd() -> Result<()> {
    let network = Network::new()?;
    let options = KnfsdOptions {
        image: Some(network.directory().join("disk.img")),
        grace: Some(10),
        setup: SETUP.into(),
        ..KnfsdOptions::default()
    };
    let server = Knfsd::start(&network, KernelNumber(1), MINUTES, &options)?;
    let mounts = Mounts::new(&network, &format!("{}:/", server.address()), "vers=4.1")?;
    let mut next = None;
    mounts.outlive(|| {
        server.power_off(&network)?;
        next = Some(Knfsd::start(&network, KernelNumber(1), MINUTES, &options)?);
        Ok(())
    })
}

// SEMANTICS: sessions-10.
#[test]
fn locks_outlive_a_kill_of_ganesha() -> Result<()> {
    let network = Network::new()?;
    let _rpcbind = network.rpcbind()?;
    let export = network.make_directory("export")?;
    std::fs::write(export.join("file"), "old")?;
    let server = Ganesha::start_with_grace(&network, &export, 15)?;
    let mounts = Mounts::new(&network, &server.source(), "vers=4.1")?;
    let mut next = None;
    mounts.outlive(|| {
        server.kill()?;
        next = Some(Ganesha::start_with_grace(&network, &export, 15)?);
        Ok(())
    })
}

// SEMANTICS: sessions-10.
#[test]
fn a_lock_whose_lease_has_expired_is_lost_and_its_owner_learns_that_once() -> Result<()> {
    let network = Network::new()?;
    let (_server, mut mounts) = serve(&network, "export")?;
    let mut holder = mounts.holder(&mounts.one, "fcntl-write")?;
    let pid = mounts.one.process().pid();
    let signal = |signal: &str| network.shell(&format!("kill -{signal} {pid}"), MINUTE);
    signal("STOP")?;
    // The lease ends after 20 s; the lock goes to who wants it.
    let other = mounts.holder(&mounts.other, "fcntl-write")?;
    signal("CONT")?;
    holder.say("write late\nunlock\n")?;
    // Which of the two learns of it depends on who asks the server first.
    holder.wait_for("unlock", MINUTE)?;
    ensure!(holder.output().matches(" EIO").count() == 1, "{}", holder.output());
    ensure!(mounts.counter(&mounts.one, "lock_lost")? == 1, "it is counted");
    let text = std::fs::read_to_string(network.directory().join("export").join("file"))?;
    ensure!(!text.contains("late"), "{text}");
    tell(&mut holder, "unlock")?;
    drop(other);
    ensure!(!mounts.is_refused(&mounts.one, "fcntl-write")?, "it is free");
    Ok(())
}

// SEMANTICS: sessions-23.
#[test]
fn a_mount_that_is_detached_while_it_is_busy_keeps_its_locks_beside_the_next_one_at_its_place() -> Result<()>
{
    let network = Network::new()?;
    let (server, mounts) = serve(&network, "export")?;
    let mut holder = mounts.holder(&mounts.one, "fcntl-write")?;
    network.shell(&format!("umount -l {}", mounts.one.directory().display()), MINUTE)?;
    let next = CurtMount::start(&network, "one", &server.source(), &options())?;
    ensure!(mounts.is_refused(&next, "fcntl-write")?, "the next mount has taken the lock away");
    // Each renews its lease.
    std::thread::sleep(Duration::from_secs(22));
    ensure!(mounts.is_refused(&next, "fcntl-write")? && mounts.is_refused(&mounts.other, "fcntl-write")?);
    tell(&mut holder, "unlock")?;
    mounts.holder(&next, "fcntl-write").map(drop)
}

// SEMANTICS: sessions-10.
#[test]
fn locks_of_a_killed_mount_end_when_it_is_mounted_again_by_another_path_to_its_place() -> Result<()> {
    let network = Network::new()?;
    let (server, mut mounts) = serve(&network, "export")?;
    let _holder = mounts.holder(&mounts.one, "fcntl-write")?;
    mounts.one.process().signal(Signal::KILL)?;
    mounts.one.process().wait(MINUTE)?;
    let place = mounts.one.directory().to_owned();
    network.shell(&format!("umount -l {}", place.display()), MINUTE)?;
    std::os::unix::fs::symlink(&place, network.directory().join("link"))?;
    let _next = CurtMount::start(&network, "link", &server.source(), &options())?;
    ensure!(!mounts.is_refused(&mounts.other, "fcntl-write")?, "the lock is still there");
    Ok(())
}
