//! `curt serve` and other clients: libnfs' tools and the Linux kernel.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use curt_bench::workload::Workload;
use curt_observe::Operation;
use curt_tests::capture::Capture;
use curt_tests::curt::{CurtServe, program, tree};
use curt_tests::kernel::{ClientJob, KernelNumber, linux_client};
use curt_tests::network::Network;
use curt_tests::process::until;

const SECONDS: Duration = Duration::from_secs(60);
const MINUTES: Duration = Duration::from_secs(800);
/// Timeout of tests that take two minutes on an idle machine.
const LONG: Duration = Duration::from_secs(900);

/// The Linux client's mount of a server, at /mnt/nfs.
fn mounting(server: &CurtServe) -> String {
    format!(
        "mount -t nfs -o vers=3,nolock,proto=tcp,{} {} /mnt/nfs || exit 1\n",
        server.ports(),
        server.source()
    )
}

#[test]
fn libnfs_tools_list_read_and_write() -> Result<()> {
    let network = Network::new()?;
    let export = network.make_directory("export")?;
    fs::write(export.join("small"), "what is in it\n")?;
    fs::create_dir(export.join("folder"))?;
    let large: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
    fs::write(export.join("large"), &large)?;
    let server = CurtServe::start(&network, &export, &[])?;
    let capture = Capture::start(&network, "libnfs", CurtServe::PORT)?;
    let ports = format!("version=3&nfsport={0}&mountport={0}", CurtServe::PORT);
    let url = |path: &str| format!("'nfs://10.77.0.1{}/{path}?{ports}'", export.display());
    let listed = network.shell(&format!("nfs-ls {}", url("")), SECONDS)?;
    ensure!(["small", "folder", "large"].iter().all(|name| listed.contains(name)), "{listed}");
    ensure!(network.shell(&format!("nfs-cat {}", url("small")), SECONDS)? == "what is in it\n");
    let copies = network.make_directory("copies")?;
    let copy = copies.join("large");
    network.shell(&format!("nfs-cp {} {}", url("large"), copy.display()), SECONDS)?;
    ensure!(fs::read(&copy)? == large, "nfs-cp read other bytes");
    network.shell(&format!("nfs-cp {} {}", copy.display(), url("folder/again")), SECONDS)?;
    ensure!(fs::read(export.join("folder/again"))? == large, "nfs-cp wrote other bytes");
    let malformed = capture.stop()?.malformed(&network)?;
    ensure!(malformed.is_empty(), "{malformed:?}");
    drop(server);
    Ok(())
}

#[test]
fn showmount_lists_exports_and_who_mounted_them() -> Result<()> {
    let network = Network::new()?;
    let _rpcbind = network.rpcbind()?;
    let export = network.make_directory("export")?;
    let server = CurtServe::start(&network, &export, &[])?;
    let capture = Capture::start(&network, "showmount", CurtServe::PORT)?;
    let path = export.display().to_string();
    let ask = |option: &str| network.shell(&format!("showmount --no-headers {option} 10.77.0.1"), SECONDS);
    let exports = ask("-e")?;
    ensure!(exports.lines().any(|line| line.starts_with(&path)), "{exports}");
    ensure!(!ask("-a")?.contains(&path));
    // Without ports: the client uses rpcbind, where the server is registered.
    let mount = format!("mount -t nfs -o vers=3,nolock,proto=tcp {} /mnt/nfs || exit 1\n", server.source());
    let script = format!(
        "{mount}touch /mnt/nfs/mounted; until [[ -e /mnt/nfs/go ]]; do sleep 0.1; done; umount /mnt/nfs"
    );
    let job = ClientJob::start(&network, KernelNumber(0), MINUTES, &script)?;
    until("the client has mounted", MINUTES, || Ok(export.join("mounted").exists().then_some(())))?;
    let clients = ask("-a")?;
    ensure!(clients.contains(&format!("{}:{path}", KernelNumber(0).address())), "{clients}");
    fs::write(export.join("go"), "")?;
    let done = job.finish()?;
    ensure!(done.status == Some(0), "{}", done.output);
    ensure!(!ask("-a")?.contains(&path), "who unmounted is still listed");
    // Only here are MOUNT's lists on the wire.
    let malformed = capture.stop()?.malformed(&network)?;
    ensure!(malformed.is_empty(), "{malformed:?}");
    Ok(())
}

