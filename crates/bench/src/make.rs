//! Creates a workload's tree below a directory, and checks one.
//!
//! Files belong to the creating user and are readable by all users, whatever the umask, because a
//! replay runs as another user.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use indicatif::ProgressBar;

use crate::content::ContentPattern;
use crate::tree::{TreeEntry, TreeEntryKind, WorkloadTree};

/// Bytes written by one system call; a multiple of the content's period.
const PIECE_BYTES: usize = 1 << 20;

/// Why a tree could not be created, or differs.
#[derive(Debug, thiserror::Error)]
pub enum MakeError {
    /// A system call failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The path of the failed call.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// Another object has a path of the tree.
    #[error("{}: not what the tree has there ({wanted})", path.display())]
    Different {
        /// The path.
        path: PathBuf,
        /// The expected object.
        wanted: String,
    },
}

/// Creates `tree` below `top` with `jobs` threads; existing files are written again. `progress`
/// counts entries; its length is set here.
///
/// # Errors
/// The first failed system call. Objects created until then remain.
pub fn make(tree: &WorkloadTree, top: &Path, jobs: usize, progress: &ProgressBar) -> Result<(), MakeError> {
    progress.set_length(tree.entries().len() as u64);
    make_directory(top)?;
    for entry in tree.entries().iter().filter(|entry| entry.kind == TreeEntryKind::Directory) {
        make_directory(&top.join(&entry.path))?;
        progress.inc(1);
    }
    let others: Vec<_> =
        tree.entries().iter().filter(|entry| entry.kind != TreeEntryKind::Directory).collect();
    in_parallel(&others, jobs, &|entry, buffer| {
        let path = top.join(&entry.path);
        match &entry.kind {
            TreeEntryKind::File { size } => {
                write_file(&path, ContentPattern::of(entry.path.as_bytes()), *size, buffer)
            }
            TreeEntryKind::Link { target } => make_link(&path, target),
            TreeEntryKind::Directory => Ok(()),
        }
        .map_err(|source| MakeError::Io { path, source })?;
        progress.inc(1);
        Ok(())
    })
}

/// Creates `tree` at `top` unless it exists; it appears complete or not at all.
///
/// # Errors
/// The first failed system call; objects created until then are removed.
pub fn make_once(
    tree: &WorkloadTree,
    top: &Path,
    jobs: usize,
    progress: &ProgressBar,
) -> Result<(), MakeError> {
    if check(tree, top).is_ok() {
        return Ok(());
    }
    let _held = top.parent().and_then(hold);
    if check(tree, top).is_ok() {
        return Ok(());
    }
    let partial = top.with_extension(format!("partial-{}", std::process::id()));
    let failed = |path: &Path, source| MakeError::Io { path: path.to_owned(), source };
    let made = make(tree, &partial, jobs, progress).and_then(|()| {
        // `top` is not this tree: it is of an older version, or files were removed.
        match fs::remove_dir_all(top) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(top, error)),
            _ => {}
        }
        match fs::rename(&partial, top) {
            // Another process was faster, and its tree is complete.
            Err(_) if check(tree, top).is_ok() => Ok(()),
            renamed => renamed.map_err(|source| failed(top, source)),
        }
    });
    // After success it was renamed already, unless another process was faster.
    let _ = fs::remove_dir_all(&partial);
    made
}

/// Creates a directory and locks it against concurrent creation of trees, so that a tree in use is
/// not replaced by a process that began earlier. If the directory cannot be locked, this has no
/// effect.
fn hold(directory: &Path) -> Option<File> {
    // The creation of the tree reports the error.
    fs::create_dir_all(directory).ok()?;
    let held = File::open(directory).ok()?;
    held.lock().ok()?;
    Some(held)
}

/// Checks that each entry of `tree` exists below `top`, with its type and size.
///
/// # Errors
/// The first entry that is missing or different.
pub fn check(tree: &WorkloadTree, top: &Path) -> Result<(), MakeError> {
    for entry in tree.entries() {
        let path = top.join(&entry.path);
        let found = match fs::symlink_metadata(&path) {
            Ok(found) => found,
            Err(source) => return Err(MakeError::Io { path, source }),
        };
        let (right, wanted) = match &entry.kind {
            TreeEntryKind::Directory => (found.is_dir(), "a directory".to_owned()),
            TreeEntryKind::File { size } => {
                (found.is_file() && found.len() == *size, format!("a file of {size} bytes"))
            }
            TreeEntryKind::Link { target } => (
                fs::read_link(&path).is_ok_and(|is| is.as_os_str() == target.as_str()),
                format!("a link to {target}"),
            ),
        };
        if !right {
            return Err(MakeError::Different { path, wanted });
        }
    }
    Ok(())
}

