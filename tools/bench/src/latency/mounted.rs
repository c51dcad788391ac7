//! The same operations as system calls on a mount of Curt's server: the latency of an application.
//! The mount caches no attributes and no names, and data bypass the page cache, so that each call
//! sends a request.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use curt_bench::processes::MountProcess;
use rustix::fs::{Access, Mode, OFlags};

use super::operations::{BLOCK_BYTES, LISTED_NAMES, LatencyOperation, OUTSTANDING_MAX, block};
use super::subject::{LISTED, LatencySubject, MADE, file_name, written_name};

/// With these options each call sends a request.
const OPTIONS: &str = "noac,lookupcache=none,noaccesscheck";

/// Makes the call with this number.
type NumberedCall = Box<dyn FnMut(usize) -> Result<()>>;

/// A mount, and the tree on it.
pub(super) struct LatencyMount {
    pub(super) mounted: MountProcess,
    tree: PathBuf,
}

impl LatencyMount {
    /// Mounts Curt's server.
    pub(super) fn new(curt: &mut LatencySubject) -> Result<Self> {
        let world = curt.world.as_mut().context("only our server is mounted")?;
        let mounted = world.mount("3", OPTIONS).context("the mount")?;
        Ok(Self { tree: mounted.directory().join(&curt.tree.name), mounted })
    }

    /// Makes so many calls one after the other; they write data of this generation. Returns the
    /// time of each in nanoseconds, and the total time.
    pub(super) fn run(
        &self,
        operation: LatencyOperation,
        generation: u64,
        operations: usize,
    ) -> Result<(Vec<u32>, Duration)> {
        let mut call = self.call(operation, generation)?;
        let (mut latencies, start) = (Vec::with_capacity(operations), Instant::now());
        for number in 0..operations {
            let before = Instant::now();
            call(number)?;
            latencies.push(u32::try_from(before.elapsed().as_nanos()).unwrap_or(u32::MAX));
        }
        Ok((latencies, start.elapsed()))
    }

    fn call(&self, operation: LatencyOperation, generation: u64) -> Result<NumberedCall> {
        let [file, made, listed] = [&file_name(0), MADE, LISTED].map(|name| self.tree.join(name));
        let name = move |number| made.join(format!("mount-{number:08}"));
        let slots = 0..OUTSTANDING_MAX;
        let blocks = |generation| slots.map(|slot| block(slot, generation, BLOCK_BYTES)).collect::<Vec<_>>();
        let mut aligned = Box::new(AlignedBlock([0; BLOCK_BYTES]));
        Ok(match operation {
            LatencyOperation::Getattr => {
                let file = File::open(file)?;
                Box::new(move |_| Ok(rustix::fs::fstat(&file).map(drop)?))
            }
            LatencyOperation::Lookup => Box::new(move |_| Ok(rustix::fs::stat(&file).map(drop)?)),
            LatencyOperation::Access => Box::new(move |_| Ok(rustix::fs::access(&file, Access::READ_OK)?)),
            LatencyOperation::Read => {
                let file = rustix::fs::open(file, OFlags::RDONLY | OFlags::DIRECT, Mode::empty())?;
                let (file, blocks) = (File::from(file), blocks(0));
                Box::new(move |number| {
                    let slot = number % OUTSTANDING_MAX;
                    file.read_exact_at(&mut aligned.0, (slot * BLOCK_BYTES) as u64)?;
                    ensure!(aligned.0 == *blocks[slot], "other data than were written");
                    Ok(())
                })
            }
            LatencyOperation::WriteUnstable | LatencyOperation::WriteFileSync => {
                let is_stable = operation == LatencyOperation::WriteFileSync;
                let stable = if is_stable { OFlags::SYNC } else { OFlags::empty() };
                let flags = OFlags::WRONLY | OFlags::DIRECT | stable;
                let file = rustix::fs::open(self.tree.join(written_name(0)), flags, Mode::empty())?;
                let (file, blocks) = (File::from(file), blocks(generation));
                Box::new(move |number| {
                    let slot = number % OUTSTANDING_MAX;
                    aligned.0.copy_from_slice(&blocks[slot]);
                    Ok(file.write_all_at(&aligned.0, (slot * BLOCK_BYTES) as u64)?)
                })
            }
            LatencyOperation::Create => Box::new(move |number| Ok(File::create_new(name(number)).map(drop)?)),
            LatencyOperation::Remove => Box::new(move |number| Ok(fs::remove_file(name(number))?)),
            LatencyOperation::Open | LatencyOperation::Close => bail!("a mount has no such operation"),
            LatencyOperation::ReaddirPlus => Box::new(move |_| {
                let count = fs::read_dir(&listed)?.count();
                ensure!(count == LISTED_NAMES, "{count} names");
                Ok(())
            }),
        })
    }
}

/// A block of memory with the alignment of O_DIRECT.
#[repr(align(4096))]
struct AlignedBlock([u8; BLOCK_BYTES]);
