//! The operations of a process between open and close.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use rustix::fs::OFlags;

use curt_tests::random::Random;
use curt_tests::sys::{FileMapping, truncate};

/// Alignment of direct I/O.
const BLOCK: usize = 4096;

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Write,
    Append,
    Truncate,
    TruncateByName,
    Rewrite,
    MapWrite,
    DirectWrite,
    SyncWrite,
    Chmod,
    ReadAndWrite,
    Read,
    ReadParts,
    MapRead,
    DirectRead,
    Stat,
}

use Operation::{
    Append, Chmod, DirectRead, DirectWrite, MapRead, MapWrite, Read, ReadAndWrite, ReadParts, Rewrite, Stat,
    SyncWrite, Truncate, TruncateByName, Write,
};

const CHANGES: [Operation; 10] =
    [Write, Append, Truncate, TruncateByName, Rewrite, MapWrite, DirectWrite, SyncWrite, Chmod, ReadAndWrite];
/// A wrong size is visible in plain reads.
const READS: [Operation; 6] = [Read, Read, ReadParts, MapRead, DirectRead, Stat];

/// A file in one of the directories, and its expected content.
pub(crate) struct Subject<'a> {
    pub(crate) path: PathBuf,
    pub(crate) content: &'a mut Vec<u8>,
    pub(crate) random: &'a mut Random,
    pub(crate) file_bytes: usize,
}

impl Operation {
    pub(crate) fn draw(random: &mut Random) -> Self {
        if random.below(3) == 0 {
            CHANGES[random.below(CHANGES.len())]
        } else {
            READS[random.below(READS.len())]
        }
    }

    pub(crate) fn only_reads(self) -> bool {
        READS.contains(&self)
    }
}

