//! Numbers, verifiers and names.

use curt_xdr::{Opaque, TooLong, Xdr};

use super::{FILENAME_MAX, PATH_MAX};

/// A file's number within its file system (`fileid3`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Xdr)]
pub struct Fileid(pub u64);

/// A position in a directory: the entry after which to continue; 0 is the start (`cookie3`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Xdr)]
pub struct Cookie(pub u64);

/// The verifier under which cookies are valid (`cookieverf3`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Xdr)]
pub struct CookieVerf3(pub [u8; 8]);

/// Changes when a server may have lost unstable writes (`writeverf3`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Xdr)]
pub struct WriteVerf3(pub [u8; 8]);

/// Chosen by a client so that an exclusive CREATE can be sent again safely (`createverf3`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Xdr)]
pub struct CreateVerf3(pub [u8; 8]);

/// A component of a path: any bytes (`filename3`). The server decides which names are valid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Xdr)]
pub struct Filename<'a>(Opaque<'a, FILENAME_MAX>);

impl<'a> Filename<'a> {
    /// Wraps `bytes`.
    ///
    /// # Errors
    /// [`TooLong`] above [`FILENAME_MAX`].
    pub fn new(bytes: &'a [u8]) -> Result<Self, TooLong> {
        Opaque::new(bytes).map(Self)
    }

    /// The name's bytes.
    #[must_use]
    pub const fn bytes(&self) -> &'a [u8] {
        self.0.bytes()
    }
}

/// The target of a symbolic link: any bytes (`nfspath3`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Xdr)]
pub struct NfsPath<'a>(Opaque<'a, PATH_MAX>);

impl<'a> NfsPath<'a> {
    /// Wraps `bytes`.
    ///
    /// # Errors
    /// [`TooLong`] above [`PATH_MAX`].
    pub fn new(bytes: &'a [u8]) -> Result<Self, TooLong> {
        Opaque::new(bytes).map(Self)
    }

    /// The target's bytes.
    #[must_use]
    pub const fn bytes(&self) -> &'a [u8] {
        self.0.bytes()
    }
}
