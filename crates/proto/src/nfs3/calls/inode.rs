//! SETATTR, ACCESS, READLINK (RFC 1813 sections 3.3.2, 3.3.4, 3.3.5).

use curt_xdr::Xdr;

use crate::nfs3::{Fattr, NfsFh3, NfsPath, NfsTime, Sattr};

/// SETATTR's arguments. It returns [`WccData`](crate::nfs3::WccData) in both cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct SetattrArguments {
    /// The file.
    pub object: NfsFh3,
    /// The attributes to set.
    pub attributes: Sattr,
    /// Set them only if the file's ctime is this (`sattrguard3`).
    pub guard: Option<NfsTime>,
}

/// ACCESS's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct AccessArguments {
    /// The file.
    pub object: NfsFh3,
    /// The requested rights, by bits.
    pub access: u32,
}

/// ACCESS's result; a failure has the file's attributes, if any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct AccessOk {
    /// The file's attributes.
    pub attributes: Option<Fattr>,
    /// The requested rights that the caller has.
    pub access: u32,
}

/// READLINK's result; a failure has the link's attributes, if any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct ReadlinkOk<'a> {
    /// The link's attributes.
    pub attributes: Option<Fattr>,
    /// The link's target.
    pub target: NfsPath<'a>,
}
