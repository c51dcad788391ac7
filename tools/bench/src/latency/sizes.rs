//! The table of sizes: 1 KiB to 16 MiB, written, rewritten, read and reread, with the file cache
//! and without.
//!
//! Larger sizes than the maximum of a WRITE or READ are sent as several calls at once, as a kernel
//! client does. Each round starts two new servers: the memory layout of a process makes some sizes
//! a few percent faster or slower for its lifetime, which would look like an effect of the cache.
//! Within a round each size is measured in the order with, without, without, with, or the reverse,
//! so that a steady change of load affects both sides equally. Everything runs on one processor:
//! the comparison is of work, not of the kernel's placement of threads.

use std::time::Duration;

use anyhow::{Context, Result};
use curt_proto::nfs3::{DATA_MAX, NfsFh3, StableHow};
use curt_types::FileHandle;
use serde_json::{Value, json};

use super::connection::{LatencyConnection, connect};
use super::operations::{PreparedCalls, ReplyChecks, block, read, write};
use super::subject::LatencySubject;
use curt_bench::statistics::{median, paired};

/// The smallest size, in bytes.
const LEAST: usize = 1 << 10;
/// The largest.
pub(super) const MOST: usize = 16 << 20;
/// Bytes of a file that are written in one pass, within the bounds of [`COUNTS`].
const FILE_BYTES: usize = 4 << 20;
/// Minimum and maximum number of units of this size in a file.
const COUNTS: (usize, usize) = (2, 256);
/// The file.
const NAME: &str = "size";
/// The passes in order.
const PASSES: [&str; 4] = ["write", "rewrite", "read", "reread"];

/// The sizes up to the requested maximum.
fn all(most: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(LEAST), |size| Some(size * 2)).take_while(move |size| *size <= most.min(MOST))
}

/// Measures all sizes up to `largest` in so many rounds. `servers` starts those of a round, with
/// the file cache and without; `done` is called after each round.
pub(super) fn measure(
    rounds: u16,
    largest: usize,
    servers: impl Fn(u16) -> Result<[LatencySubject; 2]>,
    done: impl Fn(),
) -> Result<Vec<Value>> {
    // By size, side and pass: each round's value, in microseconds.
    let mut measured: Vec<[[Vec<f64>; 4]; 2]> = all(largest).map(|_| Default::default()).collect();
    for round in 0..rounds {
        let servers = servers(round)?;
        for (size, measured) in all(largest).zip(&mut measured) {
            let of_round = one_round(size, round, &servers);
            let of_round = of_round.with_context(|| format!("{} KiB", size >> 10))?;
            let kept = measured.iter_mut().flatten();
            kept.zip(of_round.into_iter().flatten()).for_each(|(kept, new)| kept.push(new));
        }
        servers.into_iter().try_for_each(|server| server.tree.remove())?;
        done();
    }
    let rows = all(largest).zip(&measured).flat_map(|(bytes, [on, off])| {
        PASSES.into_iter().zip(on.iter().zip(off)).map(move |(pass, (on, off))| {
            let ratio = paired(on, off);
            // With by without, in the same round: the median, and its interval of 95 %.
            json!({
                "bytes": bytes, "pass": pass, "on_us": median(on), "off_us": median(off),
                "ratio": ratio.median, "ratio_low": ratio.low, "ratio_high": ratio.high,
            })
        })
    });
    Ok(rows.collect())
}

/// The order of a round: 0 is the server with the file cache.
const fn turns(round: u16) -> [usize; 4] {
    if round.is_multiple_of(2) { [0, 1, 1, 0] } else { [1, 0, 0, 1] }
}

