//! The state number of this host's NSM, and the servers to notify of its restart.
//!
//! Servers free the locks of a host when SM_NOTIFY reports that it was restarted. Where the
//! system's rpc.statd runs, it does that. Otherwise the lock service keeps a file, in a directory
//! that survives a restart: the boot in which it was written, the number, and the servers whose
//! mounts have locked. The first service of a later boot increments the number and notifies them: a
//! server before a mount locks there, because it frees all locks of the sender's address.
//!
//! Only root has the file, and only in the network namespace of process 1: one file cannot tell
//! which namespaces of an earlier boot had which addresses. The right to serve excludes two
//! writers.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::thread;

use parking_lot::{Condvar, Mutex};
use tracing::{info, warn};

use crate::locked_file::create_directory;

/// The directory of the file.
const DIRECTORY: &str = "/var/lib/curt/nsm";

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Maximum number of servers in the file; further ones are not notified of a restart.
const SERVERS_MAX: usize = 256;

/// Maximum number of servers that are notified at a time.
const TOLD_AT_ONCE: usize = 16;

/// The state of this host.
pub(super) struct HostState {
    path: PathBuf,
    kept: Mutex<SavedHostState>,
    /// The servers that are being notified.
    in_progress: Mutex<BTreeSet<IpAddr>>,
    changed: Condvar,
}

/// The contents of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SavedHostState {
    /// The boot in which it was written.
    boot: String,
    /// Odd: the host is up.
    number: i32,
    /// The servers of this boot's mounts.
    servers: BTreeSet<IpAddr>,
    /// Servers of earlier boots' mounts that were not notified yet.
    untold: BTreeSet<IpAddr>,
}

impl HostState {
    /// `None` if there is none here. `first` is the number if none was kept.
    pub(super) fn open(first: i32) -> Option<Self> {
        match Self::open_in(Path::new(DIRECTORY), &boot()?, first) {
            Ok(state) => Some(state),
            Err(error) => {
                warn!(%error, "{DIRECTORY} cannot be used: a restart of this host will go unnoticed");
                None
            }
        }
    }

    pub(super) fn open_in(directory: &Path, boot: &str, first: i32) -> io::Result<Self> {
        create_directory(directory)?;
        let path = directory.join("state");
        let mut kept = match fs::read_to_string(&path) {
            Ok(text) => SavedHostState::parse(&text).unwrap_or_else(|| SavedHostState::new(boot, first)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => SavedHostState::new(boot, first),
            Err(error) => return Err(error),
        };
        if kept.boot != boot {
            kept.begin_boot(boot, first);
        }
        let state =
            Self { path, kept: Mutex::new(kept), in_progress: Mutex::default(), changed: Condvar::new() };
        state.write(&state.kept.lock())?;
        Ok(state)
    }

    /// The state number.
    pub(super) fn number(&self) -> i32 {
        self.kept.lock().number
    }

    /// A mount of a server is about to lock at the first of these addresses. The server is notified
    /// of a later restart there, and of an earlier one at any of them now or not at all: later it
    /// would free the new locks. `tell` returns whether it has been, or will be by another monitor.
    pub(super) fn note(&self, servers: &[IpAddr], tell: impl Fn(IpAddr, i32) -> bool) {
        for (position, server) in servers.iter().enumerate() {
            let notice = NoticeInProgress::begin(self, *server);
            let (is_untold, number) = {
                let kept = self.kept.lock();
                (kept.untold.contains(server), kept.number)
            };
            let is_told = is_untold && tell(*server, number);
            let mut kept = self.kept.lock();
            let before = kept.clone();
            if kept.untold.remove(server) && !is_told {
                warn!(%server, "locks from before this host's restart may stay at the server: it received no notice");
            }
            if position == 0 && kept.servers.len() < SERVERS_MAX {
                kept.servers.insert(*server);
            }
            if *kept != before {
                self.write_or_warn(&kept);
            }
            drop(notice);
        }
    }

    /// Whether one of these servers may be notified of an earlier restart, now or later.
    pub(super) fn may_be_notified(mut servers: impl Iterator<Item = IpAddr>) -> bool {
        let Some(boot) = boot() else { return false };
        let kept = fs::read_to_string(Path::new(DIRECTORY).join("state")).unwrap_or_default();
        SavedHostState::parse(&kept).is_some_and(|kept| servers.any(|server| kept.is_untold(&boot, server)))
    }

    /// Notifies the servers of earlier boots' mounts. `tell` returns whether that is done.
    pub(super) fn tell_restart(&self, tell: impl Fn(IpAddr, i32) -> bool + Sync) {
        let untold: Vec<_> = self.kept.lock().untold.iter().copied().collect();
        for some in untold.chunks(TOLD_AT_ONCE) {
            thread::scope(|scope| {
                for server in some {
                    let tell = &tell;
                    scope.spawn(move || self.tell_server(*server, tell));
                }
            });
        }
    }

    /// Notifies a server, unless a mount has locked there meanwhile.
    fn tell_server(&self, server: IpAddr, tell: &impl Fn(IpAddr, i32) -> bool) {
        let _notice = NoticeInProgress::begin(self, server);
        let (is_untold, number) = {
            let kept = self.kept.lock();
            (kept.untold.contains(&server), kept.number)
        };
        if is_untold && tell(server, number) {
            info!(%server, number, "the server was notified of this host's restart");
            let mut kept = self.kept.lock();
            kept.untold.remove(&server);
            self.write_or_warn(&kept);
        }
    }

    fn write_or_warn(&self, kept: &SavedHostState) {
        if let Err(error) = self.write(kept) {
            warn!(%error, path = %self.path.display(), "servers will not be notified of this host's restart");
        }
    }

    fn write(&self, kept: &SavedHostState) -> io::Result<()> {
        let new = self.path.with_extension("new");
        let mut file = File::create(&new)?;
        file.write_all(kept.text().as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, &self.path)?;
        self.path.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
    }
}

/// A server is being notified, or about to be locked at; by one thread at a time.
struct NoticeInProgress<'a> {
    state: &'a HostState,
    server: IpAddr,
}

