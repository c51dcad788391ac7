//! Events of a process that runs, as they happen.

use std::io::BufReader;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use curt_trace::control::{self, MountReport};
use curt_trace::events::recording::RecordingError;
use curt_trace::events::{self, EventRecord, RecordingItem, RecordingReader};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::TraceArguments;
use super::event_output::EventOutput;
use crate::serve::control as server;

/// Events that wait for earlier ones of other threads, at most.
const HELD_MAX: usize = 100_000;

/// Shows events until whoever asked has enough, or the process ends.
pub(super) fn watch(arguments: &TraceArguments) -> Result<()> {
    // Said here, before anybody is asked.
    let patterns = arguments.chosen.patterns();
    events::select(&patterns)?;
    let limits = arguments.chosen.limits();
    // What is not shown says to whom that belongs which is.
    let needs_all = limits.filter.needs_all_events();
    let stream = connect(arguments, if needs_all { "*".to_owned() } else { patterns })?;
    stream.get_ref().set_read_timeout(None)?;
    let end = stream.get_ref().try_clone()?;
    stop_on_signal(&end, arguments.seconds)?;
    let mut recording = RecordingReader::open(stream)?;
    let target = arguments.chosen.target(arguments.record.as_ref());
    let output = EventOutput::begin(recording.head(), &target, &limits)?;
    let mut shown = EventReorderer {
        output,
        held: Vec::new(),
    };
    let lost = loop {
        match recording.next_item() {
            Ok(Some(RecordingItem::Event(record))) => shown.hold(record)?,
            Ok(Some(RecordingItem::Thread(thread, name))) => shown.output.name_thread(thread, name),
            Ok(Some(RecordingItem::Object(object, path))) => shown.output.name_object(object, path),
            Ok(Some(RecordingItem::CompleteUntil(until))) => {
                shown.output_until(until)?;
                shown.output.flush()?;
                if shown.output.is_enough() {
                    enough(&end);
                }
            }
            Ok(Some(RecordingItem::End { lost, .. })) => break Some(lost),
            Ok(None) | Err(RecordingError::CutOff) => break None,
            // A process that is killed may end the connection so.
            Err(RecordingError::Io(_)) => break None,
            Err(error) => return Err(error.into()),
        }
    };
    shown.output_until(u64::MAX)?;
    let count = shown.output.end(lost.unwrap_or_default())?;
    match lost {
        Some(lost) => eprintln!("{count} events, {lost} lost"),
        None => eprintln!("{count} events; then the process ended, or closed the connection"),
    }
    Ok(())
}

/// Events in the order of time: what one thread says may be heard before what another one said
/// earlier.
struct EventReorderer {
    output: EventOutput,
    held: Vec<EventRecord>,
}

impl EventReorderer {
    fn hold(&mut self, record: EventRecord) -> Result<()> {
        self.held.push(record);
        if self.held.len() > HELD_MAX {
            self.output_until(u64::MAX)
        } else {
            Ok(())
        }
    }

    /// Shows what happened until this time.
    fn output_until(&mut self, until: u64) -> Result<()> {
        self.held.sort_by_key(|record| record.time);
        let told = self.held.partition_point(|record| record.time <= until);
        for record in self.held.drain(..told) {
            self.output.add(&record)?;
        }
        Ok(())
    }
}

/// Asks the process that is meant; its events follow on what is returned.
fn connect(arguments: &TraceArguments, patterns: String) -> Result<BufReader<UnixStream>> {
    let directory = control::directory();
    let socket = match (&arguments.server, &arguments.mount) {
        (Some(which), _) => server::find(&server::ServerSelector::from(which.as_str()))?.0,
        (None, Some(mount)) => control::find(&directory, mount)?.0,
        (None, None) => only(control::list(&directory)?)?.0,
    };
    Ok(control::call_keeping_connection(&socket, &control::WatchEvents { patterns })?.1)
}

fn only<T>(mut mounts: Vec<(T, MountReport)>) -> Result<(T, MountReport)> {
    let last = mounts
        .pop()
        .context("this user has no Curt mounts; to trace a server use --server")?;
    if mounts.is_empty() {
        return Ok(last);
    }
    let all = mounts.iter().chain([&last]);
    let all: Vec<_> = all
        .map(|(_, report)| report.mount_point.display().to_string())
        .collect();
    bail!("choose a mount: {}", all.join(", "))
}

/// Tells the process that nothing more is wanted; it then says how many were lost, and ends the
/// connection.
fn enough(stream: &UnixStream) {
    // It fails only if the connection has ended already.
    let _ = stream.shutdown(Shutdown::Write);
}

/// Has enough after `seconds`, and when a signal says so; a second signal ends at once.
fn stop_on_signal(stream: &UnixStream, seconds: Option<u64>) -> Result<()> {
    if let Some(seconds) = seconds {
        let stream = stream.try_clone()?;
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_secs(seconds));
            enough(&stream);
        });
    }
    let stream = stream.try_clone()?;
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM])?;
    std::thread::spawn(move || {
        for (count, signal) in signals.forever().enumerate() {
            if count > 0 {
                std::process::exit(128 + signal);
            }
            enough(&stream);
        }
    });
    Ok(())
}
