//! The peers themselves, without Curt: a failure here is not a fault of Curt.

use std::time::Duration;

use anyhow::{Result, ensure};
use curt_tests::capture::Capture;
use curt_tests::curt::program;
use curt_tests::ganesha::Ganesha;
use curt_tests::kernel::{KernelNumber, Knfsd, KnfsdOptions, linux_client, parse_ops};
use curt_tests::network::Network;

const MINUTES: Duration = Duration::from_secs(400);

/// Also shows that this repository's programs run inside the kernel, and that three counts of the
/// same requests agree.
#[test]
fn linux_client_and_knfsd_agree_with_tshark_and_the_model() -> Result<()> {
    let network = Network::new()?;
    let writer = program("random-writer")?;
    let server = Knfsd::start(&network, KernelNumber(1), MINUTES, &KnfsdOptions::default())?;
    let capture = Capture::start(&network, "wire", 2049)?;
    let before = server.counts()?;
    let script = format!(
        "mount -t nfs -o vers=3,nolock,proto=tcp {}:/export /mnt/nfs && {} --seed 1 --operations 2000 /mnt/nfs && sync && ops && umount /mnt/nfs",
        server.address(),
        writer.display()
    );
    let output = linux_client(&network, KernelNumber(0), MINUTES, &script)?;
    ensure!(output.contains("all as it should be"), "{output}");
    let own = parse_ops(&output)?;
    let after = server.counts()?;
    let captured = capture.stop()?;
    let wire = captured.calls()?;
    ensure!(captured.malformed(&network)?.is_empty());
    for procedure in ["READ", "WRITE", "COMMIT", "SETATTR", "CREATE", "REMOVE"] {
        let count =
            |counts: &std::collections::BTreeMap<String, u64>| counts.get(procedure).copied().unwrap_or(0);
        let served = count(&after) - count(&before);
        ensure!(served == count(&wire), "{procedure}: knfsd says {served}, tshark {}", count(&wire));
        ensure!(served == count(&own), "{procedure}: knfsd says {served}, the client {}", count(&own));
    }
    Ok(())
}

#[test]
fn linux_client_reads_what_ganesha_has() -> Result<()> {
    let network = Network::new()?;
    let _rpcbind = network.rpcbind()?;
    let export = network.make_directory("export")?;
    std::fs::write(export.join("file"), "from ganesha\n")?;
    let server = Ganesha::start(&network, &export)?;
    let script = format!(
        "mount -t nfs -o vers=3,nolock {} /mnt/nfs && cat /mnt/nfs/file && umount /mnt/nfs",
        server.source()
    );
    let output = linux_client(&network, KernelNumber(0), MINUTES, &script)?;
    ensure!(output.contains("from ganesha"), "{output}");
    Ok(())
}

#[test]
fn knfsd_with_an_image_keeps_what_was_synced_through_a_power_cut() -> Result<()> {
    let network = Network::new()?;
    let options =
        KnfsdOptions { image: Some(network.directory().join("disk.img")), ..KnfsdOptions::default() };
    let server = Knfsd::start(&network, KernelNumber(1), MINUTES, &options)?;
    server.inside("echo kept >/export/file && sync /export/file", MINUTES)?;
    server.power_off(&network)?;
    let server = Knfsd::start(&network, KernelNumber(1), MINUTES, &options)?;
    ensure!(server.inside("cat /export/file", MINUTES)? == "kept\n");
    Ok(())
}