impl<'a> NoticeInProgress<'a> {
    fn begin(state: &'a HostState, server: IpAddr) -> Self {
        let mut in_progress = state.in_progress.lock();
        state.changed.wait_while(&mut in_progress, |in_progress| !in_progress.insert(server));
        Self { state, server }
    }
}

impl Drop for NoticeInProgress<'_> {
    fn drop(&mut self) {
        self.state.in_progress.lock().remove(&self.server);
        self.state.changed.notify_all();
    }
}

/// The id of this boot; `None` if this process has no state of the host.
fn boot() -> Option<String> {
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/net")).ok();
    if !rustix::process::geteuid().is_root() || namespace("1")? != namespace("self")? {
        return None;
    }
    Some(fs::read_to_string(BOOT_ID).ok()?.trim().to_owned())
}

impl SavedHostState {
    /// Whether a server is to be notified of a restart that was before a boot.
    fn is_untold(&self, boot: &str, server: IpAddr) -> bool {
        self.untold.contains(&server) || self.boot != boot && self.servers.contains(&server)
    }

    fn new(boot: &str, number: i32) -> Self {
        let (servers, untold) = (BTreeSet::new(), BTreeSet::new());
        Self { boot: boot.to_owned(), number: number | 1, servers, untold }
    }

    /// The number is larger than the last one even if the clock, which `first` comes from, was set
    /// back.
    fn begin_boot(&mut self, boot: &str, first: i32) {
        boot.clone_into(&mut self.boot);
        self.number = (self.number.checked_add(2).unwrap_or(1)).max(first) | 1;
        self.untold.append(&mut self.servers);
        while self.untold.len() > SERVERS_MAX {
            self.untold.pop_last();
        }
    }

    fn text(&self) -> String {
        let mut text = format!("boot {} {}\n", self.boot, self.number);
        for (word, servers) in [("server", &self.servers), ("untold", &self.untold)] {
            for server in servers {
                let _ = writeln!(text, "{word} {server}");
            }
        }
        text
    }

