//! The verifier of an exclusive create, stored in the new file's times (as RFC 1813 section 3.3.8
//! suggests) so that it survives a restart: 31 bits of each half are the seconds of mtime and
//! atime, which each file system can store.

use curt_types::{Attributes, Timestamp};

/// The mtime and atime of a verifier.
pub(crate) fn times(verifier: [u8; 8]) -> (Timestamp, Timestamp) {
    let [a, b, c, d, e, f, g, h] = verifier;
    let half = |bytes| Timestamp::new(i64::from(u32::from_be_bytes(bytes) & 0x7fff_ffff), 0);
    (half([a, b, c, d]), half([e, f, g, h]))
}

/// Whether an exclusive create with this verifier made the file, and it has not been changed since.
pub(crate) fn is_of(verifier: [u8; 8], attributes: &Attributes) -> bool {
    attributes.kind == curt_types::FileKind::Regular
        && attributes.size == 0
        && (attributes.mtime, attributes.atime) == times(verifier)
}
