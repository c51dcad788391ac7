//! Leases on files of a local tree (fcntl(2), `F_SETLEASE`), and the thread that learns of
//! processes that want to write such a file, or have changed its names or attributes.
//!
//! The kernel queues a signal for that thread, which reads it from a descriptor (signalfd(2)); it
//! contains the descriptor of the lease. Where more signals are queued than the process may have,
//! there is one without a descriptor, and all leases are looked at. A process that opens the file
//! for writing waits until the lease is given up, for /proc/sys/fs/lease-break-time at most. This
//! server's own opens do not wait (`O_NONBLOCK`).
//!
//! A lease does not tell of unlink(2), rename(2), link(2), chmod(2) and the like. Each file with a
//! lease has an inotify watch for these: the lease counts as broken within milliseconds after the
//! change, for which nobody waits.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak, mpsc};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::inotify::{self, ReadFlags, WatchFlags};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::credentials::FsIdentity;
use super::data::{proc_path, retry};
use super::open::LeasableFile;
use super::sweeper::OpenCaches;
use super::sys::{self, LeaseSignal};
use super::{LocalVfs, attributes_of};
use crate::caller::FsCred;
use crate::error::Error;
use crate::handle::NodeHandle;
use crate::lease::{FileLease, LeaseBroken};

/// The longest time for which the kernel lets a process wait, in seconds, and its default.
const BREAK_TIME: (&str, u64) = ("/proc/sys/fs/lease-break-time", 45);
/// Leases have at most this part of the descriptors of the process: each has one.
const DESCRIPTOR_SHARE: u64 = 4;
/// The most inotify watches of a user, and the part of them that leases have at most: other
/// programs of the same user need theirs.
const WATCHES_MAX: &str = "/proc/sys/fs/inotify/max_user_watches";
const WATCH_SHARE: u64 = 2;

/// The thread that is notified of processes that want to write files with leases. It ends when this
/// is dropped.
pub struct LeaseWatcher {
    /// The thread's id.
    thread: i32,
    break_time: Duration,
    /// Maximum number of leases.
    leases_max: usize,
    leases: Arc<WatchedLeases>,
    stop: Arc<OwnedFd>,
}

/// Watched events of a file with a lease: a change of its attributes, link count or name.
const WATCHED: WatchFlags = WatchFlags::ATTRIB.union(WatchFlags::MOVE_SELF).union(WatchFlags::DELETE_SELF);

/// The leases, and the watches of their files.
struct WatchedLeases {
    inotify: OwnedFd,
    table: Mutex<LeaseTable>,
}

#[derive(Default)]
struct LeaseTable {
    by_descriptor: HashMap<RawFd, Arc<WatchedLease>>,
    /// The descriptors of the leases of a file, by its watch: two while one is given up and the
    /// next is taken.
    by_watch: HashMap<i32, Vec<RawFd>>,
}

struct WatchedLease {
    /// The watch of the file.
    watch: i32,
    /// Set before `broken` is called.
    is_broken: AtomicBool,
    broken: LeaseBroken,
}

impl WatchedLeases {
    fn new() -> Result<Self, Errno> {
        let inotify = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        Ok(Self { inotify, table: Mutex::default() })
    }

    /// Watches a file on which a lease will be taken.
    fn insert(&self, file: BorrowedFd<'_>, broken: LeaseBroken) -> Result<Arc<WatchedLease>, Errno> {
        let mut table = self.table.lock();
        let watch = inotify::add_watch(&self.inotify, proc_path(file).as_str(), WATCHED)?;
        let watched = Arc::new(WatchedLease { watch, is_broken: AtomicBool::new(false), broken });
        table.by_watch.entry(watch).or_default().push(file.as_raw_fd());
        table.by_descriptor.insert(file.as_raw_fd(), Arc::clone(&watched));
        Ok(watched)
    }

    fn remove(&self, descriptor: RawFd) {
        let table = &mut *self.table.lock();
        let Some(lease) = table.by_descriptor.remove(&descriptor) else { return };
        if let Entry::Occupied(mut of_file) = table.by_watch.entry(lease.watch) {
            of_file.get_mut().retain(|other| *other != descriptor);
            if of_file.get().is_empty() {
                of_file.remove();
                // It ends by itself when the file is removed.
                let _ = inotify::remove_watch(&self.inotify, lease.watch);
            }
        }
    }

    /// The leases that a signal is about.
    fn signalled(&self, signal: LeaseSignal) -> Vec<Arc<WatchedLease>> {
        let table = self.table.lock();
        match signal {
            LeaseSignal::Of(fd) => table.by_descriptor.get(&fd).cloned().into_iter().collect(),
            LeaseSignal::Overflow => {
                let broken = table.by_descriptor.iter().filter(|(fd, _)| !sys::has_read_lease(**fd));
                broken.map(|(_, lease)| Arc::clone(lease)).collect()
            }
        }
    }

