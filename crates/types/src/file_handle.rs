//! A file handle, opaque to the client.

use core::fmt;
use core::hash::{Hash, Hasher};

/// Maximum size of a handle in bytes (RFC 8881 section 3.1, NFS4_FHSIZE). NFSv3 allows 64.
pub const FILE_HANDLE_MAX: usize = 128;

/// Handles up to this size are stored inline. Those of knfsd have 28 to 40 bytes on ext4, XFS and
/// btrfs, those of Ganesha and of Curt hardly more.
const INLINE_MAX: usize = 54;

/// A file handle: 56 bytes for the short handles that servers use, and an allocation for longer
/// ones. Equal bytes mean the same file; unequal bytes prove nothing.
#[derive(Clone)]
pub struct FileHandle(Storage);

#[derive(Clone)]
enum Storage {
    Inline { length: u8, bytes: [u8; INLINE_MAX] },
    Allocated(Box<[u8]>),
}

/// A handle has this many bytes, more than [`FILE_HANDLE_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandleTooLong(pub usize);

impl fmt::Display for HandleTooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a file handle of {} bytes; {FILE_HANDLE_MAX} are allowed", self.0)
    }
}

impl core::error::Error for HandleTooLong {}

impl FileHandle {
    /// Copies `bytes`.
    ///
    /// # Errors
    /// [`HandleTooLong`] above [`FILE_HANDLE_MAX`].
    #[inline]
    pub fn new(bytes: &[u8]) -> Result<Self, HandleTooLong> {
        let mut inline = [0; INLINE_MAX];
        let storage = match (inline.get_mut(..bytes.len()), u8::try_from(bytes.len())) {
            (Some(start), Ok(length)) => {
                start.copy_from_slice(bytes);
                Storage::Inline { length, bytes: inline }
            }
            _ if bytes.len() <= FILE_HANDLE_MAX => Storage::Allocated(bytes.into()),
            _ => return Err(HandleTooLong(bytes.len())),
        };
        Ok(Self(storage))
    }

    /// The handle's bytes.
    #[must_use]
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Storage::Inline { length, bytes } => &bytes[..usize::from(*length)],
            Storage::Allocated(bytes) => bytes,
        }
    }
}

impl PartialEq for FileHandle {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for FileHandle {}

impl Hash for FileHandle {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

impl fmt::Debug for FileHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FileHandle(")?;
        for byte in self.as_bytes() {
            write!(f, "{byte:02x}")?;
        }
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn handles_of_all_lengths_keep_their_bytes() {
        let bytes: Vec<u8> = (0..=u8::MAX).collect();
        for length in 0..=FILE_HANDLE_MAX {
            let handle = FileHandle::new(&bytes[..length]).unwrap();
            assert_eq!(handle.as_bytes(), &bytes[..length]);
            assert_eq!(handle, handle.clone());
            let other = FileHandle::new(&bytes[1..=length]).unwrap();
            assert_eq!(handle == other, length == 0);
        }
        assert_eq!(FileHandle::new(&bytes[..129]), Err(HandleTooLong(129)));
    }

    /// There are millions of inodes with one each.
    #[test]
    fn a_handle_has_56_bytes() {
        assert_eq!(size_of::<FileHandle>(), 56);
        assert_eq!(size_of::<Option<FileHandle>>(), 56);
        let is_inline = |length: usize| {
            let handle = FileHandle::new(&vec![1; length]).unwrap();
            matches!(handle.0, Storage::Inline { .. })
        };
        assert!(is_inline(INLINE_MAX));
        assert!(!is_inline(INLINE_MAX + 1));
    }
}
