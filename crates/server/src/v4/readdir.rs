//! READDIR (RFC 8881 section 18.23): entries go from the file system into the reply until its
//! budget is used up.

use std::ops::ControlFlow;

use curt_proto::nfs4::{
    Attribute, AttributeValues, Bitmap4, Component, ListingEncoder4, ListingFull, NfsStat4, ReaddirArgs4,
    Verifier4,
};
use curt_vfs::{ReaddirDetail, VfsDirEntry};
use curt_xdr::Decoder;

use super::attributes::{self, Described, FileSystemFacts, RequestedAttributes};
use super::object::Object;
use super::pseudo::PseudoNode;
use super::{Compound, OpFailure, Outcome, decoded, names};
use crate::exports::PseudoId;
use crate::ops::{self, Listing};
use crate::request::{NfsRequest, VerifiedHandle};

/// The cookies 1 and 2 are reserved, because some clients use them for "." and "..", which an NFSv4
/// listing does not contain.
const RESERVED: [u64; 2] = [1, 2];
/// The offset that is added to a reserved cookie of a file system: the result is the largest that
/// all clients can represent, and none that a file system uses.
const MOVED: u64 = i64::MAX.cast_unsigned() - 16;

/// The attributes that an entry without its object has.
const OF_ENTRY: Bitmap4 = Attribute::set(&[Attribute::RdattrError, Attribute::MountedOnFileid]);

/// Why a listing ends before its directory.
enum Stopped {
    /// The next entry does not fit.
    Full,
    /// The attributes of an entry cannot be returned, and the client did not ask for the reason.
    Failed(OpFailure),
}

impl From<ListingFull> for Stopped {
    fn from(_: ListingFull) -> Self {
        Self::Full
    }
}

pub(super) fn readdir<'r>(
    compound: &mut Compound<'r, '_>,
    arguments: &mut Decoder<'r>,
    reply: &mut Vec<u8>,
) -> Outcome {
    let asked: ReaddirArgs4 = decoded(arguments)?;
    let object = compound.current()?;
    let wanted = RequestedAttributes::new(asked.attributes, compound.minor_version)?;
    let cookie = own_cookie(asked.cookie)?;
    if asked.verifier != Verifier4::default() {
        // Cookie 0 has no verifier (RFC 8881 section 18.23.3). knfsd 6.1 answers the same.
        let status = if cookie == 0 { NfsStat4::BadCookie } else { NfsStat4::NotSame };
        return Err(status.into());
    }
    let max_count = usize::try_from(asked.max_count.min(ops::TRANSFER_MAX)).unwrap_or(usize::MAX);
    let room = compound.room(reply);
    let full = if room < max_count { compound.too_big() } else { NfsStat4::Toosmall };
    let size = room.min(max_count);
    let encoder = ListingEncoder4::new(reply, size, asked.directory_count, Verifier4::default());
    let encoder = encoder.map_err(|ListingFull| full)?;
    let mut listing = ReaddirEncoder { request: &mut compound.request, wanted, encoder };
    let eof = match &object {
        Object::Exported(target) => listing.exported(&object, target, cookie, size)?,
        Object::Pseudo(node) => listing.pseudo(node, cookie)?,
        Object::WrongFlavor(_) => return Err(NfsStat4::Wrongsec.into()),
    };
    if listing.encoder.entries() == 0 && !eof {
        return Err(full.into());
    }
    listing.encoder.finish(eof);
    Ok(())
}

/// The file system's cookie for one of a client.
fn own_cookie(cookie: u64) -> Result<u64, OpFailure> {
    if RESERVED.contains(&cookie) {
        return Err(NfsStat4::BadCookie.into());
    }
    let moved = cookie.wrapping_sub(MOVED);
    Ok(if RESERVED.contains(&moved) { moved } else { cookie })
}

/// A client's cookie for one of the file system.
fn wire_cookie(cookie: u64) -> u64 {
    if RESERVED.contains(&cookie) { MOVED + cookie } else { cookie }
}

/// A listing in progress.
struct ReaddirEncoder<'l, 'r, 'c, 'b> {
    request: &'l mut NfsRequest<'r, 'c>,
    wanted: RequestedAttributes,
    encoder: ListingEncoder4<'b>,
}

