//! Why transfers fail, and recorded write errors: each is reported to each open file once.
//!
//! Owns the rule of "once": each failure has a number. An open file stores the number of the last
//! failure that was reported to it, or that had been reported when it was opened. A failure that
//! was not reported to any open file is reported to the next opener. Must not know what failed.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use curt_rpc::client::CallError;
use curt_types::Fault;

/// Why a transfer failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DataError {
    /// The server returned an error status.
    #[error("the server answered {0:?}")]
    Status(Fault),
    /// The server did not reply, or the reply could not be decoded.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The offset and length exceed the maximum file size.
    #[error("beyond the maximum file size")]
    TooLarge,
    /// Written bytes were not sent, because the lock under which they were written was lost.
    #[error("the lock was lost")]
    LostLock,
}

/// The failures of one file's writes.
#[derive(Debug, Default)]
pub(super) struct ErrorRecord {
    number: u64,
    latest: Option<DataError>,
    reported: bool,
}

/// The last failure reported to one open file.
#[derive(Debug)]
pub(super) struct ErrorCursor(AtomicU64);

impl ErrorRecord {
    /// Records a failure.
    pub(super) fn record(&mut self, error: DataError) {
        self.number += 1;
        self.latest = Some(error);
        self.reported = false;
    }

    /// The cursor for a file that is opened now.
    pub(super) fn cursor(&self) -> ErrorCursor {
        ErrorCursor(AtomicU64::new(if self.reported { self.number } else { self.number.saturating_sub(1) }))
    }

    /// The failure that was not reported to `cursor`'s open file, if there is one. It is marked as
    /// reported.
    pub(super) fn report(&mut self, cursor: &ErrorCursor) -> Option<DataError> {
        if cursor.0.swap(self.number, Relaxed) == self.number {
            return None;
        }
        self.reported = true;
        self.latest
    }

    /// Marks this failure as reported to `cursor`'s open file, unless another one is to be
    /// reported.
    pub(super) fn report_only(&mut self, failure: DataError, cursor: &ErrorCursor) {
        if self.latest == Some(failure) {
            self.report(cursor);
        }
    }
}

#[cfg(test)]
mod tests {
    use curt_types::Fault;

    use super::*;

    const FULL: DataError = DataError::Status(Fault::Nospc);

    #[test]
    fn each_open_file_reports_a_failure_once() {
        let mut record = ErrorRecord::default();
        let (first, second) = (record.cursor(), record.cursor());
        assert_eq!(record.report(&first), None);
        record.record(FULL);
        assert_eq!((record.report(&first), record.report(&first)), (Some(FULL), None));
        assert_eq!((record.report(&second), record.report(&second)), (Some(FULL), None));
        record.record(FULL);
        assert_eq!((record.report(&first), record.report(&first)), (Some(FULL), None));
    }

    #[test]
    fn a_later_open_reports_only_unreported_failures() {
        let mut record = ErrorRecord::default();
        record.record(FULL);
        let next = record.cursor();
        assert_eq!(record.report(&next), Some(FULL));
        assert_eq!(record.report(&record.cursor()), None);
    }
}
