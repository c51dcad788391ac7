//! Locks of `curt serve` under load: turns of many processes, kills of the server with many locks
//! held, and databases.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use curt_tests::curt::{self, CurtMount, CurtServe};
use curt_tests::ganesha::Ganesha;
use curt_tests::kernel::{ClientJob, KernelNumber, Knfsd, KnfsdOptions};
use curt_tests::lock_scenarios::{restart_under_locks, write_database};
use curt_tests::lock_scripts::{is_full, number_behind};
use curt_tests::lock_server::LockServer;
use curt_tests::locker::{self, tell};
use curt_tests::network::Network;
use curt_tests::other_machine::{self, Portmapper};
use curt_tests::process::{self, RunningProcess};
use serde_json::Value;

const MINUTE: Duration = Duration::from_secs(60);
const MINUTES: Duration = Duration::from_secs(600);

/// Attempts of a benchmark. One of them has to be undisturbed by other programs of a busy machine:
/// a run on the mount is compared with one after it.
const ATTEMPTS: u32 = 3;

/// For how long a process holds the lock, and rests afterwards.
const HOLD: Duration = Duration::from_millis(20);

/// Processes of each of two clients.
const SIDE: u32 = 200;

/// Processes of one client that take turns with those of another, from when a file is there until
/// the second of the two times in it. The grabs between the times count: a client may begin late.
/// Whoever holds the lock has a directory beside that file: the next one finds no other's.
const TURNS: &str = r#"
import fcntl, os, sys, time
path, go, processes, hold = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
waits, begin = os.pipe()
readers = []
for number in range(processes):
    read, write = os.pipe()
    if os.fork() == 0:
        os.close(begin)
        file = os.open(path, os.O_RDWR)
        os.write(write, b"!")
        os.read(waits, 1)
        with open(go) as times:
            since, until = map(float, times.read().split())
        grabs, longest, wrong = 0, 0, 0
        while (wait := time.time()) < until:
            fcntl.lockf(file, fcntl.LOCK_EX)
            grab = time.time()
            grabs += since <= grab < until
            longest = max(longest, grab - wait)
            try:
                os.mkdir(go + ".held")
            except FileExistsError:
                wrong += 1
            time.sleep(hold)
            try:
                os.rmdir(go + ".held")
            except FileNotFoundError:
                wrong += 1
            fcntl.lockf(file, fcntl.LOCK_UN)
            time.sleep(hold)
        os.write(write, b"%d %d %d" % (grabs, longest * 1000, wrong))
        os._exit(0)
    os.close(write)
    readers.append(read)
for read in readers:
    os.read(read, 1)
print("READY", flush=True)
while not os.path.exists(go):
    time.sleep(0.01)
os.close(begin)
counts = [tuple(map(int, os.read(read, 100).split())) for read in readers]
grabs, longest, wrong = zip(*counts)
print("WRONG", sum(wrong), "LONGEST", max(longest), "GRABS", sum(grabs), flush=True)
"#;

/// Takes turns on a mount of that machine.
const TURNS_ELSEWHERE: &str = r#"
directory=$1 program=$2 source=$3 options=$4
shift 4
mkdir -p $directory/elsewhere
$program mount --foreground -o $options $source $directory/elsewhere &
until mountpoint -q $directory/elsewhere; do sleep 0.05; done
exec python3 $directory/turns.py $directory/elsewhere/file "$@"
"#;

/// The runs that `curt bench lock` reports.
fn bench(network: &Network, source: &str, version: &str, words: &[&str]) -> Result<Vec<Value>> {
    let mut command = network.command(curt::program("curt")?);
    command.args(["bench", "lock", "--server", source, "--vers", version, "--json"]);
    let report = process::run(command.args(["--hold", "20ms", "--rest", "20ms"]).args(words), MINUTES)?;
    println!("{report}");
    let report: Value = serde_json::from_str(&report)?;
    Ok(report["runs"].as_array().context("no runs")?.clone())
}

fn number(run: &Value, name: &str) -> Result<f64> {
    run[name].as_f64().with_context(|| format!("{name} in {run}"))
}

