//! The trees of the counted cases, created once: many directories of which one name each is used,
//! one huge directory, and an archive for tar.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use curt_bench::processes::{names as listed, progress_bar};

/// The top directory in the archive. tar does not change the directory in which it unpacks the
/// archive, because another user owns it.
const ARCHIVED: &str = "files";

/// Files of the archive in one directory.
const ARCHIVED_PER_DIRECTORY: u32 = 100;

/// Size of each in bytes.
const ARCHIVED_BYTES: usize = 1024;

/// The sizes of the trees.
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
        format!("many-{}-of-{}", self.directories, self.names)
    }

    /// One name in each of the many directories, not the first one.
    pub(super) fn one_of_each(&self) -> impl Iterator<Item = PathBuf> {
        let (many, names) = (self.many(), u64::from(self.names));
        (0..self.directories).map(move |number| one_of(Path::new(&many).join(directory(number)), names))
    }

    /// One name in the huge directory.
    pub(super) fn one_of_huge(&self) -> PathBuf {
        let huge = u64::from(self.huge);
        one_of(listed::directory(Path::new(""), huge), huge)
    }

    /// The archive.
    pub(super) fn archive(&self, top: &Path) -> PathBuf {
        top.join(format!("files-{}.tar", self.files))
    }

    /// Creates what does not exist, and returns the directory to serve.
    pub(super) fn make(&self, top: &Path) -> Result<PathBuf> {
        ensure!(
            self.directories > 0 && self.names > 0 && self.huge > 0 && self.files > 0,
            "a case without any name shows nothing"
        );
        let served = top.join("served");
        fs::create_dir_all(&served).with_context(|| served.display().to_string())?;
        let many = self.many();
        let bar = progress_bar(&format!("making {many} in {}", served.display()));
        for number in 0..self.directories {
            let here = served.join(&many).join(directory(number));
            fs::create_dir_all(&here).with_context(|| here.display().to_string())?;
            listed::make(&here, u64::from(self.names), 1, &bar)?;
        }
        let huge = u64::from(self.huge);
        let bar = progress_bar(&format!("making {huge} names in {}", served.display()));
        listed::make(&listed::directory(&served, huge), huge, 1, &bar)?;
        self.make_archive(top)?;
        Ok(served)
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
            fs::write(here.join(format!("file{number:08}")), [b'x'; ARCHIVED_BYTES])?;
        }
        let unfinished = archive.with_extension("unfinished");
        let mut tar = Command::new("tar");
        tar.arg("-cf").arg(&unfinished).arg("-C").arg(source.path());
        run("tar -c", tar.arg(ARCHIVED))?;
        fs::rename(unfinished, archive)?;
        Ok(())
    }
}

fn one_of(directory: PathBuf, names: u64) -> PathBuf {
    directory.join(listed::name(names / 2))
}

fn directory(number: u32) -> String {
    format!("directory{number:05}")
}

/// Runs a program and ignores its output.
pub(super) fn run(what: &str, command: &mut Command) -> Result<()> {
    let status =
        command.stdin(Stdio::null()).stdout(Stdio::null()).status().with_context(|| what.to_owned())?;
    ensure!(status.success(), "{what} ended with {status}");
    Ok(())
}
