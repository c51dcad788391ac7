//! `curt serve` with exports(5) files: lines of each kind, checked by the Linux client as three
//! users, with reloads meanwhile; and errors of files, directories and state directories.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use curt_tests::curt::program;
use curt_tests::kernel::{ClientJob, KernelNumber};
use curt_tests::network::{ADDRESS, Network};
use curt_tests::process::{RunningProcess, finish};
use rustix::process::Signal;

const SECONDS: Duration = Duration::from_secs(60);
const MINUTES: Duration = Duration::from_secs(400);

/// The Linux client's names in the server's name services.
const HOSTS: &str =
    "127.0.0.1 localhost\n10.77.0.1 server.lab.test\n10.77.0.2 kernel.lab.test\n10.99.0.1 other.lab.test\n";
const NETGROUPS: &str = "trusted (kernel.lab.test,,)\nelsewhere (other.lab.test,,)\n";

/// /etc/exports; `E` is the directory of the exports.
const EXPORTS: &str = r#"# each line of another kind
E/host      kernel.lab.test(rw,no_root_squash) *(ro)
E/address   -rw,sync 10.77.0.2 10.99.0.0/16(ro)
E/network   10.77.0.0/24(rw,all_squash,anonuid=1000,anongid=1000)
E/mask      10.77.0.0/255.255.255.0(ro)
E/wild      *.lab.test(rw) \
            *(ro)
E/group     @elsewhere(ro) @trusted(rw,no_root_squash)
"E/with space" (rw)   # everybody
E/closed    10.99.0.0/16(rw) other.lab.test(rw) @elsewhere(rw) *.example.org(rw)
E/cross     *(rw,no_root_squash,crossmnt)
E/hides     *(rw,no_root_squash)
E/tree/sub  *(rw,no_root_squash,subtree_check)
"#;
/// /etc/exports.d/more.exports
const MORE: &str = r#"E/none      *(rw,sec=none,anonuid=2000,anongid=2000)
E/lazy      *(rw,async,fsid=77)
E/open      *(rw,insecure,nordirplus)
E/point     *(rw,mp)
E/unknown   nowhere.invalid(rw) *(ro)
"#;

/// The directories to export.
const DIRECTORIES: [&str; 16] = [
    "host",
    "address",
    "network",
    "mask",
    "wild",
    "group",
    "with space",
    "closed",
    "cross/disk",
    "hides/disk",
    "tree/sub/inner",
    "none",
    "lazy",
    "open",
    "point",
    "unknown",
];

/// A network with its own /etc.
fn machine() -> Result<(Network, String)> {
    let network = Network::new()?;
    let top = network.directory().display().to_string();
    let export = network.make_directory("e")?.display().to_string();
    network.shell(&format!("cp -a /etc {top}/etc && mount --bind {top}/etc /etc"), SECONDS)?;
    let write = |name: &str, text: &str| fs::write(network.directory().join("etc").join(name), text);
    write("hosts", HOSTS)?;
    write("netgroup", NETGROUPS)?;
    write("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\nnetgroup: files\n")?;
    let mut groups = fs::read_to_string("/etc/group")?;
    for number in 70_000..70_040 {
        groups += &format!("many{number}:x:{number}:manyfold\n");
    }
    write("group", &groups)?;
    let mut users = fs::read_to_string("/etc/passwd")?;
    users += "manyfold:x:3000:3000::/:/bin/sh\n";
    write("passwd", &users)?;
    fs::create_dir_all(network.directory().join("etc/exports.d"))?;
    write("exports", &EXPORTS.replace("E/", &format!("{export}/")))?;
    write("exports.d/more.exports", &MORE.replace("E/", &format!("{export}/")))?;
    for name in DIRECTORIES {
        fs::create_dir_all(Path::new(&export).join(name))?;
    }
    for entry in fs::read_dir(&export)? {
        fs::set_permissions(entry?.path(), fs::Permissions::from_mode(0o1777))?;
    }
    for path in ["tree/sub", "tree/sub/inner"] {
        fs::set_permissions(Path::new(&export).join(path), fs::Permissions::from_mode(0o1777))?;
    }
    let disks = format!(
        "for disk in cross hides; do mount -t tmpfs -o mode=1777 $disk {export}/$disk/disk; touch {export}/$disk/disk/inside; done"
    );
    network.shell(&disks, SECONDS)?;
    Ok((network, export))
}

/// `curt serve` with /etc/exports of the network.
fn serve(network: &Network, arguments: &[&str]) -> Result<RunningProcess> {
    let mut command = network.command(program("curt")?);
    command.args(["serve", "--bind", &format!("{ADDRESS}:2049")]);
    command.arg("--state").arg(network.make_directory("state")?).args(arguments);
    let server = RunningProcess::start("curt serve", &mut command)?;
    server.wait_for("listening on", SECONDS)?;
    Ok(server)
}