/// Makes the Linux client send each of the 22 procedures: once with READDIRPLUS and once without,
/// with successes and errors.
const EVERY_PROCEDURE: &str = r#"
at() { mount -t nfs -o vers=3,nolock,proto=tcp,$1,$PORTS $SOURCE /mnt/nfs || exit 1; cd /mnt/nfs; }
at rdirplus
mkdir d && mkdir d/e && echo text >f && ln f g && ln -s f s && mkfifo p && mknod n c 1 3 && mknod b b 7 0 || exit 2
python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("sock")' 2>/dev/null
set -o noclobber; echo exclusive >x; set +o noclobber
for n in {1..300}; do : >d/name-$n; done
ls -lR . >/dev/null; readlink s; stat -f . >/dev/null; cat f; chmod 600 f; truncate -s 100000 f; touch -d 2001-01-01 f
dd if=/dev/zero of=large bs=1M count=5 conv=fsync 2>/dev/null; dd if=/dev/zero of=direct bs=64k count=3 oflag=direct 2>/dev/null
mv g h; mv h d/h; rm x; rmdir d 2>/dev/null; rmdir d/e; mkdir f 2>/dev/null; cat none 2>/dev/null
getconf NAME_MAX . >/dev/null
setpriv --reuid=1000 --regid=1000 --clear-groups bash -c 'cat f; echo >new; rm -f p; ls d' >/dev/null 2>&1
cd /; umount /mnt/nfs; at nordirplus
ls d | wc -l; ls -l >/dev/null; cat large >/dev/null; rm -r d
cd /; umount /mnt/nfs
"#;

#[test]
fn every_procedure_is_well_formed_on_the_wire() -> Result<()> {
    let network = Network::new()?;
    let export = network.make_directory("export")?;
    let server = CurtServe::start(&network, &export, &[])?;
    let capture = Capture::start(&network, "every", CurtServe::PORT)?;
    let script = format!("PORTS={} SOURCE={}\n{EVERY_PROCEDURE}", server.ports(), server.source());
    let output = linux_client(&network, KernelNumber(0), MINUTES, &script)?;
    ensure!(output.contains("text") && output.lines().any(|line| line == "301"), "{output}");
    let captured = capture.stop()?;
    let calls = captured.calls()?;
    let missing: Vec<_> =
        Operation::nfs().map(Operation::name).filter(|name| !calls.contains_key(*name)).collect();
    ensure!(missing.is_empty(), "never called: {missing:?}; {calls:?}");
    let malformed = captured.malformed(&network)?;
    ensure!(malformed.is_empty(), "{malformed:?}");
    Ok(())
}

#[test]
fn linux_builds_a_c_project_in_an_export() -> Result<()> {
    let network = Network::new()?;
    let export = network.make_directory("export")?;
    let server = CurtServe::start(&network, &export, &[])?;
    let capture = Capture::start(&network, "build", CurtServe::PORT)?;
    let project = r##"
cd /mnt/nfs && mkdir -p project/include && cd project || exit 1
for n in 1 2 3 4 5 6; do
    echo "int f$n(int x);" >include/f$n.h
    printf '#include "f%s.h"\nint f%s(int x) { return x + %s; }\n' $n $n $n >f$n.c
done
{ for n in 1 2 3 4 5 6; do echo "#include \"f$n.h\""; done
  echo '#include <stdio.h>'; echo 'int main(void) { printf("%d\n", f1(f2(f3(f4(f5(f6(0))))))); return 0; }'; } >main.c
printf 'O = f1.o f2.o f3.o f4.o f5.o f6.o main.o\nprogram: $(O)\n\tgcc -o $@ $(O)\nclean:\n\trm -f $(O) program\n%%.o: %%.c\n\tgcc -Iinclude -c $< -o $@\n' >Makefile
make && ./program && mv program kept && make clean && ls -la . include && rm -r include && cat Makefile | wc -l && umount /mnt/nfs 2>/dev/null; cd /; umount /mnt/nfs
"##;
    let output =
        linux_client(&network, KernelNumber(0), MINUTES, &format!("{}{project}", mounting(&server)))?;
    ensure!(output.lines().any(|line| line == "21"), "{output}");
    ensure!(export.join("project/kept").exists() && !export.join("project/main.o").exists(), "{output}");
    let malformed = capture.stop()?.malformed(&network)?;
    ensure!(malformed.is_empty(), "{malformed:?}");
    Ok(())
}

