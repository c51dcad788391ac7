//! The results of READDIR, and the names that NFSv4 does not list.

use curt_proto::nfs4::{Bitmap4, ListingItem4, Nfs4Operation, Verifier4};
use curt_types::FileHandle;
use curt_xdr::DecodeError;

use super::{attributes, results::CompoundResultReader};
use crate::protocol::{ReaddirEntry, ReaddirPage};

/// The cookies of "." and "..", which an NFSv4 listing does not contain. Servers do not use them
/// (RFC 8881 section 18.23.4).
pub(super) const DOT_COOKIE: u64 = 1;
pub(super) const DOTDOT_COOKIE: u64 = 2;

/// The number of an entry whose attributes the server refuses, as it does in a directory that the
/// caller may not search. Linux has the same. readdir(3) skips entries with the number 0.
const UNKNOWN_FILEID: u64 = 1;

/// The entries of READDIR. A name that no directory can contain makes the reply malformed.
pub(super) fn page(
    results: &mut CompoundResultReader<'_>,
    asked: Bitmap4,
) -> Result<ReaddirPage, DecodeError> {
    let decoder = results.operations.decoder();
    let verifier: Verifier4 = decoder.get()?;
    let mut names = Vec::new();
    let end = loop {
        let entry = match decoder.get::<ListingItem4<'_>>()? {
            ListingItem4::End(end) => break end,
            ListingItem4::Entry(entry) => entry,
        };
        let name = entry.name.bytes();
        let is_reserved = matches!(entry.cookie, 0 | DOT_COOKIE | DOTDOT_COOKIE);
        if name.is_empty() || name.iter().any(|byte| matches!(byte, b'/' | 0)) || is_reserved {
            let length = u32::try_from(name.len()).unwrap_or(u32::MAX);
            return Err(DecodeError::BadValue {
                name: "a name of so many bytes, or its cookie",
                value: length,
            });
        }
        if matches!(name, b"." | b"..") {
            continue;
        }
        let values = attributes::values(&entry.attributes, asked)?;
        names.push(ReaddirEntry {
            fileid: values.fileid.unwrap_or(UNKNOWN_FILEID),
            name: name.into(),
            cookie: entry.cookie,
            handle: values.filehandle.map(FileHandle::from),
            attributes: attributes::object(&values),
        });
    };
    Ok(ReaddirPage { verifier: verifier.into(), names, end, granted: None })
}

/// The number of the parent directory: the results of LOOKUPP and GETATTR. `None`: the root of all
/// has no parent, or the results are malformed (knfsd: see
/// [`CompoundResults::status`](curt_proto::nfs4::CompoundResults::status)), which does not concern
/// the names before them.
pub(super) fn parent(results: &mut CompoundResultReader<'_>) -> Option<u64> {
    results.operations.next::<()>(Nfs4Operation::Lookupp).ok()?;
    results.values(attributes::FILEID).ok()??.fileid
}

/// Adds the names of the directory itself and of its parent, after `cookie`.
pub(super) fn add_dots(page: &mut ReaddirPage, cookie: u64, own: u64, parent: Option<u64>) {
    let dot = |name: &[u8], fileid, cookie| ReaddirEntry {
        fileid,
        name: name.into(),
        cookie,
        handle: None,
        attributes: None,
    };
    let dots = [dot(b".", own, DOT_COOKIE), dot(b"..", parent.unwrap_or(own), DOTDOT_COOKIE)];
    let dots = dots.into_iter().filter(|entry| entry.cookie > cookie);
    page.names.splice(0..0, dots);
}
