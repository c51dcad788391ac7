//! What a server gives a client to name an object by (RFC 1813, section 2.3.3).

use std::fmt;

use curt_xdr::{Decode, DecodeError, Decoder, Encode, TooLong, put_opaque};

/// A handle: 0 to 64 bytes that mean something to the server alone.
#[derive(Clone, Copy)]
pub struct FileHandle {
    length: u8,
    bytes: [u8; Self::LENGTH_MAX],
}

impl FileHandle {
    /// NFS3_FHSIZE.
    pub const LENGTH_MAX: usize = 64;

    /// A handle of these bytes.
    ///
    /// # Errors
    /// They are more than 64.
    pub fn new(bytes: &[u8]) -> Result<Self, TooLong> {
        let too_long = TooLong { length: bytes.len(), limit: Self::LENGTH_MAX };
        let mut handle = Self { length: u8::try_from(bytes.len()).map_err(|_| too_long)?, bytes: [0; Self::LENGTH_MAX] };
        handle.bytes.get_mut(..bytes.len()).ok_or(too_long)?.copy_from_slice(bytes);
        Ok(handle)
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

impl PartialEq for FileHandle {
    fn eq(&self, other: &Self) -> bool {
        self.bytes() == other.bytes()
    }
}

impl Eq for FileHandle {}

impl std::hash::Hash for FileHandle {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.bytes().hash(state);
    }
}

impl PartialOrd for FileHandle {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for FileHandle {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.bytes().cmp(other.bytes())
    }
}

impl fmt::Debug for FileHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FileHandle(")?;
        for byte in self.bytes() {
            write!(f, "{byte:02x}")?;
        }
        f.write_str(")")
    }
}

impl Encode for FileHandle {
    fn encode(&self, out: &mut Vec<u8>) {
        put_opaque(out, self.bytes());
    }
}

impl<'a> Decode<'a> for FileHandle {
    const SIZE_MIN: usize = 4;

    fn decode(decoder: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        let bytes = decoder.opaque(Self::LENGTH_MAX)?;
        let mut handle = Self { length: 0, bytes: [0; Self::LENGTH_MAX] };
        handle.bytes[..bytes.len()].copy_from_slice(bytes);
        #[expect(clippy::cast_possible_truncation, reason = "opaque() allows 64 bytes at most")]
        {
            handle.length = bytes.len() as u8;
        }
        Ok(handle)
    }
}
