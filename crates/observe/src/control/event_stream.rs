//! Live events of this process, streamed over a connection of the control socket to `curt trace`.
//!
//! A separate thread reads them from the buffer and sends them, so that no operation waits for a
//! watcher. A watcher that does not read loses events, which are counted; after a timeout it is
//! disconnected.

use std::io::{self, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::events::{
    self, EventRing, EventWatch, RecordSubject, RecordedProcess, RecordingWriter, RingLevel,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::{debug, info, warn};

/// Interval of sending.
const INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// A watcher that receives nothing for this time is disconnected.
const STALLED_MAX: Duration = Duration::from_secs(30);

/// Returns the path of an object, if known.
pub type ObjectPath = Box<dyn Fn(u64) -> Option<Vec<u8>> + Send>;

/// A watch to be streamed.
pub struct EventStream {
    watch: EventWatch,
    writer: RecordingWriter,
    words: Vec<u64>,
    path: ObjectPath,
    /// Whether events were sent after the last time mark.
    needs_time_mark: bool,
}

impl EventStream {
    /// Begins to watch the events whose names match `patterns`. The stream includes the paths of
    /// their objects.
    ///
    /// # Errors
    /// The reason, as a sentence for the user.
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

    /// Sends the events on a separate thread until the peer closes the connection, or its sending
    /// side.
    ///
    /// # Errors
    /// No thread can be started.
    pub(super) fn send_to(self, peer: UnixStream) -> io::Result<()> {
        let thread = std::thread::Builder::new().name("events".to_owned()).stack_size(256 * 1024);
        thread.spawn(move || {
            if let Err(error) = self.send(&peer) {
                info!(%error, "the reader of the events is disconnected");
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
        debug!("the reader of the events has disconnected");
        peer.write_all(&self.writer.take())
    }

    /// Moves the events since the last call to the output.
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
        // These events may be later than `now`: a reader that orders them waits for the next mark,
        // even if no further event occurs.
        if !is_empty || self.needs_time_mark {
            self.writer.complete_until(now);
        }
        self.needs_time_mark = !is_empty;
    }
}

/// Waits for the interval; returns whether the peer has closed its sending side.
fn peer_has_closed(peer: &UnixStream) -> io::Result<bool> {
    let mut polled = [PollFd::new(peer, PollFlags::IN)];
    match poll(&mut polled, Some(&INTERVAL)) {
        // Bytes from the peer also end the stream: no further command is expected.
        Ok(count) => Ok(count > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn thread_name(thread: u32) -> Option<Vec<u8>> {
    let name = std::fs::read(format!("/proc/self/task/{thread}/comm")).ok()?;
    Some(name.trim_ascii_end().to_owned())
}

/// Keeps this process's last events in a file in the directory of the sockets, until the returned
/// value is dropped. If the file cannot be created, the reason is logged.
#[must_use]
pub fn keep_ring(origin: RecordedProcess, level: RingLevel) -> Option<EventRing> {
    let stored = level.events();
    if stored.is_empty() {
        return None;
    }
    let directory = super::directory();
    let ring = super::server::prepare(&directory).and_then(|()| EventRing::create(&directory, origin));
    let ring =
        ring.inspect_err(|error| warn!(%error, "after a crash there will be no record of the last events"));
    events::keep_in_ring(&stored);
    ring.ok()
}

#[cfg(test)]
mod tests {
    use std::sync::PoisonError;

    use crate::events::{RecordingItem, RecordingReader};

    use super::*;

    #[test]
    fn the_watermark_is_sent_once_more_without_further_events() {
        let _alone = events::WATCHING_TEST.lock().unwrap_or_else(PoisonError::into_inner);
        let mut live = EventStream::begin("nfs_umount", RecordedProcess::default(), Box::new(|_| None))
            .expect("a place");
        crate::probe!(NfsUmount { server: "nas", name: "/mnt" });
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
