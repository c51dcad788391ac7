//! `cargo xtask bench locks`: the server's table of byte-range locks, by itself: the time for one
//! more lock in a file with many locks and among many files, and the memory of a lock.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use curt_bench::processes::{Machine, resident_mib};
use curt_server::locks::{
    ClientAccount, ClientLimits, LockClient, LockFile, LockOutcome, LockOwner, LockRequest, LockTable,
    LockTableOptions, LockWait,
};
use curt_types::{ByteRange, LockType};
use curt_vfs::{HandleScheme, NodeHandle};
use serde_json::{Value, json};

use crate::{own_program, print_rows, say};
use curt_bench::statistics::median;

/// The numbers of locks.
const COUNTS: [u32; 5] = [10, 100, 1_000, 10_000, 100_000];
/// The number of locks by whose memory that of one is computed.
const MEMORY_COUNT: u32 = 100_000;
/// How many locks are taken and released in a round.
const BATCH: u32 = 2_000;

/// Arguments of `cargo xtask bench locks`.
#[derive(Debug, clap::Args)]
pub(crate) struct BenchLocksArguments {
    /// Rounds for each number of locks
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = super::at_least_one())]
    rounds: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Where the locks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LockShape {
    /// In one file, each of an owner of its own
    Owners,
    /// In one file, all of one owner
    Owner,
    /// Each in a file of its own, of a few owners
    Files,
}

impl LockShape {
    const fn describe(self) -> &'static str {
        match self {
            Self::Owners => "one file, an owner for each lock",
            Self::Owner => "one file, one owner",
            Self::Files => "a file for each lock",
        }
    }
}

/// A table with locks of one shape.
struct Filled {
    table: LockTable,
    account: Arc<ClientAccount>,
    shape: LockShape,
    now: Instant,
}

const CLIENT: LockClient = LockClient::Clientid(1);

impl Filled {
    fn new(shape: LockShape, count: u32) -> Result<Self> {
        let options = LockTableOptions { seed: 0x5eed, ..LockTableOptions::default() };
        let account = Arc::new(ClientAccount::new(CLIENT, ClientLimits::ALL, None));
        let mut filled = Self { table: LockTable::new(options), account, shape, now: Instant::now() };
        for number in 0..count {
            let outcome = filled.lock(number, LockType::Write, &filled.name(number))?;
            ensure!(outcome == LockOutcome::Granted, "lock {number} is not granted: {outcome:?}");
        }
        Ok(filled)
    }

    /// The owner of a lock: as long as that of Linux's client on a host with a usual name.
    fn name(&self, number: u32) -> String {
        let owner = match self.shape {
            LockShape::Owners => number,
            LockShape::Owner => 0,
            LockShape::Files => number % 16,
        };
        format!("{owner:08}@client.example")
    }

    fn file(&self, number: u32) -> Result<LockFile> {
        let file = if self.shape == LockShape::Files { number } else { 0 };
        let bytes = u64::from(file).to_be_bytes();
        Ok(LockFile::new(1, NodeHandle::new(HandleScheme::Kernel, 1, &bytes).context("8 bytes")?))
    }

    /// The bytes of a lock: none touch, so that none merge.
    fn range(&self, number: u32) -> Result<ByteRange> {
        let first = u64::from(number) * 16;
        ByteRange::new(first, first + 7).context("it has 8 bytes")
    }

    fn lock(&mut self, number: u32, lock_type: LockType, name: &str) -> Result<LockOutcome> {
        let owner = LockOwner { client: CLIENT, process: 1, name: name.as_bytes() };
        let range = self.range(number)?;
        let request = LockRequest { owner, lock_type, range, wait: LockWait::No, reclaim: false };
        let file = self.file(number)?;
        Ok(self.table.lock(&file, &request, &self.account, None, self.now, &mut Vec::new()))
    }

    fn unlock(&mut self, number: u32, name: &str) -> Result<()> {
        let owner = LockOwner { client: CLIENT, process: 1, name: name.as_bytes() };
        let (file, range) = (self.file(number)?, self.range(number)?);
        let unlocked = self.table.unlock(&file, &owner, range, self.now, &mut Vec::new());
        unlocked.ok().context("an unlock was denied")
    }
}

/// Nanoseconds of each operation. Their median does not count the moments of other programs.
#[derive(Default)]
struct Costs {
    lock: Vec<f64>,
    unlock: Vec<f64>,
    denied: Vec<f64>,
}

impl Costs {
    fn row(&self, what: &str, count: u32) -> Value {
        let [lock, unlock, denied] =
            [&self.lock, &self.unlock, &self.denied].map(|costs| median(costs).round());
        json!({ "what": what, "locks": count, "lock_ns": lock, "unlock_ns": unlock, "denied_ns": denied })
    }
}

