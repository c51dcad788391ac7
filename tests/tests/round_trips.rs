//! Round trips that a program waits for, one after the other, over a network of 2 ms: of a mount
//! and of the Linux client, both over NFSv4.1 with read delegations.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use curt_bench::workload::Workload;
use curt_tests::curt::{CurtMount, CurtServe, program, tree};
use curt_tests::kernel::{KernelNumber, linux_client};
use curt_tests::network::{ADDRESS, Network};
use curt_tests::relay::start_relay;
use curt_tests::round_trips::RoundTrips;

const MINUTES: Duration = Duration::from_secs(300);
/// Half of the added round-trip time.
const WAY: Duration = Duration::from_millis(1);
/// The pause between two views of the page in seconds, and a time without a request by which it is
/// found.
const PAUSE: &str = "4";
const SILENCE: Duration = Duration::from_millis(3500);
/// A mount alone sends fewer calls, and the first view of the page more.
const MOUNT_CALLS: usize = 100;

/// Replays page in a mount that `replay` makes at the port it is given, and returns the round trips
/// of the first view, with those of the mount.
fn first_view(network: &Network, replay: impl FnOnce(&CurtServe, u16) -> Result<String>) -> Result<u64> {
    let server = CurtServe::start(network, &tree(Workload::Page)?, &["--ro"])?;
    let trips = Arc::new(RoundTrips::new(WAY));
    let address = SocketAddr::new(ADDRESS.parse::<IpAddr>()?, CurtServe::PORT);
    let relay = start_relay(network, address, WAY, &trips)?;
    let output = replay(&server, relay.port())?;
    ensure!(output.contains("\"wrong\":0"), "{output}");
    Ok(trips.before_pause(MOUNT_CALLS, SILENCE))
}

/// The replay by a user who is not root.
fn command(directory: &str) -> Result<String> {
    let replay = program("curt-replay")?;
    let replay = replay.display();
    Ok(format!("setpriv --reuid=65534 --regid=65534 --clear-groups {replay} page {directory} {PAUSE}"))
}

#[test]
fn the_first_view_of_page_waits_for_a_third_of_the_round_trips_of_linux() -> Result<()> {
    let network = Network::new()?;
    let ours = first_view(&network, |server, port| {
        let mount = CurtMount::start(&network, "mount", &server.source(), &format!("vers=4.1,port={port}"))?;
        let output = network.shell(&command(&mount.directory().display().to_string())?, MINUTES)?;
        mount.unmount()?;
        Ok(output)
    })?;
    let linux = first_view(&network, |server, port| {
        let source = server.source();
        let mount = format!("mount -t nfs -o vers=4.1,port={port} {source} /mnt/nfs || exit 1");
        linux_client(&network, KernelNumber(0), MINUTES, &format!("{mount}\n{}", command("/mnt/nfs")?))
    })?;
    println!("round trips of the first view: a mount {ours}, Linux {linux}");
    ensure!(ours * 3 <= linux, "{ours} and {linux}");
    Ok(())
}
