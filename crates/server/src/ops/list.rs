//! READDIR and READDIRPLUS (RFC 1813 sections 3.3.16 and 3.3.17).
//!
//! The directory's attributes are read before its entries. If the directory changes in between, a
//! client that caches the entries under these attributes finds out at its next revalidation. The
//! cookie verifier is always zero, because cookies stay valid while a directory changes. Another
//! verifier is of another server.

use std::ops::ControlFlow;

use curt_types::{Attributes, Fault};
use curt_vfs::{ReaddirDetail, VfsDirEntry};

use super::FoundObject;
use crate::request::{NfsRequest, VerifiedHandle};

/// A reply of up to this many bytes, some hundred names, is made from memory in less than a
/// millisecond. That is too short to wake another thread for the calls behind it.
const SHORT_MAX: u32 = 64 << 10;

/// The arguments of a listing.
pub(crate) struct Listing {
    pub(crate) cookie: u64,
    pub(crate) verifier: [u8; 8],
    /// Maximum size of the reply in bytes.
    pub(crate) size: u32,
    pub(crate) detail: ReaddirDetail,
}

/// Checks whether the current target may be listed. Returns its attributes.
pub(crate) fn open_directory(
    request: &mut NfsRequest<'_, '_>,
    current: &VerifiedHandle<'_>,
    listing: &Listing,
) -> Result<Option<Attributes>, Fault> {
    if listing.detail == ReaddirDetail::Nodes && !current.rules().readdirplus {
        return Err(Fault::Notsupp);
    }
    if listing.size > SHORT_MAX {
        request.context.may_block();
    } else {
        request.may_block(current);
    }
    if listing.verifier != [0; 8] && listing.cookie != 0 {
        return Err(Fault::BadCookie);
    }
    Ok(current.attributes())
}

/// Visits the entries of the current target. Returns whether the last was among them.
pub(crate) fn entries(
    current: &VerifiedHandle<'_>,
    listing: &Listing,
    visit: &mut dyn FnMut(&VfsDirEntry<'_>) -> ControlFlow<()>,
) -> Result<bool, Fault> {
    let (caller, node) = (current.caller(), &current.node);
    let vfs = current.vfs();
    let listed = vfs.read_directory(&caller, node, listing.cookie, listing.detail, visit);
    Ok(listed.value?)
}

/// The object of an entry, if requested. An object that is mounted there is found by LOOKUP, which
/// checks whether this caller may enter it.
pub(crate) fn object_of_entry(current: &VerifiedHandle<'_>, entry: &VfsDirEntry<'_>) -> Option<FoundObject> {
    let node = entry.node.as_ref()?;
    let is_covered = current.export().child_at(&node.handle).is_some();
    (!is_covered).then(|| current.child(node, entry.name))
}
