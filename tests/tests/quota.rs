//! Quotas, root's reserve and suid bits on an ext4 file system that `curt serve` exports from
//! inside the test kernel: limits are those of the caller, whatever the server's user.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use curt_tests::curt::CurtMount;
use curt_tests::kernel::KernelNumber;
use curt_tests::kernel_server::{INSIDE, InsideOptions, ServeInside};
use curt_tests::network::Network;

const MINUTES: Duration = Duration::from_secs(180);
const KERNEL: Duration = Duration::from_secs(600);

/// User 1000's quota in KiB; a multiple of ext4's block sizes of 1 and 4 KiB.
const QUOTA: u64 = 2048;

/// Root's reserve of the disk in per cent.
const RESERVED: u8 = 10;

/// A network with a server inside a kernel and Curt's mount of it.
struct Bed {
    mount: CurtMount,
    server: ServeInside,
    network: Network,
}

impl Bed {
    fn new(setup: &str) -> Result<Self> {
        let network = Network::new()?;
        let options = InsideOptions { reserved: RESERVED, setup: setup.into(), ..InsideOptions::default() };
        let server = ServeInside::start(&network, KernelNumber(0), KERNEL, &options)?;
        let mount = CurtMount::start(&network, "mount", &server.source(), &server.ports())?;
        Ok(Self { mount, server, network })
    }

    /// Runs a script in the mount as `uid`; returns its output with its errors, and its status in
    /// the last line.
    fn on_mount(&self, uid: u32, script: &str) -> Result<String> {
        let script = format!(
            "cd {}; status=0; setpriv --reuid={uid} --regid={uid} --clear-groups bash -c '{script}' 2>&1 || status=$?; echo status $status",
            self.mount.directory().display()
        );
        self.network.shell(&script, MINUTES)
    }

    fn inside(&self, script: &str) -> Result<String> {
        self.server.inside(&format!("cd {INSIDE}; {script}"), MINUTES)
    }

    /// A number that a script inside prints.
    fn number(&self, script: &str) -> Result<u64> {
        let said = self.inside(script)?;
        said.trim().parse().with_context(|| format!("{script}: {said}"))
    }
}

#[test]
fn quotas_and_roots_reserve_hold_for_callers_and_suid_bits_end_with_a_write() -> Result<()> {
    let bed = Bed::new(&format!("chmod 1777 .; setquota -u 1000 0 {QUOTA} 0 0 {INSIDE}"))?;
    quota_is_the_callers(&bed)?;
    suid_bits_end_with_a_write(&bed)?;
    reserve_is_roots(&bed)?;
    bed.mount.unmount()
}

fn quota_is_the_callers(bed: &Bed) -> Result<()> {
    let twice = 2 * QUOTA;
    let fill = |name: &str| format!("dd if=/dev/zero of={name} bs=64k count={} conv=fsync", twice / 64);
    let said = bed.on_mount(1000, &fill("mine"))?;
    ensure!(said.contains("quota exceeded") && said.ends_with("status 1\n"), "{said}");
    let used = bed.number("quota -uw 1000 2>/dev/null | awk 'NR == 3 { print $2 + 0 }'")?;
    ensure!(used <= QUOTA && used > QUOTA / 2, "user 1000 uses {used} KiB of {QUOTA}");
    // The quota does not apply to other users, nor to root.
    for uid in [2000, 0] {
        let said = bed.on_mount(uid, &fill(&format!("of-{uid}")))?;
        ensure!(said.ends_with("status 0\n"), "as {uid}: {said}");
    }
    // Names use none of it, and removed data are free again.
    let said = bed.on_mount(1000, "rm mine && : >empty && echo text >again && cat again")?;
    ensure!(said == "text\nstatus 0\n", "{said}");
    Ok(())
}

fn suid_bits_end_with_a_write(bed: &Bed) -> Result<()> {
    bed.inside(
        "for by in 0 1000 2000; do echo x >suid-$by; chown 1000:1000 suid-$by; chmod 6777 suid-$by; cp -a suid-$by cut-$by; done
         echo x >group; chown 1000:1000 group; chmod 755 group; cp -a group own",
    )?;
    for by in [0, 1000, 2000] {
        let said = bed.on_mount(by, &format!("echo more >>suid-{by} && truncate -s 0 cut-{by}"))?;
        ensure!(said == "status 0\n", "as {by}: {said}");
        let modes = bed.inside(&format!("stat -c %a suid-{by} cut-{by}"))?;
        ensure!(modes == "777\n777\n", "after {by} wrote: {modes}");
    }
    // Root may set it for a group that it is not in; a file's owner outside of the group may not.
    let said = bed.on_mount(0, "chmod 2755 group")?;
    ensure!(said == "status 0\n", "{said}");
    bed.inside("chgrp 2000 own; chown 1000 own")?;
    bed.on_mount(1000, "chmod 2755 own")?;
    let modes = bed.inside("stat -c %a group own")?;
    ensure!(modes == "2755\n755\n", "{modes}");
    Ok(())
}

fn reserve_is_roots(bed: &Bed) -> Result<()> {
    bed.inside(&format!("setquota -u 1000 0 0 0 0 {INSIDE}"))?;
    let blocks = bed.number("stat -f -c %b .")?;
    let said = bed.on_mount(1000, "dd if=/dev/zero of=all bs=64k conv=fsync")?;
    ensure!(said.contains("No space left on device") && said.ends_with("status 1\n"), "{said}");
    let (free, available) = (bed.number("stat -f -c %f .")?, bed.number("stat -f -c %a .")?);
    // %b does not include the file system's own metadata; a twentieth is far more than its
    // rounding.
    let reserve = blocks * u64::from(RESERVED) / 100;
    ensure!(
        free >= reserve * 19 / 20 && available <= blocks / 50,
        "{free} of {blocks} blocks are free and {available} available: user 1000 has taken of root's"
    );
    let said = bed.on_mount(0, "dd if=/dev/zero of=roots bs=64k count=16 conv=fsync")?;
    ensure!(said.ends_with("status 0\n"), "{said}");
    Ok(())
}
