//! The arguments of a call, and bulk data within them.
//!
//! Bulk data are the bytes of a WRITE. They are sent from where they are: the arguments are encoded
//! without them and their padding, and the place where they belong is kept.

use curt_xdr::{Encode, padding, put_fixed};

/// The arguments of a call. Whatever implements [`Encode`] has no bulk data.
pub trait CallArguments: Sync {
    /// Appends the arguments to `out`, except for the bulk data that are returned.
    fn encode_around<'a>(&'a self, out: &mut Vec<u8>) -> BulkData<'a>;
}

impl<T: Encode + Sync> CallArguments for T {
    fn encode_around<'a>(&'a self, out: &mut Vec<u8>) -> BulkData<'a> {
        self.encode(out);
        BulkData::default()
    }
}

/// Bulk data, and where they belong in the encoded arguments. The default: none.
#[derive(Clone, Copy, Debug, Default)]
pub struct BulkData<'a> {
    at: usize,
    bytes: &'a [u8],
}

impl<'a> BulkData<'a> {
    /// `bytes`, whose length is encoded before them, belong at this position of the buffer that was
    /// passed to [`CallArguments::encode_around`].
    #[must_use]
    pub const fn new(at: usize, bytes: &'a [u8]) -> Self {
        Self { at, bytes }
    }

    /// Copies the data into the buffer.
    pub(crate) fn copy_into(self, out: &mut Vec<u8>) {
        if !self.bytes.is_empty() {
            let behind = out.split_off(self.at);
            put_fixed(out, self.bytes);
            out.extend_from_slice(&behind);
        }
    }

    /// The length of the data with their padding.
    pub(crate) const fn encoded_len(self) -> usize {
        self.bytes.len() + padding(self.bytes.len())
    }

    /// The record whose other bytes are in `buffer`, in the order of sending.
    pub(crate) fn split(self, buffer: &'a [u8]) -> [&'a [u8]; 4] {
        let (before, behind) = buffer.split_at(self.at);
        [before, self.bytes, &[0; 3][..padding(self.bytes.len())], behind]
    }
}

/// Arguments that end in bulk data.
#[derive(Clone, Copy)]
pub struct BulkAtEnd<'a> {
    /// The arguments up to and including the length of the data.
    pub head: &'a (dyn Encode + Sync),
    /// The data.
    pub bytes: &'a [u8],
}

impl CallArguments for BulkAtEnd<'_> {
    fn encode_around<'a>(&'a self, out: &mut Vec<u8>) -> BulkData<'a> {
        self.head.encode(out);
        BulkData::new(out.len(), self.bytes)
    }
}