/// The Linux client's script: a line for each export, with the owners of files that each user
/// created.
const JOB: &str = r#"
OPTIONS=vers=3,nolock,proto=tcp,port=2049,mountport=2049
at() { # at NAME OPTIONS: mounts an export
    mount -t nfs -o "$OPTIONS$2" "$SERVER:$E/$1" /mnt/nfs 2>/dev/shm/why
}
as() { local uid=$1; shift; setpriv --reuid=$uid --regid=$uid --clear-groups "$@"; }
row() { # row NAME [OPTIONS [DIRECTORY]]
    local line="row $1:" uid file
    if at "$1" "$2"; then
        for uid in 0 1000 2000; do
            file=/mnt/nfs/$3/by-$uid
            if as $uid touch "$file" 2>/dev/shm/why; then line+=" $(stat -c %u "$file")"
            elif grep -q 'Read-only' /dev/shm/why; then line+=" ro"
            else line+=" refused"; fi
        done
        umount /mnt/nfs
    else
        line+=" $(grep -o 'denied\|No such file\|not a directory' /dev/shm/why || tail -1 /dev/shm/why)"
    fi
    echo "$line"
}
for name in host address network mask wild group 'with space' closed open lazy point unknown tree/sub; do row "$name"; done
row none ,sec=none
row cross '' disk
row cross/disk
row hides '' disk
row host ,noresvport
row open ,noresvport
row address/by-0
at cross; echo "cross: $(ls /mnt/nfs/disk | tr '\n' ' ')"; cd /mnt/nfs/disk && cd .. && echo "up: $(ls | tr '\n' ' ')"; cd /; umount /mnt/nfs
at hides; echo "hides: $(ls /mnt/nfs/disk | tr '\n' ' ')"; umount /mnt/nfs
at lazy; dd if=/dev/zero of=/mnt/nfs/data bs=64k count=4 conv=fsync 2>/dev/null && echo "lazy: $(stat -c %s /mnt/nfs/data)"; umount /mnt/nfs
at open; for n in 1 2 3; do : >/mnt/nfs/n$n; done; ls -l /mnt/nfs >/dev/null; echo "open: $(ops | grep -o 'READDIR=[0-9]*') $(ls /mnt/nfs | wc -l)"; umount /mnt/nfs
at tree/sub; cd /mnt/nfs/inner; cat file; echo "tree: before"
until [[ -e $MEETING/moved ]]; do sleep 0.1; done; cat file 2>&1 | grep -o 'Stale'; cd /; umount /mnt/nfs
at host; mkdir /mnt/nfs/groups; echo secret >/mnt/nfs/groups/file; chgrp 70030 /mnt/nfs/groups/file; chmod 640 /mnt/nfs/groups/file
as 3000 cat /mnt/nfs/groups/file 2>&1 | tail -1; as 1000 cat /mnt/nfs/groups/file 2>&1 | grep -o denied
echo mounted
until [[ -e $MEETING/removed ]]; do sleep 0.1; done
ls /mnt/nfs 2>&1 | grep -o 'Stale'
echo after the reload
until [[ -e $MEETING/back ]]; do sleep 0.1; done
cat /mnt/nfs/groups/file
umount /mnt/nfs
"#;

/// Its output, line by line.
const SAID: &str = "row host: 0 1000 2000
row address: 65534 1000 2000
row network: 1000 1000 1000
row mask: ro ro ro
row wild: 65534 1000 2000
row group: 0 1000 2000
row with space: 65534 1000 2000
row closed: denied
row open: 65534 1000 2000
row lazy: 65534 1000 2000
row point: No such file
row unknown: ro ro ro
row tree/sub: 0 1000 2000
row none: 2000 2000 2000
row cross: 0 1000 2000
row cross/disk: 0 1000 2000
row hides: 0 refused refused
row host: denied
row open: 65534 1000 2000
row address/by-0: not a directory
cross: by-0 by-1000 by-2000 inside
up: disk
hides: by-0
lazy: 262144
open: READDIR=1 6
text
tree: before
Stale
secret
denied
mounted
Stale
after the reload
secret
";

