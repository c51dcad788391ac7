//! What engineers measure of Curt, in requests, in time and in memory: `cargo xtask bench NAME`
//! builds and runs it. It starts the program `curt` that lies beside it.

mod fill;
mod fuse;
mod fuse_baseline;
mod latency;
mod locks;
mod names;
mod opens;
mod read;
mod recall;
mod resource_use;
mod slow_exports;
mod trace;

use std::io::{ErrorKind, Write as _};
use std::process::{Command, ExitCode};

use anyhow::Result;
use clap::builder::RangedU64ValueParser;
use clap::{Parser, Subcommand};
use curt_bench::processes::Machine;
use curt_bench::report::lay_out;
use serde_json::{Value, json};

/// Measure what Curt costs.
#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask bench",
    after_help = "Exit status of each: 0; 1 if a result was wrong, a bound was exceeded, or nothing could be measured; 2 for wrong arguments."
)]
struct Arguments {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// GETATTR through a mount, compared with a minimal FUSE file system that forwards to an echo
    /// server: time
    Fuse(fuse::FuseArguments),
    /// Read a large file with cold caches, and write and fsync one, compared with libnfs's nfs-cat
    /// and nfs-cp: throughput
    Read(read::BenchReadArguments),
    /// stat(2) of cached names, existing and missing: operations per second
    Names(names::NamesArguments),
    /// Memory of a mount's daemon with a million cached names
    Memory(names::MemoryArguments),
    /// Costs and savings of dirfill=auto compared with dirfill=off, through a relay: requests,
    /// bytes and time
    Fill(fill::FillArguments),
    /// The cost of an event that is disabled, kept in the ring, or watched, and of 100,000 per
    /// second: processor time
    Trace(trace::BenchTraceArguments),
    /// Each NFS operation, compared with a minimal server and with other servers: time
    Latency(Box<latency::LatencyArguments>),
    /// A quick operation on one export, sent behind a slow one on another: time (as root)
    SlowExports(slow_exports::SlowExportsArguments),
    /// The server's table of byte-range locks: the time for one more lock among many, and the
    /// memory of a lock
    Locks(locks::BenchLocksArguments),
    /// The server's state of NFSv4: the time for one more open and lock among many, and the memory
    /// of an open
    Opens(opens::OpensArguments),
    /// Open files for `opens`
    #[command(hide = true)]
    OpensMemory { shape: opens::OpenShape },
    /// How long a change of a file waits for the delegation of a client that answers
    Recall(recall::RecallArguments),
    /// Fill a table for `locks`
    #[command(hide = true)]
    LocksMemory { shape: locks::LockShape },
    /// Answer the calls of `latency` and `fuse` without serving anything
    #[command(hide = true)]
    LatencyEcho { port: u16 },
}

fn main() -> ExitCode {
    match bench(&Arguments::parse().bench) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        // The reader of standard output has closed it.
        Err(error) if is_unread(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("curt-tools-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn is_unread(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<std::io::Error>();
    error.is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

fn bench(bench: &Bench) -> Result<bool> {
    match bench {
        Bench::Fuse(arguments) => fuse::run(arguments),
        Bench::Read(arguments) => read::run(arguments),
        Bench::Names(arguments) => names::run(arguments),
        Bench::Memory(arguments) => names::run_memory(arguments),
        Bench::Fill(arguments) => fill::run(arguments),
        Bench::Trace(arguments) => trace::run(arguments),
        Bench::Latency(arguments) => latency::run(arguments),
        Bench::Opens(arguments) => opens::run(arguments),
        Bench::OpensMemory { shape } => opens::print_memory(*shape).map(|()| true),
        Bench::SlowExports(arguments) => slow_exports::run(arguments),
        Bench::Locks(arguments) => locks::run(arguments),
        Bench::Recall(arguments) => recall::run(arguments),
        Bench::LocksMemory { shape } => locks::print_memory(*shape).map(|()| true),
        Bench::LatencyEcho { port } => latency::echo::serve(*port).map(|()| true),
    }
}

/// This program, to be started again.
fn own_program() -> Command {
    Command::new("/proc/self/exe")
}

/// Parses a count of at least one.
fn at_least_one() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..)
}

/// Prints a line.
fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// Prints tables, each a list of rows with a name; as JSON or as text.
fn print_rows(as_json: bool, tables: &Value) -> Result<()> {
    if as_json {
        return say(&tables.to_string());
    }
    say(&Machine::this().line())?;
    for (name, rows) in tables.as_object().into_iter().flatten() {
        let rows = rows.as_array().map_or(&[][..], Vec::as_slice);
        let Some(first) = rows.first() else { continue };
        let heads: Vec<String> = cells("", first).into_iter().map(|(head, _)| head).collect();
        let rows = rows.iter().map(|row| {
            let cells = cells("", row).into_iter();
            cells.map(|(_, cell)| cell).collect()
        });
        let table: Vec<Vec<String>> = std::iter::once(heads).chain(rows).collect();
        say(&format!("\n{name}\n{}", lay_out(&table)))?;
    }
    Ok(())
}

/// The values in a row with their names: words first.
fn cells(prefix: &str, row: &Value) -> Vec<(String, String)> {
    let mut cells = Vec::new();
    for (name, value) in row.as_object().into_iter().flatten() {
        let name = format!("{prefix}{name}");
        match value {
            Value::Object(_) => cells.extend(self::cells(&format!("{name}."), value)),
            Value::Number(number) if number.is_f64() => {
                cells.push((name, format!("{:.2}", number.as_f64().unwrap_or_default())));
            }
            Value::Array(values) if values.iter().all(Value::is_object) => {
                let parts = values.iter().map(|value| self::cells("", value));
                let parts = parts.map(|cells| cells.into_iter().map(|(_, cell)| cell));
                let parts: Vec<_> = parts.map(|cells| cells.collect::<Vec<_>>().join(" ")).collect();
                cells.push((name, parts.join(", ")));
            }
            // Of the rounds: the lowest and the highest.
            Value::Array(values) => {
                let values: Vec<f64> = values.iter().filter_map(Value::as_f64).collect();
                let low = values.iter().copied().fold(f64::INFINITY, f64::min);
                let high = values.iter().copied().fold(0.0, f64::max);
                cells.push((name, format!("{low:.2} to {high:.2}")));
            }
            Value::Null => cells.push((name, "-".to_owned())),
            Value::String(word) => cells.insert(0, (name, word.clone())),
            other => cells.push((name, other.to_string())),
        }
    }
    cells
}

/// Prints comparisons, and a description of the machine.
fn print_compared(as_json: bool, compared: &[Value]) -> Result<()> {
    if as_json {
        return say(&json!({ "machine": Machine::this(), "compared": compared }).to_string());
    }
    print_rows(false, &json!({ "compared": compared }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_show_words_first_and_what_is_missing() {
        let row = json!({"a": 1.125, "op": "READ", "peers": {"ganesha": {"us": 3}}, "rounds": [2.5, 1, 3], "z": null});
        let cells = cells("", &row);
        let shown: Vec<_> = cells.iter().map(|(name, cell)| (name.as_str(), cell.as_str())).collect();
        assert_eq!(
            shown,
            [
                ("op", "READ"),
                ("a", "1.12"),
                ("peers.ganesha.us", "3"),
                ("rounds", "1.00 to 3.00"),
                ("z", "-")
            ]
        );
    }
}
