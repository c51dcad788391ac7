//! The fields of events. Each has one name, one type and one meaning in all events.

use std::marker::PhantomData;

use crate::named_enum;

named_enum! {
    /// How a field is stored in a record and printed.
    FieldKind {
        Number "number" "A number, shown in decimal.";
        Hex "hex" "An identifier or a set of bits, shown in hexadecimal.";
        Octal "octal" "Permission bits, shown in octal.";
        Bytes "bytes" "Eight bits each.";
        Nanoseconds "nanoseconds" "Billionths of a second.";
        Errno "errno" "0, or a negative errno.";
        Status "status" "A status of NFSv3 (RFC 1813, 2.6) or NFSv4 (RFC 8881, 15.1); 0 is success.";
        FileType "file_type" "The type of a file as the upper bits of its mode say it, and readdir(3): 4 a directory, 8 a regular file.";
        Text "text" "Bytes of a name or word, at most 255 of them.";
    }
}

/// A field's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldValue<'a> {
    /// A number.
    Number(u64),
    /// A number that may be negative.
    Signed(i64),
    /// A name or word.
    Text(&'a [u8]),
}

/// A field's name, kind and meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// Its name, never changed once published.
    pub name: &'static str,
    /// Its kind.
    pub kind: FieldKind,
    /// Its meaning, a phrase.
    pub meaning: &'static str,
}

/// A number in a field.
#[derive(Debug, Clone, Copy)]
pub struct NumberValue<'a>(u64, PhantomData<&'a ()>);

/// A negative number, or none, in a field.
#[derive(Debug, Clone, Copy)]
pub struct SignedValue<'a>(i64, PhantomData<&'a ()>);

/// A name or word in a field.
#[derive(Debug, Clone, Copy)]
pub struct TextValue<'a>(&'a [u8]);

impl NumberValue<'_> {
    pub(super) const fn value(&self) -> FieldValue<'_> {
        FieldValue::Number(self.0)
    }
}

impl SignedValue<'_> {
    pub(super) const fn value(&self) -> FieldValue<'_> {
        FieldValue::Signed(self.0)
    }
}

impl TextValue<'_> {
    pub(super) const fn value(&self) -> FieldValue<'_> {
        FieldValue::Text(self.0)
    }
}

macro_rules! numbers {
    ($($type:ty),*) => {
        $(impl From<$type> for NumberValue<'_> {
            fn from(number: $type) -> Self {
                Self(u64::from(number), PhantomData)
            }
        })*
    };
}

numbers!(u64, u32, u16, u8, bool);

impl From<usize> for NumberValue<'_> {
    fn from(number: usize) -> Self {
        Self(number as u64, PhantomData)
    }
}

impl From<std::time::Duration> for NumberValue<'_> {
    fn from(time: std::time::Duration) -> Self {
        Self(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), PhantomData)
    }
}

impl From<i32> for SignedValue<'_> {
    fn from(number: i32) -> Self {
        Self(i64::from(number), PhantomData)
    }
}

impl<'a> From<&'a [u8]> for TextValue<'a> {
    fn from(text: &'a [u8]) -> Self {
        Self(text)
    }
}

impl<'a> From<&'a str> for TextValue<'a> {
    fn from(text: &'a str) -> Self {
        Self(text.as_bytes())
    }
}

impl<'a> From<&'a String> for TextValue<'a> {
    fn from(text: &'a String) -> Self {
        Self(text.as_bytes())
    }
}

/// Declares the fields: name, printed name if Rust does not allow it, holder, kind and meaning of
/// each.
macro_rules! fields {
    (@name $name:ident) => { stringify!($name) };
    (@name $name:ident $shown:literal) => { $shown };
    ($($name:ident $($shown:literal)? $holder:ident $kind:ident $meaning:literal;)*) => {
        /// The type by which each field is given.
        #[allow(non_camel_case_types, reason = "a field and its type are one word")]
        #[allow(missing_docs, reason = "the meanings stand in the table of words")]
        pub mod of {
            $(pub type $name<'a> = super::$holder<'a>;)*
        }

        /// Each field's kind and meaning.
        #[allow(non_upper_case_globals, reason = "a field and its description are one word")]
        pub(super) mod word {
            use super::{Field, FieldKind};
            $(pub(in crate::events) const $name: Field = Field {
                name: fields!(@name $name $($shown)?),
                kind: FieldKind::$kind,
                meaning: $meaning,
            };)*
        }

        /// Every field, in the order of the table.
        pub const WORDS: &[Field] = &[$(word::$name),*];
    };
}