/// Checks each run on a mount for properties that hold on a busy machine too.
fn check_order(run: &Value) -> Result<()> {
    let grabs = number(run, "grabs")? + number(run, "drain_grabs")?;
    let locks = number(&run["cost"]["requests"], "LOCK")?;
    ensure!(number(run, "wrong")? == 0.0, "two processes held the lock: {run}");
    ensure!(number(run, "ahead")? <= 1.0, "a process is two turns ahead of another: {run}");
    ensure!(locks <= grabs * 1.01 + 1.0, "{locks} LOCK requests for {grabs} grabs: {run}");
    ensure!(number(run, "jain")? >= number(run, "fifo_jain")? - 0.01, "it is not fair: {run}");
    Ok(())
}

/// Whether a run on a mount is as fast as another but for a share of the turns. What both take more
/// than the ideal is the machine's.
fn is_as_fast(run: &Value, reference: &Value, share: f64) -> Result<bool> {
    let drain =
        |run| Ok::<_, anyhow::Error>(number(run, "drain_seconds")? / number(run, "ideal_drain_seconds")?);
    Ok(number(run, "grabs")? >= number(reference, "grabs")? * (1.0 - share)
        && drain(run)? <= drain(reference)?.max(1.0) * (1.0 + share))
}

/// Processes of a mount take turns in their order, with one LOCK at most for each. With CURT_FULL=1
/// they are nearly as fast as those that exchange two messages for each turn and use no
/// file system, and have nearly as many turns as with a local file. 200 begin to wait for
/// `seconds`; with CURT_FULL=1 2,000 do.
fn take_turns(version: &str, seconds: &str) -> Result<()> {
    let load = LockServer::start(&[])?;
    const SHARE: f64 = 0.02;
    let sizes: &[_] = if is_full() { &[("2000", "60"), ("200", "60")] } else { &[("200", seconds)] };
    for (processes, seconds) in sizes {
        let mut is_fast = false;
        for _ in 0..ATTEMPTS {
            let words = ["--processes", processes, "--seconds", seconds, "--floor"];
            let runs = bench(&load.network, &load.server.source(), version, &words)?;
            let find = |place| runs.iter().find(|run| run["place"] == place).context("no run");
            let (mount, local) = (find("mount")?, find("local")?);
            check_order(mount)?;
            // A FIFO gives 200 processes 2 or 3 turns in 10 s, and 15 in a minute.
            ensure!(*processes != "200" || *seconds != "60" || number(mount, "jain")? >= 0.99, "{mount}");
            // On a busy machine the daemon and the server wait for the processors, too.
            let share = number(mount, "grabs")? / number(local, "grabs")?;
            println!("{processes} processes, NFSv{version}: {share:.3} of the turns with a local file");
            is_fast = !is_full() || is_as_fast(mount, find("floor")?, SHARE)? && share >= 1.0 - SHARE;
            if is_fast {
                break;
            }
        }
        ensure!(
            is_fast,
            "{processes} processes: the turns always took {SHARE} more than the floor or on a local file"
        );
    }
    Ok(())
}

// SEMANTICS: lock-15.
#[test]
fn processes_take_turns_in_their_order_with_one_request_for_each() -> Result<()> {
    take_turns("3", "10")
}

// SEMANTICS: lock-15, sessions-3.
#[test]
fn processes_take_turns_in_their_order_over_nfs4() -> Result<()> {
    take_turns("4.1", "1")
}

// SEMANTICS: lock-15.
#[test]
fn processes_take_turns_at_knfsd_with_one_request_for_each() -> Result<()> {
    let network = Network::new()?;
    let _rpcbind = network.rpcbind()?;
    let options = KnfsdOptions { setup: "chmod 777 .".into(), ..KnfsdOptions::default() };
    let server = Knfsd::start(&network, KernelNumber(1), MINUTES, &options)?;
    // Of one mount's processes: two_hundred_processes_take_turns_with_a_request_for_each_turn.
    if is_full() {
        let words = ["--processes", "2000", "--seconds", "60"];
        let runs = bench(&network, &format!("{}:/export", server.address()), "3", &words)?;
        let find = |place| runs.iter().find(|run| run["place"] == place).context("no run");
        let (mount, local) = (find("mount")?, find("local")?);
        check_order(mount)?;
        check_share(mount, local)?;
    }
    // Whose turn it is between two mounts is knfsd's decision.
    let (side, seconds) = if is_full() { ("200", "60") } else { ("10", "2") };
    let words = ["--clients", "2", "--processes", side, "--seconds", seconds];
    let runs = bench(&network, &format!("{}:/export", server.address()), "3", &words)?;
    let shared = runs.iter().find(|run| run["place"] == "mount").context("no run")?;
    check_calls(shared)
}

