//! The ring: a file with the last events of a process, which remains if the process is killed or
//! fails.
//!
//! It begins like a [recording](super::recording); the memory of a buffer follows at the next page.
//! The file is mapped: writing an event to it is writing to memory.
//!
//! A process removes its ring at a normal end, and also if it could not start, because it prints
//! the reason itself. The ring remains after a fatal signal, a panic of the main thread, and
//! [`EventRing::keep`]. If another thread panics and the process continues, later events overwrite
//! the ring. So a copy is made at the panic, once per process, and remains. The newest [`LEFT_MAX`]
//! rings are retained.

mod level;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{FallocateFlags, FlockOperation, OFlags, fallocate, flock};

use super::buffer::{EventBuffer, OverflowPolicy, SHARDS, words_needed};
use super::recording::{RecordedProcess, RecordingHead, RingLayout};
use super::short_text::ShortText;
use super::sinks;

pub use level::{RingLevel, UnknownRingLevel};

/// Words of each shard: 64 KiB, half a mebibyte in all.
const SHARD_WORDS: usize = 8 * 1024;
/// Maximum number of retained rings of processes that were killed or failed.
pub const LEFT_MAX: usize = 8;
/// The suffix of a ring's name.
const ENDING: &str = "ring";

/// The text after the process id in the name of a copy.
const PANIC: &str = "-panic";

/// This process's ring. Dropping it removes its file, unless the thread is panicking.
#[derive(Debug)]
pub struct EventRing {
    path: PathBuf,
    /// Locked as long as the process lives, so that other processes can check that.
    _file: File,
    copy: Arc<PanicCopy>,
}

/// The file to which the ring is copied when a thread panics.
#[derive(Debug)]
struct PanicCopy {
    path: PathBuf,
    /// Opened in advance, because a panicking thread may not be allowed to create files; none once
    /// it has been written.
    file: Mutex<Option<File>>,
}

impl EventRing {
    /// Creates this process's ring in `directory`, which must exist. It receives no events yet: see
    /// [`keep_in_ring`](super::keep_in_ring). To be called once in a process.
    ///
    /// # Errors
    /// The file cannot be created, or the process has a ring already.
    pub fn create(directory: &Path, origin: RecordedProcess) -> io::Result<Self> {
        let path = directory.join(format!("{}.{ENDING}", origin.pid));
        let copy = directory.join(format!("{}{PANIC}.{ENDING}", origin.pid));
        remove_old(directory, &path);
        let ring = Self {
            _file: make(&path)?,
            path,
            copy: Arc::new(PanicCopy { file: Mutex::new(Some(make(&copy)?)), path: copy }),
        };
        let head = RecordingHead {
            ring: Some(RingLayout { shards: SHARDS, shard_words: SHARD_WORDS }),
            ..RecordingHead::new(origin)
        };
        let memory = ring.lay_out(&head)?;
        ring.copy_on_panic(memory);
        Ok(ring)
    }

    /// Leaves the ring's file in place, for a process that ends because of an error.
    pub fn keep(self) {
        sinks::keep_in_ring(&[]);
        self.copy.remove_unused();
        // Skip the destructor, which would remove the file.
        std::mem::forget(self);
    }

    /// The path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn lay_out(&self, head: &RecordingHead) -> io::Result<&'static [AtomicU64]> {
        let beginning = head.words()?;
        let start = RecordingHead::memory_at(beginning.len());
        let words = start + words_needed(SHARD_WORDS);
        // Allocate all space now: a lack of space later would be a fatal signal.
        fallocate(&self._file, FallocateFlags::empty(), 0, (words * size_of::<u64>()) as u64)?;
        let memory = super::sys::map(&self._file, words)?;
        for (word, value) in memory.iter().zip(beginning) {
            word.store(value.to_le(), Ordering::Relaxed);
        }
        let shards: &'static [AtomicU64] = &memory[start..];
        if sinks::set_ring(EventBuffer::new(shards, SHARD_WORDS, OverflowPolicy::Overwrite)) {
            Ok(memory)
        } else {
            Err(io::Error::new(io::ErrorKind::AlreadyExists, "this process has a ring"))
        }
    }
}

