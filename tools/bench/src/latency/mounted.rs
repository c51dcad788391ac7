//! The same operations as system calls on a mount of our server: what an application waits for. The
//! mount keeps no attributes and no names, and data pass the page cache by, so that each call asks
//! the server.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use curt_bench::processes::{Curt, MountProcess, Testbed};
use rustix::fs::{Access, OFlags};

use super::content;
use super::load::{BLOCK_BYTES, LISTED_NAMES, LatencyOperation, OUTSTANDING_MAX};
use super::tree::{LISTED, MADE, file_name, written_name};

/// A mount, and the tree on it that is used.
pub(super) struct LatencyMount {
    mounted: MountProcess,
    tree: PathBuf,
    _world: Testbed,
}

impl LatencyMount {
    /// Mounts `source`, `HOST:/PATH`, from a server at `port`; `tree` is below its root.
    pub(super) fn new(source: &str, port: u16, tree: &str) -> Result<Self> {
        let mut world = Testbed::elsewhere(&Curt::beside()?, source)?;
        let options = format!("port={port},mountport={port},noac,lookupcache=none,noaccesscheck");
        let mounted = world.mount("3", &options)?;
        Ok(Self {
            tree: mounted.directory().join(tree),
            mounted,
            _world: world,
        })
    }

    /// The daemon's process.
    pub(super) fn pid(&self) -> u32 {
        self.mounted.pid()
    }

    /// Ends it.
    pub(super) fn end(self) -> Result<()> {
        self.mounted.end()
    }

    /// Makes as many calls, one after the other; what is written is of this generation.
    pub(super) fn run(
        &self,
        operation: LatencyOperation,
        generation: u64,
        operations: usize,
        latencies: &mut Vec<u32>,
    ) -> Result<Duration> {
        let mut call = self
            .call(operation, generation)
            .with_context(|| format!("{} through the mount", operation.name()))?;
        let start = Instant::now();
        for number in 0..operations {
            let before = Instant::now();
            call(number).with_context(|| format!("{} through the mount", operation.name()))?;
            let nanoseconds = before.elapsed().as_nanos();
            latencies.push(u32::try_from(nanoseconds).unwrap_or(u32::MAX));
        }
        Ok(start.elapsed())
    }

    fn call(
        &self,
        operation: LatencyOperation,
        generation: u64,
    ) -> Result<Box<dyn FnMut(usize) -> Result<()>>> {
        let file = self.tree.join(file_name(0));
        let made = self.tree.join(MADE);
        Ok(match operation {
            LatencyOperation::Getattr => {
                let file = File::open(file)?;
                Box::new(move |_| Ok(rustix::fs::fstat(&file).map(drop)?))
            }
            LatencyOperation::Lookup => Box::new(move |_| Ok(rustix::fs::stat(&file).map(drop)?)),
            LatencyOperation::Access => Box::new(move |_| Ok(rustix::fs::access(&file, Access::READ_OK)?)),
            LatencyOperation::Read => {
                let file = File::options().read(true).custom_flags(direct()).open(file)?;
                let blocks: Vec<_> = (0..OUTSTANDING_MAX).map(|slot| content::block(slot, 0)).collect();
                let mut aligned = Box::new(AlignedBlock([0; BLOCK_BYTES]));
                Box::new(move |number| {
                    let slot = number % OUTSTANDING_MAX;
                    let bytes = &mut aligned.0;
                    file.read_exact_at(bytes, (slot * BLOCK_BYTES) as u64)?;
                    ensure!(bytes == blocks[slot].as_slice(), "other data than were written");
                    Ok(())
                })
            }
            LatencyOperation::WriteUnstable | LatencyOperation::WriteFileSync => {
                self.writing(operation, generation)?
            }
            LatencyOperation::Create => Box::new(move |number| {
                let path = made.join(format!("mount-{number:08}"));
                File::options().write(true).create_new(true).open(path)?;
                Ok(())
            }),
            LatencyOperation::Remove => {
                Box::new(move |number| Ok(fs::remove_file(made.join(format!("mount-{number:08}")))?))
            }
            LatencyOperation::ReaddirPlus => {
                let listed = self.tree.join(LISTED);
                Box::new(move |_| {
                    let count = fs::read_dir(&listed)?.count();
                    ensure!(count == LISTED_NAMES, "{count} names");
                    Ok(())
                })
            }
        })
    }

    fn writing(
        &self,
        operation: LatencyOperation,
        generation: u64,
    ) -> Result<Box<dyn FnMut(usize) -> Result<()>>> {
        let flags = match operation {
            LatencyOperation::WriteFileSync => direct() | flag(OFlags::SYNC),
            _ => direct(),
        };
        let path = self.tree.join(written_name(0));
        let file = File::options().write(true).custom_flags(flags).open(path)?;
        let mut aligned = Box::new(AlignedBlock([0; BLOCK_BYTES]));
        Ok(Box::new(move |number| {
            let slot = number % OUTSTANDING_MAX;
            let bytes = &mut aligned.0;
            content::fill(bytes, slot as u64, generation);
            Ok(file.write_all_at(bytes, (slot * BLOCK_BYTES) as u64)?)
        }))
    }
}

fn direct() -> i32 {
    flag(OFlags::DIRECT)
}

fn flag(flags: OFlags) -> i32 {
    flags.bits().cast_signed()
}

/// A block of memory where O_DIRECT wants it.
#[repr(align(4096))]
struct AlignedBlock([u8; BLOCK_BYTES]);
