//! The state that a server keeps over restarts: its key, and the numbers of exports and file
//! systems, so that clients' handles stay valid; the hosts that have locks, and the NFSv4 clients
//! that have state, and until when changes of delegated files were noticed. It is in the state
//! directory, which only its owner may read and only one server at a time uses.

mod clients;
mod files;
mod ids;
mod monitored;

use std::fs::{File, OpenOptions};
use std::hash::{Hash as _, Hasher as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use parking_lot::Mutex;
use siphasher::sip::SipHasher24;

use crate::file_handle::{ExportId, FileSystemId, HandleKey};
pub(crate) use clients::{ClientRecords, LastRun, RecordLimits};
use ids::PersistentIds;
pub(crate) use monitored::{LOCALS_MAX, MonitoredHost, MonitoredHosts};

/// The file with the key that signs handles.
const KEY_FILE: &str = "handle-key";
/// The file with the numbers.
const NUMBERS_FILE: &str = "numbers";
/// The file with the hosts that have locks.
const MONITORED_FILE: &str = "monitored";
/// The file with the last replies.
const REPLIES_FILE: &str = "replies";
/// The file with the clients that have state.
const CLIENTS_FILE: &str = "clients";
/// An empty file: see [`PersistentState::changes_noticed_until`].
const DELEGATIONS_FILE: &str = "delegations";
/// The size of the key in bytes.
const KEY_BYTES: usize = 16;

/// A server's state.
pub struct PersistentState {
    /// The state directory; without one, nothing outlives the process.
    directory: Option<PathBuf>,
    /// The lock of the directory: no other server may assign numbers.
    _lock: Option<File>,
    secret: [u8; KEY_BYTES],
    ids: Mutex<PersistentIds>,
}

/// Why the state cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// An operation on a file or directory of the state failed.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The error.
        source: std::io::Error,
    },
    /// A file of the state does not have the format that this server writes. It is not changed.
    #[error("{path} is damaged: {what}; move it away to create a new one (clients must then mount again)", path = path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The fault.
        what: String,
    },
    /// Another server uses the state.
    #[error("{path} is in use by another server: stop that one", path = .0.display())]
    InUse(PathBuf),
    /// The state belongs to another user, who could sign handles for any file.
    #[error("{path} belongs to user {owner}, who could read the key that handles are signed with", path = path.display())]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// Others could replace its key.
    #[error("others may write to {path} (mode {mode:o}): chmod go-w it", path = path.display())]
    Open {
        /// The directory.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// Others may read or change the key.
    #[error(
        "other users can read the key {path} (mode {mode:o}) and forge handles: chmod 600 it, or, if it may have been read, \
         give a new key (curt serve --new-key; clients must then mount again)",
        path = path.display()
    )]
    Exposed {
        /// The file with the key.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// The system provided no random number.
    #[error("getrandom failed: {0}")]
    Random(rustix::io::Errno),
}

impl PersistentState {
    /// Opens the state in `directory`, or creates it (mode 0700) with a new key (mode 0600).
    ///
    /// # Errors
    /// [`StateError`].
    pub fn open(directory: &Path) -> Result<Self, StateError> {
        let lock = begin(directory)?;
        let key_path = directory.join(KEY_FILE);
        files::check_secret(&key_path)?;
        let secret = match files::read(&key_path)? {
            Some(bytes) => <[u8; KEY_BYTES]>::try_from(bytes.as_slice())
                .map_err(|_| damaged(&key_path, format!("{} bytes instead of {KEY_BYTES}", bytes.len())))?,
            None => make_key(directory)?,
        };
        let numbers = read_numbers(directory)?;
        Ok(Self {
            directory: Some(directory.to_owned()),
            _lock: Some(lock),
            secret,
            ids: Mutex::new(numbers),
        })
    }

    /// A state in memory: handles are stale after a restart.
    ///
    /// # Errors
    /// [`StateError::Random`].
    pub fn ephemeral() -> Result<Self, StateError> {
        Ok(Self::with_key(random()?))
    }

    /// A state in memory with a given key, for tests whose handles must be the same in each run.
    #[must_use]
    pub fn with_key(secret: [u8; KEY_BYTES]) -> Self {
        Self { directory: None, _lock: None, secret, ids: Mutex::default() }
    }

