//! READDIR (RFC 8881 section 18.23): encoded entry by entry within a size limit, decoded entry by
//! entry without an intermediate list.

use curt_xdr::{Encode, Xdr, padding};

use crate::nfs4::{Bitmap4, Component, Fattr4, Verifier4};

/// READDIR's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct ReaddirArgs4 {
    /// The entry after which to continue; 0 is the start, 1 and 2 are never valid.
    pub cookie: u64,
    /// The verifier of the cookie; zeros with cookie 0.
    pub verifier: Verifier4,
    /// Maximum size of names and cookies in bytes: a hint.
    pub directory_count: u32,
    /// Maximum size of the result in bytes.
    pub max_count: u32,
    /// The attributes wanted of each entry.
    pub attributes: Bitmap4,
}

/// An entry (`entry4`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct DirectoryEntry4<'a> {
    /// The cookie of the entry.
    pub cookie: u64,
    /// Its name.
    pub name: Component<'a>,
    /// Its attributes.
    pub attributes: Fattr4<'a>,
}

/// An item after READDIR's verifier; they are repeated up to the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
#[xdr(union)]
pub enum ListingItem4<'a> {
    /// An entry.
    #[xdr(case = 1)]
    Entry(DirectoryEntry4<'a>),
    /// The end of the list; whether the directory ends there.
    #[xdr(case = 0)]
    End(bool),
}

/// An entry does not fit; nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the entry does not fit the reply")]
pub struct ListingFull;

/// The end of the list: no further entry, and the eof flag.
const END_BYTES: usize = 8;

/// Encodes the successful result of READDIR into a buffer, within size limits. Space for the end of
/// the list is reserved from the start.
#[derive(Debug)]
pub struct ListingEncoder4<'b> {
    out: &'b mut Vec<u8>,
    /// The maximum length of `out`.
    limit: usize,
    /// The rest of `dircount` in bytes.
    directory_left: usize,
    entries: usize,
}

impl<'b> ListingEncoder4<'b> {
    /// Begins the result structure: `count` limits its total size, `directory_count` the names and
    /// cookies; 0 means no limit.
    ///
    /// # Errors
    /// [`ListingFull`] if not even an empty list fits; nothing is written then.
    pub fn new(
        out: &'b mut Vec<u8>,
        count: usize,
        directory_count: u32,
        verifier: Verifier4,
    ) -> Result<Self, ListingFull> {
        let limit = out.len().saturating_add(count);
        if count < verifier.0.len() + END_BYTES {
            return Err(ListingFull);
        }
        verifier.encode(out);
        let directory_left = match directory_count {
            0 => usize::MAX,
            count => usize::try_from(count).unwrap_or(usize::MAX),
        };
        Ok(Self { out, limit, directory_left, entries: 0 })
    }

    /// Adds an entry; `attributes` appends its `fattr4`.
    ///
    /// # Errors
    /// [`ListingFull`].
    #[inline]
    pub fn push(
        &mut self,
        cookie: u64,
        name: Component<'_>,
        attributes: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), ListingFull> {
        let length = name.bytes().len();
        let directory = 8 + 4 + length + padding(length);
        // RFC 8881 section 18.23.3: dircount is a hint. A first entry above it is still sent;
        // otherwise a client could never get past it.
        if directory > self.directory_left && self.entries > 0 {
            return Err(ListingFull);
        }
        let start = self.out.len();
        true.encode(self.out);
        cookie.encode(self.out);
        name.encode(self.out);
        attributes(self.out);
        if self.out.len() + END_BYTES > self.limit {
            self.out.truncate(start);
            return Err(ListingFull);
        }
        self.directory_left = self.directory_left.saturating_sub(directory);
        self.entries += 1;
        Ok(())
    }

    /// Number of entries added.
    #[must_use]
    pub const fn entries(&self) -> usize {
        self.entries
    }

    /// Ends the list.
    pub fn finish(self, eof: bool) {
        false.encode(self.out);
        eof.encode(self.out);
    }
}
