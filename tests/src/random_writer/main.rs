//! `random-writer DIRECTORY`: random operations on a few files, each checked against a model in
//! memory.
//!
//! A failure is printed with the seed and the operation's number, so that it is reproducible.
//! `--verify` compares files of an earlier run with the same seed, without writing, so that the
//! data on a server can be checked by another client later. It runs on any file system and on all
//! x86-64 processors.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use curt_tests::random::Random;
use curt_tests::sys::FileMapping;

use crate::operation::{FileOperation, Limits};

mod operation;

/// Maximum number of operations on a file printed after a failure, and of those that covered the
/// wrong byte.
const PRINTED: usize = 12;

#[derive(Parser)]
#[command(about = "Does random things to a few files and checks each against a model")]
struct RandomWriterArguments {
    /// Directory for the files
    directory: PathBuf,
    /// Seed of all choices [default: from the clock]
    #[arg(long)]
    seed: Option<u64>,
    /// Number of operations
    #[arg(long, default_value_t = 100_000)]
    operations: u64,
    /// Number of files
    #[arg(long, default_value_t = 3)]
    files: usize,
    /// Maximum size of a file in bytes
    #[arg(long, default_value_t = 512 << 10)]
    file_bytes: usize,
    /// Maximum number of bytes of one operation
    #[arg(long, default_value_t = 32 << 10)]
    operation_bytes: usize,
    /// Only compare the files with the result of such a run
    #[arg(long)]
    verify: bool,
    /// Keep the files
    #[arg(long)]
    keep: bool,
    /// Print progress after this many operations
    #[arg(long)]
    progress: Option<u64>,
    /// End when progress is printed and this file exists; the number printed last is that of the
    /// operations
    #[arg(long, value_name = "FILE", requires = "progress")]
    until: Option<PathBuf>,
}

/// A file and its expected content.
struct CheckedFile {
    path: PathBuf,
    file: File,
    content: Vec<u8>,
    history: Vec<PastOperation>,
}

fn main() -> ExitCode {
    let arguments = RandomWriterArguments::parse();
    let clock =
        || std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(1, |since| u64::from(since.subsec_nanos()));
    let seed = arguments.seed.unwrap_or_else(clock);
    println!("random-writer: seed {seed}, {} operations on {} files", arguments.operations, arguments.files);
    let result = if arguments.verify { verify(&arguments, seed) } else { run(&arguments, seed) };
    match result {
        Ok(()) => {
            println!("random-writer: seed {seed}: all as it should be");
            ExitCode::SUCCESS
        }
        Err(what) => {
            println!("random-writer: seed {seed}: {what}");
            ExitCode::FAILURE
        }
    }
}

fn limits(arguments: &RandomWriterArguments) -> Limits {
    Limits { file_bytes: arguments.file_bytes.max(1), operation_bytes: arguments.operation_bytes.max(1) }
}

fn path(arguments: &RandomWriterArguments, number: usize) -> PathBuf {
    arguments.directory.join(format!("random-{number}"))
}

fn run(arguments: &RandomWriterArguments, seed: u64) -> Result<(), String> {
    let mut random = Random::new(seed);
    let mut subjects = Vec::new();
    for number in 0..arguments.files.max(1) {
        let path = path(arguments, number);
        let made = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path);
        let file = made.map_err(|error| format!("{}: {error}", path.display()))?;
        subjects.push(CheckedFile { path, file, content: Vec::new(), history: Vec::new() });
    }
    for number in 1..=arguments.operations {
        let subject = random.below(subjects.len());
        let subject = &mut subjects[subject];
        let operation = FileOperation::draw(&mut random, subject.content.len(), limits(arguments));
        subject.perform(number, operation).map_err(|what| subject.describe(number, &what))?;
        if arguments.progress.is_some_and(|every| number % every.max(1) == 0) {
            println!("{number}");
            // The reader of a pipe waits for the line.
            io::stdout().flush().map_err(|error| error.to_string())?;
            if arguments.until.as_ref().is_some_and(|path| path.exists()) {
                break;
            }
        }
    }
    for subject in &mut subjects {
        subject
            .file
            .sync_all()
            .and_then(|()| subject.verify())
            .map_err(|what| subject.describe(arguments.operations, &what))?;
        if !arguments.keep {
            std::fs::remove_file(&subject.path)
                .map_err(|error| format!("{}: {error}", subject.path.display()))?;
        }
    }
    Ok(())
}

