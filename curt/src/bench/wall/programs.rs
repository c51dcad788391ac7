//! The programs whose time is measured. Each runs in its own process, below any directory.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use curt_bench::make;
use curt_bench::processes::{names, progress_bar};
use curt_bench::replay::Replay;
use curt_bench::workload::Workload;
use serde::{Deserialize, Serialize};

/// Names that are looked at.
const NAMES: u64 = 10_000;
/// As many names are looked at twice in a row. Even with a round trip of 2 ms for each name that
/// takes less than the second for which the kernel may use names (`kernelnames`).
const NAMES_TOGETHER: u64 = 250;
/// Names that are looked at once.
const NAMES_ONCE: u64 = 1000;
/// Files of the repository, and of the tree that is unpacked and removed.
const TRACKED_FILES: usize = 1000;
const PACKED_FILES: usize = 5000;
const FILES_PER_DIRECTORY: usize = 100;
/// Bytes that are read or written in small and in large steps.
const SMALL_STEPS_BYTES: usize = 16 << 20;
const LARGE_STEPS_BYTES: usize = 256 << 20;
/// Threads that make trees.
const JOBS: usize = 8;

/// A directory in which all users may write, below the exported one.
const SCRATCH: &str = "scratch";
const REPOSITORY: &str = "scratch/repository";
const UNPACKED: &str = "scratch/unpacked";
const WRITTEN: &str = "scratch/written";
const PACKED: &str = "files.tar";
const DATA: &str = "data";

/// The programs that are timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::bench) enum TimedProgram {
    /// Five views of a web application's main page, without pauses
    Page,
    /// The build of a C program
    Build,
    /// stat(2) of 1,000 names, the first time
    StatFirst,
    /// stat(2) of 1,000 missing names, the first time
    StatMissingFirst,
    /// stat(2) of 10,000 names, 250 twice in a row, the second times
    StatKnown,
    /// stat(2) of 10,000 missing names, 250 twice in a row, the second times
    StatMissing,
    /// `git status` of 1,000 files, the second time
    GitStatus,
    /// `find` in a tree of 5,000 files
    Find,
    /// `tar -x` of 5,000 files
    Tar,
    /// `rm -r` of 5,000 files
    Remove,
    /// Write 16 MiB in steps of 4 KiB, and fsync(2)
    WriteSmall,
    /// Read 16 MiB in steps of 4 KiB
    ReadSmall,
    /// Write 256 MiB in steps of 1 MiB, and fsync(2)
    WriteLarge,
    /// Read 256 MiB in steps of 1 MiB
    ReadLarge,
}

/// The result of a process.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct WorkDone {
    /// How long it took, without what precedes it.
    pub(super) seconds: f64,
    /// Results that were not as expected.
    pub(super) wrong: u64,
}

/// The part of a run that a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::bench) enum WorkPhase {
    /// Preparations, which are not timed
    Prepare,
    /// The work
    Perform,
}