impl<'r> ReaddirEncoder<'_, 'r, '_, '_> {
    /// Lists a directory of an export. Returns whether its last entry is in the reply.
    fn exported(
        &mut self,
        object: &Object<'r>,
        directory: &VerifiedHandle<'r>,
        cookie: u64,
        size: usize,
    ) -> Result<bool, OpFailure> {
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        let mut listing = Listing { cookie, verifier: [0; 8], size, detail: ReaddirDetail::Names };
        ops::open_directory(self.request, directory, &listing)?;
        if !self.wanted.is_within(OF_ENTRY) {
            listing.detail = ReaddirDetail::Nodes;
        }
        let facts = FileSystemFacts::query(self.request, object, self.wanted)?;
        let mut failure = None;
        let listed = ops::entries(directory, &listing, &mut |entry| {
            if matches!(entry.name, b"." | b"..") {
                return ControlFlow::Continue(());
            }
            match self.entry(object, directory, entry, &facts) {
                Ok(()) => return ControlFlow::Continue(()),
                Err(Stopped::Full) => {}
                Err(Stopped::Failed(reason)) => failure = Some(reason),
            }
            ControlFlow::Break(())
        });
        match failure {
            Some(reason) => Err(reason),
            None => Ok(listed?),
        }
    }

    /// Adds an entry of an export's directory.
    fn entry(
        &mut self,
        object: &Object<'r>,
        directory: &VerifiedHandle<'r>,
        entry: &VfsDirEntry<'_>,
        facts: &FileSystemFacts,
    ) -> Result<(), Stopped> {
        let cookie = wire_cookie(entry.cookie);
        let name = Component::new(entry.name).map_err(|_| Stopped::Full)?;
        let wanted = self.wanted;
        if wanted.is_within(OF_ENTRY) {
            return self.without_object(cookie, name, entry.fileid, NfsStat4::Ok);
        }
        let is_covered = |node: &curt_vfs::VfsNode| directory.export().child_at(&node.handle).is_some();
        let covered = entry.node.as_ref().filter(|node| is_covered(node));
        let node = match (&entry.node, covered) {
            (Some(node), None) => node,
            (_, covered) => {
                let found = names::lookup(self.request, object, entry.name);
                match covered.filter(|_| self.must_hide(&found)) {
                    Some(covered) => covered,
                    None => return self.object(cookie, name, entry.fileid, found),
                }
            }
        };
        let attributes = directory.exported(node.attributes);
        // The handle of a covered directory is no way around the flavor of what covers it.
        let has_handle = wanted.contains(Attribute::Filehandle) && covered.is_none();
        let child = has_handle.then(|| directory.child(node, entry.name).handle);
        let described = Described {
            attributes: &attributes,
            handle: child.as_ref(),
            mounted_on_fileid: attributes.fileid,
            // An object that was removed meanwhile has none.
            created: wanted
                .contains(Attribute::TimeCreate)
                .then(|| directory.vfs().created(&node.handle).ok().flatten())
                .flatten(),
        };
        described.values(facts, wanted, |values| {
            Ok(self.encoder.push(cookie, name, |out| values.encode(wanted.mask(), out))?)
        })
    }

    /// Whether an entry shows the directory that an export covers, because the export refuses the
    /// flavor of the request, and there is no attribute to say so: READDIR has no NFS4ERR_WRONGSEC
    /// (RFC 8881 section 15.2).
    fn must_hide(&self, found: &Result<Object<'_>, OpFailure>) -> bool {
        matches!(found, Ok(Object::WrongFlavor(_))) && !self.wanted.contains(Attribute::RdattrError)
    }

    /// Adds an entry whose object was looked up: the root of an export, or one that the file system
    /// did not return with the entry.
    fn object(
        &mut self,
        cookie: u64,
        name: Component<'_>,
        mounted_on_fileid: u64,
        found: Result<Object<'r>, OpFailure>,
    ) -> Result<(), Stopped> {
        let wanted = self.wanted;
        let encoder = &mut self.encoder;
        let described = found.and_then(|object| {
            attributes::values(self.request, &object, None, wanted, |values| {
                let values = AttributeValues { mounted_on_fileid: Some(mounted_on_fileid), ..*values };
                encoder.push(cookie, name, |out| values.encode(wanted.mask(), out))
            })
        });
        match described.map_err(OpFailure::status) {
            Ok(pushed) => Ok(pushed?),
            // It was removed meanwhile.
            Err(NfsStat4::Noent | NfsStat4::Stale) => Ok(()),
            Err(status) if wanted.contains(Attribute::RdattrError) => {
                self.without_object(cookie, name, mounted_on_fileid, status)
            }
            Err(status) => Err(Stopped::Failed(status.into())),
        }
    }

    /// Adds an entry with the attributes that need no object.
    fn without_object(
        &mut self,
        cookie: u64,
        name: Component<'_>,
        mounted_on_fileid: u64,
        error: NfsStat4,
    ) -> Result<(), Stopped> {
        let values = AttributeValues {
            rdattr_error: Some(error),
            mounted_on_fileid: Some(mounted_on_fileid),
            ..AttributeValues::default()
        };
        Ok(self.encoder.push(cookie, name, |out| values.encode(self.wanted.mask(), out))?)
    }

    /// Lists a directory of the pseudo file system. Returns whether its last entry is in the reply.
    fn pseudo(&mut self, node: &PseudoNode, cookie: u64) -> Result<bool, OpFailure> {
        use std::ops::Bound::{Excluded, Unbounded};
        let after = (Excluded(PseudoId(cookie)), Unbounded);
        for (id, name) in node.directory().children.range(after) {
            let Some(mut found) = names::visible(self.request, node, *id).transpose() else {
                continue;
            };
            let name = Component::new(name).map_err(|_| OpFailure::Status(NfsStat4::Serverfault))?;
            if self.must_hide(&found)
                && let Some(covered) = node.other(self.request.service, *id)
            {
                found = Ok(Object::Pseudo(covered));
            }
            let added = if self.wanted.is_within(OF_ENTRY) {
                self.without_object(wire_cookie(id.0), name, id.0, NfsStat4::Ok)
            } else {
                self.object(wire_cookie(id.0), name, id.0, found)
            };
            match added {
                Ok(()) => {}
                Err(Stopped::Full) => return Ok(false),
                Err(Stopped::Failed(reason)) => return Err(reason),
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cookies_of_a_file_system_survive_and_none_is_reserved() {
        for cookie in [0, 1, 2, 3, 1 << 32, i64::MAX.cast_unsigned(), u64::MAX] {
            let wire = wire_cookie(cookie);
            assert!(!RESERVED.contains(&wire));
            assert_eq!(own_cookie(wire).ok(), Some(cookie));
        }
        for cookie in RESERVED {
            assert_eq!(own_cookie(cookie).map_err(OpFailure::status), Err(NfsStat4::BadCookie));
        }
    }
}