    /// The leases of files that have changed; all of them if changes were lost.
    fn changed(&self) -> Vec<Arc<WatchedLease>> {
        let mut events = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&self.inotify, &mut events);
        let mut changed = Vec::new();
        while let Ok(event) = events.next() {
            let table = self.table.lock();
            if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                changed.extend(table.by_descriptor.values().cloned());
            } else if !event.events().contains(ReadFlags::IGNORED) {
                let of_file = table.by_watch.get(&event.wd()).into_iter().flatten();
                changed.extend(of_file.filter_map(|fd| table.by_descriptor.get(fd)).cloned());
            }
        }
        changed
    }
}

impl WatchedLease {
    fn notify_break(&self) {
        // Pairs with `is_broken`: who does not see it is seen by `broken`, which takes a lock that
        // the other one has had.
        if !self.is_broken.swap(true, Ordering::AcqRel) {
            (self.broken)();
        }
    }
}

impl LeaseWatcher {
    /// Starts the thread.
    ///
    /// # Errors
    /// It cannot be started, or has no descriptor.
    pub fn start() -> std::io::Result<Self> {
        let leases = Arc::new(WatchedLeases::new()?);
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let (sender, started) = mpsc::channel();
        let (watched, stopped) = (Arc::clone(&leases), Arc::clone(&stop));
        let run = move || {
            let begun =
                sys::lease_signals().map(|signals| (signals, rustix::thread::gettid().as_raw_nonzero()));
            match begun {
                Ok((signals, thread)) => {
                    let _ = sender.send(Ok(thread.get()));
                    watch(&signals, &stopped, &watched);
                }
                Err(errno) => drop(sender.send(Err(errno))),
            }
        };
        std::thread::Builder::new().name("leases".into()).spawn(run)?;
        let thread = started.recv().unwrap_or(Err(Errno::SRCH))?;
        let (path, usual) = BREAK_TIME;
        let break_time = Duration::from_secs(setting(path).unwrap_or(usual));
        let watches_max = setting(WATCHES_MAX).map_or(u64::MAX, |most| most / WATCH_SHARE);
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let leases_max = (descriptors / DESCRIPTOR_SHARE).min(watches_max);
        let leases_max = usize::try_from(leases_max).unwrap_or(usize::MAX);
        Ok(Self { thread, break_time, leases_max, leases, stop })
    }

    /// How long the kernel lets a process wait for a lease.
    #[must_use]
    pub const fn break_time(&self) -> Duration {
        self.break_time
    }
}

/// The number in a file of /proc/sys.
fn setting(path: &str) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

impl Drop for LeaseWatcher {
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
    }
}

fn watch(signals: &OwnedFd, stop: &OwnedFd, leases: &WatchedLeases) {
    loop {
        let mut ready = [
            PollFd::new(signals, PollFlags::IN),
            PollFd::new(&leases.inotify, PollFlags::IN),
            PollFd::new(stop, PollFlags::IN),
        ];
        if retry(|| poll(&mut ready, None)).is_err() || !ready[2].revents().is_empty() {
            return;
        }
        let (has_signal, has_change) = (!ready[0].revents().is_empty(), !ready[1].revents().is_empty());
        let mut broken = if has_change { leases.changed() } else { Vec::new() };
        if has_signal && let Ok(signal) = sys::next_lease_signal(signals.as_fd()) {
            broken.extend(leases.signalled(signal));
        }
        broken.iter().for_each(|lease| lease.notify_break());
    }
}

/// A lease on one file.
struct LocalLease {
    file: Arc<OwnedFd>,
    /// The file, if the file cache shares its open file description.
    shared: Option<(NodeHandle, Weak<OpenCaches>)>,
    identity: FsIdentity,
    watched: Arc<WatchedLease>,
    leases: Arc<WatchedLeases>,
}

impl FileLease for LocalLease {
    fn is_broken(&self) -> bool {
        self.watched.is_broken.load(Ordering::Acquire)
    }
}

impl LocalLease {
    fn end(&self) -> Result<(), Error> {
        match sys::end_lease(self.file.as_fd()) {
            Err(Errno::ACCESS) => {
                let owner = attributes_of(self.file.as_fd())?.uid;
                Ok(self.identity.with_fs_uid(owner, || sys::end_lease(self.file.as_fd()))??)
            }
            ended => Ok(ended?),
        }
    }
}

impl Drop for LocalLease {
    fn drop(&mut self) {
        // Before the descriptor is closed, whose number may be used again then.
        self.leases.remove(self.file.as_raw_fd());
        let Some((node, caches)) = &self.shared else { return };
        // A READ in progress may still use the open file description, for as long as its client
        // takes to receive the data.
        if let Err(error) = self.end() {
            tracing::debug!(%error, "a lease ends with the last READ in progress");
        }
        if let Some(caches) = caches.upgrade() {
            caches.file_cache.release_descriptor(node, &self.file);
        }
    }
}

