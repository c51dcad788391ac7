//! Names of the mount that are in use: a mount point or a directory above one, the source of a bind
//! mount, or the program or the working directory of a process.
//!
//! The kernel drops a cached name when LOOKUP fails with an error other than ENOMEM and EINTR
//! (Linux, `fuse_dentry_revalidate`): it unmounts the file systems mounted there and below, for all
//! users and in all namespaces, and the files of processes there become "(deleted)". So if the name
//! is in use, the reply to a refused LOOKUP is ENOMEM, and the kernel keeps the name.
//!
//! Kernels: Linux 6.1 to 6.18. Shown by
//! `whoever_is_refused_takes_nothing_from_those_who_are_not_and_learns_nothing` and the others of
//! tests/tests/mounted_below.rs. It can be removed when a file system can refuse a look-up without
//! the kernel dropping the name (alternatives: docs/decisions/names-in-use.md).
//!
//! This module searches such names in /proc. It does not access files, because this would send
//! requests to the same mount: names are compared as bytes, wherever on the mount they are. So some
//! names that are not in use get ENOMEM too. Processes that the daemon cannot see (other users',
//! those outside its pid namespace) are not found.

use std::collections::{HashMap, HashSet, hash_map::Entry};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;

use curt_fuse::mountinfo::{MountinfoLine, mounts};

/// Whether the kernel may drop the name after this error of LOOKUP: the name does not exist, cannot
/// exist, or is kept anyway.
pub(crate) fn may_drop(refusal: Errno) -> bool {
    matches!(
        refusal,
        Errno::NOENT
            | Errno::NOTDIR
            | Errno::STALE
            | Errno::NAMETOOLONG
            | Errno::INVAL
            | Errno::NOMEM
            | Errno::INTR
    )
}

/// The pause after a search, as a multiple of its duration: users who cause refusals on purpose use
/// at most a fifth of a processor.
const PAUSE_FACTOR: u32 = 4;

/// Finds the names of one mount that are in use. One thread searches at a time; callers that arrive
/// before it begins share its result.
#[derive(Debug)]
pub(crate) struct NamesInUse {
    device: (u32, u32),
    searches: Mutex<ProcSearches>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct ProcSearches {
    ended: u64,
    is_running: bool,
    /// The earliest start of the next search.
    next_at: Option<Instant>,
    /// The result of the last search; `None` if /proc could not be read.
    found: Option<Arc<HashSet<Vec<u8>>>>,
}

impl NamesInUse {
    /// For the mount whose device has this major and minor number.
    pub(crate) fn new(device: (u32, u32)) -> Self {
        Self { device, searches: Mutex::default(), ended: Condvar::new() }
    }

    /// Whether `name` may be in use: it is, or this is unknown.
    pub(crate) fn may_contain(&self, name: &[u8]) -> bool {
        self.search().is_none_or(|names| names.contains(name))
    }

