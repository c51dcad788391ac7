//! The change attribute (RFC 8881 section 5.8.1.4).

use curt_proto::nfs4::ChangeInfo;
use curt_types::{Attributes, ChangeStamp, Timestamp, Wcc};

/// The change attribute of an object: the file system's, or the time of its last change.
pub(super) fn change(attributes: &Attributes) -> u64 {
    of_stamp(attributes.stamp())
}

/// A directory before and after an operation. They are atomic if both were obtained under the
/// directory's lock.
pub(super) fn change_info(around: &Wcc) -> ChangeInfo {
    let after = around.after.as_ref().map(change);
    let before = around.before.map(|before| of_stamp(before.stamp()));
    let atomic = before.is_some() && after.is_some();
    let after = after.unwrap_or(0);
    ChangeInfo { atomic, before: before.unwrap_or(after), after }
}

const fn of_stamp(stamp: ChangeStamp) -> u64 {
    match stamp {
        ChangeStamp::Change(change) => change,
        ChangeStamp::Times { ctime, .. } => of_time(ctime),
    }
}

/// Nanoseconds since 1970; times before count down from the largest number.
const fn of_time(time: Timestamp) -> u64 {
    time.as_nanoseconds().cast_unsigned()
}
