//! A network outage without errors: after its end waiting operations continue at once, and not only
//! with TCP's next retransmission.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use curt_tests::curt::{CurtMount, program};
use curt_tests::network::{ADDRESS, Network};
use curt_tests::process::RunningProcess;

/// The server's address, behind the network that fails.
const SERVER: &str = "10.77.0.21";
const SERVER_LINK: &str = "02:00:00:00:00:21";
const HERE_LINK: &str = "02:00:00:00:00:01";
const PORT: u16 = 2049;
const MINUTE: Duration = Duration::from_secs(60);
/// TCP's next retransmission after that is at 25 s (the intervals double from 0.2 s).
const SHORT: Duration = Duration::from_secs(14);
/// Maximum wait of calls after the end of the outage, less than until TCP's next retransmission.
const BOUND: Duration = Duration::from_secs(8);
/// The bound where nothing else runs on the machine.
const BOUND_FULL: Duration = Duration::from_secs(3);

/// Operations that need the server and wait during an outage; each must be done exactly once.
const WAITING: [&str; 5] = [
    "mkdir made",
    "mv old new",
    "rm doomed",
    "head -c 3000000 /dev/zero >written && sync written && stat -c %s written",
    "cat large | sha256sum",
];

/// A server in a separate network namespace, at the other end of a link that can be cut.
struct Far {
    server: RunningProcess,
    mount: CurtMount,
    _holder: RunningProcess,
    network: Network,
}

/// A host's treatment of packets for an unreachable one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lost {
    /// The host sends them without an error: the other host is behind a router.
    Silently,
    /// Address resolution fails, with an error (EHOSTUNREACH).
    Unreachable,
}

impl Far {
    fn start(lost: Lost, options: &str) -> Result<Self> {
        let network = Network::new()?;
        let holder = RunningProcess::start(
            "the server's network",
            network.command("unshare").args(["--net", "sh", "-c", "echo ready; exec cat"]),
        )?;
        holder.wait_for("ready", MINUTE)?;
        let pid = holder.pid();
        // The bridge has another port, so that it keeps its carrier when the link is cut.
        let cable = format!(
            "ip link add kept0 type veth peer name kept1
            ip link set kept0 up; ip link set kept1 master br0 up
            ip link set br0 address {HERE_LINK}
            ip link add cable type veth peer name far address {SERVER_LINK} netns {pid}
            ip link set cable master br0 up
            far() {{ nsenter --net=/proc/{pid}/ns/net ip \"$@\"; }}
            far link set lo up
            far addr add {SERVER}/24 dev far
            far link set far up
            known() {{
                ip neigh replace {SERVER} lladdr {SERVER_LINK} dev br0 nud permanent
                far neigh replace {ADDRESS} lladdr {HERE_LINK} dev far nud permanent
            }}
            {}",
            match lost {
                Lost::Silently => "known",
                Lost::Unreachable => "",
            }
        );
        network.shell(&cable, MINUTE)?;
        let export = network.make_directory("export")?;
        let content = "mkdir tree; cd tree; touch old doomed; head -c 8000000 /dev/urandom >large";
        network.shell(&format!("cd {}; {content}", export.display()), MINUTE)?;
        let mut command = network.command("nsenter");
        command
            .arg(format!("--net=/proc/{pid}/ns/net"))
            .arg("--")
            .arg(program("curt")?)
            .arg("serve")
            .arg(&export)
            .arg("--state")
            .arg(network.make_directory("state")?)
            .args(["--bind", &format!("{SERVER}:{PORT}")])
            .args(["--mount-port", &PORT.to_string()])
            .args(["--squash", "none", "--insecure", "--no-rpcbind"]);
        let server = RunningProcess::start("curt serve", &mut command)?;
        network.wait_for_port(SERVER, PORT)?;
        let source = format!("{SERVER}:{}", export.display());
        let options = format!("port={PORT},mountport={PORT}{options}");
        let mount = CurtMount::start(&network, "mount", &source, &options)?;
        Ok(Self { server, mount, _holder: holder, network })
    }

    fn cut(&self) -> Result<()> {
        self.network.shell("ip link set cable nomaster", MINUTE).map(drop)
    }

    fn join(&self) -> Result<()> {
        self.network.shell("ip link set cable master br0", MINUTE).map(drop)
    }

    fn tree(&self) -> String {
        self.mount.directory().join("tree").display().to_string()
    }

    /// Starts the waiting operations, after the link is cut.
    fn begin(&self) -> Result<Vec<RunningProcess>> {
        WAITING
            .iter()
            .map(|what| {
                let script = format!("cd {}; {what}", self.tree());
                RunningProcess::start(what, self.network.command("bash").args(["-euc", &script]))
            })
            .collect()
    }

    fn stop(mut self) -> Result<()> {
        self.mount.unmount()?;
        ensure!(self.server.stop()?.success(), "{}", self.server.output());
        Ok(())
    }
}

/// All operations must succeed within [`BOUND`] of the return of the network. A busy machine may
/// delay them once.
fn check(lost: Lost, outage: Duration, options: &str) -> Result<()> {
    let bound = if std::env::var_os("CURT_FULL").is_some() { BOUND_FULL } else { BOUND };
    let first = last_after(lost, outage, options)?;
    let last = if first > bound { last_after(lost, outage, options)? } else { first };
    ensure!(last <= bound, "the last went on after {first:?}, and again after {last:?} only");
    Ok(())
}

/// Cuts the link for `outage` while operations wait. Returns how long after its return the last
/// one of them succeeded.
fn last_after(lost: Lost, outage: Duration, options: &str) -> Result<Duration> {
    let mut far = Far::start(lost, options)?;
    // The names are cached, the data are not; the connection is in use.
    far.network.shell(&format!("ls -l {} >/dev/null", far.tree()), MINUTE)?;
    far.cut()?;
    let mut waiting = far.begin()?;
    // The duration of the outage.
    std::thread::sleep(outage);
    for process in &mut waiting {
        ensure!(process.is_running()?, "it did not need the server: {}", process.output());
    }
    far.join()?;
    let back = Instant::now();
    let mut took = Vec::new();
    for process in &mut waiting {
        let status = process.wait(5 * MINUTE)?;
        took.push(back.elapsed());
        ensure!(status.success(), "{status}: {}", process.output());
    }
    let last = took.iter().max().copied().unwrap_or_default();
    println!("after {outage:?}: {took:?}\n{}", far.mount.process().output());
    far.stop()?;
    Ok(last)
}

// SEMANTICS: rpc-6.
#[test]
fn calls_go_on_at_once_when_a_silent_network_is_back() -> Result<()> {
    check(Lost::Silently, SHORT, "")?;
    if std::env::var_os("CURT_FULL").is_some() {
        check(Lost::Silently, Duration::from_secs(30), "")?;
        check(Lost::Silently, Duration::from_secs(120), "")?;
        check(Lost::Silently, Duration::from_secs(30), ",timeo=50")?;
        check(Lost::Silently, Duration::from_secs(30), ",nconnect=4")?;
    }
    Ok(())
}

// SEMANTICS: rpc-6.
#[test]
fn calls_go_on_at_once_when_an_unreachable_host_is_back() -> Result<()> {
    check(Lost::Unreachable, SHORT, "")?;
    if std::env::var_os("CURT_FULL").is_some() {
        check(Lost::Unreachable, Duration::from_secs(30), ",nconnect=4")?;
        check(Lost::Unreachable, Duration::from_secs(120), "")?;
    }
    Ok(())
}