    /// The result of a search that begins after this call.
    fn search(&self) -> Option<Arc<HashSet<Vec<u8>>>> {
        let mut searches = self.searches.lock();
        // One in progress began before.
        let wanted = searches.ended + 1 + u64::from(searches.is_running);
        while searches.is_running {
            self.ended.wait(&mut searches);
            if searches.ended >= wanted {
                return searches.found.clone();
            }
        }
        searches.is_running = true;
        let pause = searches.next_at.map(|next_at| next_at.saturating_duration_since(Instant::now()));
        drop(searches);
        // Callers that arrive meanwhile share the next search.
        std::thread::sleep(pause.unwrap_or_default());
        let began = Instant::now();
        let found = names_in_use(Path::new("/proc"), self.device).ok().map(Arc::new);
        let mut searches = self.searches.lock();
        searches.is_running = false;
        searches.ended += 1;
        searches.next_at = Some(Instant::now() + began.elapsed() * PAUSE_FACTOR);
        searches.found.clone_from(&found);
        drop(searches);
        self.ended.notify_all();
        found
    }
}

/// All names in use of the file system `device`, by the processes of `proc`.
fn names_in_use(proc: &Path, device: (u32, u32)) -> io::Result<HashSet<Vec<u8>>> {
    let mut names = HashSet::new();
    // The mounts that a process sees depend on its namespace and its root directory.
    let mut views: HashMap<(PathBuf, PathBuf), Vec<MountinfoLine>> = HashMap::new();
    for entry in fs::read_dir(proc)? {
        let process = entry?.path();
        let is_number = |name: &OsStr| name.as_bytes().iter().all(u8::is_ascii_digit);
        if !process.file_name().is_some_and(is_number) {
            continue;
        }
        let link = |of: &str| fs::read_link(process.join(of)).ok();
        // A kernel thread, or it ended, or access is not permitted.
        let Some(program) = link("exe") else { continue };
        let Some(view) = link("ns/mnt").zip(link("root")) else {
            continue;
        };
        // mountinfo is relative to a process's own root, the links to the daemon's: after chroot(2)
        // they cannot be compared.
        let own_root = Some(view.1.clone()).filter(|root| root != Path::new("/"));
        let is_chrooted = own_root.is_some();
        let places = match views.entry(view) {
            Entry::Occupied(places) => places.into_mut(),
            Entry::Vacant(vacant) => {
                let Ok(text) = fs::read(process.join("mountinfo")) else {
                    continue;
                };
                let mounted = mounts(&text);
                add_mounts(&mounted, device, &mut names);
                vacant.insert(mounted)
            }
        };
        for path in [Some(program), link("cwd"), own_root].into_iter().flatten() {
            let is_below =
                |mounted: &MountinfoLine| path != mounted.target && path.starts_with(&mounted.target);
            let is_ours = places.iter().any(|mounted| mounted.device == device && is_below(mounted));
            if is_ours || is_chrooted {
                add_last(&path, &mut names);
            }
        }
    }
    Ok(names)
}

fn add_last(path: &Path, names: &mut HashSet<Vec<u8>>) {
    names.extend(path.file_name().map(|name| name.as_bytes().to_vec()));
}

/// Adds the names on the paths of mount points on the file system `device`, and of its parts that
/// are mounted elsewhere.
fn add_mounts(mounted: &[MountinfoLine], device: (u32, u32), names: &mut HashSet<Vec<u8>>) {
    for below in mounted.iter().filter(|mounted| mounted.device == device) {
        add_last(&below.root, names);
        for upon in mounted.iter().filter(|upon| upon.parent == below.id) {
            let Ok(way) = upon.target.strip_prefix(&below.target) else {
                continue;
            };
            let way = below.root.join(way);
            names.extend(way.iter().map(|name| name.as_bytes().to_vec()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names_of(mountinfo: &str, device: (u32, u32)) -> Vec<String> {
        let mut names = HashSet::new();
        add_mounts(&mounts(mountinfo.as_bytes()), device, &mut names);
        let mut names: Vec<_> = names
            .iter()
            .map(|name| String::from_utf8_lossy(name).into_owned())
            .filter(|name| name != "/")
            .collect();
        names.sort();
        names
    }

    // SEMANTICS: attr-6.
    #[test]
    fn names_on_the_way_to_a_mount_point_are_in_use_however_the_mount_is_seen() {
        let mountinfo = "\
            20 1 8:1 / / rw - ext4 /dev/sda rw\n\
            57 20 0:61 / /mnt/a\\040b rw - fuse.curt nas:/export rw\n\
            58 57 0:70 / /mnt/a\\040b/closed/m rw shared:3 - tmpfs none rw\n\
            59 58 0:71 / /mnt/a\\040b/closed/m/deeper rw - tmpfs none rw\n\
            60 20 0:72 / /mnt/other rw - tmpfs none rw\n";
        assert_eq!(names_of(mountinfo, (0, 61)), ["closed", "m"]);
        assert_eq!(names_of(mountinfo, (0, 99)), [""; 0]);
        let part = "\
            57 20 0:61 /project/volume /app rw - fuse.curt nas:/export rw\n\
            58 57 8:2 /anonymous /app/modules rw - ext4 /dev/sdb rw\n";
        assert_eq!(names_of(part, (0, 61)), ["modules", "project", "volume"]);
    }

    #[test]
    fn what_a_process_runs_and_where_it_works_is_in_use_and_one_that_ends_hides_no_other() {
        let proc = tempfile::tempdir().expect("there is room");
        let rooted = |root: &str, pid: &str, cwd: &str, exe: &str, mountinfo: Option<&str>| {
            let directory = proc.path().join(pid);
            fs::create_dir_all(directory.join("ns")).expect("there is room");
            let links = [("ns/mnt", "mnt:[1]"), ("root", root), ("cwd", cwd), ("exe", exe)];
            for (name, target) in links {
                std::os::unix::fs::symlink(target, directory.join(name)).expect("there is room");
            }
            if let Some(text) = mountinfo {
                fs::write(directory.join("mountinfo"), text).expect("there is room");
            }
        };
        let process = |pid: &str, cwd: &str, exe: &str, mountinfo: Option<&str>| {
            rooted("/", pid, cwd, exe, mountinfo);
        };
        let seen = "57 20 0:61 / /mnt rw - fuse.curt nas:/export rw\n";
        process("10", "/", "/bin/sh", None);
        process("11", "/mnt/a/work", "/mnt/bin/program", Some(seen));
        process("12", "/mnt", "/mnt2/other", Some(seen));
        rooted("/jail", "13", "/jail/mnt/jailed", "/jail/bin/sh", Some(seen));
        process("self", "/mnt/link", "/mnt/link", Some(seen));
        let mut names: Vec<_> =
            names_in_use(proc.path(), (0, 61)).expect("it can be read").into_iter().collect();
        names.sort();
        assert_eq!(names, [&b"jail"[..], b"jailed", b"program", b"sh", b"work"]);
    }

    #[test]
    fn what_is_mounted_on_the_root_needs_no_name() {
        let stacked = "\
            57 20 0:61 / /mnt rw - fuse.curt nas:/export rw\n\
            58 57 0:70 / /mnt rw - tmpfs none rw\n";
        assert_eq!(names_of(stacked, (0, 61)), [""; 0]);
    }

    #[test]
    fn only_names_that_are_gone_or_held_anyway_may_be_dropped() {
        for errno in [Errno::ACCESS, Errno::IO, Errno::TIMEDOUT, Errno::PERM] {
            assert!(!may_drop(errno));
        }
        for errno in [Errno::NOENT, Errno::STALE, Errno::INTR, Errno::NOMEM] {
            assert!(may_drop(errno));
        }
    }

    #[test]
    fn who_comes_while_a_search_runs_shares_the_next_one() {
        let names = NamesInUse::new((0, 0));
        names.searches.lock().is_running = true;
        std::thread::scope(|scope| {
            let waiting: Vec<_> = (0..8).map(|_| scope.spawn(|| names.may_contain(b"x"))).collect();
            let mut searches = names.searches.lock();
            (searches.is_running, searches.ended) = (false, 1);
            drop(searches);
            names.ended.notify_all();
            for waiter in waiting {
                assert!(!waiter.join().expect("it does not panic"));
            }
        });
        let searches = names.searches.lock();
        assert!(!searches.is_running && (2..=9).contains(&searches.ended));
    }
}