    /// Replaces the key of the state in `directory`, which is created if necessary: all existing
    /// handles are stale from the next start on. Returns the new key.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn new_key(directory: &Path) -> Result<[u8; KEY_BYTES], StateError> {
        let _lock = begin(directory)?;
        make_key(directory)
    }

    pub(crate) fn handle_key(&self) -> HandleKey {
        HandleKey::new(&self.secret)
    }

    /// Derives a secret for another purpose, from which the key cannot be computed. It is the same
    /// after a restart.
    pub(crate) fn derived_secret(&self, purpose: &str) -> [u8; KEY_BYTES] {
        let hasher = SipHasher24::new_with_key(&self.secret);
        let half = |number: u8| {
            let mut hasher = hasher;
            (purpose, number).hash(&mut hasher);
            hasher.finish().to_le_bytes()
        };
        let mut secret = [0; KEY_BYTES];
        let (low, high) = secret.split_at_mut(KEY_BYTES / 2);
        low.copy_from_slice(&half(0));
        high.copy_from_slice(&half(1));
        secret
    }

    /// The file in which replies are saved; none for a state in memory.
    pub(crate) fn replies_file(&self) -> Option<PathBuf> {
        Some(self.directory.as_ref()?.join(REPLIES_FILE))
    }

    /// The last time at which an earlier run has noticed changes of delegated files, as far as is
    /// known.
    pub(crate) fn changes_noticed_until(&self) -> Option<SystemTime> {
        std::fs::metadata(self.directory.as_ref()?.join(DELEGATIONS_FILE)).ok()?.modified().ok()
    }

    /// Changes of delegated files are noticed at this time. It need not be durable: an older time
    /// is safe.
    pub(crate) fn set_changes_noticed_until(&self, time: SystemTime) -> std::io::Result<()> {
        let Some(directory) = &self.directory else { return Ok(()) };
        let path = directory.join(DELEGATIONS_FILE);
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
        file.set_modified(time)
    }

    /// The list of clients that have state, and what the last run has left in it.
    pub(crate) fn client_records(
        &self,
        limits: RecordLimits,
    ) -> Result<(ClientRecords, LastRun), StateError> {
        match &self.directory {
            Some(directory) => ClientRecords::open(&directory.join(CLIENTS_FILE), limits),
            None => Ok((ClientRecords::default(), LastRun::default())),
        }
    }

    /// The hosts that had locks when the last run ended; `None` if nothing outlives the process.
    pub(crate) fn monitored(&self) -> Result<Option<MonitoredHosts>, StateError> {
        let Some(directory) = &self.directory else { return Ok(None) };
        let path = directory.join(MONITORED_FILE);
        let bytes = files::read(&path)?.unwrap_or_default();
        MonitoredHosts::from_bytes(&bytes).map(Some).map_err(|what| damaged(&path, what))
    }

    /// Saves the hosts that have locks. They are durable when this returns.
    pub(crate) fn save_monitored(&self, hosts: &MonitoredHosts) -> Result<(), StateError> {
        match &self.directory {
            Some(directory) => files::replace(&directory.join(MONITORED_FILE), &hosts.to_bytes()),
            None => Ok(()),
        }
    }

    /// The number of the export with this path. A new export gets a new number.
    pub(crate) fn export_id(&self, path: &[u8]) -> Result<ExportId, StateError> {
        self.number(|numbers| numbers.export(path)).map(ExportId)
    }

    /// The number of the file system with this identity. A new one gets a new number.
    pub(crate) fn file_system_id(&self, identity: u64) -> Result<FileSystemId, StateError> {
        self.number(|numbers| numbers.file_system(identity)).map(FileSystemId)
    }

    fn number(&self, choose: impl Fn(&mut PersistentIds) -> (u32, bool)) -> Result<u32, StateError> {
        let mut numbers = self.ids.lock();
        let Some(directory) = &self.directory else {
            return Ok(choose(&mut numbers).0);
        };
        let mut changed = numbers.clone();
        let (number, new) = choose(&mut changed);
        if new {
            files::replace(&directory.join(NUMBERS_FILE), &changed.to_bytes())?;
            *numbers = changed;
        }
        Ok(number)
    }
}

/// Creates the directory, unless it exists, and locks it against other servers until the result is
/// dropped.
fn begin(directory: &Path) -> Result<File, StateError> {
    files::make_directory(directory)?;
    files::check_owner(directory)?;
    files::lock(directory)
}

fn make_key(directory: &Path) -> Result<[u8; KEY_BYTES], StateError> {
    let secret = random()?;
    files::replace(&directory.join(KEY_FILE), &secret)?;
    Ok(secret)
}

fn read_numbers(directory: &Path) -> Result<PersistentIds, StateError> {
    let path = directory.join(NUMBERS_FILE);
    let bytes = files::read(&path)?.unwrap_or_default();
    PersistentIds::from_bytes(&bytes).map_err(|what| damaged(&path, what))
}

