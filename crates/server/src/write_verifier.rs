//! The write verifier: the same as long as nothing that was written unstably can have been lost (RFC 1813 section
//! 3.3.7), so that clients know what to send again.

use std::sync::atomic::{AtomicU64, Ordering};

use curt_proto::nfs3;
use curt_vfs::Error;

/// The verifier of this life of the server.
///
/// A WRITE must read it before it writes, a COMMIT after it committed: when data get lost at the same moment, the two
/// then differ, and the data are sent once too often rather than once too seldom.
pub(crate) struct WriteVerifier(AtomicU64);

impl WriteVerifier {
    /// Starts with a number that no other life has had, as far as randomness goes.
    pub(crate) const fn new(instance: u64) -> Self {
        Self(AtomicU64::new(instance))
    }

    pub(crate) fn current(&self) -> nfs3::WriteVerifier {
        // SeqCst with `note`: who is told of a loss has changed the number before anybody can be told of it.
        nfs3::WriteVerifier(self.0.load(Ordering::SeqCst).to_be_bytes())
    }

    /// Looks at why an operation failed; changes the verifier if data may have been lost.
    pub(crate) fn note(&self, error: Error) {
        if let Error::Lost(errno) = error {
            self.0.fetch_add(1, Ordering::SeqCst);
            tracing::error!(%errno, "written data may be lost: clients will send again what they have not committed");
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn the_verifier_changes_exactly_when_data_may_be_lost() {
        let verifier = WriteVerifier::new(41);
        let first = verifier.current();
        verifier.note(Error::Os(Errno::IO));
        assert_eq!(verifier.current(), first);
        verifier.note(Error::Lost(Errno::IO));
        assert_ne!(verifier.current(), first);
    }
}
