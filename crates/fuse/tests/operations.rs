//! Each operation, from a system call through the kernel to a simple file system and back.
#![allow(clippy::unwrap_used, reason = "a test ends where something fails")]

mod toy;

use std::{
    ffi::CString,
    fs::{self, File, OpenOptions},
    io::{Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::{
        ffi::OsStrExt as _,
        fs::{FileExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _, chown, symlink},
    },
    time::Duration,
};

use curt_fuse::{FuseSessionEnd, feature};
use rustix::{
    fs::{
        AtFlags, CWD, FallocateFlags, FlockOperation, Mode, RenameFlags, Timespec, Timestamps,
        copy_file_range, fallocate, fcntl_lock, flock, getxattr, mknodat, renameat_with, seek, setxattr,
        statvfs, utimensat,
    },
    io::Errno,
};
use toy::{Fixture, Toy, eventually};

fn fixture() -> Fixture {
    Fixture::new(Toy::default())
}

#[test]
fn files_are_made_written_read_and_removed() {
    let fixture = fixture();
    let path = fixture.path("file");
    fs::write(&path, b"hello").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"hello");
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!((metadata.len(), metadata.mode(), metadata.ino() > 1000), (5, 0o100_644, true));
    OpenOptions::new().append(true).open(&path).unwrap().write_all(b", you").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"hello, you");
    File::create(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 0, "O_TRUNC comes with the open");
    assert_eq!(fixture.toy.stuck.calls("setattr"), 0, "and not as a SETATTR");
    fs::remove_file(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap_err().kind(), std::io::ErrorKind::NotFound);
}

#[test]
fn directories_links_and_special_files_are_made_and_moved() {
    let fixture = fixture();
    let (a, b) = (fixture.path("a"), fixture.path("b"));
    fs::create_dir(&a).unwrap();
    fs::write(a.join("x"), b"1").unwrap();
    fs::hard_link(a.join("x"), a.join("y")).unwrap();
    assert_eq!(fs::metadata(a.join("y")).unwrap().nlink(), 2);
    symlink("a/x", fixture.path("s")).unwrap();
    assert_eq!(fs::read_link(fixture.path("s")).unwrap().as_os_str(), "a/x");
    assert_eq!(fs::read(fixture.path("s")).unwrap(), b"1");
    fs::rename(&a, &b).unwrap();
    assert_eq!(fs::remove_dir(&b).unwrap_err().raw_os_error(), Some(Errno::NOTEMPTY.raw_os_error()));
    let refused = renameat_with(CWD, b.join("x"), CWD, b.join("y"), RenameFlags::NOREPLACE);
    assert_eq!(refused, Err(Errno::EXIST), "flags of renameat2 arrive");
    for name in ["x", "y"] {
        fs::remove_file(b.join(name)).unwrap();
    }
    fs::remove_dir(&b).unwrap();
    let pipe = fixture.path("pipe");
    mknodat(CWD, &pipe, rustix::fs::FileType::Fifo, Mode::RUSR, 0).unwrap();
    assert!(fs::symlink_metadata(&pipe).unwrap().file_type().is_fifo());
    let device = fixture.path("device");
    mknodat(CWD, &device, rustix::fs::FileType::BlockDevice, Mode::RUSR, rustix::fs::makedev(8, 300))
        .unwrap();
    let number = fs::symlink_metadata(&device).unwrap().rdev();
    assert_eq!((rustix::fs::major(number), rustix::fs::minor(number)), (8, 300));
}

#[test]
fn attributes_are_set() {
    let fixture = fixture();
    let path = fixture.path("file");
    fs::write(&path, b"hello").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o6750)).unwrap();
    chown(&path, Some(12), Some(13)).unwrap();
    let times = Timestamps {
        last_access: Timespec { tv_sec: -5, tv_nsec: 7 },
        last_modification: Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW },
    };
    utimensat(CWD, &path, &times, AtFlags::empty()).unwrap();
    File::options().write(true).open(&path).unwrap().set_len(3).unwrap();
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!((metadata.uid(), metadata.gid(), metadata.len()), (12, 13, 3));
    assert_eq!(metadata.mode() & 0o777, 0o750);
    assert_eq!((metadata.atime(), metadata.atime_nsec(), metadata.mtime()), (-5, 7, 1_800_000_000));
}

