//! Operations on open files and on paths: sizes, dirty data, and holes.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use curt_tests::curt::{CurtMount, CurtServe, MountedExport, program};
use curt_tests::ganesha::Ganesha;
use curt_tests::kernel::{KernelNumber, Knfsd, KnfsdOptions};
use curt_tests::network::Network;

const MINUTE: Duration = Duration::from_secs(60);
const OPTIONS: [&str; 2] = ["accesscheck", "noaccesscheck"];

/// The start of each script below: `become` changes the user of the process, `said` returns the
/// result of a call.
const PRELUDE: &str = r#"
import errno, os, sys
os.chdir(sys.argv[1])
os.umask(0)
def become(user):
    os.setresuid(0, 0, 0)
    os.setgroups([])
    os.setresgid(user, user, 0)
    os.setresuid(user, user, 0)
def said(call):
    try:
        answer = call()
        return "ok" if answer is None else str(answer)
    except OSError as error:
        return errno.errorcode[error.errno]
def make(name, mode, data=b"0123456789", flags=os.O_RDWR):
    file = os.open(name, os.O_CREAT | flags, mode)
    os.write(file, data)
    return file
def close(flags, name):
    os.close(os.open(name, flags))
"#;

/// Runs `script` below `directory` and returns the lines of its output.
fn python(network: &Network, directory: &Path, script: &str) -> Result<Vec<String>> {
    let program = network.directory().join("program.py");
    fs::write(&program, format!("{PRELUDE}{script}"))?;
    let command = format!("python3 {} {}", program.display(), directory.display());
    let said = network.shell(&command, MINUTE)?;
    Ok(said.lines().map(str::to_owned).collect())
}

/// Runs the script on mounts of `curt serve` with both kinds of permission checks, and in a local
/// directory: all print `expected`.
fn everywhere(script: &str, expected: &[&str]) -> Result<()> {
    let network = Network::new()?;
    let local = network.make_directory("local")?;
    fs::set_permissions(&local, fs::Permissions::from_mode(0o777))?;
    let said = python(&network, &local, script)?;
    ensure!(said == expected, "in a local directory: {said:#?}");
    for options in OPTIONS {
        let served = MountedExport::start(0o777, &[], options)?;
        let said = python(&served.network, served.mount.directory(), script)?;
        ensure!(said == expected, "{options}: {said:#?}");
        served.mount.unmount()?;
    }
    Ok(())
}

// SEMANTICS: perm-8.
#[test]
fn a_path_needs_the_right_to_write_and_what_is_open_for_writing_does_not() -> Result<()> {
    let script = r#"
become(1000)
file = make("f", 0o444)
print("ftruncate", said(lambda: os.ftruncate(file, 8)))
print("truncate", said(lambda: os.truncate("f", 5)))
print("O_TRUNC", said(lambda: close(os.O_TRUNC | os.O_RDONLY, "f")))
print("O_TRUNC for writing", said(lambda: close(os.O_TRUNC | os.O_WRONLY, "f")))
print("size", os.stat("f").st_size)
print("O_CREAT and O_TRUNC", said(lambda: os.close(make("new", 0o444, flags=os.O_RDWR | os.O_TRUNC))))
os.chmod("f", 0o222)
print("truncate what may be written alone", said(lambda: os.truncate("f", 5)))
print("O_TRUNC", said(lambda: close(os.O_TRUNC | os.O_RDONLY, "f")))
os.chmod("f", 0o444)
become(0)
print("root's truncate", said(lambda: os.truncate("f", 3)))
become(2000)
print("another's truncate", said(lambda: os.truncate("f", 1)))
print("size", os.stat("f").st_size)
os.close(file)
"#;
    let expected = [
        "ftruncate ok",
        "truncate EACCES",
        "O_TRUNC EACCES",
        "O_TRUNC for writing EACCES",
        "size 8",
        "O_CREAT and O_TRUNC ok",
        "truncate what may be written alone ok",
        "O_TRUNC EACCES",
        "root's truncate ok",
        "another's truncate EACCES",
        "size 3",
    ];
    everywhere(script, &expected)
}

// SEMANTICS: perm-8.
#[test]
fn what_a_process_opened_it_may_use_after_it_became_another_user() -> Result<()> {
    let script = r#"
become(1000)
file = make("f", 0o600)
become(2000)
print("ftruncate", said(lambda: os.ftruncate(file, 3)))
print("write", said(lambda: os.pwrite(file, b"xyz", 3)))
print("fsync", said(lambda: os.fsync(file)))
print("read", said(lambda: os.pread(file, 9, 0)))
print("ftruncate", said(lambda: os.ftruncate(file, 5)))
print("truncate", said(lambda: os.truncate("f", 1)))
print("fchmod", said(lambda: os.fchmod(file, 0o666)))
print("close", said(lambda: os.close(file)))
print("size", os.stat("f").st_size)
"#;
    let expected = [
        "ftruncate ok",
        "write 3",
        "fsync ok",
        "read b'012xyz'",
        "ftruncate ok",
        "truncate EACCES",
        "fchmod EPERM",
        "close ok",
        "size 5",
    ];
    everywhere(script, &expected)
}

