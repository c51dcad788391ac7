//! /run/mount/utab: the options of a mount that the kernel does not store. `mount` and `findmnt -m`
//! print them.
//!
//! The format is libmount's: a line of `NAME=value` pairs, values escaped as in fstab(5), changed
//! under a lock on /run/mount/utab.lock by replacing the file.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use curt_fuse::mountinfo::{escape, unescape};

/// The table, in the directory where libmount keeps it.
#[derive(Debug, Clone)]
pub struct Utab {
    directory: PathBuf,
}

/// A mount's line.
#[derive(Debug, Clone, Copy)]
pub struct UtabEntry<'a> {
    /// `server:/path`.
    pub source: &'a str,
    /// Absolute path of the mount point.
    pub target: &'a Path,
    /// Options in force, comma-separated.
    pub options: &'a str,
}

impl Default for Utab {
    fn default() -> Self {
        Self { directory: PathBuf::from("/run/mount") }
    }
}

impl Utab {
    /// A table in another directory.
    #[must_use]
    pub fn at(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// Writes the entry, replacing an older one of the same mount point.
    pub fn put(&self, entry: &UtabEntry<'_>) -> io::Result<()> {
        self.change(entry.target, Some(entry))
    }

    /// Removes the entry of a mount point, if there is one.
    pub fn remove(&self, target: &Path) -> io::Result<()> {
        if !self.path().exists() {
            return Ok(());
        }
        self.change(target, None)
    }

    fn path(&self) -> PathBuf {
        self.directory.join("utab")
    }

    fn change(&self, target: &Path, entry: Option<&UtabEntry<'_>>) -> io::Result<()> {
        std::fs::create_dir_all(&self.directory)?;
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o644)
            .open(self.directory.join("utab.lock"))?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
        let old = match std::fs::read(self.path()) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        let temporary = self.directory.join(format!("utab.curt.{}", std::process::id()));
        let written = write_table(&temporary, &old, target, entry)
            .and_then(|()| std::fs::rename(&temporary, self.path()));
        if written.is_err() {
            // The table is unchanged; the temporary file is useless.
            let _ = std::fs::remove_file(&temporary);
        }
        written
    }
}

fn write_table(path: &Path, old: &[u8], target: &Path, entry: Option<&UtabEntry<'_>>) -> io::Result<()> {
    let mut file = File::create(path)?;
    let lines = old.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
    for line in lines.filter(|line| value(line, b"TARGET=").as_deref() != Some(target.as_os_str().as_bytes()))
    {
        file.write_all(line)?;
        file.write_all(b"\n")?;
    }
    if let Some(entry) = entry {
        let fields: [(&str, &OsStr); 4] = [
            ("SRC=", entry.source.as_ref()),
            ("TARGET=", entry.target.as_os_str()),
            ("ROOT=", "/".as_ref()),
            ("OPTS=", entry.options.as_ref()),
        ];
        let text: Vec<_> =
            fields.iter().map(|(name, value)| [name.as_bytes(), &escape(value)].concat()).collect();
        file.write_all(&text.join(&b' '))?;
        file.write_all(b"\n")?;
    }
    file.sync_data()
}

fn value(line: &[u8], name: &[u8]) -> Option<Vec<u8>> {
    line.split(|&byte| byte == b' ').find_map(|field| field.strip_prefix(name)).map(unescape)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that fails may panic")]
mod tests {
    use super::{Utab, UtabEntry};

    #[test]
    fn entries_are_put_replaced_and_removed_beside_those_of_others() {
        let directory = std::env::temp_dir().join(format!("curt-utab-{}", std::process::id()));
        let table = Utab::at(directory.clone());
        let text = || std::fs::read_to_string(directory.join("utab")).unwrap();
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("utab"), "SRC=/dev/x TARGET=/other ROOT=/ OPTS=uhelper=x\n").unwrap();
        let entry = |options| UtabEntry { source: "nas:/e", target: "/mnt/a b".as_ref(), options };
        table.put(&entry("noaccesscheck")).unwrap();
        table.put(&entry("sloppycto=3")).unwrap();
        assert_eq!(
            text(),
            "SRC=/dev/x TARGET=/other ROOT=/ OPTS=uhelper=x\nSRC=nas:/e TARGET=/mnt/a\\040b ROOT=/ OPTS=sloppycto=3\n"
        );
        table.remove("/mnt/a b".as_ref()).unwrap();
        assert_eq!(text(), "SRC=/dev/x TARGET=/other ROOT=/ OPTS=uhelper=x\n");
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
