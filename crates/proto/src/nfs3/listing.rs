//! READDIR and READDIRPLUS (RFC 1813 sections 3.3.16 and 3.3.17): encoded entry by entry within a
//! size limit, decoded entry by entry without an intermediate list. Failures have the directory's
//! attributes, if any.

use core::marker::PhantomData;

use curt_xdr::{Decode, DecodeError, Decoder, Encode, Xdr, padding};

use super::{Cookie, CookieVerf3, Fattr, Fileid, Filename, NfsFh3};

/// READDIR's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct ReaddirArguments {
    /// The directory.
    pub directory: NfsFh3,
    /// The entry after which to continue.
    pub cookie: Cookie,
    /// The verifier of the cookie; zeros with cookie 0.
    pub verifier: CookieVerf3,
    /// Maximum size of the result in bytes.
    pub count: u32,
}

/// READDIRPLUS's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct ReaddirPlusArguments {
    /// The directory.
    pub directory: NfsFh3,
    /// The entry after which to continue.
    pub cookie: Cookie,
    /// The verifier of the cookie; zeros with cookie 0.
    pub verifier: CookieVerf3,
    /// Maximum size of names, cookies and fileids in bytes.
    pub directory_count: u32,
    /// Maximum size of the result in bytes.
    pub max_count: u32,
}

/// An entry of READDIR (`entry3`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct DirectoryEntry<'a> {
    /// The file's fileid.
    pub fileid: Fileid,
    /// Its name.
    pub name: Filename<'a>,
    /// The cookie of the entry.
    pub cookie: Cookie,
}

/// An entry of READDIRPLUS (`entryplus3`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct DirectoryEntryPlus<'a> {
    /// The file's fileid.
    pub fileid: Fileid,
    /// Its name.
    pub name: Filename<'a>,
    /// The cookie of the entry.
    pub cookie: Cookie,
    /// Its attributes.
    pub attributes: Option<Fattr>,
    /// Its handle.
    pub handle: Option<NfsFh3>,
}

/// The result of READDIR (`E` is [`DirectoryEntry`]) or READDIRPLUS ([`DirectoryEntryPlus`]).
#[derive(Clone, Debug)]
pub struct ReaddirOk<'a, E> {
    /// The directory's attributes.
    pub attributes: Option<Fattr>,
    /// The verifier for the cookies.
    pub verifier: CookieVerf3,
    /// The entries.
    pub entries: ReaddirEntries<'a, E>,
}

impl<'a, E> Decode<'a> for ReaddirOk<'a, E> {
    /// Takes all remaining bytes: the iteration decodes the entries and checks the end.
    fn decode(decoder: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        Ok(Self {
            attributes: decoder.get()?,
            verifier: decoder.get()?,
            entries: ReaddirEntries { decoder: decoder.take_rest(), end: None, entry: PhantomData },
        })
    }
}

/// The entries of a listing, decoded one at a time. After the last, [`ReaddirEntries::eof`] returns
/// whether the directory ends there. After an error there are no more entries.
#[derive(Clone, Debug)]
pub struct ReaddirEntries<'a, E> {
    decoder: Decoder<'a>,
    end: Option<Result<bool, DecodeError>>,
    entry: PhantomData<E>,
}

impl<E> ReaddirEntries<'_, E> {
    /// Whether the directory ends with this listing; `None` before the last entry was decoded.
    #[must_use]
    pub fn eof(&self) -> Option<bool> {
        self.end.and_then(Result::ok)
    }
}

impl<'a, E: Decode<'a>> ReaddirEntries<'a, E> {
    fn step(&mut self) -> Result<Option<E>, DecodeError> {
        if self.decoder.bool()? {
            return self.decoder.get().map(Some);
        }
        let eof = self.decoder.bool()?;
        self.decoder.clone().finish()?;
        self.end = Some(Ok(eof));
        Ok(None)
    }
}

impl<'a, E: Decode<'a>> Iterator for ReaddirEntries<'a, E> {
    type Item = Result<E, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.end.is_some() {
            return None;
        }
        let step = self.step();
        if let Err(error) = step {
            self.end = Some(Err(error));
        }
        step.transpose()
    }
}

/// An entry does not fit; nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the entry does not fit the reply")]
pub struct ReplyFull;

