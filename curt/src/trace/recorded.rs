//! Events that were kept: in a recording, or in the ring of a process that was killed or has
//! failed.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use curt_mount::control;
use curt_trace::events::recording::RecordingError;
use curt_trace::events::ring::{self, RingContents};
use curt_trace::events::{RecordingItem, RecordingReader};
use serde_json::json;

use super::output::{EventOutput, Limits, OutputTarget, print};

/// Shows a file's events.
pub(super) fn report(path: &Path, target: &OutputTarget, limits: &Limits) -> Result<()> {
    let name = || path.display().to_string();
    let mut file = File::open(path).with_context(name)?;
    if ring::is_ring(&mut file).with_context(name)? {
        let left = ring::read(file).with_context(name)?;
        let mut output = EventOutput::begin(&left.head, target, limits)?;
        for record in &left.records {
            output.add(record)?;
        }
        let count = output.end(0)?;
        eprintln!(
            "{count} events; {} before them were written over",
            left.overwritten
        );
        return Ok(());
    }
    let mut recording = RecordingReader::open(BufReader::new(file)).with_context(name)?;
    let mut output = EventOutput::begin(recording.head(), target, limits)?;
    let mut lost = 0;
    let mut cut_off = true;
    while !output.is_enough() {
        match recording.next_item() {
            Ok(Some(RecordingItem::Event(record))) => output.add(&record)?,
            Ok(Some(RecordingItem::Thread(thread, name))) => output.name_thread(thread, name),
            Ok(Some(RecordingItem::CompleteUntil(_))) => {}
            Ok(Some(RecordingItem::End { lost: number, .. })) => (lost, cut_off) = (number, false),
            Ok(None) | Err(RecordingError::CutOff) => break,
            Err(error) => return Err(error).with_context(name),
        }
    }
    let cut_off = cut_off && !output.is_enough();
    let count = output.end(lost)?;
    eprintln!(
        "{count} events, {lost} lost{}",
        if cut_off {
            "; the recording was not ended"
        } else {
            ""
        }
    );
    Ok(())
}

/// Tells which rings were left behind.
pub(super) fn list(json: bool) -> Result<()> {
    let directory = control::directory();
    let rings = ring::left_behind(&directory).with_context(|| directory.display().to_string())?;
    if json {
        let all: Vec<_> = rings.iter().map(|path| as_json(path)).collect();
        return print(&(serde_json::to_string_pretty(&all)? + "\n"));
    }
    let mut text = String::new();
    for path in &rings {
        let told = match read(path) {
            Ok(left) => {
                let origin = &left.head.origin;
                let last = left.records.last().map(|record| record.time);
                let ago = last.map(|time| since(time.saturating_add(origin.time_of_day_offset)));
                let ago = ago.map_or_else(String::new, |ago| format!(", the last {} s ago", ago.as_secs()));
                let (program, subject) = (shown(&origin.program), shown(&origin.subject));
                let count = left.records.len();
                format!("curt {program} {subject}: {count} events{ago}")
            }
            Err(error) => error.to_string(),
        };
        text += &format!("{}  {told}\n", path.display());
    }
    if rings.is_empty() {
        text += "No process of this user has left events behind.\n";
    }
    print(&text)
}

/// What a file says of itself must not move the cursor.
fn shown(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).collect()
}

fn read(path: &Path) -> Result<RingContents, RecordingError> {
    ring::read(File::open(path)?)
}

fn as_json(path: &Path) -> serde_json::Value {
    let name = path.display().to_string();
    match read(path) {
        Ok(left) => json!({
            "path": name,
            "origin": left.head.origin,
            "events": left.records.len(),
            "overwritten": left.overwritten,
            "last_time_ns": left.records.last().map(|record| record.time),
        }),
        Err(error) => json!({ "path": name, "error": error.to_string() }),
    }
}

/// How long ago a time of day was, in nanoseconds since 1970.
fn since(time: u64) -> Duration {
    let time = SystemTime::UNIX_EPOCH + Duration::from_nanos(time);
    // The clock may have been set back.
    SystemTime::now().duration_since(time).unwrap_or_default()
}