impl Subject<'_> {
    /// Opens the file, performs one operation, and closes it.
    pub(crate) fn perform(&mut self, operation: Operation) -> Result<()> {
        match operation {
            Write => self.write_some(&writable(&self.path)?),
            SyncWrite => {
                let file =
                    OpenOptions::new().write(true).custom_flags(flags(OFlags::SYNC)).open(&self.path)?;
                self.write_some(&file)
            }
            Rewrite => {
                let file = OpenOptions::new().write(true).truncate(true).open(&self.path)?;
                self.content.clear();
                self.write_some(&file)
            }
            Append => self.append(),
            Truncate => {
                let file = writable(&self.path)?;
                let size = self.resize();
                file.set_len(size)?;
                if self.random.below(2) == 0 {
                    self.write_some(&file)?;
                }
                Ok(())
            }
            TruncateByName => {
                let size = self.resize();
                Ok(truncate(&self.path, size)?)
            }
            MapWrite => self.map_write(),
            DirectWrite => self.write_direct(),
            Chmod => {
                let mode = 0o600 + 8 * u32::try_from(self.random.below(8))?;
                Ok(std::fs::set_permissions(&self.path, Permissions::from_mode(mode))?)
            }
            ReadAndWrite => {
                let mut file = both(&self.path)?;
                self.read_all(&mut file)?;
                self.write_some(&file)
            }
            Read => self.read_all(&mut File::open(&self.path)?),
            ReadParts => self.read_parts(),
            MapRead => self.map_read(),
            DirectRead => self.read_direct(),
            Stat => self.stat(),
        }
    }

    fn length(&mut self) -> usize {
        match self.random.below(4) {
            0 => 1 + self.random.below(100),
            1 => 1 + self.random.below(5000),
            2 => BLOCK * (1 + self.random.below(4)),
            _ => 1 + self.random.below(self.file_bytes / 2),
        }
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.random.fill(&mut bytes);
        // Written bytes are never zero.
        bytes.iter_mut().for_each(|byte| *byte |= 1);
        bytes
    }

    fn put(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        if self.content.len() < end {
            self.content.resize(end, 0);
        }
        self.content[offset..end].copy_from_slice(bytes);
    }

    fn write_some(&mut self, file: &File) -> Result<()> {
        for _ in 0..=self.random.below(4) {
            let offset = match self.random.below(4) {
                0 => self.random.below(self.file_bytes),
                _ => self.random.below(self.content.len() + 1),
            };
            let length = self.length().min(self.file_bytes.saturating_sub(offset));
            let bytes = self.bytes(length);
            file.write_all_at(&bytes, offset as u64)?;
            if length > 0 {
                self.put(offset, &bytes);
            }
            if self.random.below(8) == 0 {
                file.sync_all()?;
            }
        }
        Ok(())
    }

    fn append(&mut self) -> Result<()> {
        let mut file = OpenOptions::new().append(true).open(&self.path)?;
        for _ in 0..=self.random.below(3) {
            let length = 1 + self.random.below(3000);
            if self.content.len() + length <= self.file_bytes {
                let bytes = self.bytes(length);
                file.write_all(&bytes)?;
                self.content.extend_from_slice(&bytes);
            }
        }
        Ok(())
    }

    /// Another size, also set in the model.
    fn resize(&mut self) -> u64 {
        let size = match self.random.below(4) {
            0 => self.random.below(self.file_bytes),
            _ => self.random.below(self.content.len() + 1),
        };
        self.content.resize(size, 0);
        size as u64
    }

    fn map_write(&mut self) -> Result<()> {
        let Some(last) = self.content.len().checked_sub(1) else {
            return Ok(());
        };
        let file = both(&self.path)?;
        let offset = self.random.below(last);
        let length = self.length().min(self.content.len() - offset);
        let bytes = self.bytes(length);
        let mapping = FileMapping::new(&file, offset, length)?;
        mapping.write(&bytes);
        self.put(offset, &bytes);
        // A mapping may outlive the descriptor; then only msync(2) sends the data to the server.
        if self.random.below(2) == 0 {
            drop(file);
            mapping.sync()?;
        }
        Ok(())
    }

    fn write_direct(&mut self) -> Result<()> {
        let length = BLOCK * (1 + self.random.below(4));
        let offset = BLOCK * self.random.below(self.content.len() / BLOCK + 1);
        if offset + length > self.file_bytes {
            return Ok(());
        }
        let bytes = self.bytes(length);
        let mut buffer = vec![0; length + BLOCK];
        let aligned = align(&mut buffer, length);
        aligned.copy_from_slice(&bytes);
        open_direct(OpenOptions::new().write(true), &self.path)?.write_all_at(aligned, offset as u64)?;
        self.put(offset, &bytes);
        Ok(())
    }

    fn read_all(&mut self, file: &mut File) -> Result<()> {
        let step = match self.random.below(3) {
            0 => 1 + self.random.below(500),
            _ => 1 + self.random.below(70_000),
        };
        let (mut found, mut buffer) = (Vec::new(), vec![0; step]);
        loop {
            match file.read(&mut buffer)? {
                0 => return self.compare(0, &found, self.content.len()),
                read => found.extend_from_slice(&buffer[..read]),
            }
        }
    }

    fn read_parts(&mut self) -> Result<()> {
        let file = File::open(&self.path)?;
        for _ in 0..5 {
            let offset = self.random.below(self.content.len() + 100);
            let mut buffer = vec![0; self.length()];
            let read = file.read_at(&mut buffer, offset as u64)?;
            let wanted = self.content.len().saturating_sub(offset).min(buffer.len());
            self.compare(offset, &buffer[..read], wanted)?;
        }
        Ok(())
    }

    fn map_read(&self) -> Result<()> {
        if self.content.is_empty() {
            return Ok(());
        }
        let mapping = FileMapping::new(both(&self.path)?, 0, self.content.len())?;
        self.compare(0, &mapping.read(), self.content.len())
    }

    fn read_direct(&self) -> Result<()> {
        let file = open_direct(OpenOptions::new().read(true), &self.path)?;
        let mut buffer = vec![0; 9 * BLOCK];
        let aligned = align(&mut buffer, 8 * BLOCK);
        let mut found = Vec::new();
        loop {
            let read = file.read_at(aligned, found.len() as u64)?;
            found.extend_from_slice(&aligned[..read]);
            if !read.is_multiple_of(BLOCK) || read == 0 {
                return self.compare(0, &found, self.content.len());
            }
        }
    }

    fn stat(&self) -> Result<()> {
        let mut file = File::open(&self.path)?;
        let (size, wanted) = (file.metadata()?.len(), self.content.len() as u64);
        ensure!(size == wanted, "its size is {size}, not {wanted}");
        let end = file.seek(SeekFrom::End(0))?;
        ensure!(end == wanted, "its end is at {end}, not {wanted}");
        Ok(())
    }

    /// Compares the data found at `offset`; `wanted`: the expected number of bytes.
    fn compare(&self, offset: usize, found: &[u8], wanted: usize) -> Result<()> {
        ensure!(
            found.len() == wanted,
            "{} bytes at {offset}, not {wanted}; {} zeros at their end",
            found.len(),
            found.iter().rev().take_while(|byte| **byte == 0).count()
        );
        let expected = self.content.get(offset..offset + wanted).unwrap_or_default();
        let wrong = found.iter().zip(expected).position(|(found, expected)| found != expected);
        match wrong {
            None => Ok(()),
            Some(at) => {
                let run =
                    found[at..].iter().zip(&expected[at..]).take_while(|(found, expected)| found != expected);
                Err(io::Error::other(format!("{} wrong bytes at {}", run.count(), offset + at)).into())
            }
        }
    }
}

fn writable(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).open(path)
}

fn both(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

fn flags(flags: OFlags) -> i32 {
    i32::try_from(flags.bits()).unwrap_or_default()
}

/// Opens a file for direct I/O, if its file system supports it.
fn open_direct(options: &OpenOptions, path: &Path) -> io::Result<File> {
    match options.clone().custom_flags(flags(OFlags::DIRECT)).open(path) {
        Err(error) if error.kind() == ErrorKind::InvalidInput => options.open(path),
        opened => opened,
    }
}

/// The aligned part of a buffer that is longer by one block.
fn align(buffer: &mut [u8], length: usize) -> &mut [u8] {
    let skip = buffer.as_ptr().align_offset(BLOCK);
    &mut buffer[skip..skip + length]
}
