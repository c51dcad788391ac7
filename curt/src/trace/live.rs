//! Live events of a running process.

use std::io::BufReader;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use curt_observe::control::{self, MountReport};
use curt_observe::events::recording::RecordingError;
use curt_observe::events::{self, EventRecord, RecordingItem, RecordingReader};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::TraceArguments;
use super::event_output::EventOutput;
use crate::serve::control as server;

/// Maximum number of events that wait for earlier ones of other threads.
const PENDING_MAX: usize = 100_000;

/// Shows events until the limit is reached, or the process ends.
pub(super) fn watch(arguments: &TraceArguments) -> Result<()> {
    // Errors are reported before the process is contacted.
    let patterns = arguments.chosen.patterns();
    events::select(&patterns)?;
    let limits = arguments.chosen.limits();
    // Events that are not shown may have the path or user of those that are.
    let needs_all = limits.filter.needs_all_events();
    let stream = connect(arguments, if needs_all { "*".to_owned() } else { patterns })?;
    stream.get_ref().set_read_timeout(None)?;
    let end = stream.get_ref().try_clone()?;
    stop_on_signal(&end, arguments.seconds)?;
    let mut recording = RecordingReader::open(stream)?;
    let target = arguments.chosen.target(arguments.record.as_ref());
    let output = EventOutput::begin(recording.head(), &target, &limits)?;
    let mut shown = EventReorderer { output, pending: Vec::new() };
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
            // A killed process may end the connection in this way.
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

/// Orders events by time: events of one thread may be received before earlier ones of another.
struct EventReorderer {
    output: EventOutput,
    pending: Vec<EventRecord>,
}

impl EventReorderer {
    fn hold(&mut self, record: EventRecord) -> Result<()> {
        self.pending.push(record);
        if self.pending.len() > PENDING_MAX { self.output_until(u64::MAX) } else { Ok(()) }
    }

    /// Outputs the events until this time.
    fn output_until(&mut self, until: u64) -> Result<()> {
        self.pending.sort_by_key(|record| record.time);
        let ready = self.pending.partition_point(|record| record.time <= until);
        for record in self.pending.drain(..ready) {
            self.output.add(&record)?;
        }
        Ok(())
    }
}

/// Connects to the selected process; its events follow on the returned stream.
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
    let last = mounts.pop().context("this user has no Curt mounts; to trace a server use --server")?;
    if mounts.is_empty() {
        return Ok(last);
    }
    let all = mounts.iter().chain([&last]);
    let all: Vec<_> = all.map(|(_, report)| report.mount_point.display().to_string()).collect();
    bail!("choose a mount: {}", all.join(", "))
}

/// Ends the watch; the process then sends the number of lost events, and closes the connection.
fn enough(stream: &UnixStream) {
    // It fails only if the connection has ended already.
    let _ = stream.shutdown(Shutdown::Write);
}

/// Ends the watch after `seconds`, and at a signal; a second signal ends the process at once.
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