#[test]
fn one_mebibyte_travels_in_one_request() {
    let fixture = fixture();
    let path = fixture.path("big");
    let data: Vec<u8> = (0..4_u32 << 20).map(|index| u8::try_from(index % 251).unwrap()).collect();
    fs::write(&path, &data).unwrap();
    fixture.mount.set_read_ahead(4096).unwrap();
    assert!(fs::read(&path).unwrap() == data);
    let direct = OpenOptions::new().read(true).open(&path).unwrap();
    rustix::fs::fadvise(&direct, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let mut read = vec![0; 2 << 20];
    direct.read_exact_at(&mut read, 5).unwrap();
    assert!(read == data[5..5 + read.len()]);
    assert_eq!(*fixture.toy.largest.lock(), (1 << 20, 1 << 20));
}

#[test]
fn mapped_pages_are_written_back() {
    let fixture = fixture();
    let path = fixture.path("mapped");
    fs::write(&path, vec![b'a'; 8192]).unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    toy::sys::write_through_mapping(&file, b"bbb");
    assert_eq!(fixture.toy.stuck.calls("write from the cache"), 1);
    assert_eq!(fixture.toy.tree.lock().nodes[&2].data[..4], *b"bbba");
    assert_eq!(fs::read(&path).unwrap()[..4], *b"bbba");
}

#[test]
fn a_long_listing_comes_whole_with_and_without_attributes() {
    let fixture = fixture();
    for number in 0..3000 {
        fixture.toy.plant(&format!("name-{number:04}"), b"");
    }
    let names = |fixture: &Fixture| {
        let mut names: Vec<_> =
            fs::read_dir(fixture.root()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let first = names(&fixture);
    assert_eq!(first.len(), 3000);
    assert_eq!(first[2999], "name-2999");
    let listed = std::process::Command::new("ls").arg("-l").arg(fixture.root()).output().unwrap();
    assert_eq!(String::from_utf8(listed.stdout).unwrap().lines().count(), 3001);
}

#[test]
fn statfs_fsync_and_access_reach_the_file_system() {
    let fixture = fixture();
    let sizes = statvfs(fixture.root()).unwrap();
    assert_eq!((sizes.f_blocks, sizes.f_bfree, sizes.f_bavail, sizes.f_namemax), (100, 60, 50, 255));
    assert_eq!((sizes.f_files, sizes.f_ffree), (9, 8));
    let file = File::create(fixture.path("file")).unwrap();
    file.sync_all().unwrap();
    file.sync_data().unwrap();
    File::open(fixture.root()).unwrap().sync_all().unwrap();
    let calls = |operation| fixture.toy.stuck.calls(operation);
    assert_eq!((calls("fsync"), calls("fdatasync"), calls("fsyncdir")), (1, 1, 1));
    rustix::fs::access(fixture.path("file"), rustix::fs::Access::READ_OK).unwrap();
    assert!(calls("access") >= 1);
    drop(file);
    eventually("a release", Duration::from_secs(60), || fixture.toy.stuck.calls("release") == 1);
    assert_eq!(fixture.toy.stuck.calls("flush"), 1);
}

// SEMANTICS: lock-1.
#[test]
fn locks_of_both_kinds_arrive_apart() {
    let fixture = fixture();
    let path = fixture.path("file");
    let (one, two) = (File::create(&path).unwrap(), File::open(&path).unwrap());
    flock(&one, FlockOperation::LockExclusive).unwrap();
    assert_eq!(flock(&two, FlockOperation::NonBlockingLockExclusive), Err(Errno::WOULDBLOCK));
    flock(&one, FlockOperation::Unlock).unwrap();
    assert!(fixture.toy.stuck.calls("flock") >= 3);
    assert_eq!(fixture.toy.stuck.calls("fcntl"), 0);
    fcntl_lock(&one, FlockOperation::LockExclusive).unwrap();
    fcntl_lock(&one, FlockOperation::Unlock).unwrap();
    assert_eq!(fixture.toy.stuck.calls("fcntl"), 2);
}

#[test]
fn what_is_not_offered_is_refused_so_that_programs_go_on() {
    let fixture = fixture();
    let path = fixture.path("file");
    fs::write(&path, b"hello").unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let name = CString::new(path.as_os_str().as_bytes()).unwrap();
    assert_eq!(getxattr(&name, "user.a", &mut [0_u8; 8][..]), Err(Errno::OPNOTSUPP));
    assert_eq!(setxattr(&name, "user.a", b"", rustix::fs::XattrFlags::empty()), Err(Errno::OPNOTSUPP));
    assert_eq!(fallocate(&file, FallocateFlags::empty(), 0, 10), Err(Errno::OPNOTSUPP));
    assert_eq!(seek(&file, rustix::fs::SeekFrom::Hole(0)), Ok(5), "one piece of data, then a hole");
    assert_eq!(rustix::termios::tcgetattr(&file).err(), Some(Errno::NOTTY));
    let mut copy = File::create(fixture.path("copy")).unwrap();
    let mut start = 0;
    assert_eq!(copy_file_range(&file, Some(&mut start), &copy, None, 5), Ok(5));
    assert_eq!(fs::read(fixture.path("copy")).unwrap(), b"hello");
    let mut text = String::new();
    (&file).seek(SeekFrom::Start(0)).unwrap();
    (&file).read_to_string(&mut text).unwrap();
    copy.write_all(text.as_bytes()).unwrap();
    rustix::fs::syncfs(&file).unwrap();
    let unnamed =
        rustix::fs::open(fixture.root(), rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR, Mode::RUSR);
    assert_eq!(unnamed.err(), Some(Errno::OPNOTSUPP));
}

#[test]
fn features_of_this_kernel_are_used() {
    let fixture = fixture();
    let negotiated = fixture.session.negotiated();
    let needed =
        feature::PARALLEL_DIROPS | feature::MAX_PAGES | feature::ATOMIC_O_TRUNC | feature::FLOCK_LOCKS;
    assert!(negotiated.has(needed), "{negotiated:?}");
    assert!(fixture.mount.minor().is_some());
}

#[test]
fn only_the_owner_and_root_pass_where_root_alone_is_allowed() {
    let options = curt_fuse::FuseSessionOptions { only_user: Some(0), ..toy::session_options() };
    let fixture = Fixture::with(Toy::default(), &options);
    fixture.toy.plant("file", b"x");
    fs::read(fixture.path("file")).unwrap();
    let refused = std::process::Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "ls"])
        .arg(fixture.root())
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("Permission denied"), "{refused:?}");
}

