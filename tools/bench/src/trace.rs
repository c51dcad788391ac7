//! `cargo xtask bench trace`: the cost of a disabled event, and of an enabled one.
//!
//! Two parts: the time of an event by itself, with the cases interleaved in each round; and a
//! thread that emits a steady rate of events while another one drains and records them, as a daemon
//! does for `curt trace`.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use curt_observe::events::{
    self, Event, EventRing, EventWatch, RecordedProcess, RecordingWriter, RingLevel, handle_hash,
};
use curt_observe::probe;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use crate::{print_rows, say};
use curt_bench::statistics::median;

/// The fields of the event in every round: two numbers, a name and an error, as most events of a
/// mount.
const EVENT: Event = Event::NfsLookupExit;
/// The object of the event with an object.
const OBJECT: Event = Event::NfsGetattrExit;
/// A handle of `curt serve`, for a file on ext4.
const HANDLE: [u8; 28] = [0x5a; 28];
/// Events of one round.
const ROUND: u32 = 20_000;

/// Arguments of `cargo xtask bench trace`.
#[derive(Debug, clap::Args)]
pub(super) struct BenchTraceArguments {
    /// Rounds of 20,000 events for each case
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    /// Events each second while they are watched
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1000..=5_000_000))]
    rate: u32,
    /// How long they are watched
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=60))]
    seconds: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Measures, and prints.
pub(super) fn run(arguments: &BenchTraceArguments) -> Result<bool> {
    let directory = tempfile::tempdir().context("a directory for the ring")?;
    let origin = RecordedProcess { pid: std::process::id(), ..RecordedProcess::default() };
    let _ring = EventRing::create(directory.path(), origin.clone()).context("the ring")?;
    events::keep_in_ring(&[]);
    let costs = costs(arguments.rounds)?;
    let steady = steady(arguments, &origin)?;
    if arguments.json {
        let ring_default = RingLevel::default().name();
        let all = json!({ "costs": costs, "steady": steady, "ring_default": ring_default });
        say(&all.to_string())?;
    } else {
        print_rows(false, &json!({ "an event": [costs], "a steady stream": [steady] }))?;
    }
    Ok(true)
}

/// The median round of each case, in nanoseconds of this thread's processor time per event: the
/// same loop without an event; disabled; written to the ring; watched, with an empty buffer before
/// each round; the same for an event about an object (nine fields, one of them computed from its
/// handle); watched, with a full buffer.
fn costs(rounds: u32) -> Result<Value> {
    let mut times = [const { Vec::new() }; 6];
    let mut records = Vec::new();
    for _ in 0..rounds {
        times[0].push(round(|number| {
            black_box(number);
        }));
        times[1].push(round(emit));
        events::keep_in_ring(&[EVENT]);
        times[2].push(round(emit));
        events::keep_in_ring(&[]);
        let watch = EventWatch::begin(&[OBJECT])?;
        times[5].push(round(emit_object));
        drop(watch);
        let watch = EventWatch::begin(&[EVENT])?;
        times[3].push(round(emit));
        // After two more rounds the buffer is full.
        while watch.lost() == 0 {
            round(emit);
        }
        times[4].push(round(emit));
        watch.drain(&mut records);
        records.clear();
    }
    let [nothing_ns, off_ns, ring_ns, watched_ns, lost_ns, object_ns] = times.map(|times| median(&times));
    Ok(json!({
        "nothing_ns": nothing_ns, "off_ns": off_ns, "ring_ns": ring_ns,
        "watched_ns": watched_ns, "object_ns": object_ns, "lost_ns": lost_ns,
    }))
}

fn emit(number: u32) {
    let number = black_box(number);
    probe!(NfsLookupExit { dir: number, name: "a-name-of-18-bytes", fileid: number, error: 0 });
}

fn emit_object(number: u32) {
    let number = black_box(number);
    probe!(let fhandle = handle_hash(black_box(&HANDLE)); NfsGetattrExit {
        fileid: number,
        size: number,
        error: 0,
        dev: 1_u64,
        fhandle,
        object_type: 8_u8,
        version: number,
        cache_validity: 0_u32,
        nfsi_flags: 0_u32
    });
}

fn round(mut each: impl FnMut(u32)) -> f64 {
    let before = spent();
    (0..ROUND).for_each(&mut each);
    (spent() - before).as_secs_f64() * 1e9 / f64::from(ROUND)
}

/// Processor time of this thread.
fn spent() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// The cost of a steady stream of events, in percent of one processor: of the thread that emits
/// them, and of the one that drains and sends them.
fn steady(arguments: &BenchTraceArguments, origin: &RecordedProcess) -> Result<Value> {
    let watch = EventWatch::begin(&[EVENT])?;
    let mut writer = RecordingWriter::new(origin.clone())?;
    let ended = AtomicBool::new(false);
    let (emitted, emitting, elapsed, sending) = std::thread::scope(|scope| {
        let sender = scope.spawn(|| send(&watch, &mut writer, &ended));
        let (emitted, emitting, elapsed) = emit_steadily(arguments);
        // Relaxed: it orders no other memory.
        ended.store(true, Ordering::Relaxed);
        (emitted, emitting, elapsed, sender.join())
    });
    let sending = sending.map_err(|_| anyhow::anyhow!("the sender failed"))?;
    let percent = |time: Duration| time.as_secs_f64() / elapsed.as_secs_f64() * 100.0;
    Ok(json!({
        "events_per_second": f64::from(emitted) / elapsed.as_secs_f64(),
        "emitting_percent": percent(emitting), "sending_percent": percent(sending), "lost": watch.lost(),
    }))
}

/// Emits so many events each millisecond. Returns their number, their processor time (without that
/// of the loop), and the elapsed time.
fn emit_steadily(arguments: &BenchTraceArguments) -> (u32, Duration, Duration) {
    let each = arguments.rate / 1000;
    let (began, mut emitted, mut emitting) = (Instant::now(), 0, Duration::ZERO);
    for turn in 0..arguments.seconds * 1000 {
        let before = spent();
        (0..each).for_each(emit);
        emitting += spent().saturating_sub(before);
        emitted += each;
        let next = began + Duration::from_millis(u64::from(turn) + 1);
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    (emitted, emitting, began.elapsed())
}

/// The work of a daemon for a watcher, without the socket. Returns its processor time.
fn send(watch: &EventWatch, writer: &mut RecordingWriter, ended: &AtomicBool) -> Duration {
    let before = spent();
    let mut records = Vec::new();
    while !ended.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(10));
        records.clear();
        watch.drain(&mut records);
        writer.records(&records, |_| None);
        black_box(writer.take());
    }
    spent().saturating_sub(before)
}