// SEMANTICS: lock-3, lock-15.
#[test]
fn processes_of_two_mounts_are_called_back_by_ganesha_and_need_one_request_for_each_turn() -> Result<()> {
    let network = Network::new()?;
    let (_rpcbind, _statd) = (network.rpcbind()?, network.status_monitor()?);
    let export = network.make_directory("export")?;
    std::fs::set_permissions(&export, std::fs::Permissions::from_mode(0o777))?;
    let server = Ganesha::start_with_locks(&network, &export)?;
    let sizes: &[_] =
        if is_full() { &[["1", "2000", "60"], ["2", "200", "60"]] } else { &[["2", "10", "2"]] };
    for [clients, side, seconds] in sizes {
        // The lock manager of Ganesha's host is Ganesha.
        let mut command = other_machine::command(&network, Portmapper::Runs)?;
        command.arg(curt::program("curt")?).args(["bench", "lock", "--server", &server.source(), "--json"]);
        command.args(["--clients", clients, "--processes", side, "--seconds", seconds]);
        let mut bench = other_machine::start(&network, &mut command)?;
        let status = bench.wait(MINUTES)?;
        ensure!(status.success(), "{status}: {}", bench.output());
        let output = bench.output();
        let report: Value =
            serde_json::from_str(output.lines().find(|line| line.starts_with('{')).context("no report")?)?;
        println!("{report}");
        let runs = report["runs"].as_array().context("no runs")?;
        let find = |place| runs.iter().find(|run| run["place"] == place).context("no run");
        let (mount, local) = (find("mount")?, find("local")?);
        if *clients == "2" {
            check_calls(mount)?;
            continue;
        }
        check_order(mount)?;
        check_share(mount, local)?;
    }
    Ok(())
}

/// Whether a mount had 95 % of the turns of the local file, or would have had them if the server
/// had replied to LOCK and UNLOCK at once.
fn check_share(mount: &Value, local: &Value) -> Result<()> {
    let share = number(mount, "grabs")? / number(local, "grabs")?;
    let turn = |run: &Value, what| Ok::<_, anyhow::Error>(HOLD.as_secs_f64() + number(&run["turn"], what)?);
    let without_server = turn(local, "beyond_hold")? / turn(mount, "rest")?;
    println!("{share:.3} of the turns with a local file, {without_server:.3} without the server's time");
    ensure!(share.max(without_server) >= 0.95, "{mount}");
    Ok(())
}

/// Processes of a mount, and of two, take turns over NFSv4.1. Whose turn it is between two mounts
/// is the server's decision. One that notifies nobody leaves all turns to the mount that had the
/// first, because the other polls.
fn take_turns_over_nfs4(network: &Network, source: &str, notifies: bool) -> Result<()> {
    let sizes = if is_full() {
        [["1", "2000", "60"], ["2", "200", "30"]]
    } else {
        // A busy machine may take seconds for the first turn of each mount.
        [["1", "50", "2"], ["2", "10", if notifies { "12" } else { "4" }]]
    };
    for [clients, side, seconds] in sizes {
        let words = ["--clients", clients, "--processes", side, "--seconds", seconds];
        let runs = bench(network, source, "4.1", &words)?;
        let find = |place| runs.iter().find(|run| run["place"] == place).context("no run");
        let (mount, local) = (find("mount")?, find("local")?);
        let share = number(mount, "grabs")? / number(local, "grabs")?;
        println!("{clients} x {side}: {share:.3} of the turns with a local file");
        let of_each = mount["client_grabs"].as_array().context("turns of the clients")?;
        println!("turns of each mount: {of_each:?}");
        ensure!(!notifies || of_each.iter().all(|grabs| grabs.as_u64() > Some(0)), "{mount}");
        check_order_of_each(mount)?;
        if clients == "1" {
            check_order(mount)?;
            let grabs = number(mount, "grabs")? + number(mount, "drain_grabs")?;
            let locks = number(&mount["cost"]["requests"], "LOCK")?;
            ensure!(locks * 2.0 <= grabs, "{locks} LOCK requests: {mount}");
            ensure!(share >= 0.93 || !is_full(), "{share} of the turns with a local file");
        }
    }
    Ok(())
}