/// Generates the same operations without performing them, and compares the result.
fn verify(arguments: &RandomWriterArguments, seed: u64) -> Result<(), String> {
    let mut random = Random::new(seed);
    let mut contents = vec![Vec::new(); arguments.files.max(1)];
    for _ in 0..arguments.operations {
        let content = random.below(contents.len());
        let content = &mut contents[content];
        FileOperation::draw(&mut random, content.len(), limits(arguments)).apply(content);
    }
    for (number, content) in contents.iter().enumerate() {
        let path = path(arguments, number);
        let compared = std::fs::read(&path).and_then(|bytes| compare(0, &bytes, content));
        compared.map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

impl CheckedFile {
    fn perform(&mut self, number: u64, operation: FileOperation) -> io::Result<()> {
        operation.apply(&mut self.content);
        self.history.push(PastOperation { number, text: operation.to_string(), range: operation.range() });
        self.call(&operation)
    }

    /// Performs an operation on the file; the model has it already.
    fn call(&mut self, operation: &FileOperation) -> io::Result<()> {
        match operation {
            FileOperation::Write { offset, bytes } => self.file.write_all_at(bytes, *offset as u64),
            FileOperation::Append { bytes } => {
                OpenOptions::new().append(true).open(&self.path)?.write_all(bytes)
            }
            FileOperation::Read { offset, length } => {
                let mut bytes = vec![0; *length];
                let got = read_at(&self.file, &mut bytes, *offset)?;
                compare(
                    *offset,
                    &bytes[..got],
                    &self.content[self.content.len().min(*offset)..self.content.len().min(offset + length)],
                )
            }
            FileOperation::Truncate { size } => {
                self.file.set_len(*size as u64)?;
                self.stat()
            }
            FileOperation::MapWrite { offset, bytes, synced } => {
                let mapping = FileMapping::new(&self.file, *offset, bytes.len())?;
                mapping.write(bytes);
                if *synced { mapping.sync() } else { Ok(()) }
            }
            FileOperation::MapRead { offset, length } => {
                let mapping = FileMapping::new(&self.file, *offset, *length)?;
                compare(*offset, &mapping.read(), &self.content[*offset..offset + length])
            }
            FileOperation::Fsync => self.file.sync_all(),
            FileOperation::Fdatasync => self.file.sync_data(),
            FileOperation::Reopen => {
                // The new descriptor first: the data must be visible before the close of the old
                // one.
                self.file = OpenOptions::new().read(true).write(true).open(&self.path)?;
                self.stat()
            }
            FileOperation::Stat => self.stat(),
            FileOperation::Verify => self.verify(),
        }
    }

    fn stat(&self) -> io::Result<()> {
        let size = self.file.metadata()?.len();
        if size == self.content.len() as u64 {
            return Ok(());
        }
        Err(io::Error::other(format!("the size is {size}, not {}", self.content.len())))
    }

    fn verify(&self) -> io::Result<()> {
        compare(0, &std::fs::read(&self.path)?, &self.content)
    }

    fn describe(&self, number: u64, what: &io::Error) -> String {
        let mut text = format!("operation {number}: {what}\nthe last operations on {}:", self.path.display());
        let mut print = |past: &PastOperation| text.push_str(&format!("\n  {}: {}", past.number, past.text));
        self.history.iter().skip(self.history.len().saturating_sub(PRINTED)).for_each(&mut print);
        if let Some(WrongByte { at, .. }) = what.get_ref().and_then(|inner| inner.downcast_ref()) {
            let touching: Vec<_> = self.history.iter().filter(|past| past.range.contains(at)).collect();
            text.push_str("\nthe last that had to do with that byte:");
            for past in touching.iter().skip(touching.len().saturating_sub(PRINTED)) {
                text.push_str(&format!("\n  {}: {}", past.number, past.text));
            }
        }
        text
    }
}

/// A performed operation.
struct PastOperation {
    number: u64,
    text: String,
    /// The bytes that it covered.
    range: Range<usize>,
}

/// A byte that differs from the model.
#[derive(Debug)]
struct WrongByte {
    at: usize,
    got: u8,
    wanted: u8,
}

impl fmt::Display for WrongByte {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "the byte at {} is {}, not {}", self.at, self.got, self.wanted)
    }
}

impl std::error::Error for WrongByte {}

/// Reads until `bytes` is full or the file ends.
fn read_at(file: &File, bytes: &mut [u8], offset: usize) -> io::Result<usize> {
    let mut got = 0;
    while got < bytes.len() {
        match file.read_at(&mut bytes[got..], (offset + got) as u64)? {
            0 => break,
            more => got += more,
        }
    }
    Ok(got)
}

fn compare(offset: usize, got: &[u8], wanted: &[u8]) -> io::Result<()> {
    if got == wanted {
        return Ok(());
    }
    match got.iter().zip(wanted).position(|(got, wanted)| got != wanted) {
        Some(at) => Err(io::Error::other(WrongByte { at: offset + at, got: got[at], wanted: wanted[at] })),
        None => Err(io::Error::other(format!("{} bytes at {offset}, not {}", got.len(), wanted.len()))),
    }
}
