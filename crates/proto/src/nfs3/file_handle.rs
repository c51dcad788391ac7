//! The file handle: opaque to clients, 0 to 64 bytes (RFC 1813 section 2.3.3, `nfs_fh3`).

use core::fmt;
use core::hash::{Hash, Hasher};

use curt_xdr::{Decode, DecodeError, Decoder, Encode, TooLong, put_opaque};

/// Maximum length of a handle in bytes (NFS3_FHSIZE).
pub const FILE_HANDLE_MAX: usize = 64;

/// A file handle, stored inline. Equal bytes mean the same file; unequal bytes prove nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct NfsFh3 {
    length: u8,
    // Zero beyond `length`, so that the derived comparison is correct.
    bytes: [u8; FILE_HANDLE_MAX],
}

impl NfsFh3 {
    /// Copies `bytes`.
    ///
    /// # Errors
    /// [`TooLong`] above [`FILE_HANDLE_MAX`].
    #[inline]
    pub fn new(bytes: &[u8]) -> Result<Self, TooLong> {
        let too_long = TooLong { length: bytes.len(), limit: FILE_HANDLE_MAX };
        let length = u8::try_from(bytes.len()).map_err(|_| too_long)?;
        let mut inline = [0; FILE_HANDLE_MAX];
        inline.get_mut(..bytes.len()).ok_or(too_long)?.copy_from_slice(bytes);
        Ok(Self { length, bytes: inline })
    }

    /// The handle's bytes.
    #[must_use]
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

impl Hash for NfsFh3 {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

impl fmt::Debug for NfsFh3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NfsFh3(")?;
        for byte in self.as_bytes() {
            write!(f, "{byte:02x}")?;
        }
        f.write_str(")")
    }
}

impl Decode<'_> for NfsFh3 {
    #[inline]
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let bytes = decoder.opaque(FILE_HANDLE_MAX)?;
        // The decoder has just compared the length with the limit, so this cannot fail.
        Self::new(bytes).map_err(|_| DecodeError::Short)
    }
}

impl Encode for NfsFh3 {
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        put_opaque(out, self.as_bytes());
    }
}