fields! {
    again NumberValue Number "1 after an earlier connection, else 0";
    ahead NumberValue Number "1 if read ahead, else 0";
    cache TextValue Text "the cache: attributes, data, names or access";
    cache_index NumberValue Number "how many earlier replies of the listing are cached";
    cache_validity NumberValue Hex "which caches are invalid, in Linux's bits: 0x2 data, 0x100 attributes";
    cause TextValue Text "why the request is sent, one of the causes in explain.md";
    cookie NumberValue Hex "a position in a directory; 0 is its beginning";
    count NumberValue Bytes "bytes requested";
    cur_size NumberValue Bytes "the previous size";
    dev NumberValue Hex "the server's number of the file's file system (fsid)";
    dir NumberValue Number "the directory's fileid";
    dtsize NumberValue Bytes "requested size of a part of a listing";
    entries NumberValue Number "number of names, files or exports";
    eof NumberValue Number "1 at the end, else 0";
    error SignedValue Errno "0, or a negative errno";
    export TextValue Text "the export's path";
    fhandle NumberValue Hex "the CRC-32 of the file handle, as tshark shows it";
    fileid NumberValue Number "the file's fileid; 0 if unknown";
    flags NumberValue Octal "flags of open(2)";
    hit NumberValue Number "1 if cached, else 0";
    lock_first NumberValue Number "first byte of a lock";
    lock_last NumberValue Number "last byte of a lock; 2^64-1: to the end of the file";
    lock_state TextValue Text "asked (a LOCK is sent), polled (it is sent again), denied, blocked (at the server), called back, handed off, cancelled, reclaimed, unlocking (an UNLOCK is sent) or unlocked (the server has confirmed it)";
    mask NumberValue Hex "requested permissions (bits of access(2) for a mount, of RFC 1813 for a server)";
    mode NumberValue Octal "permission bits of the new object";
    name TextValue Text "a name in a directory";
    new_dir NumberValue Number "the fileid of the new name's directory";
    new_name TextValue Text "the new name";
    new_size NumberValue Bytes "the new size";
    nfsi_flags NumberValue Hex "special states of the file, in Linux's bits: 0x1 its handle is stale, 0x10 it was removed while open";
    node NumberValue Hex "a hash of the file system's own handle of the file";
    offset NumberValue Bytes "position in the file";
    option TextValue Text "the name of an option";
    peer TextValue Text "address and port of the other end";
    permitted NumberValue Hex "granted permissions";
    pid NumberValue Number "the requesting thread, in the daemon's pid namespace; 0 if it is not visible there";
    plus NumberValue Number "1 for names with attributes, else 0";
    procedure TextValue Text "the name of an NFSv3 procedure or an NFSv4 operation; of another program the numbers of program and procedure";
    range_end NumberValue Number "number in the listing of the first name after the range";
    range_start NumberValue Number "number in the listing of the range's first name, counted from 0";
    reason TextValue Text "why";
    received NumberValue Bytes "length of the received message, without record marks";
    res NumberValue Bytes "bytes actually transferred";
    rtt NumberValue Nanoseconds "from sending the request to its reply";
    sent NumberValue Bytes "length of the sent message, with record marks";
    server TextValue Text "the server's address or name";
    size NumberValue Bytes "the file's size";
    stable NumberValue Number "stability: 0 unstable, 1 data, 2 data and attributes (RFC 1813, 3.3.7)";
    status NumberValue Status "the status of the reply; a name is that of NFSv3, where it has this number";
    target TextValue Text "a symbolic link's target";
    object_type "type" NumberValue FileType "the type: a directory, a regular file and so on";
    uid NumberValue Number "the requesting user";
    value TextValue Text "an option's value";
    verifier NumberValue Hex "the epoch of cookies or of unstable writes";
    version NumberValue Hex "the state of the file: its change time, seconds times 2^30 and nanoseconds";
    xid NumberValue Hex "the number that matches a reply to its call (RFC 5531)";
}