// SEMANTICS: lock-12, lock-15, sessions-3.
#[test]
fn processes_take_turns_over_nfs4_at_knfsd() -> Result<()> {
    let network = Network::new()?;
    let options = KnfsdOptions { setup: "chmod 777 .".into(), ..KnfsdOptions::default() };
    let server = Knfsd::start(&network, KernelNumber(1), MINUTES, &options)?;
    take_turns_over_nfs4(&network, &format!("{}:/", server.address()), true)
}

// SEMANTICS: lock-15, sessions-3.
#[test]
fn processes_take_turns_over_nfs4_at_ganesha() -> Result<()> {
    let network = Network::new()?;
    let _rpcbind = network.rpcbind()?;
    let export = network.make_directory("export")?;
    std::fs::set_permissions(&export, std::fs::Permissions::from_mode(0o777))?;
    let server = Ganesha::start(&network, &export)?;
    take_turns_over_nfs4(&network, &server.source(), false)
}

/// Whether the processes of each client have taken turns in their order.
fn check_order_of_each(run: &Value) -> Result<()> {
    ensure!(number(run, "wrong")? == 0.0, "two processes held the lock: {run}");
    for ahead in run["client_ahead"].as_array().context("order of the clients")? {
        ensure!(ahead.as_u64().is_some_and(|ahead| ahead <= 1), "a process is two turns ahead: {run}");
    }
    Ok(())
}

/// Whether two mounts that take turns are called back, and send one LOCK and one UNLOCK for each
/// turn.
fn check_calls(run: &Value) -> Result<()> {
    ensure!(number(run, "wrong")? == 0.0, "two processes held the lock: {run}");
    let requests = |name| number(&run["cost"]["requests"], name);
    let grabs = number(run, "grabs")? + number(run, "drain_grabs")?;
    ensure!(requests("LOCK")? == grabs && requests("UNLOCK")? == grabs, "{run}");
    // The mounts wait for each other, most of the time.
    ensure!(requests("GRANTED")? >= grabs * 0.25, "{run}");
    Ok(())
}

#[test]
fn the_benchmark_serves_a_directory_of_its_own() -> Result<()> {
    let network = Network::new()?;
    let mut command = network.command(curt::program("curt")?);
    command.args(["bench", "lock", "--processes", "5", "--seconds", "1", "--floor", "--json"]);
    let report: Value = serde_json::from_str(&process::run(&mut command, MINUTE)?)?;
    let mount = &report["runs"][0];
    check_order(mount)?;
    let turn = |what| number(&mount["turn"], what);
    let (server, rest) = (turn("LOCK")? + turn("UNLOCK")? + turn("GRANTED")?, turn("rest")?);
    ensure!(
        (server + rest - turn("beyond_hold")?).abs() < 1e-9,
        "the parts of a turn are not its time: {mount}"
    );
    ensure!(turn("LOCK")? > 0.0 && turn("UNLOCK")? > 0.0 && rest > 0.0, "{mount}");
    let floor = &report["runs"][2];
    ensure!(floor["place"] == "floor" && number(floor, "wrong")? == 0.0, "{floor}");
    ensure!(number(floor, "grabs")? > 0.0 && number(floor, "ahead")? < 2.0, "{floor}");
    Ok(())
}

#[test]
fn the_benchmark_ends_with_advice_if_no_lock_is_granted() -> Result<()> {
    let network = Network::new()?;
    let directory = network.make_directory("turns")?;
    let file = directory.join(".curt-bench-lock");
    std::fs::write(&file, "")?;
    let holder = locker::start(&network, &file, "fcntl-write")?;
    holder.wait_for("locked", MINUTE)?;
    let mut command = network.command(curt::program("curt")?);
    command.args(["bench", "lock", "--first-lock", "300ms", "--at"]).arg(&directory);
    let (status, _, said) = process::finish(&mut command, MINUTE)?;
    ensure!(status.code() == Some(1) && said.contains("start rpc.statd on the server"), "{status}: {said}");
    Ok(())
}

/// Two clients of one server, which take turns with a lock of the file `file`.
struct TwoClients<'a> {
    network: &'a Network,
    /// The processes of each.
    side: u32,
    seconds: u64,
}