// SEMANTICS: export-1, export-2.
#[test]
fn every_kind_of_line_is_served_to_the_linux_client_and_read_again() -> Result<()> {
    let (network, export) = machine()?;
    let export = Path::new(&export);
    fs::write(export.join("tree/sub/inner/file"), "text\n")?;
    let meeting = network.make_directory("meeting")?;
    // showmount(8) needs it to find the port.
    let _rpcbind = network.rpcbind()?;
    let mut server = serve(&network, &["--manage-gids"])?;
    let script = format!("E={}\nMEETING={}\n{JOB}", export.display(), meeting.display());
    let job = ClientJob::start(&network, KernelNumber(0), MINUTES, &script)?;
    job.wait_for("tree: before")?;
    // Outside of the export, but on its file system: without the check its handle would still be
    // valid.
    fs::rename(export.join("tree/sub/inner"), export.join("tree/inner"))?;
    fs::write(meeting.join("moved"), "")?;
    job.wait_for("mounted")?;
    let file = network.directory().join("etc/exports");
    let text = fs::read_to_string(&file)?;
    fs::write(&file, format!("{text}{}/host broken(really)\n", export.display()))?;
    server.signal(Signal::HUP)?;
    server.wait_for("error: really: no such option", SECONDS)?;
    server.wait_for("the exports are unchanged", SECONDS)?;
    let without: String =
        text.lines().filter(|line| !line.contains("/host ")).map(|line| format!("{line}\n")).collect();
    fs::write(&file, without)?;
    server.signal(Signal::HUP)?;
    let removed = format!("removed {}/host kernel.lab.test(rw,no_root_squash", export.display());
    server.wait_for(&removed, SECONDS)?;
    fs::write(meeting.join("removed"), "")?;
    job.wait_for("after the reload")?;
    fs::write(&file, text)?;
    server.signal(Signal::HUP)?;
    server.wait_for(&removed.replace("removed", "added"), SECONDS)?;
    fs::write(meeting.join("back"), "")?;
    let done = job.finish()?;
    let said: String = done.output.lines().map(|line| format!("{}\n", line.trim())).collect();
    ensure!(said == SAID, "status {:?}, said:\n{said}\nserver:\n{}", done.status, server.output());
    ensure!(server.output().contains("async: changes are answered before"));
    ensure!(server.output().contains("unknown host nowhere.invalid"));
    listed_and_explained(&network, export)?;
    ensure!(server.stop()?.success());
    Ok(())
}

/// The output of showmount and `curt exports` for the same lines.
fn listed_and_explained(network: &Network, export: &Path) -> Result<()> {
    let ask = format!("{} exports 10.77.0.2 2>/dev/null", program("curt")?.display());
    let explained = network.shell(&ask, SECONDS)?;
    let of = |name: &str| -> Result<String> {
        let start = format!("  {}/{name}\n", export.display());
        let at = explained.find(&start).context(name.to_owned())? + start.len();
        Ok(explained[at..].lines().take(2).collect())
    };
    for (name, by) in [
        ("host", "by host kernel.lab.test at /etc/exports:2"),
        ("network", "by network 10.77.0.0/24 at /etc/exports:4"),
        ("wild", "by pattern of names *.lab.test at /etc/exports:6"),
        ("group", "by netgroup @trusted at /etc/exports:8"),
        ("open", "by everybody * at /etc/exports.d/more.exports:3"),
        ("closed", "nothing: no line of it matches this client"),
    ] {
        ensure!(of(name)?.contains(by), "{name}: {explained}");
    }
    // From this machine, which is in the network, and matches "everybody"; the other exports are
    // for other clients.
    let shown = network.shell("showmount --no-headers -e 10.77.0.1", SECONDS)?;
    for (name, is_shown) in [
        ("host", true),
        ("network", true),
        ("open", true),
        ("address", false),
        ("group", false),
        ("closed", false),
    ] {
        let start = format!("{}/{name} ", export.display());
        ensure!(shown.lines().any(|line| line.starts_with(&start)) == is_shown, "{name}: {shown}");
    }
    Ok(())
}

/// Runs `curt serve` with these arguments; returns its status and its standard error.
fn refused(network: &Network, words: &str) -> Result<(Option<i32>, String)> {
    let script = format!("exec {} serve {words}", program("curt")?.display());
    let (status, _, errors) = finish(network.command("bash").args(["-c", &script]), SECONDS)?;
    Ok((status.code(), errors))
}

/// A file that cannot be served (`T` is the test's directory), and the message.
const BROKEN: [(&str, &str); 7] = [
    ("T/good *(rw)\nT/same *(ro)\n", "exports:2: error: T/same: T/exports:1 already exports this directory"),
    ("T/gone *(rw)\n", "exports:1: error: T/gone: there is no such directory"),
    ("\nT/a *(rw)\n", "exports:2: error: T/a: cannot be exported: Too many levels of symbolic links"),
    ("T/plain *(rw)\n", "exports:1: error: T/plain: not a directory"),
    ("T/good *(rw,sec=krb5)\n", "exports:1: error: sec=krb5: Kerberos is not supported"),
    ("T/good *(rw,refer=/x@y)\n", "exports:1: error: refer=/x@y: this server makes no referrals"),
    ("T/good a(fsid=1) b(fsid=2)\n", "exports:1: error: T/good: has another fsid="),
];

