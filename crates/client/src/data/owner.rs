//! What the data half needs of an inode, and the events about it.

use std::{fmt, time::Instant};

use curt_rpc::client::CallError;
use curt_types::{Attributes, FileHandle, Wcc, WriteVerifier};

use super::{errors::DataError, file::FileData, options::OFFSET_MAX};
use crate::event_fields::InodeEventFields;

/// The inode, as seen by the data half. Called with no lock of the data half held.
pub trait DataOwner: fmt::Debug + Send + Sync + 'static {
    /// The handle for READ, WRITE and COMMIT.
    fn handle(&self) -> &FileHandle;

    /// Its file data.
    fn data(&self) -> &FileData;

    /// Its size by the server's attributes if these are still valid; `None` if they expired.
    fn fresh_size(&self) -> Option<u64>;

    /// Its size by the last attributes from the server, however old.
    fn last_size(&self) -> Option<u64>;

    /// The maximum size of the file.
    fn size_max(&self) -> u64 {
        OFFSET_MAX
    }

    /// Absorbs the attributes of a READ or COMMIT reply, `None` if it had none. May call
    /// [`FileData::invalidate`].
    fn absorb_read(&self, attributes: Option<&Attributes>, sent_at: Instant);

    /// A read of this range found that another client changed the file, and starts again. Copies in
    /// other caches are invalidated before it is answered.
    fn on_reread(&self, _: &std::ops::Range<u64>) {}

    /// A WRITE is about to be sent. Each call is paired with one of [`DataOwner::absorb_write`].
    fn begin_write(&self);

    /// Absorbs the wcc_data of a WRITE, empty if there was no reply or it had none. Several WRITEs
    /// of one file are in flight at the same time; their replies arrive in any order.
    fn absorb_write(&self, wcc: &Wcc, sent_at: Instant);

    /// A WRITE or COMMIT reply carried this verifier.
    fn note_verifier(&self, _: WriteVerifier) {}

    /// The client's number of the inode; 0 if it has none.
    fn number(&self) -> u64 {
        0
    }

    /// The fields of events about it. Takes locks of the owner.
    fn event_fields(&self) -> InodeEventFields {
        InodeEventFields::default()
    }

    /// The label of the inode in log lines.
    fn label(&self) -> String;
}

/// The result in an event: 0 or a negative errno.
pub(super) fn event_status<T>(answer: &Result<T, DataError>) -> i32 {
    let error = answer.as_ref().err();
    error.map_or(0, |error| -crate::errno::of_data(*error).raw_os_error())
}

/// Emits the event of a failed transfer, unless it was interrupted.
pub(super) fn trace_failure<T>(
    owner: &std::sync::Arc<dyn DataOwner>,
    offset: u64,
    count: u64,
    answer: &Result<T, DataError>,
) {
    if matches!(answer, Ok(_) | Err(DataError::Call(CallError::Interrupted))) {
        return;
    }
    curt_observe::probe!(let subject = owner.event_fields(); NfsPgioError {
        fileid: subject.fileid,
        offset,
        count,
        error: event_status(answer),
        dev: subject.dev,
        fhandle: subject.fhandle
    });
}
