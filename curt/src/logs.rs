//! The destination of log lines: standard error in the foreground, the system log or a file in the
//! background.

mod rate_limit;

use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::Arc;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::journal;
use rate_limit::LogRateLimiter;

/// The destination of log lines.
#[derive(Debug, Clone)]
pub(crate) enum LogDestination {
    /// Standard error: with times, or in the journal's format if it goes there.
    StandardError,
    /// The system log (`/dev/log`), as facility daemon.
    SystemLog,
    /// A file, to which lines are appended.
    File(std::path::PathBuf),
}

/// Sends this process's log lines to `destination`. `RUST_LOG` selects the lines; without it
/// `level` does.
pub(crate) fn start(destination: &LogDestination, level: &str) -> io::Result<()> {
    let filter =
        EnvFilter::try_from_default_env().or_else(|_| EnvFilter::try_new(level)).map_err(io::Error::other)?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false)
        .with_ansi(false)
        // They would be printed on standard error, which panics if its reader has closed it.
        .log_internal_errors(false);
    let sparing = LogRateLimiter::default();
    let started = match destination {
        LogDestination::StandardError if journal::is_read_from(io::stderr()) => {
            let lines = lines.event_format(journal::JournalFormat::new());
            lines.with_writer(io::stderr).finish().with(sparing).try_init()
        }
        LogDestination::StandardError => lines.with_writer(io::stderr).finish().with(sparing).try_init(),
        LogDestination::SystemLog => {
            let lines = lines.without_time().with_writer(Syslog::connect());
            lines.finish().with(sparing).try_init()
        }
        LogDestination::File(path) => {
            let lines = lines.with_writer(Arc::new(open(path)?));
            lines.finish().with(sparing).try_init()
        }
    };
    started.map_err(io::Error::other)
}

/// Parses a log level. An unknown word alone would select a module that does not exist, and nothing
/// would be logged.
pub(crate) fn level(text: &str) -> Result<String, String> {
    let expected = "expected error, warn, info, debug, trace, off, or a filter such as warn,curt_mount=debug";
    let is_level = |word: &str| !word.is_empty() && word.parse::<LevelFilter>().is_ok();
    let mut words = text.split(',').map(str::trim);
    if !words.all(|word| word.contains(['=', '[', ']', '{', '}']) || is_level(word)) {
        return Err(expected.to_owned());
    }
    match EnvFilter::try_new(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(format!("{error}; {expected}")),
    }
}

fn open(path: &Path) -> io::Result<std::fs::File> {
    std::fs::OpenOptions::new().create(true).append(true).open(path)
}

/// The system log. Without a listener, lines are dropped: a mount must not end because of its log.
#[derive(Debug, Clone)]
struct Syslog(Option<Arc<UnixDatagram>>);

impl Syslog {
    fn connect() -> Self {
        let connected = UnixDatagram::unbound().and_then(|socket| {
            socket.connect("/dev/log")?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        });
        Self(connected.ok().map(Arc::new))
    }
}

impl MakeWriter<'_> for Syslog {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

impl Write for Syslog {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // Facility daemon (3), severity notice (5): RFC 3164 section 4.1.1.
        const PRIORITY: u8 = 3 << 3 | 5;
        if let Some(socket) = &self.0 {
            let text = String::from_utf8_lossy(line);
            let datagram = format!("<{PRIORITY}>curt[{}]: {}", std::process::id(), text.trim_end());
            // A full or restarting log loses lines; the process does not wait for it.
            let _ = socket.send(datagram.as_bytes());
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::level;

    #[test]
    fn what_would_log_nothing_is_no_level() {
        for right in [
            "info",
            "WARN",
            "Info",
            "5",
            "off",
            "warn,curt_mount=debug",
            "curt_rpc=trace",
            "[call{xid=1}]=debug",
        ] {
            assert_eq!(level(right).as_deref(), Ok(right));
        }
        for wrong in ["", "nonsense", "warning", "verbose", "info,warning", "info,", "curt=loud", "6"] {
            assert!(level(wrong).is_err(), "{wrong:?}");
        }
    }
}
