//! READDIR, and the names that NFSv4 does not list.

use curt_proto::nfs4::{
    AccessArgs4, AccessOk4, Bitmap4, CompoundEncoder, ListingItem4, Nfs4Operation, NfsStat4, ReaddirArgs4,
    ResultError, Stateid, Verifier4,
};
use curt_types::{Access, Attributes, Fault, FileHandle};
use curt_xdr::DecodeError;

use super::{
    NfsV4, attributes,
    compound::request::{CompoundRequest, RESULTS_SMALL, get_attributes, put_fh},
    results::{CompoundResultReader, done, fault, outcome},
};
use crate::protocol::{Answer, ListRequest, ReaddirEntry, ReaddirPage, RpcCaller};

/// The cookies of "." and "..", which an NFSv4 listing does not contain. Servers do not use them
/// (RFC 8881 section 18.23.4).
const DOT_COOKIE: u64 = 1;
const DOTDOT_COOKIE: u64 = 2;

/// The number of an entry whose attributes the server refuses, as it does in a directory that the
/// caller may not search. Linux has the same. readdir(3) skips entries with the number 0.
const UNKNOWN_FILEID: u64 = 1;

/// An entry with attributes is larger than one of READDIRPLUS by this part: 220 bytes instead of
/// 176.
const ENTRY_PLUS_PART: u32 = 4;

impl NfsV4 {
    /// READDIR.
    pub(super) fn list_directory(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        request: ListRequest,
    ) -> Answer<ReaddirPage, Option<Attributes>> {
        let dots = matches!(request.cookie, 0 | DOT_COOKIE | DOTDOT_COOKIE);
        let asked = if request.plus { attributes::ENTRY_PLUS } else { attributes::ENTRY };
        // The caller counts in bytes of NFSv3.
        let size = if request.plus {
            request.size.saturating_add(request.size / ENTRY_PLUS_PART)
        } else {
            request.size
        };
        let arguments = ReaddirArgs4 {
            cookie: if dots { 0 } else { request.cookie },
            verifier: if dots { Verifier4::default() } else { request.verifier.into() },
            directory_count: size,
            max_count: size,
            attributes: asked,
        };
        let append = |operations: &mut CompoundEncoder<'_>, _: Stateid| {
            put_fh(operations, directory);
            get_attributes(operations, attributes::OBJECT);
            if let Some(rights) = request.rights {
                operations.push(&AccessArgs4 { access: rights.bits() });
            }
            let most = self.session.lock().limits.read_max();
            operations.push(&ReaddirArgs4 { max_count: size.min(most), ..arguments });
            if dots {
                operations.bare(Nfs4Operation::Lookupp);
                get_attributes(operations, attributes::FILEID);
            }
        };
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        let compound = CompoundRequest::idempotent(caller, Nfs4Operation::Readdir, &append);
        // The root of all has no parent, which is no failure of the listing: READDIR must not be
        // executed again for it.
        let required = Some(2 + u32::from(request.rights.is_some()));
        let results_max = size.saturating_add(RESULTS_SMALL);
        let compound = CompoundRequest { required, results_max, ..compound };
        self.ask(&compound, |results| {
            done!(results.pass(Nfs4Operation::Putfh), None);
            let about = results.attributes()?;
            let mut granted = None;
            if let Some(rights) = request.rights {
                let ok: AccessOk4 = done!(results.next(Nfs4Operation::Access), about);
                granted = Some(Access::from_bits(ok.access).common(rights));
            }
            match outcome(results.operations.status(Nfs4Operation::Readdir).and_then(
                |status| match status {
                    NfsStat4::Ok => Ok(()),
                    status => Err(ResultError::Failed(status)),
                },
            ))? {
                Ok(()) => {}
                // A cookie that is no longer valid.
                Err(NfsStat4::NotSame) => return Ok((Err(Fault::BadCookie), about)),
                Err(status) => return Ok((Err(fault(status)), about)),
            }
            let mut page = ReaddirPage { granted, ..page(results, asked)? };
            if dots {
                let own = about.map_or(0, |about| about.fileid);
                add_dots(&mut page, request.cookie, own, parent(results));
            }
            Ok((Ok(page), about))
        })
    }
}

/// The entries of READDIR. A name that no directory can contain makes the reply malformed.
fn page(results: &mut CompoundResultReader<'_>, asked: Bitmap4) -> Result<ReaddirPage, DecodeError> {
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
fn parent(results: &mut CompoundResultReader<'_>) -> Option<u64> {
    results.operations.next::<()>(Nfs4Operation::Lookupp).ok()?;
    results.values(attributes::FILEID).ok()??.fileid
}

/// Adds the names of the directory itself and of its parent, after `cookie`.
fn add_dots(page: &mut ReaddirPage, cookie: u64, own: u64, parent: Option<u64>) {
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
