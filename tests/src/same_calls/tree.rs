//! Walks a tree.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{FileType, lstat};

use crate::test_directory::StatSummary;

/// Number of bytes compared at either end of a file: some are too long to be read.
const END_BYTES: usize = 256 << 10;

/// A file's path, its stat(2), and its contents: a link's target, a file's ends.
pub(crate) struct FoundFile {
    pub(crate) path: Vec<u8>,
    pub(crate) seen: StatSummary,
    pub(crate) content: Vec<u8>,
}

/// The paths of all objects below `top`, in order.
pub(crate) fn paths(top: &Path) -> Result<Vec<Vec<u8>>, String> {
    let mut found = Vec::new();
    let mut open = vec![Vec::new()];
    while let Some(directory) = open.pop() {
        let whole = top.join(OsStr::from_bytes(&directory));
        let error = |error: std::io::Error| format!("{}: {error}", whole.display());
        for entry in fs::read_dir(&whole).map_err(error)? {
            let entry = entry.map_err(error)?;
            let mut path = directory.clone();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend(entry.file_name().into_vec());
            if entry.file_type().map_err(error)?.is_dir() {
                open.push(path.clone());
            }
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// All objects below `top`, with their contents.
pub(crate) fn walk(top: &Path) -> Result<Vec<FoundFile>, String> {
    let find = |path: Vec<u8>| {
        let whole = top.join(OsStr::from_bytes(&path));
        let error = |error: std::io::Error| format!("{}: {error}", whole.display());
        let stat = lstat(&whole).map_err(|errno| error(errno.into()))?;
        let content = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink => fs::read_link(&whole).map_err(error)?.into_os_string().into_vec(),
            FileType::RegularFile => ends(&whole).map_err(error)?,
            _ => Vec::new(),
        };
        Ok(FoundFile { path, seen: stat.into(), content })
    };
    paths(top)?.into_iter().map(find).collect()
}

fn ends(path: &Path) -> std::io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let size = file.metadata()?.len();
    let mut content = Vec::new();
    for from in [0, size.saturating_sub(END_BYTES as u64)] {
        let mut bytes = vec![0; END_BYTES];
        let mut got = 0;
        while got < bytes.len() {
            match file.read_at(&mut bytes[got..], from + got as u64)? {
                0 => break,
                more => got += more,
            }
        }
        content.extend(&bytes[..got]);
    }
    Ok(content)
}