/// The locks of a round: all over the table.
fn numbers(count: u32) -> impl Iterator<Item = u32> {
    (0..BATCH).map(move |at| at.wrapping_mul(0x9e37_79b9) % count)
}

/// Releases a lock and takes it again, all over the table, and tries to take it for another owner.
fn measure(filled: &mut Filled, count: u32, rounds: usize) -> Result<Costs> {
    let mut costs = Costs::default();
    let numbers: Vec<u32> = numbers(count).collect();
    let names: Vec<String> = numbers.iter().map(|number| filled.name(*number)).collect();
    // Each time is measured on its own: the table has `count` locks, and for a moment one less.
    let clock = ClockCost::measure();
    for _ in 0..rounds {
        for (number, name) in numbers.iter().zip(&names) {
            let begun = Instant::now();
            filled.unlock(*number, name)?;
            costs.unlock.push(clock.since(begun));
            let begun = Instant::now();
            let granted = filled.lock(*number, LockType::Write, name)?;
            costs.lock.push(clock.since(begun));
            let begun = Instant::now();
            let refused = filled.lock(*number, LockType::Write, "another@client.example")?;
            costs.denied.push(clock.since(begun));
            ensure!(granted == LockOutcome::Granted, "a free lock was not granted");
            ensure!(matches!(refused, LockOutcome::Denied(_)), "two owners have one lock");
        }
    }
    Ok(costs)
}

/// The time that reading the clock takes.
struct ClockCost(f64);

impl ClockCost {
    fn measure() -> Self {
        let readings = (0..BATCH).map(|_| Self(0.0).since(black_box(Instant::now())));
        Self(median(&readings.collect::<Vec<_>>()))
    }

    fn since(&self, begun: Instant) -> f64 {
        begun.elapsed().as_secs_f64() * 1e9 - self.0
    }
}

/// The floor: a bare ordered map of as many ranges, as which a file's locks could be kept if only
/// their beginnings had to be found.
fn measure_map(count: u32, rounds: usize) -> Costs {
    let mut map: BTreeMap<u64, (u64, u32)> =
        (0..count).map(|number| (u64::from(number) * 16, (7, 0))).collect();
    let mut costs = Costs::default();
    let clock = ClockCost::measure();
    for _ in 0..rounds {
        for first in numbers(count).map(|number| u64::from(number) * 16) {
            let begun = Instant::now();
            let removed = black_box(map.remove(&first));
            costs.unlock.push(clock.since(begun));
            let begun = Instant::now();
            black_box(map.insert(first, removed.unwrap_or_default()));
            costs.lock.push(clock.since(begun));
            let begun = Instant::now();
            black_box(map.range(..=first).next_back());
            costs.denied.push(clock.since(begun));
        }
    }
    costs
}

pub(super) fn run(arguments: &BenchLocksArguments) -> Result<bool> {
    let mut rows = Vec::new();
    let mut memory = Vec::new();
    for shape in [LockShape::Owners, LockShape::Owner, LockShape::Files] {
        for count in COUNTS {
            let mut filled = Filled::new(shape, count)?;
            let costs = measure(&mut filled, count, arguments.rounds)?;
            rows.push(costs.row(shape.describe(), count));
        }
        memory.push(json!({ "what": shape.describe(), "bytes_per_lock": bytes_per_lock(shape)?.round() }));
    }
    for count in COUNTS {
        rows.push(measure_map(count, arguments.rounds).row("floor: an ordered map of as many ranges", count));
    }
    print_rows(arguments.json, &json!({ "machine": Machine::this(), "rows": rows, "memory": memory }))?;
    Ok(true)
}

/// The memory of a lock, by that of a process of its own.
fn bytes_per_lock(shape: LockShape) -> Result<f64> {
    let name = shape.to_possible_value().context("every shape has a name")?;
    let mut filling = own_program();
    filling.args(["locks-memory", name.get_name()]).stdin(Stdio::null());
    let output = filling.output().context("cannot start this program again")?;
    ensure!(output.status.success(), "filling a table failed");
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}

/// Fills a table and prints the memory of each lock.
pub(super) fn print_memory(shape: LockShape) -> Result<()> {
    let own = std::process::id();
    let before = resident_mib(own)?;
    let filled = black_box(Filled::new(shape, MEMORY_COUNT)?);
    let mebibytes = resident_mib(own)? - before;
    drop(filled);
    say(&(mebibytes * f64::from(1 << 20) / f64::from(MEMORY_COUNT)).to_string())
}
