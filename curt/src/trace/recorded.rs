//! Stored events: in a recording, or in the ring of a process that was killed or has failed.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use curt_observe::control;
use curt_observe::events::recording::RecordingError;
use curt_observe::events::{RecordedProcess, RecordingItem, RecordingReader, ring};
use serde_json::json;

use super::event_output::{EventOutput, Limits, OutputTarget};
use crate::output::print;

/// Shows a file's events.
pub(super) fn report(path: &Path, target: &OutputTarget, limits: &Limits) -> Result<()> {
    let name = || path.display().to_string();
    let mut recording =
        File::open(path).map_err(Into::into).and_then(RecordingReader::open).with_context(name)?;
    let is_ring = recording.head().ring.is_some();
    if is_ring && limits.filter.path.is_some() && recording.head().origin.program == "mount" {
        bail!("{}: a ring has no paths; --path needs a recording", name());
    }
    let mut output = EventOutput::begin(recording.head(), target, limits)?;
    let mut lost = 0;
    let mut cut_off = true;
    while !output.is_enough() {
        match recording.next_item() {
            Ok(Some(RecordingItem::Event(record))) => output.add(&record)?,
            Ok(Some(RecordingItem::Thread(thread, name))) => output.name_thread(thread, name),
            Ok(Some(RecordingItem::Object(object, path))) => output.name_object(object, path),
            Ok(Some(RecordingItem::CompleteUntil(_))) => {}
            Ok(Some(RecordingItem::End { lost: number, .. })) => (lost, cut_off) = (number, false),
            Ok(None) | Err(RecordingError::CutOff) => break,
            Err(error) => return Err(error).with_context(name),
        }
    }
    let cut_off = cut_off && !output.is_enough();
    let count = output.end(lost)?;
    if is_ring {
        eprintln!("{count} events; {lost} earlier events were overwritten");
    } else {
        let ending = if cut_off { "; the recording is incomplete" } else { "" };
        eprintln!("{count} events, {lost} lost{ending}");
    }
    Ok(())
}

/// Lists the rings of ended processes.
pub(super) fn list(json: bool) -> Result<()> {
    let directory = control::directory();
    let rings = ring::left_behind(&directory).with_context(|| directory.display().to_string())?;
    if json {
        let all: Vec<_> = rings.iter().map(|path| as_json(path)).collect();
        return print(&(serde_json::to_string_pretty(&all)? + "\n"));
    }
    let mut text = String::new();
    for path in &rings {
        let result = match read(path) {
            Ok(left) => {
                let last = left.last_time_ns;
                let ago = last.map(|time| since(time.saturating_add(left.origin.time_of_day_offset)));
                let ago = ago.map_or_else(String::new, |ago| format!(", the last {} s ago", ago.as_secs()));
                let (program, subject) = (shown(&left.origin.program), shown(&left.origin.subject));
                format!("curt {program} {subject}: {} events{ago}", left.events)
            }
            Err(error) => error.to_string(),
        };
        text += &format!("{}  {result}\n", path.display());
    }
    if rings.is_empty() {
        text += "No process of this user has left events behind.\n";
    }
    print(&text)
}

/// Control characters in a file must not move the cursor.
fn shown(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).collect()
}

/// Summary of the ring that an ended process has left.
#[derive(serde::Serialize)]
struct RingSummary {
    origin: RecordedProcess,
    events: u64,
    overwritten: u64,
    last_time_ns: Option<u64>,
}

fn read(path: &Path) -> Result<RingSummary, RecordingError> {
    let mut recording = RecordingReader::open(File::open(path)?)?;
    let mut left = RingSummary {
        origin: recording.head().origin.clone(),
        events: 0,
        overwritten: 0,
        last_time_ns: None,
    };
    while let Some(item) = recording.next_item()? {
        match item {
            RecordingItem::Event(record) => {
                left.events += 1;
                left.last_time_ns = Some(record.time);
            }
            RecordingItem::End { lost, .. } => left.overwritten = lost,
            _ => {}
        }
    }
    Ok(left)
}

fn as_json(path: &Path) -> serde_json::Value {
    let mut value = match read(path) {
        Ok(left) => json!(left),
        Err(error) => json!({ "error": error.to_string() }),
    };
    value["path"] = json!(path.display().to_string());
    value
}

/// The time since a time of day in nanoseconds since 1970.
fn since(time: u64) -> Duration {
    let time = SystemTime::UNIX_EPOCH + Duration::from_nanos(time);
    // The clock may have been set back.
    SystemTime::now().duration_since(time).unwrap_or_default()
}