impl LocalVfs {
    /// A lease on a file that the caller may read.
    pub(super) fn take_lease(
        &self,
        caller: &FsCred<'_>,
        node: &NodeHandle,
        watcher: &LeaseWatcher,
        broken: LeaseBroken,
    ) -> Result<Box<dyn FileLease>, Error> {
        if watcher.leases.table.lock().by_descriptor.len() >= watcher.leases_max {
            return Err(Errno::MFILE.into());
        }
        let opened = self.open_for_lease(caller, node).map_err(|failure| failure.error)?;
        let LeasableFile { file, is_cached, attributes } = opened;
        let shared = is_cached.then(|| (*node, Arc::downgrade(&self.open_caches)));
        let watched = watcher.leases.insert(file.as_fd(), broken)?;
        let (identity, leases) = (self.identity, Arc::clone(&watcher.leases));
        let lease = LocalLease { file, shared, identity, watched, leases };
        if attributes.nlink == 0 {
            return Err(Error::STALE);
        }
        sys::send_lease_signals(lease.file.as_fd(), watcher.thread)?;
        if self.identity == FsIdentity::Anybody && caller.uid != attributes.uid {
            // The owner may have a lease without CAP_LEASE.
            self.identity.switch_to(&FsCred::new(attributes.uid, caller.gid, caller.groups))?;
        }
        match sys::set_read_lease(lease.file.as_fd()) {
            Err(Errno::AGAIN) => {
                // This server may have it open for writing, after a WRITE.
                self.open_caches.file_cache.release(node);
                sys::set_read_lease(lease.file.as_fd())?;
            }
            set => set?,
        }
        Ok(Box::new(lease))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use std::fs::{self, File, OpenOptions};
    use std::os::unix::fs::OpenOptionsExt as _;

    use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

    use super::*;
    use crate::{FetchOptions, FetchResult, LocalOptions, Vfs as _};

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_process_that_wants_to_write_waits_until_the_lease_is_given_up() {
        // On a file system that has leases.
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = directory.path().join("file");
        fs::write(&path, "old").unwrap();
        let vfs = LocalVfs::open(directory.path(), &LocalOptions::default()).unwrap();
        let found = vfs.lookup(&FsCred::ROOT, &vfs.root(), b"file").value.unwrap();
        let watcher = LeaseWatcher::start().unwrap();
        let (sender, broken) = mpsc::channel();
        let sender = Mutex::new(sender);
        let take = |sender: Mutex<mpsc::Sender<()>>| {
            let broken = Box::new(move || {
                let _ = sender.lock().send(());
            });
            vfs.take_lease(&FsCred::ROOT, &found.handle, &watcher, broken)
        };
        let lease = take(sender).unwrap();
        assert!(!lease.is_broken());
        drop(File::open(&path).unwrap());
        assert!(broken.try_recv().is_err(), "readers do not break it");
        assert_eq!(open_to_write(&path).unwrap_err().raw_os_error(), Some(libc::EWOULDBLOCK));
        broken.recv_timeout(LONG).unwrap();
        assert!(lease.is_broken());
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| fs::write(&path, "new"));
            drop(lease);
            writer.join().unwrap().unwrap();
        });
        assert!(watcher.leases.table.lock().by_descriptor.is_empty());
        assert!(watcher.leases.table.lock().by_watch.is_empty());
        // None is granted while a process may write.
        let writer = OpenOptions::new().write(true).open(&path).unwrap();
        let refused = take(Mutex::new(mpsc::channel().0)).err().unwrap();
        assert!(matches!(refused, Error::Os(Errno::AGAIN)), "{refused}");
        drop(writer);
        assert!(take(Mutex::new(mpsc::channel().0)).is_ok());
        let mut full = LeaseWatcher::start().unwrap();
        full.leases_max = 0;
        let refused = vfs.take_lease(&FsCred::ROOT, &found.handle, &full, Box::new(|| {})).err().unwrap();
        assert!(matches!(refused, Error::Os(Errno::MFILE)), "{refused}");
    }

    /// Opens a file for writing, unless a process has a lease on it.
    fn open_to_write(path: &std::path::Path) -> std::io::Result<File> {
        OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(path)
    }

    #[test]
    fn a_lease_ends_when_it_is_dropped_whoever_reads_the_file() {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = directory.path().join("file");
        fs::write(&path, vec![7; 1 << 16]).unwrap();
        let vfs = LocalVfs::open(directory.path(), &LocalOptions::default()).unwrap();
        let file = vfs.lookup(&FsCred::ROOT, &vfs.root(), b"file").value.unwrap().handle;
        let watcher = LeaseWatcher::start().unwrap();
        let take = |caller: &FsCred<'_>| vfs.take_lease(caller, &file, &watcher, Box::new(|| {})).unwrap();
        let read = |caller: &FsCred<'_>, sendfile| {
            let how = FetchOptions { sendfile, wait: true };
            vfs.fetch(caller, &file, 0, 1 << 16, how, &mut Vec::new()).unwrap().value.unwrap()
        };
        // The cache may close the descriptor on a busy machine before it is used.
        let is_shared = || {
            let lease = take(&FsCred::ROOT);
            let FetchResult::FileRange(sent) = read(&FsCred::ROOT, true) else { panic!("it is large") };
            let is_shared = watcher.leases.table.lock().by_descriptor.contains_key(&sent.file.as_raw_fd());
            assert!(open_to_write(&path).is_err());
            drop(lease);
            drop(open_to_write(&path).unwrap());
            is_shared
        };
        assert!((0..100).any(|_| is_shared()), "the lease's descriptor is read");
        // No two leases are on one open file description, also if a READ has opened the file.
        read(&FsCred::ROOT, true);
        let (first, second) = (take(&FsCred::ROOT), take(&FsCred::ROOT));
        drop(first);
        assert!(open_to_write(&path).is_err(), "there is another lease");
        drop(second);
        drop(open_to_write(&path).unwrap());
        if vfs.only_user().is_some() {
            return;
        }
        // A thread that has another user's ids and no capability for it, while the data are sent.
        let is_shared_by_another = |owner: u32| {
            std::os::unix::fs::chown(&path, Some(owner), None).unwrap();
            let caller = FsCred::new(1000, 1000, &[]);
            let lease = take(&caller);
            let FetchResult::FileRange(sent) = read(&caller, true) else { panic!("it is large") };
            let is_shared = watcher.leases.table.lock().by_descriptor.contains_key(&sent.file.as_raw_fd());
            vfs.identity.switch_to(&caller).unwrap();
            let sets = capabilities(None).unwrap();
            let effective = sets.effective.difference(CapabilitySet::LEASE);
            set_capabilities(None, CapabilitySets { effective, ..sets }).unwrap();
            drop(lease);
            let after = capabilities(None).unwrap().effective;
            assert_eq!((sys::set_fs_uid(u32::MAX), after), (1000, effective), "the ids are those of before");
            let ended = std::thread::scope(|scope| {
                scope
                    .spawn(|| {
                        vfs.identity.switch_to(&FsCred::ROOT).unwrap();
                        open_to_write(&path).is_ok()
                    })
                    .join()
                    .unwrap()
            });
            assert!(ended, "of a file of {owner}");
            drop(sent);
            is_shared
        };
        for owner in [0, 1001] {
            let try_it =
                || std::thread::scope(|scope| scope.spawn(|| is_shared_by_another(owner)).join().unwrap());
            assert!((0..100).any(|_| try_it()));
        }
    }

    // SEMANTICS: stateful-11.
    #[test]
    fn a_lease_is_broken_when_the_names_or_attributes_of_its_file_change() {
        type Change = fn(&std::path::Path);
        const CHANGES: [(&str, Change); 5] = [
            ("unlink", |path| fs::remove_file(path).unwrap()),
            ("rename", |path| fs::rename(path, path.with_extension("renamed")).unwrap()),
            ("rename over", |path| {
                fs::write(path.with_extension("new"), "new").unwrap();
                fs::rename(path.with_extension("new"), path).unwrap();
            }),
            ("link", |path| fs::hard_link(path, path.with_extension("link")).unwrap()),
            ("chmod", |path| {
                let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
                fs::set_permissions(path, mode).unwrap();
            }),
        ];
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let vfs = LocalVfs::open(directory.path(), &LocalOptions::default()).unwrap();
        let watcher = LeaseWatcher::start().unwrap();
        for (what, change) in CHANGES {
            let path = directory.path().join(what);
            fs::write(&path, "old").unwrap();
            let found = vfs.lookup(&FsCred::ROOT, &vfs.root(), what.as_bytes()).value.unwrap();
            let (sender, broken) = mpsc::channel();
            let sender = Mutex::new(sender);
            let tell: LeaseBroken = Box::new(move || {
                let _ = sender.lock().send(());
            });
            let lease = vfs.take_lease(&FsCred::ROOT, &found.handle, &watcher, tell).unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"old");
            assert!(broken.try_recv().is_err(), "reading changes nothing");
            change(&path);
            assert!(broken.recv_timeout(LONG).is_ok(), "{what}");
            assert!(lease.is_broken());
        }
        assert!(watcher.leases.table.lock().by_watch.is_empty());
    }
}
