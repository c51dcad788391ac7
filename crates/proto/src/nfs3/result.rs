//! The result of each procedure: a value, or a status with additional data.

use curt_xdr::{Decode, DecodeError, Decoder, Encode};

use super::NfsStat3;

/// The union over `nfsstat3` that each result of RFC 1813 is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NfsResult<T, F = ()> {
    /// `NFS3_OK` and the result.
    Ok(T),
    /// Any other status, with the data of a failure.
    Failed(NfsStat3, F),
}

impl<T, F> NfsResult<T, F> {
    /// The status.
    pub const fn status(&self) -> NfsStat3 {
        match self {
            Self::Ok(_) => NfsStat3::Ok,
            Self::Failed(status, _) => *status,
        }
    }

    /// As a `Result`, for `?`.
    ///
    /// # Errors
    /// The status and the data of a failure, if it is not `NFS3_OK`.
    pub fn into_result(self) -> Result<T, (NfsStat3, F)> {
        match self {
            Self::Ok(value) => Ok(value),
            Self::Failed(status, failed) => Err((status, failed)),
        }
    }
}

impl<T: Encode, F: Encode> Encode for NfsResult<T, F> {
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        self.status().encode(out);
        match self {
            Self::Ok(value) => value.encode(out),
            Self::Failed(status, failed) => {
                debug_assert_ne!(*status, NfsStat3::Ok, "NFS3_OK is no failure");
                failed.encode(out);
            }
        }
    }
}

impl<'a, T: Decode<'a>, F: Decode<'a>> Decode<'a> for NfsResult<T, F> {
    #[inline]
    fn decode(decoder: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        match NfsStat3::decode(decoder)? {
            NfsStat3::Ok => T::decode(decoder).map(Self::Ok),
            status => F::decode(decoder).map(|failed| Self::Failed(status, failed)),
        }
    }
}