impl TwoClients<'_> {
    /// The words behind the file that the processes of both have.
    fn words(&self) -> [String; 3] {
        [self.go(), self.side.to_string(), HOLD.as_secs_f64().to_string()]
    }

    /// The file that has them begin.
    fn go(&self) -> String {
        self.network.directory().join("go").display().to_string()
    }

    /// The path of the program that takes turns.
    fn program(&self) -> Result<PathBuf> {
        let program = self.network.directory().join("turns.py");
        std::fs::write(&program, TURNS)?;
        Ok(program)
    }

    /// Starts the processes of a mount here.
    fn here(&self, mount: &CurtMount) -> Result<RunningProcess> {
        let mut command = self.network.command("python3");
        command.arg(self.program()?).arg(mount.directory().join("file")).args(self.words());
        RunningProcess::start("turns on a mount", &mut command)
    }

    /// Starts those of a mount of another host.
    fn elsewhere(&self, source: &str, options: &str, portmapper: Portmapper) -> Result<RunningProcess> {
        let (directory, _) = (self.network.directory(), self.program()?);
        let script = directory.join("turns-elsewhere.sh");
        std::fs::write(&script, TURNS_ELSEWHERE)?;
        let mut command = other_machine::command(self.network, portmapper)?;
        command.arg("bash").arg(script).arg(directory).arg(curt::program("curt")?).args([source, options]);
        other_machine::start(self.network, command.args(self.words()))
    }

    /// Boots a Linux client, mounts, runs `first`, and starts its processes.
    fn linux(&self, number: u8, options: &str, source: &str, first: &str) -> Result<ClientJob> {
        let script = format!(
            "mount -t nfs -o {options} {source} /mnt/nfs && {first} && exec python3 {} /mnt/nfs/file {}",
            self.program()?.display(),
            self.words().join(" "),
        );
        ClientJob::start(self.network, KernelNumber(number), MINUTES, &script)
    }

    /// Has both begin once their processes are there; their turns count after a while.
    fn begin(&self) -> Result<()> {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)? + Duration::from_secs(5);
        let until = since + Duration::from_secs(self.seconds);
        let new = self.network.directory().join("new");
        std::fs::write(&new, format!("{} {}", since.as_secs_f64(), until.as_secs_f64()))?;
        Ok(std::fs::rename(new, self.go())?)
    }

    /// The turns of both.
    fn take_turns(&self, one: &RunningProcess, other: &RunningProcess) -> Result<[(u64, Duration); 2]> {
        one.wait_for("READY", MINUTES)?;
        other.wait_for("READY", MINUTES)?;
        self.begin()?;
        one.wait_for("GRABS", MINUTES)?;
        other.wait_for("GRABS", MINUTES)?;
        Ok([turns(&one.output())?, turns(&other.output())?])
    }

    /// The turns of the processes of a mount and of a Linux client.
    fn beside_linux(&self, one: &RunningProcess, linux: ClientJob) -> Result<[(u64, Duration); 2]> {
        one.wait_for("READY", MINUTES)?;
        linux.wait_for("READY")?;
        self.begin()?;
        one.wait_for("GRABS", MINUTES)?;
        linux.wait_for("GRABS")?;
        Ok([turns(&one.output())?, turns(&linux.finish()?.output)?])
    }
}

/// The turns of one client, if no two processes had the lock: their number, and the longest wait.
fn turns(output: &str) -> Result<(u64, Duration)> {
    ensure!(number_behind("WRONG", output)? == 0, "two processes held the lock: {output}");
    Ok((number_behind("GRABS", output)?, Duration::from_millis(number_behind("LONGEST", output)?)))
}

/// Whether two clients, of `side` processes each, got the same, and nobody waited twice as long as
/// in a FIFO of all processes whose turns take only as long as the lock is held. On a busy machine
/// each client gets a third at least.
fn check_sides(side: u32, sides: [(u64, Duration); 2]) -> Result<()> {
    let all: u64 = sides.iter().map(|(grabs, _)| grabs).sum();
    let bound = HOLD * side * 2 * 2;
    println!("{sides:?}; twice as long as in a FIFO whose turns take {HOLD:?}: {bound:?}");
    let allowed = if is_full() { all / 10 } else { all / 3 };
    for (grabs, longest) in sides {
        ensure!((grabs * 2).abs_diff(all) <= allowed, "{grabs} of {all}");
        ensure!(longest <= bound || !is_full(), "{longest:?}, more than {bound:?}");
    }
    Ok(())
}

/// For how long two clients take turns.
fn seconds() -> u64 {
    if is_full() { 60 } else { 10 }
}

