//! From statuses and transport errors to the errnos that programs get.
//!
//! Owns the one table.

use curt_proto::nfs3::Status;
use curt_rpc::client::CallError;
use rustix::io::Errno;

use crate::data::DataError;

/// The errno for a status.
#[must_use]
pub fn of_status(status: Status) -> Errno {
    match status {
        Status::Perm => Errno::PERM,
        Status::Noent => Errno::NOENT,
        Status::Nxio => Errno::NXIO,
        Status::Acces => Errno::ACCESS,
        Status::Exist => Errno::EXIST,
        Status::Xdev => Errno::XDEV,
        Status::Nodev => Errno::NODEV,
        Status::Notdir => Errno::NOTDIR,
        Status::Isdir => Errno::ISDIR,
        Status::Inval => Errno::INVAL,
        Status::Fbig => Errno::FBIG,
        Status::Nospc => Errno::NOSPC,
        Status::Rofs => Errno::ROFS,
        Status::Mlink => Errno::MLINK,
        Status::Nametoolong => Errno::NAMETOOLONG,
        Status::Notempty => Errno::NOTEMPTY,
        Status::Dquot => Errno::DQUOT,
        // A handle that the server does not know is no more of use than one of a removed file: looking up again helps both.
        Status::Stale | Status::Badhandle => Errno::STALE,
        Status::Remote => Errno::REMOTE,
        Status::Notsupp | Status::Badtype => Errno::OPNOTSUPP,
        // The guard of a SETATTR did not hold: somebody else was quicker.
        Status::NotSync => Errno::BUSY,
        // Ok is no refusal; JUKEBOX is asked again below; a cookie and a size are between us and the server.
        Status::Ok
        | Status::Io
        | Status::BadCookie
        | Status::Toosmall
        | Status::Serverfault
        | Status::Jukebox => Errno::IO,
    }
}

/// The errno for a request without an answer.
#[must_use]
pub fn of_call(error: CallError) -> Errno {
    match error {
        CallError::Interrupted => Errno::INTR,
        CallError::TimedOut { softerr: true } => Errno::TIMEDOUT,
        // The server does not believe the credential.
        CallError::Denied(_) => Errno::ACCESS,
        _ => Errno::IO,
    }
}

/// The result in an event: 0, or the negative errno.
pub(crate) fn told<T>(answer: &Result<T, Errno>) -> i32 {
    answer.as_ref().err().map_or(0, |errno| -errno.raw_os_error())
}

/// The errno for a failed transfer of data.
#[must_use]
pub fn of_data(error: DataError) -> Errno {
    match error {
        DataError::Status(status) => of_status(status),
        DataError::Call(error) => of_call(error),
        DataError::TooLarge => Errno::FBIG,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_a_number_and_the_common_ones_their_own() {
        for status in Status::ALL {
            assert_ne!(of_status(*status).raw_os_error(), 0, "{status:?}");
        }
        assert_eq!(of_status(Status::Nospc), Errno::NOSPC);
        assert_eq!(of_status(Status::Badhandle), Errno::STALE);
        assert_eq!(of_call(CallError::TimedOut { softerr: false }), Errno::IO);
        assert_eq!(of_call(CallError::TimedOut { softerr: true }), Errno::TIMEDOUT);
        assert_eq!(of_call(CallError::Interrupted), Errno::INTR);
        assert_eq!(of_data(DataError::Status(Status::Dquot)), Errno::DQUOT);
    }
}
