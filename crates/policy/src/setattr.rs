//! What a SETATTR requires of the file's unwritten data.
//!
//! Data that were written before a SETATTR are sent before it, because a WRITE sets the times, and
//! may be refused once mode and owner have changed. Servers check the permission at COMMIT as well
//! (knfsd 6.1).
//!
//! Owns the choice of the cheapest order. A file that was created and filled is on stable storage
//! at close(2) in any case: if one WRITE can send all of it, it is sent FILE_SYNC, which saves the
//! COMMIT. Must not know how data are sent.

use curt_types::SetAttributes;

/// The unwritten data of a file when its attributes are set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UnwrittenData {
    /// One WRITE sends all of them: none was sent before without being on stable storage.
    pub is_one_write: bool,
    /// The server's file is empty, so that they are all of it.
    pub is_whole_file: bool,
    /// The SETATTR has the credential of their writer.
    pub is_callers: bool,
}

/// The writes that precede a SETATTR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum WritesBeforeSetattr {
    /// All data are sent and answered.
    Answered,
    /// All data are on stable storage.
    Durable,
    /// One WRITE makes all data durable. The SETATTR follows in the same request if the protocol
    /// has such requests.
    InSameRequest,
}

/// Decides before a SETATTR of `set`.
///
/// A SETATTR of mode or owner is not sent with a WRITE: the server may write a part of the data
/// only, and refuse the rest after the change.
pub fn decide_writes_before(set: &SetAttributes, data: UnwrittenData) -> WritesBeforeSetattr {
    if set.mode.is_some() || set.uid.is_some() || set.gid.is_some() {
        return WritesBeforeSetattr::Durable;
    }
    if set.size.is_some() {
        return WritesBeforeSetattr::Answered;
    }
    match data {
        UnwrittenData { is_one_write: true, is_whole_file: true, is_callers: true } => {
            WritesBeforeSetattr::InSameRequest
        }
        UnwrittenData { is_one_write: true, is_whole_file: true, is_callers: false } => {
            WritesBeforeSetattr::Durable
        }
        UnwrittenData { .. } => WritesBeforeSetattr::Answered,
    }
}

#[cfg(test)]
mod tests {
    use curt_types::SetTime;

    use super::*;

    const SETS: [(SetAttributes, bool, bool); 8] = {
        const NOTHING: SetAttributes = SetAttributes {
            mode: None,
            uid: None,
            gid: None,
            size: None,
            atime: SetTime::Keep,
            mtime: SetTime::Keep,
        };
        const TIME: SetAttributes = SetAttributes { mtime: SetTime::ServerTime, ..NOTHING };
        [
            (TIME, false, false),
            (SetAttributes { atime: SetTime::ServerTime, ..TIME }, false, false),
            (SetAttributes { size: Some(0), ..TIME }, false, true),
            (SetAttributes { size: Some(0), ..NOTHING }, false, true),
            (SetAttributes { mode: Some(0), ..TIME }, true, false),
            (SetAttributes { uid: Some(0), ..NOTHING }, true, false),
            (SetAttributes { gid: Some(0), ..NOTHING }, true, false),
            (SetAttributes { mode: Some(0), size: Some(0), ..NOTHING }, true, true),
        ]
    };

    #[test]
    fn data_are_durable_before_rights_change_and_the_size_is_set_alone() {
        for (set, withdraws_rights, resizes) in SETS {
            for bits in 0_u8..8 {
                let [is_one_write, is_whole_file, is_callers] = [1, 2, 4].map(|bit| bits & bit != 0);
                let data = UnwrittenData { is_one_write, is_whole_file, is_callers };
                let decision = decide_writes_before(&set, data);
                let text = format!("{set:?} {data:?}");
                if withdraws_rights {
                    assert_eq!(decision, WritesBeforeSetattr::Durable, "{text}");
                } else if resizes || !is_one_write || !is_whole_file {
                    assert_eq!(decision, WritesBeforeSetattr::Answered, "{text}");
                } else if is_callers {
                    assert_eq!(decision, WritesBeforeSetattr::InSameRequest, "{text}");
                } else {
                    assert_eq!(decision, WritesBeforeSetattr::Durable, "{text}");
                }
            }
        }
    }
}
