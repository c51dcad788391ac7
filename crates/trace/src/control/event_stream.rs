//! This process's events, streamed over a connection of the control socket as they happen: what
//! `curt trace` shows.
//!
//! A thread of its own takes them out of the buffer and sends them, so that no operation waits for
//! a watcher. A watcher that does not read loses events, which are counted; one that does not read
//! for long is disconnected.

use std::fmt;
use std::io::{self, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::events::{
    self, EventRing, EventWatch, RecordSubject, RecordedProcess, RecordingWriter, RingLevel,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::{debug, info, warn};

/// How often events are sent.
const INTERVAL: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 10_000_000,
};

/// How long a watcher may receive nothing before it is disconnected.
const STALLED_MAX: Duration = Duration::from_secs(30);

/// Returns the path of an object, as far as it is known.
pub type ObjectPath = Box<dyn Fn(u64) -> Option<Vec<u8>> + Send>;

/// A watch that is about to be streamed.
pub struct EventStream {
    watch: EventWatch,
    writer: RecordingWriter,
    words: Vec<u64>,
    path: ObjectPath,
    /// Events were sent that no time mark has followed yet.
    needs_time_mark: bool,
}

impl fmt::Debug for EventStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live")
            .field("watch", &self.watch)
            .finish_non_exhaustive()
    }
}

impl EventStream {
    /// Begins to watch the events whose names match `patterns`. The stream has the paths of their
    /// objects.
    ///
    /// # Errors
    /// Why not: a sentence for the user.
    pub fn begin(patterns: &str, origin: RecordedProcess, path: ObjectPath) -> Result<Self, String> {
        let selected = events::select(patterns).map_err(|error| error.to_string())?;
        let watch = EventWatch::begin(&selected).map_err(|error| error.to_string())?;
        Ok(Self {
            watch,
            writer: RecordingWriter::new(origin).map_err(|error| error.to_string())?,
            words: Vec::new(),
            path,
            needs_time_mark: false,
        })
    }

    /// Sends them on a thread of its own until the peer wants no more: closes the connection, or
    /// its half of it.
    ///
    /// # Errors
    /// No thread can be started.
    pub(super) fn send_to(self, peer: UnixStream) -> io::Result<()> {
        let thread = std::thread::Builder::new()
            .name("events".to_owned())
            .stack_size(256 * 1024);
        thread.spawn(move || {
            if let Err(error) = self.send(&peer) {
                info!(%error, "whoever watched the events is cut off");
            }
        })?;
        Ok(())
    }

    fn send(mut self, mut peer: &UnixStream) -> io::Result<()> {
        peer.set_write_timeout(Some(STALLED_MAX))?;
        let mut ended = false;
        while !ended {
            peer.write_all(&self.writer.take())?;
            ended = peer_has_closed(peer)?;
            self.drain_events();
        }
        self.watch.stop();
        self.drain_events();
        self.writer.end(self.watch.lost());
        debug!("whoever watched the events has seen enough");
        peer.write_all(&self.writer.take())
    }

    /// Takes out the events since the last time.
    fn drain_events(&mut self) {
        let now = events::now();
        self.words.clear();
        self.watch.drain(&mut self.words);
        let is_empty = self.words.is_empty();
        if !is_empty {
            self.writer.records(&self.words, |subject| match subject {
                RecordSubject::Thread(thread) => thread_name(thread),
                RecordSubject::Object(object) => (self.path)(object),
            });
        }
        // What was taken out may be younger than `now`: whoever shows it in order waits for the
        // next mark, though nothing else may happen.
        if !is_empty || self.needs_time_mark {
            self.writer.complete_until(now);
        }
        self.needs_time_mark = !is_empty;
    }
}

/// Waits a little; returns whether the peer has closed its half of the connection.
fn peer_has_closed(peer: &UnixStream) -> io::Result<bool> {
    let mut polled = [PollFd::new(peer, PollFlags::IN)];
    match poll(&mut polled, Some(&INTERVAL)) {
        // Whatever it says: there is nothing more to be asked on this connection.
        Ok(count) => Ok(count > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn thread_name(thread: u32) -> Option<Vec<u8>> {
    let name = std::fs::read(format!("/proc/self/task/{thread}/comm")).ok()?;
    Some(name.trim_ascii_end().to_owned())
}

/// Has this process keep its last events in a file beside the sockets, for as long as the returned
/// value exists. If there can be no such file, the reason is logged.
#[must_use]
pub fn keep_ring(origin: RecordedProcess, level: RingLevel) -> Option<EventRing> {
    let kept = level.events();
    if kept.is_empty() {
        return None;
    }
    let directory = super::directory();
    let ring = super::server::prepare(&directory).and_then(|()| EventRing::create(&directory, origin));
    let ring =
        ring.inspect_err(|error| warn!(%error, "after a crash there will be no record of the last events"));
    events::keep_in_ring(&kept);
    ring.ok()
}

#[cfg(test)]
mod tests {
    use crate::events::{RecordingItem, RecordingReader};

    use super::*;

    #[test]
    fn that_nothing_earlier_comes_is_told_once_more_though_nothing_else_happens() {
        let mut live = EventStream::begin("nfs_umount", RecordedProcess::default(), Box::new(|_| None))
            .expect("a place");
        crate::probe!(NfsUmount {
            server: "nas",
            name: "/mnt"
        });
        let mut stream = Vec::new();
        for _ in 0..4 {
            live.drain_events();
            stream.extend(live.writer.take());
        }
        let mut recording = RecordingReader::open(&stream[..]).expect("a recording");
        let (mut events, mut marks) = (0, 0);
        while let Some(item) = recording.next_item().expect("it is whole") {
            match item {
                RecordingItem::Event(_) => events += 1,
                RecordingItem::CompleteUntil(_) => marks += 1,
                RecordingItem::Thread(..) | RecordingItem::Object(..) | RecordingItem::End { .. } => {}
            }
        }
        assert_eq!((events, marks), (1, 2));
    }
}
