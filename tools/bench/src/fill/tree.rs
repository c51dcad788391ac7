//! The trees of the counted cases, made once: many directories of which one name each is wanted,
//! one huge directory, and an archive for tar.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use curt_bench::processes::{names as listed, progress_bar};

/// The directory in the archive that holds all. Nothing of the directory that it is unpacked in is
/// changed: that is another's.
const ARCHIVED: &str = "files";

/// Files of the archive in one directory.
const ARCHIVED_PER_DIRECTORY: u32 = 100;

/// Bytes of each.
const ARCHIVED_BYTES: usize = 1024;

/// How large the trees are.
#[derive(Clone, Copy, Debug)]
pub(super) struct FillTreeSizes {
    /// Directories, and names in each.
    pub(super) directories: u32,
    pub(super) names: u32,
    /// Names in the huge one.
    pub(super) huge: u32,
    /// Files in the archive.
    pub(super) files: u32,
}

impl FillTreeSizes {
    fn many(&self) -> String {
        format!("many-{}x{}", self.directories, self.names)
    }

    /// One name in each of the many directories, not the first one.
    pub(super) fn one_of_each(&self) -> impl Iterator<Item = PathBuf> {
        let (many, name) = (self.many(), self.names / 2);
        (0..self.directories).map(move |number| Path::new(&many).join(directory(number)).join(file(name)))
    }

    /// One name in the huge directory.
    pub(super) fn one_of_huge(&self) -> PathBuf {
        let name = listed::name(u64::from(self.huge) / 2);
        listed::directory(Path::new(""), u64::from(self.huge)).join(name)
    }

    /// The archive.
    pub(super) fn archive(&self, top: &Path) -> PathBuf {
        top.join(format!("files-{}.tar", self.files))
    }

    /// Makes what is not there, and returns what is to be served.
    pub(super) fn make(&self, top: &Path) -> Result<PathBuf> {
        ensure!(
            self.directories > 0 && self.names > 0 && self.huge > 0 && self.files > 0,
            "a case without any name shows nothing"
        );
        let served = top.join("served");
        fs::create_dir_all(&served).with_context(|| served.display().to_string())?;
        self.make_many(&served)?;
        let huge = u64::from(self.huge);
        let bar = progress_bar(&format!("making {huge} names in {}", served.display()));
        listed::make(&listed::directory(&served, huge), huge, 1, &bar)?;
        self.make_archive(top)?;
        Ok(served)
    }

    fn make_many(&self, served: &Path) -> Result<()> {
        let many = served.join(self.many());
        let last = directory(self.directories - 1);
        // The last name made says that all are there.
        if many.join(&last).join(file(self.names - 1)).exists() {
            return Ok(());
        }
        let bar = progress_bar(&format!(
            "making {} directories of {} names in {}",
            self.directories,
            self.names,
            served.display()
        ));
        bar.set_length(u64::from(self.directories));
        for number in 0..self.directories {
            let here = many.join(directory(number));
            fs::create_dir_all(&here).with_context(|| here.display().to_string())?;
            for name in 0..self.names {
                File::create(here.join(file(name)))?;
            }
            bar.inc(1);
        }
        bar.finish_and_clear();
        Ok(())
    }

    fn make_archive(&self, top: &Path) -> Result<()> {
        let archive = self.archive(top);
        if archive.exists() {
            return Ok(());
        }
        let source = tempfile::tempdir_in(top)?;
        for number in 0..self.files {
            let all = source.path().join(ARCHIVED);
            let here = all.join(directory(number / ARCHIVED_PER_DIRECTORY));
            if number % ARCHIVED_PER_DIRECTORY == 0 {
                fs::create_dir_all(&here)?;
            }
            fs::write(here.join(file(number)), [b'x'; ARCHIVED_BYTES])?;
        }
        let unfinished = archive.with_extension("unfinished");
        run(
            "tar -c",
            Command::new("tar")
                .arg("-cf")
                .arg(&unfinished)
                .arg("-C")
                .arg(source.path())
                .arg(ARCHIVED),
        )?;
        fs::rename(unfinished, archive)?;
        Ok(())
    }
}

fn directory(number: u32) -> String {
    format!("directory{number:05}")
}

fn file(number: u32) -> String {
    format!("file{number:08}")
}

/// Runs a program that prints nothing that is wanted.
pub(super) fn run(what: &str, command: &mut Command) -> Result<()> {
    let status = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .with_context(|| what.to_owned())?;
    ensure!(status.success(), "{what} ended with {status}");
    Ok(())
}
