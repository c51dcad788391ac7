//! Maps NFS status codes, transport errors and errors of locks to errnos.
//!
//! Owns the only such table.

use curt_policy::locks::LockError;
use curt_rpc::client::CallError;
use curt_types::Fault;
use rustix::io::Errno;

use crate::data::errors::DataError;

/// The errno for an NFS status.
#[must_use]
pub fn of_fault(fault: Fault) -> Errno {
    match fault {
        Fault::Perm => Errno::PERM,
        Fault::Noent => Errno::NOENT,
        Fault::Nxio => Errno::NXIO,
        Fault::Acces => Errno::ACCESS,
        Fault::Exist => Errno::EXIST,
        Fault::Xdev => Errno::XDEV,
        Fault::Nodev => Errno::NODEV,
        Fault::Notdir => Errno::NOTDIR,
        Fault::Isdir => Errno::ISDIR,
        Fault::Inval => Errno::INVAL,
        Fault::Fbig => Errno::FBIG,
        Fault::Nospc => Errno::NOSPC,
        Fault::Rofs => Errno::ROFS,
        Fault::Mlink => Errno::MLINK,
        Fault::Nametoolong => Errno::NAMETOOLONG,
        Fault::Notempty => Errno::NOTEMPTY,
        Fault::Dquot => Errno::DQUOT,
        // A handle that the server rejects as malformed is as unusable as a stale one: a new lookup
        // recovers from both.
        Fault::Stale | Fault::Badhandle => Errno::STALE,
        Fault::Remote => Errno::REMOTE,
        Fault::Notsupp | Fault::Badtype => Errno::OPNOTSUPP,
        // The guard of a SETATTR did not match: another client changed the object first.
        Fault::NotSync => Errno::BUSY,
        // The layer below retries JUKEBOX; cookies and sizes are chosen by this client, not by
        // programs.
        Fault::Io | Fault::BadCookie | Fault::Toosmall | Fault::Serverfault | Fault::Jukebox => Errno::IO,
    }
}

/// The errno for a request without a reply.
#[must_use]
pub fn of_call(error: CallError) -> Errno {
    match error {
        CallError::Interrupted => Errno::INTR,
        CallError::TimedOut { softerr: true } => Errno::TIMEDOUT,
        // The server rejected the credential.
        CallError::Denied(_) => Errno::ACCESS,
        _ => Errno::IO,
    }
}

/// The status in an event: 0 or the negative errno.
pub(crate) fn event_status<T>(answer: &Result<T, Errno>) -> i32 {
    answer.as_ref().err().map_or(0, |errno| -errno.raw_os_error())
}

/// The errno for a failed READ, WRITE or COMMIT.
#[must_use]
pub fn of_data(error: DataError) -> Errno {
    match error {
        DataError::Status(status) => of_fault(status),
        DataError::Call(error) => of_call(error),
        DataError::TooLarge => Errno::FBIG,
        DataError::LostLock => Errno::IO,
    }
}

/// The errno of fcntl(2) and flock(2).
#[must_use]
pub fn of_lock_error(error: LockError) -> Errno {
    match error {
        LockError::Held => Errno::AGAIN,
        LockError::Interrupted => Errno::INTR,
        LockError::Deadlock => Errno::DEADLK,
        LockError::NoLocks => Errno::NOLCK,
        LockError::OpenMode => Errno::BADF,
        // fcntl(2): the range does not fit into the server's file offsets.
        LockError::Failed(Fault::Fbig) => Errno::OVERFLOW,
        LockError::Failed(fault) => of_fault(fault),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_and_failed_calls_map_to_the_errnos_that_programs_expect() {
        assert_eq!(of_fault(Fault::Nospc), Errno::NOSPC);
        assert_eq!(of_fault(Fault::Badhandle), Errno::STALE);
        assert_eq!(of_call(CallError::TimedOut { softerr: false }), Errno::IO);
        assert_eq!(of_call(CallError::TimedOut { softerr: true }), Errno::TIMEDOUT);
        assert_eq!(of_call(CallError::Interrupted), Errno::INTR);
        assert_eq!(of_data(DataError::Status(Fault::Dquot)), Errno::DQUOT);
        assert_eq!(of_lock_error(LockError::Failed(Fault::Fbig)), Errno::OVERFLOW);
    }
}