// SEMANTICS: export-2.
#[test]
fn files_that_cannot_be_served_are_reported_line_by_line() -> Result<()> {
    let network = Network::new()?;
    let top = network.directory();
    symlink("good", top.join("same"))?;
    symlink("b", top.join("a"))?;
    symlink("a", top.join("b"))?;
    network.make_directory("good")?;
    fs::write(top.join("plain"), "")?;
    let at = top.display();
    let check = |text: &str| {
        fs::write(top.join("exports"), text.replace("T/", &format!("{at}/")))?;
        refused(&network, &format!("--check -c {at}/exports"))
    };
    for (text, expected) in BROKEN {
        let (status, errors) = check(text)?;
        let expected = expected.replace("T/", &format!("{at}/"));
        ensure!(status == Some(1) && errors.contains(&expected), "{text}: {status:?} {errors}");
    }
    let (status, errors) = check("T/good nowhere.invalid(rw,async) bob (rw)\n")?;
    ensure!(status == Some(0), "{errors}");
    for warning in ["unknown host", "async: changes are answered before", "bob: the blank before ("] {
        ensure!(errors.contains(warning), "{warning}: {errors}");
    }
    // A file with errors is not served at all; a missing directory does not affect the others.
    fs::write(top.join("exports"), format!("{at}/good *(rw)\n{at}/x *(wrong)\n"))?;
    let (status, errors) = refused(&network, &format!("-c {at}/exports --state {at}/state"))?;
    ensure!(status == Some(1) && errors.contains("exports:2: error: wrong: no such option"), "{errors}");
    for (words, expected) in [
        (format!("-c {at}/exports --ro"), "--ro is for `curt serve DIR`"),
        (format!("-c {at}/none"), "none: error: cannot be read: No such file"),
    ] {
        let (status, errors) = refused(&network, &words)?;
        ensure!(status == Some(1) && errors.contains(expected), "{words}: {errors}");
    }
    Ok(())
}

#[test]
fn a_directory_that_vanished_is_served_when_a_reload_finds_it() -> Result<()> {
    let network = Network::new()?;
    let top = network.directory();
    let exports = top.join("exports");
    fs::write(&exports, format!("{0}/one *(rw,insecure)\n{0}/two *(rw,insecure)\n", top.display()))?;
    network.make_directory("one")?;
    let mut server = serve(&network, &["-c", &exports.display().to_string()])?;
    server.wait_for("two: there is no such directory", SECONDS)?;
    let list = |name: &str| {
        let ports = "version=3&nfsport=2049&mountport=2049";
        network.shell(&format!("nfs-ls 'nfs://{ADDRESS}{}/{name}?{ports}'", top.display()), SECONDS)
    };
    ensure!(list("one").is_ok() && list("two").is_err());
    fs::write(network.make_directory("two")?.join("file"), "")?;
    fs::remove_dir(top.join("one"))?;
    ensure!(list("one").is_err(), "what is gone is not served");
    server.signal(Signal::HUP)?;
    server.wait_for("added", SECONDS)?;
    ensure!(list("two")?.contains("file"));
    server.wait_for("removed", SECONDS)?;
    ensure!(server.stop()?.success());
    Ok(())
}

#[test]
fn a_state_directory_that_cannot_be_used_is_reported() -> Result<()> {
    let network = Network::new()?;
    let top = network.directory().display().to_string();
    network.make_directory("good")?;
    let script = format!(
        "mkdir {top}/full {top}/fixed {top}/foreign {top}/shared
         mount -t tmpfs -o size=8k,mode=700 full {top}/full; head -c 100k /dev/zero >{top}/full/filler 2>/dev/null || true
         mount -t tmpfs -o mode=700 fixed {top}/fixed; mount -o remount,ro {top}/fixed
         chown 1000 {top}/foreign; chmod 777 {top}/shared"
    );
    network.shell(&script, SECONDS)?;
    let serve_with = |state: &str| {
        refused(&network, &format!("{top}/good --bind {ADDRESS}:2049 --no-rpcbind --state {top}/{state}"))
    };
    for (state, expected) in [
        ("full", "No space left on device"),
        ("fixed", "Read-only file system"),
        ("foreign", "belongs to user 1000"),
        ("shared", "others may write to"),
    ] {
        let (status, errors) = serve_with(state)?;
        let advised = errors.contains("choose another with --state DIR");
        ensure!(status == Some(1) && errors.contains(expected) && advised, "{state}: {status:?} {errors}");
    }
    fs::write(network.directory().join("exports"), format!("{top}/good *(rw)\n"))?;
    let mut first = serve(&network, &["-c", &format!("{top}/exports")])?;
    let words = format!("{top}/good --bind {ADDRESS}:2050 --no-rpcbind --state {top}/state");
    let (status, errors) = refused(&network, &words)?;
    ensure!(status == Some(1) && errors.contains("is in use by another server"), "{errors}");
    ensure!(first.stop()?.success());
    Ok(())
}