impl EventRing {
    /// From now on the first panicking thread writes a copy, whose last event is the location of
    /// the panic.
    fn copy_on_panic(&self, memory: &'static [AtomicU64]) {
        let (copy, before) = (Arc::clone(&self.copy), std::panic::take_hook());
        std::panic::set_hook(Box::new(move |panic| {
            before(panic);
            let place = panic.location().map(ShortText::of);
            crate::probe!(CurtPanicked {
                reason: place.as_ref().map_or(&b"at an unknown place"[..], ShortText::bytes)
            });
            copy.write(memory);
        }));
    }
}

impl PanicCopy {
    /// Writes a copy of the ring, unless there is one already. This needs no permission and no
    /// system call other than write and close.
    fn write(&self, memory: &[AtomicU64]) {
        let mut kept = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mut file) = kept.take() else { return };
        let words = memory.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes());
        let bytes: Vec<u8> = words.collect();
        // An error cannot be reported; without space the end of the copy is missing. Closing the
        // file releases its lock.
        let _ = file.write_all(&bytes);
    }

    /// Removes the file if nothing was written to it.
    fn remove_unused(&self) {
        let mut kept = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.take().is_some() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Drop for EventRing {
    fn drop(&mut self) {
        sinks::keep_in_ring(&[]);
        self.copy.remove_unused();
        if std::thread::panicking() {
            // The ring itself contains all events of the copy.
            let _ = fs::remove_file(&self.copy.path);
        } else {
            // The events before a normal end are not needed.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Creates a file that is locked for as long as this process has it open.
fn make(path: &Path) -> io::Result<File> {
    rename_earlier(path)?;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).mode(0o600);
    let file = options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed()).open(path)?;
    // A process that lists the rings holds the lock for a moment at most.
    flock(&file, FlockOperation::LockExclusive)?;
    Ok(file)
}

/// The rings in `directory` of processes that were killed, failed, or had a panicking thread, the
/// newest first.
///
/// # Errors
/// The directory cannot be read. If it does not exist there are none.
pub fn left_behind(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut rings = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == ENDING) && is_left(&path) {
            let metadata = fs::symlink_metadata(&path);
            // A copy that was never written.
            if metadata.as_ref().is_ok_and(|made| made.len() == 0) {
                continue;
            }
            let made = metadata.map_or((0, 0), |made| (made.mtime(), made.mtime_nsec()));
            rings.push((made, path));
        }
    }
    rings.sort_unstable_by(|one, other| other.cmp(one));
    Ok(rings.into_iter().map(|(_, path)| path).collect())
}

/// Whether no process holds its lock.
fn is_left(path: &Path) -> bool {
    let mut options = OpenOptions::new();
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = options.read(true).custom_flags(flags).open(path);
    file.is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok())
}

/// Renames the ring of an earlier process with this process id: in a container every daemon may
/// have the same one.
fn rename_earlier(path: &Path) -> io::Result<()> {
    let made = match fs::symlink_metadata(path) {
        Ok(made) => made.mtime(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    fs::rename(path, path.with_extension(format!("{made}.{ENDING}")))
}

/// Makes room for a new ring. Files that cannot be removed stay.
fn remove_old(directory: &Path, own: &Path) {
    let left = left_behind(directory).unwrap_or_default();
    let others = left.iter().filter(|path| *path != own);
    for path in others.skip(LEFT_MAX - 1) {
        let _ = fs::remove_file(path);
    }
    remove_unused_copies(directory);
}

/// Removes the unused files for copies of processes that were killed.
fn remove_unused_copies(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        let is_copy = name.ends_with(format!("{PANIC}.{ENDING}").as_bytes());
        let is_empty = fs::symlink_metadata(&path).is_ok_and(|made| made.is_file() && made.len() == 0);
        if is_copy && is_empty && is_left(&path) {
            let _ = fs::remove_file(&path);
        }
    }
}
