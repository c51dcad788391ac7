//! Log lines for the journal: with a level prefix, and without a time, which the journal adds
//! (sd-daemon(3)).

use std::fmt;
use std::os::fd::AsFd;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::{Format, Full, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Whether `stream` goes to the journal: `JOURNAL_STREAM` then has its device and inode.
pub(crate) fn is_read_from(stream: impl AsFd) -> bool {
    std::env::var("JOURNAL_STREAM").is_ok_and(|named| {
        rustix::fs::fstat(stream).is_ok_and(|stat| named == format!("{}:{}", stat.st_dev, stat.st_ino))
    })
}

/// The prefix of a line that reports why the program ends.
pub(crate) const ERROR: &str = "<3>";

/// One line per event: `<4>what happened`.
pub(crate) struct JournalFormat(Format<Full, ()>);

impl JournalFormat {
    pub(crate) fn new() -> Self {
        let lines = tracing_subscriber::fmt::format().without_time().with_level(false);
        Self(lines.with_target(false).with_ansi(false))
    }
}

impl<S, N> FormatEvent<S, N> for JournalFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut line: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        write!(line, "<{}>", severity(*event.metadata().level()))?;
        self.0.format_event(context, line, event)
    }
}

/// The severities of syslog(3).
const fn severity(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex, PoisonError};

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_begins_with_its_level_and_has_no_time() {
        let written = Written::default();
        let writer = written.clone();
        let lines = tracing_subscriber::fmt()
            .with_max_level(Level::DEBUG)
            .event_format(JournalFormat::new())
            .with_writer(move || writer.clone());
        tracing::subscriber::with_default(lines.finish(), || {
            tracing::error!("lost");
            tracing::warn!(count = 3, "doubtful");
            tracing::info!("told");
            tracing::debug!("detail");
        });
        let text = written.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        assert_eq!(String::from_utf8_lossy(&text), "<3>lost\n<4>doubtful count=3\n<6>told\n<7>detail\n");
    }

    #[test]
    fn only_the_stream_that_is_named_is_the_journals() {
        assert!(!is_read_from(std::io::stderr()), "tests have no journal");
    }
}
