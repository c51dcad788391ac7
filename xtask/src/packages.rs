//! The Debian packages that the tests need.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// The packages and their purposes.
const PACKAGES: [(&str, &str); 25] = [
    ("acl", "setfacl, for files with access control lists"),
    ("binutils", "readelf, which lists the probes in the program"),
    ("bpftrace", "attaching to the probes of a running mount and server"),
    ("dmsetup", "disks that fail, inside the test kernel"),
    ("e2fsprogs", "file systems in images for knfsd"),
    ("fuse3", "fusermount3, for mounts of users other than root"),
    ("gcc", "building the kernel's starter, and a C project on a mount"),
    ("iproute2", "network namespaces"),
    ("iputils-ping", "a kernel that waits for its network"),
    ("kmod", "the test kernel's modules"),
    ("libc6-dev", "building with gcc"),
    ("libnfs-utils", "nfs-ls, nfs-cp and nfs-cat as clients"),
    ("make", "building a C project on a mount"),
    ("nfs-common", "mount.nfs, nfsstat and showmount"),
    ("nfs-ganesha", "a server that is neither ours nor Linux's"),
    ("nfs-ganesha-vfs", "its access to local files"),
    ("nfs-kernel-server", "exportfs and rpc.nfsd inside the test kernel"),
    ("python3", "programs that make system calls on a mount"),
    ("quota", "setquota inside the test kernel"),
    ("rpcbind", "the portmapper"),
    ("sqlite3", "a database that several clients write"),
    ("strace", "counting system calls"),
    ("systemd", "socket activation, and a judge of our units"),
    ("tshark", "what was on the wire"),
    ("user-mode-linux", "a Linux kernel as an ordinary process"),
];

/// Installs missing packages, and prints their names.
///
/// # Errors
/// Packages are missing and this user is not root, or apt-get fails.
pub(crate) fn install() -> Result<()> {
    let missing: Vec<_> = PACKAGES.into_iter().filter(|(name, _)| !is_installed(name)).collect();
    if missing.is_empty() {
        eprintln!("all {} packages that the tests need are installed", PACKAGES.len());
        return Ok(());
    }
    for (name, purpose) in &missing {
        eprintln!("to install: {name} ({purpose})");
    }
    let names: Vec<&str> = missing.iter().map(|(name, _)| *name).collect();
    ensure!(
        rustix::process::geteuid().is_root(),
        "not root; run: sudo apt-get install --no-install-recommends {}",
        names.join(" ")
    );
    apt_get(&["update", "-qq"])?;
    apt_get(&[&["install", "-y", "-qq", "--no-install-recommends"], names.as_slice()].concat())
}

fn is_installed(name: &str) -> bool {
    let query = Command::new("dpkg-query").args(["-W", "-f", "${db:Status-Status}", name]).output();
    query.is_ok_and(|output| output.stdout == b"installed")
}

fn apt_get(arguments: &[&str]) -> Result<()> {
    let mut command = Command::new("apt-get");
    command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
    // Its output is shown only if it fails.
    let output = command
        .output()
        .context("apt-get cannot be started; on other systems install the packages by hand")?;
    let text = [output.stdout, output.stderr].concat();
    ensure!(
        output.status.success(),
        "apt-get {}: {}\n{}",
        arguments[0],
        output.status,
        String::from_utf8_lossy(&text)
    );
    Ok(())
}