#[test]
fn forced_unmounting_while_busy_is_completed_by_detaching() {
    let fixture = fixture();
    fixture.toy.plant("file", b"x");
    let busy = File::open(fixture.path("file")).unwrap();
    let forced = rustix::mount::unmount(fixture.root(), rustix::mount::UnmountFlags::FORCE);
    assert_eq!(forced, Err(Errno::BUSY));
    assert_eq!(fixture.session.wait(), FuseSessionEnd::Unmounted);
    assert!(fixture.mount.detach_if_there().unwrap());
    assert!(!fixture.mount.is_there().unwrap());
    drop(busy);
}

#[test]
fn every_lookup_is_given_back_when_the_mount_ends() {
    let fixture = fixture();
    for number in 0..200 {
        fixture.toy.plant(&format!("n{number}"), b"");
    }
    std::process::Command::new("ls").arg("-lR").arg(fixture.root()).output().unwrap();
    std::process::Command::new("ls").arg("-lR").arg(fixture.root()).output().unwrap();
    assert!(fixture.toy.lookups.lock().values().sum::<u64>() >= 200);
    eventually("forgetting", Duration::from_secs(60), || {
        // Only unused objects are dropped.
        fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
        fixture.toy.lookups.lock().values().sum::<u64>() == 0
    });
}