#[test]
fn linux_replays_page_without_a_wrong_result() -> Result<()> {
    let network = Network::new()?;
    let server = CurtServe::start(&network, &tree(Workload::Page)?, &["--ro"])?;
    let replay = program("curt-replay")?.display().to_string();
    let script = format!(
        "{}setpriv --reuid=65534 --regid=65534 --clear-groups {replay} page /mnt/nfs",
        mounting(&server)
    );
    let output = linux_client(&network, KernelNumber(0), MINUTES, &script)?;
    ensure!(output.contains("\"wrong\":0"), "{output}");
    Ok(())
}

/// 15,000 operations; with CURT_FULL=1 100,000.
#[test]
fn linux_writes_at_random() -> Result<()> {
    let operations = if std::env::var_os("CURT_FULL").is_some() { 100_000 } else { 15_000 };
    let network = Network::new()?;
    let export = network.make_directory("export")?;
    let server = CurtServe::start(&network, &export, &[])?;
    let writer = program("random-writer")?.display().to_string();
    let run = format!("{writer} --seed 3 --operations {operations} --keep /mnt/nfs; umount /mnt/nfs");
    let output = linux_client(&network, KernelNumber(0), LONG, &format!("{}{run}", mounting(&server)))?;
    ensure!(output.contains("all as it should be"), "{output}");
    // The client may have read from its own cache: the files themselves are checked, too.
    verify(&network, &writer, &export, 3, operations)
}

fn verify(network: &Network, writer: &str, directory: &Path, seed: u64, operations: u64) -> Result<()> {
    let script = format!("{writer} --verify --seed {seed} --operations {operations} {}", directory.display());
    network.shell(&script, MINUTES).map(drop)
}

#[test]
fn killed_server_loses_nothing_that_was_synced() -> Result<()> {
    let network = Network::new()?;
    let export = network.make_directory("export")?;
    let mut server = CurtServe::start(&network, &export, &[])?;
    let writer = program("random-writer")?.display().to_string();
    let run =
        format!("{writer} --seed 4 --operations 12000 --progress 2000 --keep /mnt/nfs; umount /mnt/nfs");
    let job = ClientJob::start(&network, KernelNumber(0), MINUTES, &format!("{}{run}", mounting(&server)))?;
    for reached in ["\n2000", "\n6000"] {
        job.wait_for(reached)?;
        server.kill()?;
        server.restart(&network)?;
    }
    let done = job.finish()?;
    ensure!(done.output.contains("all as it should be"), "{}", done.output);
    verify(&network, &writer, &export, 4, 12_000)
}

/// Waits inside a job for a file that the other side creates.
const MEET: &str = "meet() { touch $MEETING/$1; until [[ -e $MEETING/$2 ]]; do sleep 0.05; done; }\n";

#[test]
fn two_linux_clients_see_each_others_changes_at_the_next_open() -> Result<()> {
    let network = Network::new()?;
    let export = network.make_directory("export")?;
    let meeting = network.make_directory("meeting")?;
    let server = CurtServe::start(&network, &export, &[])?;
    let head = format!("MEETING={}\n{MEET}{}", meeting.display(), mounting(&server));
    let one = format!(
        "{head}echo first >/mnt/nfs/file; meet one-1 two-1; echo second, longer >/mnt/nfs/file; meet one-2 two-2\n\
         [[ $(</mnt/nfs/file) == third ]] || exit 5; rm /mnt/nfs/file; meet one-3 two-3; umount /mnt/nfs"
    );
    let two = format!(
        "{head}meet two-0 one-1; [[ $(</mnt/nfs/file) == first ]] || exit 5; meet two-1 one-2\n\
         [[ $(</mnt/nfs/file) == 'second, longer' ]] || exit 6; echo third >/mnt/nfs/file; meet two-2 one-3\n\
         ! cat /mnt/nfs/file 2>/dev/null || exit 7; touch $MEETING/two-3; umount /mnt/nfs"
    );
    let one = ClientJob::start(&network, KernelNumber(0), MINUTES, &one)?;
    let two = ClientJob::start(&network, KernelNumber(1), MINUTES, &two)?;
    let (one, two) = (one.finish()?, two.finish()?);
    ensure!(one.status == Some(0) && two.status == Some(0), "one: {one:?}\ntwo: {two:?}");
    Ok(())
}

