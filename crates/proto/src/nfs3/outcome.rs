//! What every procedure returns: its result, or a status with what comes with it.

use curt_xdr::{Decode, DecodeError, Decoder, Encode};

use super::Status;

/// The union over `nfsstat3` that every result of RFC 1813 is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome<T, F = ()> {
    /// `NFS3_OK` and the result.
    Ok(T),
    /// Any other status, and what the procedure tells even then.
    Failed(Status, F),
}

impl<T, F> Outcome<T, F> {
    /// The status.
    pub const fn status(&self) -> Status {
        match self {
            Self::Ok(_) => Status::Ok,
            Self::Failed(status, _) => *status,
        }
    }

    /// As a `Result`, for `?`.
    ///
    /// # Errors
    /// The status and its company, if it is not `NFS3_OK`.
    pub fn into_result(self) -> Result<T, (Status, F)> {
        match self {
            Self::Ok(value) => Ok(value),
            Self::Failed(status, failed) => Err((status, failed)),
        }
    }
}

impl<T: Encode, F: Encode> Encode for Outcome<T, F> {
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        self.status().encode(out);
        match self {
            Self::Ok(value) => value.encode(out),
            Self::Failed(status, failed) => {
                debug_assert_ne!(*status, Status::Ok, "NFS3_OK is no failure");
                failed.encode(out);
            }
        }
    }
}

impl<'a, T: Decode<'a>, F: Decode<'a>> Decode<'a> for Outcome<T, F> {
    #[inline]
    fn decode(decoder: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        match Status::decode(decoder)? {
            Status::Ok => T::decode(decoder).map(Self::Ok),
            status => F::decode(decoder).map(|failed| Self::Failed(status, failed)),
        }
    }
}