/// One size on both servers. The value of a side is the geometric mean of its two samples, so that
/// the ratio of the sides is the mean of the ratios.
fn one_round(size: usize, round: u16, [on, off]: &[LatencySubject; 2]) -> Result<[[f64; 4]; 2]> {
    let mut sides = [SizeTestFile::new(size, on)?, SizeTestFile::new(size, off)?];
    let mut product = [[1.0; 4]; 2];
    for side in turns(round) {
        let took = sides[side].round()?;
        for (product, took) in product[side].iter_mut().zip(took) {
            *product *= took;
        }
    }
    for SizeTestFile { subject, .. } in sides {
        subject.tree.export.remove(&subject.tree.directory, NAME, false)?;
    }
    Ok(product.map(|passes| passes.map(f64::sqrt)))
}

/// One server's file.
struct SizeTestFile<'a> {
    subject: &'a LatencySubject,
    file: FileHandle,
    writing: LatencyConnection,
    reading: LatencyConnection,
    /// Number of calls for one unit of the size, and number of units in the file.
    calls: usize,
    count: usize,
}

impl<'a> SizeTestFile<'a> {
    fn new(size: usize, subject: &'a LatencySubject) -> Result<Self> {
        let credential = subject.tree.export.credential();
        let count = (FILE_BYTES / size).clamp(COUNTS.0, COUNTS.1);
        let piece = size.min(DATA_MAX);
        let file = subject.tree.export.make_file(&subject.tree.directory, NAME)?;
        let pieces = 0..count * size / piece;
        let blocks: Vec<_> = pieces.map(|number| block(number, size as u64, piece)).collect();
        let (mut writes, mut reads, wire) = (Vec::new(), Vec::new(), NfsFh3::new(file.as_bytes())?);
        for (number, data) in blocks.iter().enumerate() {
            let offset = number * piece;
            writes.push(write(credential, wire, offset, StableHow::Unstable, data)?);
            reads.push(read(credential, wire, offset, piece)?);
        }
        let connection = |calls, checks| -> Result<_> {
            Ok(LatencyConnection::new(connect(subject.address)?, PreparedCalls::ready(calls), checks))
        };
        let writing = connection(writes, ReplyChecks::Success)?;
        let reading = connection(reads, ReplyChecks::Data(blocks))?;
        Ok(Self { subject, file, writing, reading, calls: size / piece, count })
    }

    /// The four passes over the file, which is empty before. Returns the median of each for a unit,
    /// in microseconds.
    fn round(&mut self) -> Result<[f64; 4]> {
        self.subject.tree.export.empty(&self.file)?;
        let mut medians = [0.0; 4];
        for (pass, median_of_pass) in medians.iter_mut().enumerate() {
            let connection = if pass < 2 { &mut self.writing } else { &mut self.reading };
            let calls = self.calls;
            let took = (0..self.count).map(|number| {
                let times = connection.times(number * calls..(number + 1) * calls, None)?;
                let until_last = times.into_iter().max().unwrap_or(Duration::ZERO);
                Ok(until_last.as_secs_f64() * 1e6)
            });
            *median_of_pass = median(&took.collect::<Result<Vec<f64>>>().context(PASSES[pass])?);
        }
        Ok(medians)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_side_comes_first_as_often_as_last_and_in_the_middle() {
        let mut places = [[0; 4]; 2];
        for round in 0..20 {
            for (place, side) in turns(round).into_iter().enumerate() {
                places[side][place] += 1;
            }
        }
        assert_eq!(places, [[10; 4]; 2]);
        assert_eq!(turns(0).iter().sum::<usize>(), 2);
    }

    #[test]
    fn sizes_double_from_one_kibibyte_to_sixteen_mebibytes() {
        let sizes: Vec<usize> = all(usize::MAX).collect();
        assert_eq!((sizes.len(), sizes[0], sizes[14]), (15, 1024, 16 << 20));
        assert_eq!(all(4096).count(), 3);
        // The xid has room for that many slots.
        assert!(sizes.iter().all(|size| {
            let count = (FILE_BYTES / size).clamp(COUNTS.0, COUNTS.1);
            count * (size / (*size).min(DATA_MAX)) <= 256
        }));
    }
}