/// Two mounts of this host that take turns, each with its processes: each gets half of them.
/// Returns their run.
fn two_mounts(version: &str) -> Result<Value> {
    let load = LockServer::start(&[])?;
    let side = SIDE.to_string();
    let words = ["--clients", "2", "--processes", &side, "--seconds", &seconds().to_string()];
    let mut runs = bench(&load.network, &load.server.source(), version, &words)?;
    let at = runs.iter().position(|run| run["place"] == "mount").context("no run")?;
    let run = runs.swap_remove(at);
    ensure!(number(&run, "wrong")? == 0.0, "two processes held the lock: {run}");
    let grabs = |side: usize| run["client_grabs"][side].as_u64().context("grabs of a client");
    let longest = Duration::from_secs_f64(number(&run, "wait_max")?);
    check_sides(SIDE, [(grabs(0)?, longest), (grabs(1)?, longest)])?;
    Ok(run)
}

// SEMANTICS: lockd-10.
#[test]
fn two_mounts_of_a_host_get_half_of_the_turns_each() -> Result<()> {
    check_order(&two_mounts("3")?)
}

// SEMANTICS: stateful-10.
#[test]
fn two_mounts_over_nfs4_get_half_of_the_turns_each() -> Result<()> {
    // While one mount has its turns, its processes may rightly be ahead of the other's.
    check_order_of_each(&two_mounts("4.1")?)
}

/// Mounts of two hosts that take turns, each with `side` processes: each gets half of them. The
/// second host has a portmapper, or cannot be called back.
fn two_hosts(side: u32, portmapper: Portmapper) -> Result<()> {
    let load = LockServer::start(&[])?;
    let mount = load.mount("mount")?;
    let clients = TwoClients { network: &load.network, side, seconds: seconds() };
    let elsewhere = clients.elsewhere(&load.server.source(), "vers=3", portmapper)?;
    let here = clients.here(&mount)?;
    check_sides(side, clients.take_turns(&here, &elsewhere)?)
}

// SEMANTICS: lockd-10.
#[test]
fn mounts_of_two_hosts_get_half_of_the_turns_each() -> Result<()> {
    two_hosts(SIDE, Portmapper::Runs)
}

// SEMANTICS: lock-3, lockd-14.
#[test]
fn a_mount_that_cannot_be_called_gets_half_of_the_turns() -> Result<()> {
    two_hosts(20, Portmapper::Missing)
}

/// A mount and a Linux client, each with its processes: each gets half of the turns.
fn mount_and_linux(
    options: &str,
    linux: impl FnOnce(&LockServer, &CurtMount, &TwoClients<'_>) -> Result<ClientJob>,
) -> Result<()> {
    let load = LockServer::start(&[])?;
    let mount = load.mount_with("mount", options)?;
    let clients = TwoClients { network: &load.network, side: SIDE, seconds: seconds() };
    let linux = linux(&load, &mount, &clients)?;
    linux.wait_for("READY")?;
    check_sides(SIDE, clients.beside_linux(&clients.here(&mount)?, linux)?)
}

// SEMANTICS: lockd-10.
#[test]
fn a_mount_and_a_linux_client_get_half_of_the_turns_each() -> Result<()> {
    mount_and_linux("", |load, mount, clients| {
        // The server has called it back once before its processes begin, which starve its
        // portmapper.
        let mut holder = locker::start(&load.network, &mount.directory().join("file"), "fcntl-write")?;
        holder.wait_for("locked", MINUTE)?;
        let linux = clients.linux(0, "vers=3", &load.server.source(), "flock /mnt/nfs/file echo CALLED")?;
        process::until("the Linux client waits", MINUTES, || {
            Ok((load.counter(None, "locks_blocked")? > 0).then_some(()))
        })?;
        tell(&mut holder, "unlock")?;
        linux.wait_for("CALLED")?;
        Ok(linux)
    })
}

// SEMANTICS: stateful-10.
#[test]
#[ignore = "CURT_FULL=1"]
fn a_mount_and_a_linux_client_get_half_of_the_turns_each_over_nfs4() -> Result<()> {
    let options = format!("vers=4.1,port={}", CurtServe::PORT);
    mount_and_linux(&options, |load, _, clients| clients.linux(0, &options, &load.server.source(), "true"))
}

/// A mount and a Linux client of another server take turns. Whose turn it is is the server's
/// decision; no two processes have the lock.
fn report_sides(server: &str, sides: [(u64, Duration); 2]) {
    let [(own, own_longest), (linux, linux_longest)] = sides;
    println!(
        "{server}: a mount had {own} turns and waited {own_longest:?} at most, Linux {linux} and {linux_longest:?}"
    );
}

/// A Linux client has locked the file.
const GRACE_IS_OVER: &str = "flock /mnt/nfs/file true";

/// Two clients of another server, with few processes or many.
fn clients_elsewhere(network: &Network, are_many: bool) -> TwoClients<'_> {
    let (side, seconds) = if are_many { (SIDE, 60) } else { (5, 3) };
    TwoClients { network, side, seconds }
}