/// Checks that each file of `tree` below `top` has the expected bytes; reads all of them. Counts
/// files on `progress`.
///
/// # Errors
/// The first entry that is missing or different.
pub fn check_content(
    tree: &WorkloadTree,
    top: &Path,
    jobs: usize,
    progress: &ProgressBar,
) -> Result<(), MakeError> {
    let files: Vec<_> =
        tree.entries().iter().filter(|entry| matches!(entry.kind, TreeEntryKind::File { .. })).collect();
    progress.set_length(files.len() as u64);
    in_parallel(&files, jobs, &|entry, _| {
        let path = top.join(&entry.path);
        let TreeEntryKind::File { size } = entry.kind else {
            return Ok(());
        };
        let bytes = fs::read(&path).map_err(|source| MakeError::Io { path: path.clone(), source })?;
        progress.inc(1);
        if bytes.len() as u64 != size {
            return Err(MakeError::Different { path, wanted: format!("{size} bytes, not {}", bytes.len()) });
        }
        match ContentPattern::of(entry.path.as_bytes()).first_wrong(0, &bytes) {
            None => Ok(()),
            Some(at) => Err(MakeError::Different { path, wanted: format!("another byte at {at}") }),
        }
    })
}

fn in_parallel(
    entries: &[&TreeEntry],
    jobs: usize,
    work: &(impl Fn(&TreeEntry, &mut Vec<u8>) -> Result<(), MakeError> + Sync),
) -> Result<(), MakeError> {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let one_thread = || {
            let mut buffer = Vec::new();
            // Relaxed: the counter only assigns numbers; the entries exist before the threads.
            while let Some(entry) = entries.get(next.fetch_add(1, Ordering::Relaxed)) {
                if let Err(error) = work(entry, &mut buffer) {
                    next.store(entries.len(), Ordering::Relaxed);
                    return Err(error);
                }
            }
            Ok(())
        };
        let threads: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(one_thread)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("the work does not panic"))
            .fold(Ok(()), Result::and)
    })
}

fn make_directory(path: &Path) -> Result<(), MakeError> {
    let made =
        fs::create_dir_all(path).and_then(|()| fs::set_permissions(path, Permissions::from_mode(0o755)));
    made.map_err(|source| MakeError::Io { path: path.to_owned(), source })
}

fn write_file(path: &Path, content: ContentPattern, size: u64, buffer: &mut Vec<u8>) -> io::Result<()> {
    let mut file = File::create(path)?;
    let mut left = size;
    while left > 0 {
        let piece = usize::try_from(left).unwrap_or(usize::MAX).min(PIECE_BYTES);
        buffer.resize(piece, 0);
        content.fill(size - left, buffer);
        file.write_all(buffer)?;
        left -= piece as u64;
    }
    file.set_permissions(Permissions::from_mode(0o644))
}

fn make_link(path: &Path, target: &str) -> io::Result<()> {
    match std::os::unix::fs::symlink(target, path) {
        Err(error)
            if error.kind() == io::ErrorKind::AlreadyExists && fs::read_link(path)?.as_os_str() == target =>
        {
            Ok(())
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

    use super::*;

    const TREE: &str =
        "d empty\nf 0 nothing\nf 3000000 deep/er/large\nf 64 exact\nf 65 more\nl large deep/er/link\n";

    fn tree() -> WorkloadTree {
        WorkloadTree::parse(TREE.as_bytes()).unwrap()
    }

    #[test]
    fn a_tree_that_was_made_checks_and_every_change_is_found() {
        let top = tempfile::tempdir().unwrap();
        let (tree, hidden) = (tree(), ProgressBar::hidden());
        assert!(check(&tree, top.path()).is_err(), "an empty directory is no tree");
        make(&tree, top.path(), 3, &hidden).unwrap();
        check(&tree, top.path()).unwrap();
        check_content(&tree, top.path(), 3, &hidden).unwrap();
        let large = top.path().join("deep/er/large");
        let mut bytes = fs::read(&large).unwrap();
        bytes[2_999_999] ^= 1;
        fs::write(&large, &bytes).unwrap();
        check(&tree, top.path()).unwrap();
        let error = check_content(&tree, top.path(), 3, &hidden).unwrap_err().to_string();
        assert!(error.contains("2999999"), "{error}");
        fs::write(&large, &bytes[1..]).unwrap();
        assert!(check(&tree, top.path()).is_err());
        make(&tree, top.path(), 1, &hidden).unwrap();
        check_content(&tree, top.path(), 1, &hidden).unwrap();
    }

    #[test]
    fn make_once_replaces_what_is_not_the_tree_and_leaves_the_tree_alone() {
        let top = tempfile::tempdir().unwrap();
        let at = top.path().join("some/where");
        let (tree, hidden) = (tree(), ProgressBar::hidden());
        make_once(&tree, &at, 2, &hidden).unwrap();
        let made = fs::metadata(at.join("exact")).unwrap().modified().unwrap();
        make_once(&tree, &at, 2, &hidden).unwrap();
        assert_eq!(fs::metadata(at.join("exact")).unwrap().modified().unwrap(), made, "it was made again");
        fs::remove_file(at.join("exact")).unwrap();
        fs::write(at.join("stranger"), "x").unwrap();
        make_once(&tree, &at, 2, &hidden).unwrap();
        check(&tree, &at).unwrap();
        assert!(!at.join("stranger").exists());
        assert_eq!(fs::read_dir(top.path().join("some")).unwrap().count(), 1, "a partial tree is left");
    }
}