/// The one row in which an export differs from a local file system, on purpose: a write clears the
/// suid bit even for root, because a server cannot know whether a client's root sends data of other
/// users.
const LOCAL_ROOT_KEEPS_SUID: (&str, &str) =
    ("0 0 suid: status 0 6777 1000 1000 7", "0 0 suid: status 0 777 1000 1000 7");

/// Six callers try twelve operations on a tmpfs and on the export, in the same kernel; the same
/// ones must succeed on both.
#[test]
fn permissions_equal_those_of_a_local_file_system() -> Result<()> {
    let network = Network::new()?;
    let export = network.make_directory("export")?;
    fs::set_permissions(&export, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let server = CurtServe::start(&network, &export, &[])?;
    let script = format!("{}{PERMISSIONS}", mounting(&server));
    let output = linux_client(&network, KernelNumber(0), MINUTES, &script)?;
    let rows = |prefix: &str| -> Vec<String> {
        output
            .lines()
            .filter_map(|line| line.strip_prefix(prefix))
            .map(|line| line.trim_end().to_owned())
            .collect()
    };
    let (local, remote) = (rows("local "), rows("nfs "));
    ensure!(local.len() == 72, "{} rows:\n{output}", local.len());
    let differing: Vec<_> = local
        .iter()
        .zip(&remote)
        .filter(|(local, remote)| local != remote)
        .map(|(local, remote)| (local.as_str(), remote.as_str()))
        .collect();
    ensure!(differing == [LOCAL_ROOT_KEEPS_SUID] && remote.len() == local.len(), "{differing:#?}\n{output}");
    // The table must contain both successes and failures.
    let refused = local.iter().filter(|row| !row.contains("status 0")).count();
    ensure!((12..60).contains(&refused), "{refused} of 72 are refused");
    Ok(())
}

const PERMISSIONS: &str = r#"
callers=('0 0 0' '1000 1000 1000' '1001 1000 1000' '1002 1002 1000,1002' '1003 1003 1003' '65534 65534 65534')
template() { # a tree of user 1000, group 1000; commands are few here, for each takes the kernel a tenth of a second to start
    mkdir $1; cd $1; mkdir list search make sticky setgid fixed
    for file in read write owned times search/inside sticky/other list/inside fixed/linked suid; do echo data >$file; done
    echo '#!/bin/sh' >run
    chown -R 1000:1000 .
    chmod 750 list; chmod 710 search run; chmod 770 make; chmod 1777 sticky; chmod 2775 setgid; chmod 755 fixed
    chmod 640 read; chmod 460 write; chmod 644 owned search/inside list/inside fixed/linked; chmod 666 times sticky/other; chmod 6777 suid; cd /
}
prepare() {
    rm -rf $1/t; cp -a /dev/shm/template $1/t
}
try() { # try WHERE PLACE NAME COMMAND [FILE]: as the present caller; and what became of FILE
    cd $2/t; setpriv --reuid=$uid --regid=$gid --groups=$groups sh -c "$4" >/dev/null 2>&1
    local status=$?
    echo "$1 $uid $groups $3: status $status $([[ -z ${5-} ]] || stat -c '%a %u %g %s' $5 2>/dev/null)"; cd /
}
table() {
    for caller in "${callers[@]}"; do
        read -r uid gid groups <<<"$caller"
        prepare $2
        try $1 $2 read 'read line <read'
        try $1 $2 write 'echo more >>write'
        try $1 $2 list 'ls list'
        try $1 $2 search 'read line <search/inside'
        try $1 $2 make ': >make/new && mv make/new make/renamed && rm make/renamed'
        try $1 $2 sticky 'rm -f sticky/other'
        try $1 $2 mode 'chmod 600 owned'
        try $1 $2 owner "chown 1003 owned"
        try $1 $2 times 'touch times'
        try $1 $2 exact 'touch -d 2001-01-01 times'
        try $1 $2 setgid ': >setgid/new' setgid/new
        try $1 $2 suid 'echo x >>suid' suid
    done
}
template /dev/shm/template; mkdir /dev/shm/local
table local /dev/shm/local
table nfs /mnt/nfs
umount /mnt/nfs
"#;