// SEMANTICS: write-4.
#[test]
fn close_writes_earlier_data_after_root_changed_the_owner_and_reports_errors() -> Result<()> {
    let script = r#"
for name, length in ("small", 10), ("large", 3 << 20):
    become(1000)
    file = make(name, 0o600, b"x" * length)
    become(0)
    os.chown(name, 0, 0)
    become(1000)
    print(name, "fsync", said(lambda: os.fsync(file)))
    print(name, "close", said(lambda: os.close(file)))
    become(0)
    print(name, os.stat(name).st_size)
"#;
    let expected =
        ["small fsync ok", "small close ok", "small 10", "large fsync ok", "large close ok", "large 3145728"];
    everywhere(script, &expected)
}

// SEMANTICS: posix-2.
#[test]
fn holes_are_looked_for_up_to_the_end_of_a_file_and_no_further() -> Result<()> {
    let script = r#"
def seek(file, whence, *offsets):
    print(*(said(lambda: os.lseek(file, offset, whence)) for offset in offsets))
for length in 0, 10000, (5 << 30) + 1:
    file = make("f", 0o644)
    os.ftruncate(file, length)
    for whence in os.SEEK_DATA, os.SEEK_HOLE:
        seek(file, whence, length, length + 1, length + (1 << 40), (1 << 63) - 1, -1, -1 << 63)
    os.pwrite(file, b"x", length)
    seek(file, os.SEEK_DATA, length, length + 1)
    seek(file, os.SEEK_HOLE, length, length + 1)
    os.close(file)
    os.unlink("f")
"#;
    let behind = "ENXIO ENXIO ENXIO ENXIO ENXIO ENXIO";
    let at = |length: u64| [format!("{length} ENXIO"), format!("{} ENXIO", length + 1)];
    let expected: Vec<String> = [0, 10_000, (5 << 30) + 1]
        .into_iter()
        .flat_map(|length| {
            let [data, hole] = at(length);
            [behind.to_owned(), behind.to_owned(), data, hole]
        })
        .collect();
    let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
    everywhere(script, &expected)
}

// SEMANTICS: write-5.
#[test]
fn a_byte_that_the_servers_file_system_has_no_room_for_is_refused_when_it_is_written() -> Result<()> {
    let network = Network::new()?;
    let _rpcbind = network.rpcbind()?;
    let options =
        KnfsdOptions { image: Some(network.directory().join("disk.img")), ..KnfsdOptions::default() };
    let server = Knfsd::start(&network, KernelNumber(1), 5 * MINUTE, &options)?;
    let mount = CurtMount::start(&network, "mount", &format!("{}:/export", server.address()), "")?;
    // ext4 has at most 2^32 - 1 blocks of 4096 bytes in a file.
    let script = r#"
largest = ((1 << 32) - 1) << 12
file = make("f", 0o644)
print("far", said(lambda: os.pwrite(file, b"x", 1 << 59)))
print("behind", said(lambda: os.pwrite(file, b"x", largest)))
print("ftruncate", said(lambda: os.ftruncate(file, largest + 1)))
print("truncate", said(lambda: os.truncate("f", 1 << 59)))
print("data", said(lambda: os.lseek(file, 9, os.SEEK_DATA)))
print("last", said(lambda: os.pwrite(file, b"xy", largest - 1)))
print("data", said(lambda: os.lseek(file, 14 << 20, os.SEEK_DATA)) == str(14 << 20))
print("hole", said(lambda: os.lseek(file, 0, os.SEEK_HOLE)) == str(largest))
print("close", said(lambda: os.close(file)))
"#;
    let said = python(&network, mount.directory(), script)?;
    let expected = [
        "far EFBIG",
        "behind EFBIG",
        "ftruncate EFBIG",
        "truncate EFBIG",
        "data 9",
        "last 1",
        "data True",
        "hole True",
        "close ok",
    ];
    ensure!(said == expected, "{said:#?}");
    mount.unmount()
}

