//! From statuses and transport errors to the errnos that programs get.
//!
//! Owns the one table.

use curt_proto::nfs3::NfsStat3;
use curt_rpc::client::CallError;
use rustix::io::Errno;

use crate::data::DataError;

/// The errno for a status.
#[must_use]
pub fn of_status(status: NfsStat3) -> Errno {
    match status {
        NfsStat3::Perm => Errno::PERM,
        NfsStat3::Noent => Errno::NOENT,
        NfsStat3::Nxio => Errno::NXIO,
        NfsStat3::Acces => Errno::ACCESS,
        NfsStat3::Exist => Errno::EXIST,
        NfsStat3::Xdev => Errno::XDEV,
        NfsStat3::Nodev => Errno::NODEV,
        NfsStat3::Notdir => Errno::NOTDIR,
        NfsStat3::Isdir => Errno::ISDIR,
        NfsStat3::Inval => Errno::INVAL,
        NfsStat3::Fbig => Errno::FBIG,
        NfsStat3::Nospc => Errno::NOSPC,
        NfsStat3::Rofs => Errno::ROFS,
        NfsStat3::Mlink => Errno::MLINK,
        NfsStat3::Nametoolong => Errno::NAMETOOLONG,
        NfsStat3::Notempty => Errno::NOTEMPTY,
        NfsStat3::Dquot => Errno::DQUOT,
        // A handle that the server does not know is no more of use than one of a removed file:
        // looking up again helps both.
        NfsStat3::Stale | NfsStat3::Badhandle => Errno::STALE,
        NfsStat3::Remote => Errno::REMOTE,
        NfsStat3::Notsupp | NfsStat3::Badtype => Errno::OPNOTSUPP,
        // The guard of a SETATTR did not hold: somebody else was quicker.
        NfsStat3::NotSync => Errno::BUSY,
        // Ok is no refusal; JUKEBOX is asked again below; a cookie and a size are between us and
        // the server.
        NfsStat3::Ok
        | NfsStat3::Io
        | NfsStat3::BadCookie
        | NfsStat3::Toosmall
        | NfsStat3::Serverfault
        | NfsStat3::Jukebox => Errno::IO,
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
pub(crate) fn event_status<T>(answer: &Result<T, Errno>) -> i32 {
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
        for status in NfsStat3::ALL {
            assert_ne!(of_status(*status).raw_os_error(), 0, "{status:?}");
        }
        assert_eq!(of_status(NfsStat3::Nospc), Errno::NOSPC);
        assert_eq!(of_status(NfsStat3::Badhandle), Errno::STALE);
        assert_eq!(of_call(CallError::TimedOut { softerr: false }), Errno::IO);
        assert_eq!(of_call(CallError::TimedOut { softerr: true }), Errno::TIMEDOUT);
        assert_eq!(of_call(CallError::Interrupted), Errno::INTR);
        assert_eq!(of_data(DataError::Status(NfsStat3::Dquot)), Errno::DQUOT);
    }
}