impl TimedProgram {
    /// Its name on the command line and in reports.
    pub(super) fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// The required program, which may be missing on this machine.
    pub(super) const fn program(self) -> Option<&'static str> {
        match self {
            Self::GitStatus => Some("git"),
            Self::Find => Some("find"),
            Self::Tar | Self::Remove => Some("tar"),
            _ => None,
        }
    }

    /// Whether it is measured the second time, or needs something to be done first, in the same
    /// mount.
    pub(super) const fn needs_preparation(self) -> bool {
        matches!(
            self,
            Self::StatKnown
                | Self::StatMissing
                | Self::GitStatus
                | Self::Tar
                | Self::Remove
                | Self::WriteSmall
                | Self::WriteLarge
        )
    }

    /// How many parts it has. One after the other is prepared and measured, and no request of it
    /// outlasts its process.
    pub(super) const fn parts(self) -> u64 {
        match self {
            Self::StatKnown | Self::StatMissing => NAMES / NAMES_TOGETHER,
            _ => 1,
        }
    }

    /// Does a part of it, or prepares it, below `top`.
    pub(in crate::bench) fn run(self, phase: WorkPhase, part: u64, top: &Path) -> Result<()> {
        let done = match phase {
            WorkPhase::Prepare => self.prepare(part, top).map(|()| WorkDone { seconds: 0.0, wrong: 0 }),
            WorkPhase::Perform => self.perform(part, top),
        };
        let done = done.with_context(|| format!("{} in {}", self.name(), top.display()))?;
        writeln!(std::io::stdout(), "{}", serde_json::to_string(&done)?)?;
        Ok(())
    }

    fn prepare(self, part: u64, top: &Path) -> Result<()> {
        match self {
            Self::Tar => remove_tree(&top.join(UNPACKED)),
            Self::Remove => {
                remove_tree(&top.join(UNPACKED))?;
                Self::Tar.perform(part, top).map(drop)
            }
            Self::WriteSmall | Self::WriteLarge => match fs::remove_file(top.join(WRITTEN)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
                _ => Ok(()),
            },
            _ => self.perform(part, top).map(drop),
        }
    }

    fn perform(self, part: u64, top: &Path) -> Result<WorkDone> {
        let together = part * NAMES_TOGETHER..(part + 1) * NAMES_TOGETHER;
        match self {
            Self::Page => replay(Workload::Page, top),
            Self::Build => replay(Workload::Build, top),
            Self::StatFirst => stat_all(top, 0..NAMES_ONCE, true),
            Self::StatMissingFirst => stat_all(top, 0..NAMES_ONCE, false),
            Self::StatKnown => stat_all(top, together, true),
            Self::StatMissing => stat_all(top, together, false),
            Self::GitStatus => program(git(&top.join(REPOSITORY)).arg("status")),
            Self::Find => program(Command::new("find").arg(top.join("tree")).args(["-type", "f"])),
            Self::Tar => {
                let unpacked = top.join(UNPACKED);
                fs::create_dir(&unpacked)?;
                let archive = top.join(PACKED);
                program(Command::new("tar").arg("-C").arg(unpacked).arg("-xf").arg(archive))
            }
            Self::Remove => program(Command::new("rm").arg("-r").arg(top.join(UNPACKED))),
            Self::WriteSmall => write(top, SMALL_STEPS_BYTES, 4 << 10),
            Self::WriteLarge => write(top, LARGE_STEPS_BYTES, 1 << 20),
            Self::ReadSmall => read(top, SMALL_STEPS_BYTES, 4 << 10),
            Self::ReadLarge => read(top, LARGE_STEPS_BYTES, 1 << 20),
        }
    }
}

/// Makes the files that all programs need below `top`, as the user of this program.
pub(super) fn make_trees(top: &Path, programs: &[TimedProgram]) -> Result<()> {
    names::open_directory(&top.join(SCRATCH))?;
    for (work, workload) in [(TimedProgram::Page, Workload::Page), (TimedProgram::Build, Workload::Build)] {
        if programs.contains(&work) {
            let bar = progress_bar(&format!("making the tree of {workload}"));
            make::make_once(&workload.tree(), &workload_directory(top, workload), JOBS, &bar)?;
            bar.finish_and_clear();
        }
    }
    let is_wanted = |wanted: &[TimedProgram]| programs.iter().any(|work| wanted.contains(work));
    use TimedProgram::{StatFirst, StatKnown, StatMissing, StatMissingFirst};
    if is_wanted(&[StatFirst, StatMissingFirst, StatKnown, StatMissing]) {
        let bar = progress_bar(&format!("making {NAMES} names"));
        names::make(&names::directory(top, NAMES), NAMES, 1, &bar)?;
    }
    if is_wanted(&[TimedProgram::Find, TimedProgram::Tar, TimedProgram::Remove]) {
        make_files(&top.join("tree"), PACKED_FILES)?;
        let mut pack = Command::new("tar");
        pack.arg("-C").arg(top.join("tree")).arg("-cf").arg(top.join(PACKED)).arg(".");
        program(&mut pack)?;
    }
    if is_wanted(&[TimedProgram::ReadSmall, TimedProgram::ReadLarge]) {
        let mut data = File::create(top.join(DATA))?;
        let step: Vec<u8> = (0..1_u32 << 20).map(|at| at.to_le_bytes()[at as usize % 3]).collect();
        for _ in 0..LARGE_STEPS_BYTES / step.len() {
            data.write_all(&step)?;
        }
    }
    Ok(())
}