// SEMANTICS: posix-3.
#[test]
fn names_on_a_mount_of_ganesha_have_255_bytes_at_most() -> Result<()> {
    let network = Network::new()?;
    let _rpcbind = network.rpcbind()?;
    let export = network.make_directory("export")?;
    let _server = Ganesha::start(&network, &export)?;
    let source = format!("{}:{}", curt_tests::network::ADDRESS, export.display());
    let mount = CurtMount::start(&network, "mount", &source, "")?;
    let script = r#"
print(os.statvfs(".").f_namemax, os.pathconf(".", "PC_NAME_MAX"))
os.close(make("known", 0o644))
for length in 255, 256, 1023, 1024, 1025:
    name = "n" * length
    calls = [
        lambda: os.close(make(name, 0o644)), lambda: os.unlink(name),
        lambda: os.mkdir(name), lambda: os.rmdir(name),
        lambda: os.symlink("known", name), lambda: os.unlink(name),
        lambda: os.link("known", name), lambda: os.unlink(name),
        lambda: os.mkfifo(name), lambda: os.unlink(name),
        lambda: os.rename("known", name), lambda: os.rename(name, "known"),
        lambda: os.truncate(name, 0) if length > 255 else None,
    ]
    print(*sorted({said(call) for call in calls}))
"#;
    let said = python(&network, mount.directory(), script)?;
    let long = "ENAMETOOLONG";
    ensure!(said == ["255 255", "ok", long, long, long, long], "{said:#?}");
    mount.unmount()
}

// SEMANTICS: posix-4.
#[test]
fn times_that_nfs_has_no_room_for_become_its_first_and_last_second() -> Result<()> {
    let served = MountedExport::start(0o755, &[], "")?;
    let script = r#"
os.close(make("f", 0o644))
for time in -1, -315593940 * 10**9 + 5, 1, ((1 << 32) - 1) * 10**9 + 7, (1 << 32) * 10**9 + 7:
    os.utime("f", ns=(time, time))
    print(os.stat("f").st_atime_ns, os.stat("f").st_mtime_ns)
"#;
    let said = python(&served.network, served.mount.directory(), script)?;
    let expected = [
        "0 0",
        "0 0",
        "1 1",
        "4294967295000000007 4294967295000000007",
        "4294967295000000000 4294967295000000000",
    ];
    ensure!(said == expected, "{said:#?}");
    served.mount.unmount()
}

// SEMANTICS: posix-5.
#[test]
fn an_access_time_is_the_servers_and_what_is_read_from_memory_moves_none() -> Result<()> {
    let network = Network::new()?;
    let export = network.make_directory("export")?;
    network.shell(&format!("mount -t tmpfs -o strictatime none {}", export.display()), MINUTE)?;
    let server = CurtServe::start(&network, &export, &[])?;
    let options = format!("{},strictatime,acregmin=1,acregmax=1", server.ports());
    let mount = CurtMount::start(&network, "mount", &server.source(), &options)?;
    // Data that were read while the file's times were recent are read again at the next open.
    let script = format!(
        "there={}/f here={}/f
         echo text >$there; touch -a -d @1000 $there
         [[ $(stat -c %X $here) == 1000 ]]
         cat $here
         [[ $(stat -c %X $there) != 1000 ]]
         until time=$(stat -c %x $there); cat $here; [[ $(stat -c %x $there) == $time ]]; do :; done
         until [[ $(stat -c %x $here) == $time ]]; do sleep 0.1; done
         cat $here
         [[ $(stat -c %x $there) == $time ]]",
        export.display(),
        mount.directory().display()
    );
    network.shell(&script, MINUTE)?;
    mount.unmount()
}

/// How many FLUSHes the kernel has sent.
const FLUSHES: &str = r#"
import json, subprocess, sys
def find(value):
    found = [value["FLUSH"]] if isinstance(value, dict) and "FLUSH" in value else []
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return found + [flushes for item in inner for flushes in find(item)]
print(max(find(json.loads(subprocess.check_output([sys.argv[1], "stat", "--json", sys.argv[2]]))), default=0))
"#;

// SEMANTICS: lock-2.
#[test]
fn close_of_a_file_that_was_only_read_is_a_request_only_where_it_may_release_locks() -> Result<()> {
    let network = Network::new()?;
    let export = network.make_directory("export")?;
    let flushes = network.directory().join("flushes.py");
    fs::write(&flushes, FLUSHES)?;
    let server = CurtServe::start(&network, &export, &[])?;
    for (options, read) in
        [("local_lock=none", 1), ("local_lock=flock", 1), ("local_lock=posix", 0), ("nolock", 0)]
    {
        let mount =
            CurtMount::start(&network, "mount", &server.source(), &format!("{},{options}", server.ports()))?;
        let script = format!(
            "f={}/f; count() {{ python3 {} {} {}; }}
             echo x >$f; before=$(count); cat $f >/dev/null; echo $(($(count) - before))
             before=$(count); echo y >>$f; [[ $(count) -gt $before ]]",
            mount.directory().display(),
            flushes.display(),
            program("curt")?.display(),
            mount.directory().display()
        );
        let said = network.shell(&script, MINUTE)?;
        ensure!(said.trim() == read.to_string(), "{options}: {said}");
        mount.unmount()?;
    }
    Ok(())
}
