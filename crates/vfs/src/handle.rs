//! Node handles: identifiers of objects that survive renames and restarts.

/// Maximum size of a handle's opaque part: a 64-byte NFS handle less the server's own 20 bytes.
pub const HANDLE_BYTES_MAX: usize = 44;

/// The scheme of a handle's bytes, which determines how to decode them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum HandleScheme {
    /// A tree in memory.
    Memory = 1,
    /// The kernel (name_to_handle_at).
    Kernel = 2,
    /// A table in the state directory, where the kernel's handles cannot be used.
    Table = 3,
}

impl HandleScheme {
    /// The scheme with this number.
    #[must_use]
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Memory),
            2 => Some(Self::Kernel),
            3 => Some(Self::Table),
            _ => None,
        }
    }
}

/// Identifies an object of one [`crate::Vfs`]: the same bytes for the same object while it exists,
/// also after restarts, and never used for another object.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct NodeHandle {
    scheme: HandleScheme,
    kind: u8,
    length: u8,
    /// Zero from `length` on, so that equal handles are equal in all bytes.
    bytes: [u8; HANDLE_BYTES_MAX],
}

impl NodeHandle {
    /// A handle of these parts; `None` if `bytes` exceed [`HANDLE_BYTES_MAX`].
    #[must_use]
    pub fn new(scheme: HandleScheme, kind: u8, bytes: &[u8]) -> Option<Self> {
        let length = u8::try_from(bytes.len()).ok()?;
        let mut padded = [0; HANDLE_BYTES_MAX];
        padded.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(Self { scheme, kind, length, bytes: padded })
    }

    /// The scheme of the bytes.
    #[must_use]
    pub const fn scheme(&self) -> HandleScheme {
        self.scheme
    }

    /// The kernel's handle type; 0 for other schemes.
    #[must_use]
    pub const fn kind(&self) -> u8 {
        self.kind
    }

    /// The bytes, opaque outside of the `Vfs` that created them.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

impl core::hash::Hash for NodeHandle {
    /// In one call: each request hashes handles several times.
    fn hash<H: core::hash::Hasher>(&self, state: &mut H) {
        let mut all = [0; HANDLE_BYTES_MAX + 4];
        let (head, bytes) = all.split_at_mut(4);
        head[..3].copy_from_slice(&[self.scheme as u8, self.kind, self.length]);
        bytes.copy_from_slice(&self.bytes);
        state.write(&all);
    }
}

impl core::fmt::Debug for NodeHandle {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(formatter, "{:?}:{}:", self.scheme, self.kind)?;
        self.bytes().iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}
