//! The listed directory: its names by a formula, created here or on a server, and the check of
//! listed names.
//!
//! A name is 12 hexadecimal digits: its number times an odd constant, modulo 2^48. So names are
//! distinct and in no order, and a name determines its number.

use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use indicatif::ProgressBar;

/// An odd number; below its inverse modulo 2^48.
const SCATTER: u64 = 0x9e37_79b9_7f4b;
const GATHER: u64 = 0x393d_ee21_9263;
const MASK: u64 = (1 << 48) - 1;

/// Prefix of the second client's files.
const CREATED: &str = "created-";

/// Maximum number of names.
const COUNT_MAX: u64 = 1 << 32;

/// The directory of `count` names below `top`.
#[must_use]
pub fn directory(top: &Path, count: u64) -> PathBuf {
    top.join(format!("list-{count}"))
}

/// The name with this number.
#[must_use]
pub fn name(number: u64) -> String {
    format!("{:012x}", number.wrapping_mul(SCATTER) & MASK)
}

/// The name of the second client's file with this number.
fn created(number: u64) -> String {
    format!("{CREATED}{number}")
}

/// Creates the second client's file with this number.
///
/// # Errors
/// It cannot be created, or it exists: opening it would not change the directory.
pub fn create(directory: &Path, number: u64) -> Result<()> {
    let path = directory.join(created(number));
    File::create_new(&path).with_context(|| path.display().to_string())?;
    Ok(())
}

/// Removes the second client's files, the last one first: if this is interrupted, the first ones
/// remain and are found again.
///
/// # Errors
/// One cannot be removed.
pub fn remove_created(directory: &Path) -> Result<()> {
    let path = |number| directory.join(created(number));
    let mut count = 0;
    while path(count).try_exists()? {
        count += 1;
    }
    let remove = |number| {
        let path = path(number);
        std::fs::remove_file(&path).with_context(|| path.display().to_string())
    };
    (0..count).rev().try_for_each(remove)
}

/// Creates the directory and its names, unless it has them: the last one created shows this.
///
/// # Errors
/// The directory cannot be created.
pub fn make(directory: &Path, count: u64, jobs: u64, bar: &ProgressBar) -> Result<()> {
    let Some(last) = count.checked_sub(1) else {
        anyhow::bail!("there is nothing to list in a directory without names");
    };
    if directory.join(name(last)).exists() {
        return Ok(());
    }
    open_directory(directory)?;
    bar.set_length(count);
    let part = |job: u64| -> Result<()> {
        for number in (job..last).step_by(usize::try_from(jobs)?) {
            let path = directory.join(name(number));
            File::create(&path).with_context(|| path.display().to_string())?;
            bar.inc(1);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let parts: Vec<_> = (0..jobs).map(|job| scope.spawn(move || part(job))).collect();
        parts.into_iter().try_for_each(|part| match part.join() {
            Ok(made) => made,
            Err(_) => anyhow::bail!("a thread that makes names failed"),
        })
    })?;
    File::create(directory.join(name(last)))?;
    bar.finish_and_clear();
    Ok(())
}

/// Creates a directory with write permission for all users, because servers squash root.
///
/// # Errors
/// The directory cannot be created.
pub fn open_directory(directory: &Path) -> Result<()> {
    std::fs::create_dir_all(directory)
        .and_then(|()| std::fs::set_permissions(directory, Permissions::from_mode(0o777)))
        .with_context(|| directory.display().to_string())
}

/// The names that were listed.
#[derive(Debug)]
pub struct Listed {
    seen: Vec<bool>,
    /// Number of listed names.
    pub count: u64,
    /// Number of names that were listed more than once.
    pub doubled: u64,
    created: std::collections::HashSet<Vec<u8>>,
}

impl Listed {
    /// No name listed yet, out of `count`.
    ///
    /// # Errors
    /// The memory cannot be allocated.
    pub fn new(count: u64) -> Result<Self> {
        Ok(Self {
            seen: vec![false; usize::try_from(count)?],
            count: 0,
            doubled: 0,
            created: std::collections::HashSet::new(),
        })
    }

    /// Records a listed name.
    ///
    /// # Errors
    /// The name was not created here.
    pub fn add(&mut self, name: &[u8]) -> Result<()> {
        if matches!(name, b"." | b"..") {
            return Ok(());
        }
        let is_again = if name.starts_with(CREATED.as_bytes()) {
            !self.created.insert(name.to_vec())
        } else {
            let number = number(name).filter(|number| *number < self.seen.len());
            let number =
                number.with_context(|| format!("{} was listed, which nobody made", name.escape_ascii()))?;
            std::mem::replace(&mut self.seen[number], true)
        };
        self.count += 1;
        self.doubled += u64::from(is_again);
        Ok(())
    }

    /// Number of names that existed throughout and were not listed.
    #[must_use]
    pub fn missing(&self) -> u64 {
        self.seen.iter().filter(|seen| !**seen).count() as u64
    }
}

/// The number of a name of the formula.
fn number(name: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(name).ok().filter(|text| text.len() == 12)?;
    let number = u64::from_str_radix(text, 16).ok()?.wrapping_mul(GATHER) & MASK;
    usize::try_from(number).ok()
}

/// Checks the number of names of a directory.
///
/// # Errors
/// It is zero or too large.
pub fn check(count: u64) -> Result<()> {
    ensure!((1..=COUNT_MAX).contains(&count), "--count takes 1 to {COUNT_MAX}");
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

    use super::*;

    #[test]
    fn a_name_contains_its_number_and_every_fault_of_a_listing_is_counted() {
        assert_eq!(SCATTER.wrapping_mul(GATHER) & MASK, 1);
        let mut seen = Listed::new(1000).unwrap();
        for counted in (0..1000).filter(|number| *number != 7) {
            assert_eq!(name(counted).len(), 12);
            seen.add(name(counted).as_bytes()).unwrap();
        }
        seen.add(b".").unwrap();
        seen.add(created(1).as_bytes()).unwrap();
        assert_eq!((seen.count, seen.missing(), seen.doubled), (1000, 1, 0));
        seen.add(name(3).as_bytes()).unwrap();
        seen.add(created(1).as_bytes()).unwrap();
        assert_eq!(seen.doubled, 2);
        assert!(seen.add(name(1000).as_bytes()).is_err());
        assert!(seen.add(b"else").is_err());
    }

    #[test]
    fn the_second_client_makes_each_file_and_leaves_none() {
        let directory = tempfile::tempdir().unwrap();
        let count = || std::fs::read_dir(directory.path()).unwrap().count();
        File::create(directory.path().join("else")).unwrap();
        remove_created(directory.path()).unwrap();
        for number in 0..3 {
            create(directory.path(), number).unwrap();
        }
        // A file left by a failed pass would not be a change.
        assert!(create(directory.path(), 1).is_err());
        assert_eq!(count(), 4);
        remove_created(directory.path()).unwrap();
        assert_eq!(count(), 1);
        create(directory.path(), 0).unwrap();
    }
}