/// Encodes the successful result of READDIR or READDIRPLUS into a buffer, within size limits.
///
/// The limit includes the result structure (`READDIR3resok`) with its XDR overhead, but not the
/// status before it. Space for the end of the list is reserved from the start. Attributes and
/// handles are optional, names are not: if the first entry does not fit with them, they are
/// omitted.
/// out.
#[derive(Debug)]
pub struct ListingEncoder<'b> {
    out: &'b mut Vec<u8>,
    /// The start of the result structure.
    start: usize,
    verifier: CookieVerf3,
    /// The maximum length of `out`.
    limit: usize,
    /// The rest of READDIRPLUS's `dircount` in bytes.
    directory_left: usize,
    entries: usize,
}

/// The end of the list: no further entry, and the eof flag.
const END_BYTES: usize = 8;
/// Fileid, length of the name, and cookie.
const ENTRY_BYTES: usize = 8 + 4 + 8;

impl<'b> ListingEncoder<'b> {
    /// Begins the result structure: `count` limits its total size, `directory_count` the names,
    /// cookies and fileids of READDIRPLUS (READDIR has no such limit: pass `u32::MAX`).
    ///
    /// # Errors
    /// [`ReplyFull`] if not even an empty list fits; nothing is written then.
    pub fn new(
        out: &'b mut Vec<u8>,
        count: u32,
        directory_count: u32,
        attributes: Option<Fattr>,
        verifier: CookieVerf3,
    ) -> Result<Self, ReplyFull> {
        let start = out.len();
        let mut encoder = Self {
            out,
            start,
            verifier,
            limit: start.saturating_add(usize::try_from(count).unwrap_or(usize::MAX)),
            directory_left: usize::try_from(directory_count).unwrap_or(usize::MAX),
            entries: 0,
        };
        encoder.begin(attributes);
        if !encoder.has_room(0) {
            encoder.begin(None);
        }
        if !encoder.has_room(0) {
            encoder.out.truncate(start);
            return Err(ReplyFull);
        }
        Ok(encoder)
    }

    /// Writes the fields before the first entry.
    fn begin(&mut self, attributes: Option<Fattr>) {
        self.out.truncate(self.start);
        attributes.encode(self.out);
        self.verifier.encode(self.out);
    }

    /// Whether `bytes` bytes and the end of the list fit.
    fn has_room(&self, bytes: usize) -> bool {
        self.out.len() + bytes + END_BYTES <= self.limit
    }

    /// Adds an entry of READDIR.
    ///
    /// # Errors
    /// [`ReplyFull`].
    #[inline]
    pub fn push(&mut self, entry: &DirectoryEntry<'_>) -> Result<(), ReplyFull> {
        self.room(entry.name, 0)?;
        true.encode(self.out);
        entry.encode(self.out);
        Ok(())
    }

    /// Adds an entry of READDIRPLUS.
    ///
    /// # Errors
    /// [`ReplyFull`].
    #[inline]
    pub fn push_plus(&mut self, entry: &DirectoryEntryPlus<'_>) -> Result<(), ReplyFull> {
        match self.push_whole(entry) {
            Err(ReplyFull) if self.entries == 0 => {
                self.push_whole(&DirectoryEntryPlus { attributes: None, handle: None, ..*entry })
            }
            pushed => pushed,
        }
    }

    #[inline]
    fn push_whole(&mut self, entry: &DirectoryEntryPlus<'_>) -> Result<(), ReplyFull> {
        let attributes = 4 + if entry.attributes.is_some() { Fattr::ENCODED } else { 0 };
        let handle = 4 + entry.handle.map_or(0, |handle| {
            let length = handle.as_bytes().len();
            4 + length + padding(length)
        });
        self.room(entry.name, attributes + handle)?;
        true.encode(self.out);
        entry.encode(self.out);
        Ok(())
    }

    fn room(&mut self, name: Filename<'_>, more: usize) -> Result<(), ReplyFull> {
        let length = name.bytes().len();
        let directory = ENTRY_BYTES + length + padding(length);
        let entry = 4 + directory + more;
        if self.entries == 0 && !self.has_room(entry) {
            self.begin(None);
        }
        // A single entry above dircount is still sent: the RFC calls dircount a hint, and otherwise
        // a client could never get past that entry. maxcount is a hard limit.
        let over_directory = directory > self.directory_left && self.entries > 0;
        if !self.has_room(entry) || over_directory {
            return Err(ReplyFull);
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