/// Makes the repository below `top`, as the user that runs the programs: git refuses those of
/// other users.
pub(in crate::bench) fn make_repository(top: &Path) -> Result<()> {
    let repository = top.join(REPOSITORY);
    make_files(&repository, TRACKED_FILES)?;
    program(git(&repository).args(["init", "-q"]))?;
    program(git(&repository).args(["add", "."]))?;
    let author = ["-c", "user.name=curt", "-c", "user.email=curt@localhost"];
    program(git(&repository).args(author).args(["commit", "-q", "-m", "files"]))?;
    Ok(())
}

fn workload_directory(top: &Path, workload: Workload) -> PathBuf {
    top.join(workload.name())
}

fn make_files(top: &Path, count: usize) -> Result<()> {
    for number in 0..count {
        let directory = top.join(format!("{}", number / FILES_PER_DIRECTORY));
        if number.is_multiple_of(FILES_PER_DIRECTORY) {
            fs::create_dir_all(&directory)?;
        }
        fs::write(directory.join(format!("file-{number}")), format!("content of {number}\n"))?;
    }
    Ok(())
}

fn remove_tree(tree: &Path) -> Result<()> {
    match fs::remove_dir_all(tree) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

fn git(repository: &Path) -> Command {
    let mut git = Command::new("git");
    git.arg("-C").arg(repository);
    // The server may map the caller to another user than the directory's owner.
    git.args(["-c", "safe.directory=*"]).env("HOME", "/nonexistent");
    git
}

fn program(command: &mut Command) -> Result<WorkDone> {
    let began = Instant::now();
    let status = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .with_context(|| format!("{command:?}"))?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(done(began, 0))
}

fn done(began: Instant, wrong: u64) -> WorkDone {
    let seconds = began.elapsed().as_secs_f64();
    WorkDone { seconds, wrong }
}

fn replay(workload: Workload, top: &Path) -> Result<WorkDone> {
    let (tree, trace) = (workload.tree(), workload.trace());
    let replay = Replay::new(&trace, &tree, &workload_directory(top, workload))?;
    let began = Instant::now();
    let outcome = replay.run(Duration::ZERO, |_| ());
    Ok(done(began, outcome.wrong))
}

fn stat_all(top: &Path, numbers: Range<u64>, exists: bool) -> Result<WorkDone> {
    let directory = names::directory(top, NAMES);
    let suffix = if exists { "" } else { ".missing" };
    let all: Vec<PathBuf> = numbers.map(|number| directory.join(names::name(number) + suffix)).collect();
    let began = Instant::now();
    let wrong = all.iter().filter(|path| path.symlink_metadata().is_ok() != exists);
    Ok(done(began, wrong.count() as u64))
}

fn write(top: &Path, bytes: usize, step: usize) -> Result<WorkDone> {
    let piece = vec![b'x'; step];
    let began = Instant::now();
    let mut file = OpenOptions::new().create_new(true).write(true).open(top.join(WRITTEN))?;
    for _ in 0..bytes / step {
        file.write_all(&piece)?;
    }
    file.sync_all()?;
    drop(file);
    Ok(done(began, 0))
}

fn read(top: &Path, bytes: usize, step: usize) -> Result<WorkDone> {
    let mut piece = vec![0; step];
    let began = Instant::now();
    let mut file = File::open(top.join(DATA))?;
    for _ in 0..bytes / step {
        file.read_exact(&mut piece)?;
    }
    Ok(done(began, 0))
}
