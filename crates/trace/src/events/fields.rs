//! What a field of an event is: one word, one type, one meaning, in whichever event it stands.

use std::marker::PhantomData;

/// How a field is written in a record and shown to people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A number, shown in decimal.
    Number,
    /// A number of which the digits tell nothing, shown in hexadecimal.
    Hex,
    /// Permission bits, shown in octal.
    Octal,
    /// Eight bits each.
    Bytes,
    /// Billionths of a second.
    Nanoseconds,
    /// 0, or a negative errno.
    Errno,
    /// A status of NFSv3 (RFC 1813, 2.6); 0 is NFS3_OK.
    Status,
    /// The type of a file as the upper bits of its mode say it, and readdir(3): 4 a directory, 8 a regular file.
    FileType,
    /// Bytes of a name or word, at most [`TEXT_MAX`](super::record::TEXT_MAX) of them.
    Text,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 9] = [
        Self::Number,
        Self::Hex,
        Self::Octal,
        Self::Bytes,
        Self::Nanoseconds,
        Self::Errno,
        Self::Status,
        Self::FileType,
        Self::Text,
    ];

    /// Its name in recordings and in the documentation.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Number => "number",
            Self::Hex => "hex",
            Self::Octal => "octal",
            Self::Bytes => "bytes",
            Self::Nanoseconds => "nanoseconds",
            Self::Errno => "errno",
            Self::Status => "status",
            Self::FileType => "file_type",
            Self::Text => "text",
        }
    }
}

/// What stands in a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// A number.
    Number(u64),
    /// A number that may be negative.
    Signed(i64),
    /// A name or word.
    Text(&'a [u8]),
}

/// A field's word, kind and meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// Its name, never changed once published.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// What it means, a phrase.
    pub meaning: &'static str,
}

/// A number in a field.
#[derive(Debug, Clone, Copy)]
pub struct Number<'a>(u64, PhantomData<&'a ()>);

/// A negative number, or none, in a field.
#[derive(Debug, Clone, Copy)]
pub struct Signed<'a>(i64, PhantomData<&'a ()>);

/// A name or word in a field.
#[derive(Debug, Clone, Copy)]
pub struct Text<'a>(&'a [u8]);

impl Number<'_> {
    pub(super) const fn value(&self) -> Value<'_> {
        Value::Number(self.0)
    }
}

impl Signed<'_> {
    pub(super) const fn value(&self) -> Value<'_> {
        Value::Signed(self.0)
    }
}

impl Text<'_> {
    pub(super) const fn value(&self) -> Value<'_> {
        Value::Text(self.0)
    }
}

macro_rules! numbers {
    ($($type:ty),*) => {
        $(impl From<$type> for Number<'_> {
            fn from(number: $type) -> Self {
                Self(u64::from(number), PhantomData)
            }
        })*
    };
}

numbers!(u64, u32, u16, u8, bool);

impl From<usize> for Number<'_> {
    fn from(number: usize) -> Self {
        Self(number as u64, PhantomData)
    }
}

impl From<std::time::Duration> for Number<'_> {
    fn from(time: std::time::Duration) -> Self {
        Self(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), PhantomData)
    }
}

impl From<i32> for Signed<'_> {
    fn from(number: i32) -> Self {
        Self(i64::from(number), PhantomData)
    }
}

impl<'a> From<&'a [u8]> for Text<'a> {
    fn from(text: &'a [u8]) -> Self {
        Self(text)
    }
}

impl<'a> From<&'a str> for Text<'a> {
    fn from(text: &'a str) -> Self {
        Self(text.as_bytes())
    }
}

impl<'a> From<&'a String> for Text<'a> {
    fn from(text: &'a String) -> Self {
        Self(text.as_bytes())
    }
}

/// Declares the words: name, what it is shown as if that is no name in Rust, holder, kind and meaning of each.
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

        /// The words themselves.
        #[allow(non_upper_case_globals, reason = "a field and its description are one word")]
        pub(super) mod word {
            use super::{Field, Kind};
            $(pub(in crate::events) const $name: Field = Field {
                name: fields!(@name $name $($shown)?),
                kind: Kind::$kind,
                meaning: $meaning,
            };)*
        }

        /// Every word, in the order of the table.
        pub const WORDS: &[Field] = &[$(word::$name),*];
    };
}

fields! {
    again Number Number "1 if there was a connection before, else 0";
    ahead Number Number "1 if nobody has asked for it yet, else 0";
    cache Text Text "what was remembered: attributes, data, names or access";
    cache_index Number Number "how many replies of the listing are remembered before this one";
    cache_validity Number Hex "what is remembered and not believed, in Linux's bits: 0x2 data, 0x100 attributes";
    cause Text Text "why the request is sent, a word of the table of causes";
    cookie Number Hex "a position in a directory; 0 is its beginning";
    count Number Bytes "how much was asked for";
    cur_size Number Bytes "the size until now";
    dev Number Hex "the file system that the file is in, by the number that the server gives it (fsid)";
    dir Number Number "the number (fileid) of the directory";
    dtsize Number Bytes "how much of a listing was asked for";
    entries Number Number "how many: names, files or exports";
    eof Number Number "1 if it was the end, else 0";
    error Signed Errno "0, or what went wrong as a negative errno";
    export Text Text "the path of the export";
    fhandle Number Hex "the CRC-32 of the file handle, as tshark shows it";
    fileid Number Number "the number (fileid) of the file; 0 if it is not known";
    flags Number Octal "flags of open(2)";
    hit Number Number "1 if it was remembered, else 0";
    mask Number Hex "the permissions that were asked for (access(2) for a mount, RFC 1813 for a server)";
    mode Number Octal "permission bits of what is made";
    name Text Text "a name in a directory";
    new_dir Number Number "the number (fileid) of the directory of the new name";
    new_name Text Text "the new name";
    new_size Number Bytes "the size from now on";
    nfsi_flags Number Hex "what is special about the file, in Linux's bits: 0x1 its handle is stale, 0x10 it is removed and lives until its last close";
    node Number Hex "a hash of what the file system calls the file (its own handle)";
    offset Number Bytes "where in the file";
    option Text Text "the name of an option";
    peer Text Text "address and port of the other end";
    permitted Number Hex "the permissions that were granted";
    pid Number Number "the thread that asks, as the daemon sees it; 0 if it cannot";
    plus Number Number "1 for names with attributes, else 0";
    procedure Text Text "a procedure of NFSv3, as RFC 1813 calls it, or its number where it is of another program";
    range_end Number Number "the name behind the last one of the range, by its number in the listing";
    range_start Number Number "the first name of the range, by its number in the listing; 0 is the first of all";
    reason Text Text "why";
    received Number Bytes "how long the message was that came, without record marks";
    res Number Bytes "how much it was in the end";
    rtt Number Nanoseconds "from sending the request to its reply";
    sent Number Bytes "how long the message is that goes, record marks included";
    server Text Text "the server's address or name";
    size Number Bytes "the file's size";
    stable Number Number "how durable: 0 in memory, 1 its data, 2 all (RFC 1813, 3.3.7)";
    status Number Status "the status of the reply";
    target Text Text "where a symbolic link leads";
    object_type "type" Number FileType "what it is: a directory, a regular file";
    uid Number Number "the user who asks";
    value Text Text "what an option is set to";
    verifier Number Hex "the epoch of cookies or of unstable writes";
    version Number Hex "the state of the file: its change time, seconds times 2^30 and nanoseconds";
    xid Number Hex "the number by which call and reply find each other (RFC 5531)";
}
