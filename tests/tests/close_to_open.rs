//! Close-to-open: through two mounts and the exported directory each open sees all data closed
//! before.
//!
//! With CURT_FULL=1 each run takes ten minutes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use curt_tests::curt::{CurtMount, CurtServe, program};
use curt_tests::kernel::{KernelNumber, Knfsd, KnfsdOptions};
use curt_tests::network::Network;
use curt_tests::process;

/// Timeout of everything except the checker.
const MINUTES: Duration = Duration::from_secs(900);

fn seconds() -> u64 {
    if std::env::var_os("CURT_FULL").is_some() { 600 } else { 4 }
}

fn check(network: &Network, directories: &[&Path]) -> Result<()> {
    let model = network.make_directory("model")?;
    let mut command = network.command(program("close-to-open")?);
    command.arg("--seconds").arg(seconds().to_string());
    command.arg(model).args(directories);
    let limit = MINUTES + Duration::from_secs(seconds());
    let operations = process::run(&mut command, limit)?;
    println!("{} operations", operations.trim());
    Ok(())
}

/// Two mounts of `source`.
fn mounts(network: &Network, source: &str, options: &str) -> Result<[CurtMount; 2]> {
    let options = options.trim_matches(',');
    let start = |name| CurtMount::start(network, name, source, options);
    Ok([start("one")?, start("other")?])
}

fn over_two_mounts_and_the_export(options: &str) -> Result<()> {
    let network = Network::new()?;
    let export: PathBuf = network.make_directory("export")?;
    let serve = CurtServe::start(&network, &export, &[])?;
    // There is no MOUNT protocol in NFSv4.
    let ports = if options.contains("vers=4") { format!("port={}", CurtServe::PORT) } else { serve.ports() };
    let mounts = mounts(&network, &serve.source(), &format!("{ports},{options}"))?;
    check(&network, &[mounts[0].directory(), mounts[1].directory(), &export])?;
    mounts.into_iter().try_for_each(CurtMount::unmount)
}

// SEMANTICS: cto-1.
#[test]
fn an_open_sees_whatever_was_closed_before() -> Result<()> {
    over_two_mounts_and_the_export("")
}

// SEMANTICS: cto-1.
#[test]
fn an_open_sees_whatever_was_closed_before_without_access_checks() -> Result<()> {
    over_two_mounts_and_the_export("noaccesscheck,sloppycto=0")
}

// SEMANTICS: cto-1.
#[test]
fn an_open_sees_whatever_was_closed_before_while_little_is_kept_to_be_written() -> Result<()> {
    over_two_mounts_and_the_export("dirty_max=1M")
}

// SEMANTICS: cto-1.
#[test]
fn an_open_sees_whatever_was_closed_before_over_several_connections() -> Result<()> {
    over_two_mounts_and_the_export("nconnect=4")
}

// SEMANTICS: cto-1, sessions-7.
#[test]
fn an_open_sees_whatever_was_closed_before_over_nfs_4_1() -> Result<()> {
    // The change attribute is made of a time with steps: see `sessions-5`.
    over_two_mounts_and_the_export("vers=4.1,neg_racy_guard=on")
}

// SEMANTICS: cto-1.
#[test]
fn an_open_sees_whatever_was_closed_before_on_mounts_of_knfsd() -> Result<()> {
    let network = Network::new()?;
    let _rpcbind = network.rpcbind()?;
    let server = Knfsd::start(&network, KernelNumber(1), MINUTES, &KnfsdOptions::default())?;
    // Its clock has steps of some milliseconds: a change of the other mount within one step, after
    // one of this mount, is visible only with the strict guard.
    // Its export is the root of its NFSv4 tree.
    for (path, options) in [("/export", "neg_racy_guard=on"), ("/", "vers=4.1,neg_racy_guard=on")] {
        let mounts = mounts(&network, &format!("{}:{path}", server.address()), options)?;
        check(&network, &[mounts[0].directory(), mounts[1].directory()])?;
        mounts.into_iter().try_for_each(CurtMount::unmount)?;
    }
    Ok(())
}
