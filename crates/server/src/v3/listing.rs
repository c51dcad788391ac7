//! READDIR and READDIRPLUS (RFC 1813 sections 3.3.16 and 3.3.17): entries go from the file system
//! into the reply until its budget is used up.

use std::ops::ControlFlow;

use curt_observe::probe;
use curt_observe::stages::{self, RequestStage};
use curt_proto::nfs3::{
    Cookie, CookieVerf3, DirectoryEntry, DirectoryEntryPlus, Fattr, Fileid, Filename, ListingEncoder, NfsFh3,
    NfsResult, NfsStat3, ReaddirArguments, ReaddirPlusArguments, ReplyFull,
};
use curt_rpc::server::CallFailure;
use curt_types::Fault;
use curt_vfs::{ReaddirDetail, VfsDirEntry};
use curt_xdr::Encode;

use super::{finish, wire_handle};
use crate::ops::{self, Listing};
use crate::request::{NfsRequest, VerifiedHandle};

/// The size of the status before READDIR3resok. RFC 1813 (3.3.16, 3.3.17) does not count it. It is
/// counted here, because a client may have room for no more results than it requested.
const STATUS_BYTES: u32 = 4;

pub(super) fn readdir(
    request: &mut NfsRequest<'_, '_>,
    arguments: &ReaddirArguments,
    reply: &mut Vec<u8>,
) -> Result<(), CallFailure> {
    let listing = Listing {
        cookie: arguments.cookie.0,
        verifier: arguments.verifier.0,
        size: arguments.count,
        detail: ReaddirDetail::Names,
    };
    list(request, &arguments.directory, &listing, u32::MAX, reply)
}

pub(super) fn readdirplus(
    request: &mut NfsRequest<'_, '_>,
    arguments: &ReaddirPlusArguments,
    reply: &mut Vec<u8>,
) -> Result<(), CallFailure> {
    let listing = Listing {
        cookie: arguments.cookie.0,
        verifier: arguments.verifier.0,
        size: arguments.max_count,
        detail: ReaddirDetail::Nodes,
    };
    list(request, &arguments.directory, &listing, arguments.directory_count, reply)
}

fn list(
    request: &mut NfsRequest<'_, '_>,
    directory: &NfsFh3,
    listing: &Listing,
    directory_count: u32,
    reply: &mut Vec<u8>,
) -> Result<(), CallFailure> {
    let current = match request.resolve(directory.as_bytes()) {
        Ok(current) => current,
        Err(refusal) => return finish::<(), Option<Fattr>>(Err(refusal), reply),
    };
    let start = reply.len();
    let listed = ops::open_directory(request, &current, listing).and_then(|attributes| {
        let attributes = attributes.map(Fattr::from);
        append(&current, listing, directory_count, attributes, reply)
    });
    let Err(fault) = listed else { return Ok(()) };
    reply.truncate(start);
    // Checked again, because the directory may have been removed by now.
    let attributes = current.attributes().map(Fattr::from);
    finish(Ok(NfsResult::<(), _>::Failed(fault.into(), attributes)), reply)
}

fn append(
    current: &VerifiedHandle<'_>,
    listing: &Listing,
    directory_count: u32,
    attributes: Option<Fattr>,
    reply: &mut Vec<u8>,
) -> Result<(), Fault> {
    NfsStat3::Ok.encode(reply);
    let size = listing.size.min(ops::TRANSFER_MAX);
    let begun = ListingEncoder::new(
        reply,
        size.saturating_sub(STATUS_BYTES),
        directory_count,
        attributes,
        CookieVerf3::default(),
    );
    let mut encoder = begun.map_err(|_| Fault::Toosmall)?;
    let is_plus = listing.detail == ReaddirDetail::Nodes;
    let mut visit = |entry: &VfsDirEntry<'_>| {
        let _stage = stages::enter(RequestStage::Encode, "entry");
        let pushed =
            if is_plus { push_plus(current, entry, &mut encoder) } else { push(entry, &mut encoder) };
        match pushed {
            Ok(()) => ControlFlow::Continue(()),
            Err(ReplyFull) => ControlFlow::Break(()),
        }
    };
    let listed = ops::entries(current, listing, &mut visit);
    stages::proceed(RequestStage::Encode);
    let eof = listed?;
    if encoder.entries() == 0 && !eof {
        return Err(Fault::Toosmall);
    }
    probe!(NfsdReaddir {
        fhandle: current.handle_hash(),
        cookie: listing.cookie,
        entries: encoder.entries(),
        eof,
        plus: is_plus
    });
    encoder.finish(eof);
    Ok(())
}

fn push(entry: &VfsDirEntry<'_>, encoder: &mut ListingEncoder<'_>) -> Result<(), ReplyFull> {
    encoder.push(&DirectoryEntry {
        fileid: Fileid(entry.fileid),
        name: Filename::new(entry.name).map_err(|_| ReplyFull)?,
        cookie: Cookie(entry.cookie),
    })
}

fn push_plus(
    current: &VerifiedHandle<'_>,
    entry: &VfsDirEntry<'_>,
    encoder: &mut ListingEncoder<'_>,
) -> Result<(), ReplyFull> {
    let object = ops::object_of_entry(current, entry);
    encoder.push_plus(&DirectoryEntryPlus {
        fileid: Fileid(entry.fileid),
        name: Filename::new(entry.name).map_err(|_| ReplyFull)?,
        cookie: Cookie(entry.cookie),
        attributes: object.as_ref().and_then(|object| object.attributes).map(Fattr::from),
        handle: object.map(|object| wire_handle(&object.handle)),
    })
}