// SEMANTICS: lock-1.
#[test]
fn a_mount_and_a_linux_client_exclude_each_other_at_knfsd() -> Result<()> {
    for version in ["3", "4.1"] {
        let network = Network::new()?;
        let _rpcbind = network.rpcbind()?;
        let setup = "touch file; chmod 666 file".into();
        let options = KnfsdOptions { setup, ..KnfsdOptions::default() };
        let server = Knfsd::start(&network, KernelNumber(1), MINUTES, &options)?;
        let path = if version == "3" { "/export" } else { "/" };
        let (source, options) = (format!("{}:{path}", server.address()), format!("vers={version}"));
        let mount = CurtMount::start(&network, "mount", &source, &options)?;
        let clients = clients_elsewhere(&network, is_full());
        let linux = clients.linux(0, &options, &source, GRACE_IS_OVER)?;
        linux.wait_for("READY")?;
        let sides = clients.beside_linux(&clients.here(&mount)?, linux)?;
        report_sides(&format!("knfsd, {options}"), sides);
    }
    Ok(())
}

// SEMANTICS: lock-1.
#[test]
fn a_mount_and_a_linux_client_exclude_each_other_at_ganesha() -> Result<()> {
    // Over NFSv4 Linux polls it less and less often, and has its turns minutes later: 200 processes
    // do not end in 10 minutes.
    let versions: &[_] = if is_full() { &["3", "4.1"] } else { &["3"] };
    for version in versions {
        let network = Network::new()?;
        let (_rpcbind, _statd) = (network.rpcbind()?, network.status_monitor()?);
        let export = network.make_directory("export")?;
        std::fs::write(export.join("file"), "")?;
        std::fs::set_permissions(export.join("file"), std::fs::Permissions::from_mode(0o666))?;
        let server = Ganesha::start_with_locks(&network, &export)?;
        let clients = clients_elsewhere(&network, is_full() && *version == "3");
        let options = format!("vers={version}");
        let linux = clients.linux(0, &options, &server.source(), GRACE_IS_OVER)?;
        linux.wait_for("READY")?;
        // The lock manager of Ganesha's host is Ganesha.
        let mount = clients.elsewhere(&server.source(), &options, Portmapper::Runs)?;
        let sides = clients.beside_linux(&mount, linux)?;
        report_sides(&format!("Ganesha, {options}"), sides);
    }
    Ok(())
}

// SEMANTICS: lockd-4.
#[test]
fn many_locks_and_waiters_outlive_a_killed_server() -> Result<()> {
    let (count, grace) = if is_full() { (1000, "30") } else { (100, "20") };
    let mut load = LockServer::start(&["--grace", grace])?;
    let (one, other) = (load.mount("one")?, load.mount("other")?);
    let LockServer { network, server, .. } = &mut load;
    restart_under_locks(network, [&one, &other], count, || {
        server.kill()?;
        server.restart(network)
    })
}

// SEMANTICS: lock-17.
#[test]
fn a_database_on_curt_serve_is_written_through_two_mounts_and_a_linux_client() -> Result<()> {
    write_database_of_curt_serve("", "vers=3")
}

// SEMANTICS: lock-17, sessions-3.
#[test]
fn a_database_on_curt_serve_is_written_over_nfs4_by_two_mounts_and_a_linux_client() -> Result<()> {
    let options = format!("vers=4.1,port={}", CurtServe::PORT);
    write_database_of_curt_serve(&options, &options)
}

/// A database is written by processes of two mounts, and then of a mount and a Linux client, with
/// these options.
fn write_database_of_curt_serve(options: &str, linux_options: &str) -> Result<()> {
    let load = LockServer::start(&[])?;
    let (one, other) = (load.mount_with("one", options)?, load.mount_with("other", options)?);
    let linux = format!("{linux_options} {}", load.server.source());
    write_database(&load.network, [&one, &other], KernelNumber(0), &linux)
}
