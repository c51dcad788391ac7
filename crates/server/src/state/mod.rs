//! What a server remembers over restarts: its key, and the numbers of exports and file systems, so that clients' handles
//! stay good. Kept in the state directory, which only its owner may read.

mod files;
mod numbers;

use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use crate::file_handle::{ExportId, FileSystemId, HandleKey};
use numbers::Numbers;

/// The file of the secret that handles are signed with.
const KEY_FILE: &str = "handle-key";
/// The file of the numbers.
const NUMBERS_FILE: &str = "numbers";
/// The bytes of the secret.
const KEY_BYTES: usize = 16;

/// What a server remembers.
pub struct State {
    /// None: nothing outlives the process.
    directory: Option<PathBuf>,
    secret: [u8; KEY_BYTES],
    numbers: Mutex<Numbers>,
}

/// Why the state cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// A file or directory of the state failed.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// How.
        source: std::io::Error,
    },
    /// A file of the state is not what this server writes. It is left as it is.
    #[error("{path} is damaged: {what}; move it away to begin anew (clients must then mount again)", path = path.display())]
    Damaged {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// No random number was to be had.
    #[error("the system gives no random numbers: {0}")]
    Random(rustix::io::Errno),
}

impl State {
    /// Opens the state in `directory`, or begins it: the directory is made (mode 0700) with a new key (mode 0600).
    ///
    /// # Errors
    /// [`StateError`].
    pub fn open(directory: &Path) -> Result<Self, StateError> {
        files::make_directory(directory)?;
        let key_path = directory.join(KEY_FILE);
        let secret = match files::read(&key_path)? {
            Some(bytes) => <[u8; KEY_BYTES]>::try_from(bytes.as_slice())
                .map_err(|_| damaged(&key_path, format!("{} bytes instead of {KEY_BYTES}", bytes.len())))?,
            None => Self::new_key(directory)?,
        };
        let numbers = read_numbers(directory)?;
        Ok(Self {
            directory: Some(directory.to_owned()),
            secret,
            numbers: Mutex::new(numbers),
        })
    }

    /// A state that ends with the process: handles are stale after a restart.
    ///
    /// # Errors
    /// [`StateError::Random`].
    pub fn ephemeral() -> Result<Self, StateError> {
        Ok(Self::with_key(random()?))
    }

    /// A state with a known key that ends with the process, for tests whose handles must be the same in each run.
    #[must_use]
    pub fn with_key(secret: [u8; KEY_BYTES]) -> Self {
        Self {
            directory: None,
            secret,
            numbers: Mutex::default(),
        }
    }

    /// Replaces the key of the state in `directory` (made if need be): all handles that were given are stale from
    /// the next start on. Returns the new key.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn new_key(directory: &Path) -> Result<[u8; KEY_BYTES], StateError> {
        files::make_directory(directory)?;
        let secret = random()?;
        files::replace(&directory.join(KEY_FILE), &secret)?;
        Ok(secret)
    }

    pub(crate) fn handle_key(&self) -> HandleKey {
        HandleKey::new(&self.secret)
    }

    /// The number of the export with this path; a new one if it has none.
    pub(crate) fn export_id(&self, path: &[u8]) -> Result<ExportId, StateError> {
        self.number(|numbers| numbers.export(path)).map(ExportId)
    }

    /// The number of the file system with this identity; a new one if it has none.
    pub(crate) fn file_system_id(&self, identity: u64) -> Result<FileSystemId, StateError> {
        self.number(|numbers| numbers.file_system(identity))
            .map(FileSystemId)
    }

    fn number(&self, choose: impl Fn(&mut Numbers) -> (u32, bool)) -> Result<u32, StateError> {
        let mut numbers = self.numbers.lock();
        let Some(directory) = &self.directory else {
            return Ok(choose(&mut numbers).0);
        };
        let (number, new) = choose(&mut numbers.clone());
        if !new {
            return Ok(number);
        }
        // Another server may use the same directory: what it wrote meanwhile counts.
        let _exclusive = files::lock(directory)?;
        *numbers = read_numbers(directory)?;
        let (number, _) = choose(&mut numbers);
        files::replace(&directory.join(NUMBERS_FILE), &numbers.to_bytes())?;
        Ok(number)
    }
}

fn read_numbers(directory: &Path) -> Result<Numbers, StateError> {
    let path = directory.join(NUMBERS_FILE);
    let bytes = files::read(&path)?.unwrap_or_default();
    Numbers::from_bytes(&bytes).map_err(|what| damaged(&path, what))
}

fn damaged(path: &Path, what: String) -> StateError {
    StateError::Damaged {
        path: path.to_owned(),
        what,
    }
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
        let first = State::open(&path).unwrap();
        let numbers = |state: &State| {
            let srv = state.export_id(b"/srv/\xff \n%").unwrap();
            (
                srv,
                state.export_id(b"/home").unwrap(),
                state.file_system_id(u64::MAX).unwrap(),
            )
        };
        let given = numbers(&first);
        assert_eq!(given, (ExportId(1), ExportId(2), FileSystemId(1)));
        drop(first);
        let second = State::open(&path).unwrap();
        // In another order, and with newcomers.
        assert_eq!(second.export_id(b"/new").unwrap(), ExportId(3));
        assert_eq!(second.file_system_id(5).unwrap(), FileSystemId(2));
        assert_eq!(numbers(&second), given);
        assert_eq!(second.secret, State::open(&path).unwrap().secret);
    }

    #[test]
    fn two_servers_with_one_state_never_give_one_number_twice() {
        let directory = tempfile::tempdir().unwrap();
        let (one, other) = (
            State::open(directory.path()).unwrap(),
            State::open(directory.path()).unwrap(),
        );
        assert_eq!(one.export_id(b"/a").unwrap(), ExportId(1));
        assert_eq!(other.export_id(b"/b").unwrap(), ExportId(2));
        assert_eq!(one.export_id(b"/b").unwrap(), ExportId(2));
        assert_eq!(other.export_id(b"/a").unwrap(), ExportId(1));
    }

    #[test]
    fn the_key_is_its_owners_alone_and_can_be_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        let before = State::open(&path).unwrap().secret;
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode(&path), mode(&path.join(KEY_FILE))), (0o700, 0o600));
        let after = State::new_key(&path).unwrap();
        assert_ne!(before, after);
        assert_eq!(State::open(&path).unwrap().secret, after);
        assert_eq!(mode(&path.join(KEY_FILE)), 0o600);
    }

    #[test]
    fn damaged_files_are_named_and_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        State::open(directory.path()).unwrap();
        for (file, content) in [(NUMBERS_FILE, &b"export 1\n"[..]), (KEY_FILE, b"short")] {
            let path = directory.path().join(file);
            std::fs::write(&path, content).unwrap();
            let error = State::open(directory.path()).err().unwrap().to_string();
            assert!(error.contains(file) && error.contains("damaged"), "{error}");
            assert_eq!(std::fs::read(&path).unwrap(), content);
        }
    }
}