fn damaged(path: &Path, what: String) -> StateError {
    StateError::Damaged { path: path.to_owned(), what }
}

/// Random bytes from the system.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], StateError> {
    let mut bytes = [0; N];
    let filled = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
    match filled {
        Ok(count) if count == N => Ok(bytes),
        Ok(_) => Err(StateError::Random(rustix::io::Errno::AGAIN)),
        Err(errno) => Err(StateError::Random(errno)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn key_and_numbers_survive_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a/b");
        let first = PersistentState::open(&path).unwrap();
        let numbers = |state: &PersistentState| {
            let srv = state.export_id(b"/srv/\xff \n%").unwrap();
            (srv, state.export_id(b"/home").unwrap(), state.file_system_id(u64::MAX).unwrap())
        };
        let given = numbers(&first);
        assert_eq!(given, (ExportId(1), ExportId(2), FileSystemId(1)));
        drop(first);
        let second = PersistentState::open(&path).unwrap();
        // In another order, and with new exports.
        assert_eq!(second.export_id(b"/new").unwrap(), ExportId(3));
        assert_eq!(second.file_system_id(5).unwrap(), FileSystemId(2));
        assert_eq!(numbers(&second), given);
        let secret = second.secret;
        drop(second);
        assert_eq!(secret, PersistentState::open(&path).unwrap().secret);
    }

    #[test]
    fn a_second_server_with_one_state_is_refused_until_the_first_ends() {
        let directory = tempfile::tempdir().unwrap();
        let one = PersistentState::open(directory.path()).unwrap();
        let refused = |outcome: Result<(), StateError>| {
            let error = outcome.unwrap_err().to_string();
            assert!(error.ends_with("is in use by another server: stop that one"), "{error}");
        };
        refused(PersistentState::open(directory.path()).map(drop));
        refused(PersistentState::new_key(directory.path()).map(drop));
        assert_eq!(one.export_id(b"/a").unwrap(), ExportId(1));
        drop(one);
        assert_eq!(PersistentState::open(directory.path()).unwrap().export_id(b"/b").unwrap(), ExportId(2));
    }

    #[test]
    fn a_key_that_others_could_read_is_refused_until_it_is_closed_or_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        drop(PersistentState::open(path).unwrap());
        let key = path.join(KEY_FILE);
        let set = |mode| std::fs::set_permissions(&key, std::fs::Permissions::from_mode(mode)).unwrap();
        for mode in [0o644, 0o640, 0o620, 0o604] {
            set(mode);
            let error = PersistentState::open(path).err().unwrap().to_string();
            assert!(error.contains("chmod 600"), "{error}");
        }
        set(0o400);
        drop(PersistentState::open(path).unwrap());
        set(0o644);
        PersistentState::new_key(path).unwrap();
        PersistentState::open(path).unwrap();
    }

    #[test]
    fn a_directory_that_others_could_put_a_key_into_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let set = |mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        for mode in [0o720, 0o702, 0o1777] {
            set(mode);
            let error = PersistentState::open(path).err().unwrap().to_string();
            assert!(error.contains("others may write to"), "{error}");
        }
        set(0o755);
        PersistentState::open(path).unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(path, Some(1234), None).unwrap();
            let error = PersistentState::open(path).err().unwrap().to_string();
            assert!(error.contains("belongs to user 1234"), "{error}");
        }
        let error = PersistentState::open(Path::new("/proc/none")).err().unwrap().to_string();
        assert!(error.starts_with("/proc/none: "), "{error}");
    }

    #[test]
    fn the_key_is_its_owners_alone_and_can_be_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        let before = PersistentState::open(&path).unwrap().secret;
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode(&path), mode(&path.join(KEY_FILE))), (0o700, 0o600));
        let after = PersistentState::new_key(&path).unwrap();
        assert_ne!(before, after);
        assert_eq!(PersistentState::open(&path).unwrap().secret, after);
        assert_eq!(mode(&path.join(KEY_FILE)), 0o600);
    }

    #[test]
    fn damaged_files_are_named_and_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        PersistentState::open(directory.path()).unwrap();
        for (file, content) in [(NUMBERS_FILE, &b"export 1\n"[..]), (KEY_FILE, b"short")] {
            let path = directory.path().join(file);
            std::fs::write(&path, content).unwrap();
            let error = PersistentState::open(directory.path()).err().unwrap().to_string();
            assert!(error.contains(file) && error.contains("damaged"), "{error}");
            assert_eq!(std::fs::read(&path).unwrap(), content);
        }
    }
}
