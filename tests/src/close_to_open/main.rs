//! `close-to-open MODEL DIRECTORY...`: checks that an open sees all data that were closed before,
//! in any of the directories.
//!
//! The directories contain the same files: mounts of one export, and the exported directory itself.
//! Processes work on random files, each through one directory: open, write or read, close, under a
//! lock of the file (shared for readers). MODEL, a local directory, has a file for each: its
//! expected content, its lock, and its last operations. Contents and sizes must always equal the
//! model's. A difference is printed with the last operations, and ends the run.

mod operation;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use rustix::fs::FlockOperation;

use curt_tests::random::Random;

use crate::operation::{Operation, Subject};

/// Maximum number of operations printed for a file that differs.
const PRINTED: usize = 20;

#[derive(Parser)]
#[command(about = "Checks that an open sees what was closed before, through several directories")]
struct Arguments {
    /// A local directory for the model
    model: PathBuf,
    /// Directories with the files
    #[arg(required = true)]
    directories: Vec<PathBuf>,
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Number of files
    #[arg(long, default_value_t = 8)]
    files: usize,
    /// Number of processes per directory
    #[arg(long, default_value_t = 3)]
    processes: usize,
    /// Maximum size of a file in bytes
    #[arg(long, default_value_t = 64 << 10)]
    file_bytes: usize,
    /// Seed of the processes' choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of this process, if started by another
    #[arg(long, hide = true)]
    number: Option<u64>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = match arguments.number {
        None => launch(&arguments),
        Some(number) => work(&arguments, number),
    };
    match result {
        Ok(operations) => {
            println!("{operations}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn name(number: usize) -> String {
    format!("shared-{number}")
}

/// The file that a process creates after an error, so that the others end.
fn stop(arguments: &Arguments) -> PathBuf {
    arguments.model.join("stop")
}

/// Starts all processes; returns the number of operations.
fn launch(arguments: &Arguments) -> Result<u64> {
    for number in 0..arguments.files {
        for path in [&arguments.model, &arguments.directories[0]] {
            fs::write(path.join(name(number)), b"").context(path.display().to_string())?;
        }
    }
    let own = std::env::current_exe()?;
    let mut processes = Vec::new();
    for number in 0..arguments.directories.len() * arguments.processes {
        let mut command = Command::new(&own);
        command.args(std::env::args_os().skip(1));
        command.arg("--number").arg(number.to_string());
        processes.push(command.stdout(Stdio::piped()).spawn()?);
    }
    let (mut operations, mut wrong) = (0, String::new());
    for process in processes {
        let output = process.wait_with_output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            operations += text.trim().parse::<u64>()?;
        } else {
            wrong.push_str(&text);
        }
    }
    ensure!(wrong.is_empty(), "after {operations} operations:\n{wrong}");
    Ok(operations)
}

/// Runs one process; returns the number of operations.
fn work(arguments: &Arguments, number: u64) -> Result<u64> {
    let which = usize::try_from(number)? % arguments.directories.len();
    let directory = &arguments.directories[which];
    let mut random = Random::new(arguments.seed.wrapping_mul(1000).wrapping_add(number));
    let end = Instant::now() + Duration::from_secs(arguments.seconds);
    let mut done = 0;
    while Instant::now() < end && !stop(arguments).exists() {
        let file = name(random.below(arguments.files));
        let mut model = Model::open(&arguments.model.join(&file))?;
        let operation = Operation::draw(&mut random);
        let by = format!("{operation:?} by process {number} in directory {which}");
        if let Err(error) =
            model.perform(directory, &file, operation, (&mut random, arguments.file_bytes), &by)
        {
            fs::write(stop(arguments), b"")?;
            let at = SystemTime::UNIX_EPOCH.elapsed()?.as_micros();
            let history = model.history()?;
            return Err(error
                .context(format!("{at} us: {file}, {by}, model {} bytes\n{history}", model.content.len())));
        }
        done += 1;
    }
    Ok(done)
}

/// The expected state of a file, locked while this exists.
struct Model {
    file: File,
    history: PathBuf,
    content: Vec<u8>,
}

impl Model {
    fn open(path: &Path) -> Result<Self> {
        Ok(Self {
            file: OpenOptions::new().read(true).write(true).open(path)?,
            history: path.with_extension("history"),
            content: Vec::new(),
        })
    }

    /// Performs an operation on a file and on its model.
    fn perform(
        &mut self,
        directory: &Path,
        file: &str,
        operation: Operation,
        (random, file_bytes): (&mut Random, usize),
        by: &str,
    ) -> Result<()> {
        let lock =
            if operation.only_reads() { FlockOperation::LockShared } else { FlockOperation::LockExclusive };
        rustix::fs::flock(&self.file, lock)?;
        let length = usize::try_from(self.file.metadata()?.len())?;
        self.content.resize(length, 0);
        self.file.read_exact_at(&mut self.content, 0)?;
        let mut subject =
            Subject { path: directory.join(file), content: &mut self.content, random, file_bytes };
        subject.perform(operation)?;
        if operation.only_reads() {
            return Ok(());
        }
        self.file.write_all_at(&self.content, 0)?;
        self.file.set_len(self.content.len() as u64)?;
        let mut history = OpenOptions::new().create(true).append(true).open(&self.history)?;
        let at = SystemTime::UNIX_EPOCH.elapsed()?.as_micros();
        Ok(writeln!(history, "{at} us: {by}: {} bytes", self.content.len())?)
    }

    /// The last operations that changed it.
    fn history(&self) -> Result<String> {
        let all = match fs::read_to_string(&self.history) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            text => text?,
        };
        let lines: Vec<&str> = all.lines().collect();
        Ok(lines[lines.len().saturating_sub(PRINTED)..].join("\n"))
    }
}