    /// `None` if it is malformed.
    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let (boot, number) = lines.next()?.strip_prefix("boot ")?.rsplit_once(' ')?;
        let mut kept = Self::new(boot, number.parse().ok()?);
        for line in lines.take(2 * SERVERS_MAX) {
            let (word, server) = line.split_once(' ')?;
            let server = server.parse().ok()?;
            match word {
                "server" => kept.servers.insert(server),
                "untold" => kept.untold.insert(server),
                _ => return None,
            };
        }
        Some(kept)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may end in a panic")]

    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
    use std::time::Duration;

    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[test]
    fn the_servers_of_an_earlier_boot_are_told_once_with_a_larger_number() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path().join("nsm");
        let open = |boot| HostState::open_in(&directory, boot, 100).unwrap();
        let told = |state: &HostState, reached: &[u8]| {
            let told = Mutex::new(Vec::new());
            state.tell_restart(|server, number| {
                told.lock().push((server, number));
                reached.iter().any(|last| server == address(*last))
            });
            let mut told = told.into_inner();
            told.sort_unstable();
            told
        };
        let first = open("a");
        assert_eq!(first.number(), 101);
        let is_not_told = |server, _| panic!("{server}");
        [1, 2, 3].into_iter().for_each(|last| first.note(&[address(last)], is_not_told));
        assert_eq!(told(&open("a"), &[1, 2, 3]), [], "it is the same boot");
        let second = open("b");
        assert_eq!(second.number(), 103);
        assert_eq!(told(&second, &[1]), [1, 2, 3].map(|last| (address(last), 103)));
        // A mount of this boot locks at one of them: it is told before, or never.
        let attempts = Mutex::new(Vec::new());
        second.note(&[address(3)], |server, number| {
            attempts.lock().push((server, number));
            false
        });
        second.note(&[address(3)], is_not_told);
        assert_eq!(attempts.into_inner(), [(address(3), 103)]);
        assert_eq!(told(&open("b"), &[2]), [(address(2), 103)]);
        assert_eq!(told(&second, &[]), [(address(2), 103)]);
        let third = HostState::open_in(&directory, "c", 5000).unwrap();
        assert_eq!(third.number(), 5001);
    }

    #[test]
    fn a_server_is_told_at_none_of_its_addresses_once_a_mount_locks_there() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path().join("nsm");
        let open = |boot| HostState::open_in(&directory, boot, 100).unwrap();
        [1, 2].into_iter().for_each(|last| open("a").note(&[address(last)], |_, _| false));
        let second = open("b");
        let told = Mutex::new(Vec::new());
        second.note(&[address(3), address(1)], |server, _| {
            told.lock().push(server);
            true
        });
        assert_eq!(told.into_inner(), [address(1)]);
        second.tell_restart(|server, _| server == address(2) || panic!("{server}"));
        assert_eq!(second.kept.lock().servers, BTreeSet::from([address(3)]));
    }

    #[test]
    fn no_mount_locks_while_its_server_is_being_told_of_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path().join("nsm");
        let open = |boot| HostState::open_in(&directory, boot, 100).unwrap();
        open("a").note(&[address(1)], |_, _| false);
        let saved = || SavedHostState::parse(&fs::read_to_string(directory.join("state")).unwrap()).unwrap();
        assert!(saved().is_untold("b", address(1)), "no service has begun yet");
        assert!(!saved().is_untold("a", address(1)) && !saved().is_untold("b", address(2)));
        let second = open("b");
        assert!(saved().is_untold("b", address(1)));
        let (begun, told, notices) = (Barrier::new(2), AtomicBool::new(false), AtomicUsize::new(0));
        thread::scope(|scope| {
            scope.spawn(|| {
                second.tell_restart(|_, _| {
                    begun.wait();
                    thread::sleep(Duration::from_millis(50));
                    notices.fetch_add(1, Relaxed);
                    told.store(true, Relaxed);
                    true
                });
            });
            begun.wait();
            second.note(&[address(1)], |_, _| {
                notices.fetch_add(1, Relaxed);
                true
            });
            assert!(told.load(Relaxed), "the mount locks before the notice was received");
        });
        assert_eq!(notices.into_inner(), 1);
        assert!(!saved().is_untold("b", address(1)));
    }

    #[test]
    fn nonsense_is_replaced_and_the_list_is_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path().join("nsm");
        drop(HostState::open_in(&directory, "a", 1).unwrap());
        for nonsense in
            ["", "boot", "boot a", "boot a x\n", "boot a 1\nserver\n", "boot a 1\nelse 10.0.0.1\n"]
        {
            fs::write(directory.join("state"), nonsense).unwrap();
            assert_eq!(HostState::open_in(&directory, "b", 7).unwrap().number(), 7, "{nonsense:?}");
        }
        let state = HostState::open_in(&directory, "b", 7).unwrap();
        for number in 0..1000_u32 {
            state.note(&[IpAddr::from((number + 1).to_be_bytes())], |_, _| false);
        }
        assert_eq!(state.kept.lock().servers.len(), SERVERS_MAX);
        let last = HostState::open_in(&directory, "c", 7).unwrap();
        assert_eq!(last.kept.lock().untold.len(), SERVERS_MAX);
        let mut kept = last.kept.lock().clone();
        kept.number = i32::MAX;
        kept.begin_boot("d", 7);
        assert_eq!(kept.number, 7, "it wraps");
    }
}
