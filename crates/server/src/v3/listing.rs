//! What READDIR and READDIRPLUS share: entries go from the file system into the reply until its
//! budget is used up.
//!
//! The directory's attributes are taken before its entries are read: should it change meanwhile, a
//! client that caches the entries under them sees at the next look that they are old. The cookie
//! verifier is always zero, for cookies stay valid while a directory changes; one that is not zero
//! came from another server.

use curt_proto::nfs3::{
    Cookie, CookieVerifier, DATA_MAX, Fattr, ListingEncoder, NfsFh3, NfsResult, NfsStat3, ReplyFull,
};
use curt_rpc::server::CallFailure;
use curt_trace::probe;
use curt_trace::stages::{self, RequestStage};
use curt_vfs::{ReaddirDetail, VfsDirEntry, Visit};
use curt_xdr::Encode;

use crate::request::{NfsRequest, VerifiedHandle};
use crate::status;

/// A reply of up to so many bytes, some hundred names, is made from memory in less than a
/// millisecond: waking another thread for the calls behind it is not worth while.
const SHORT_MAX: u32 = 64 << 10;

/// The status before READDIR3resok. RFC 1813 (3.3.16, 3.3.17) does not count it; it is counted
/// here, because a client may have room for no more results than it asked for.
const STATUS_BYTES: u32 = 4;

/// What is asked for.
pub(super) struct ReaddirRequest {
    pub(super) directory: NfsFh3,
    pub(super) cookie: Cookie,
    pub(super) verifier: CookieVerifier,
    pub(super) directory_count: u32,
    pub(super) max_count: u32,
    pub(super) wanted: ReaddirDetail,
}

/// Adds one entry to the reply.
type PushEntry = fn(&VerifiedHandle<'_>, &VfsDirEntry<'_>, &mut ListingEncoder<'_>) -> Result<(), ReplyFull>;

pub(super) fn run(
    request: &mut NfsRequest<'_, '_>,
    listing: &ReaddirRequest,
    push: PushEntry,
    reply: &mut Vec<u8>,
) -> Result<(), CallFailure> {
    let directory = match request.resolve(&listing.directory) {
        Ok(directory) => directory,
        Err(refusal) => return super::finish::<(), Option<Fattr>>(Err(refusal), reply),
    };
    if listing.wanted == ReaddirDetail::Nodes && !directory.rules().readdirplus {
        let failed = NfsResult::<(), Option<Fattr>>::Failed(NfsStat3::Notsupp, directory.present());
        return super::finish(Ok(failed), reply);
    }
    if listing.max_count > SHORT_MAX {
        request.context.may_block();
    } else {
        request.may_block(&directory);
    }
    let attributes = directory.present();
    let start = reply.len();
    let listed = if listing.verifier != CookieVerifier::default() && listing.cookie != Cookie::default() {
        Err(NfsStat3::BadCookie)
    } else {
        list(&directory, listing, attributes, push, reply)
    };
    if let Err(status) = listed {
        reply.truncate(start);
        // Asked again, for the directory may be gone by now.
        let failed = directory.present();
        return super::finish(Ok(NfsResult::<(), Option<Fattr>>::Failed(status, failed)), reply);
    }
    Ok(())
}

fn list(
    directory: &VerifiedHandle<'_>,
    listing: &ReaddirRequest,
    attributes: Option<Fattr>,
    push: PushEntry,
    reply: &mut Vec<u8>,
) -> Result<(), NfsStat3> {
    NfsStat3::Ok.encode(reply);
    let count = listing.max_count.min(u32::try_from(DATA_MAX).unwrap_or(u32::MAX));
    let begun = ListingEncoder::new(
        reply,
        count.saturating_sub(STATUS_BYTES),
        listing.directory_count,
        attributes,
        CookieVerifier::default(),
    );
    let Ok(mut encoder) = begun else {
        return Err(NfsStat3::Toosmall);
    };
    let mut visit = |entry: &VfsDirEntry<'_>| {
        let _stage = stages::enter(RequestStage::Encode, "entry");
        match push(directory, entry, &mut encoder) {
            Ok(()) => Visit::Continue,
            Err(ReplyFull) => Visit::Stop,
        }
    };
    let (caller, node) = (directory.caller(), &directory.node);
    let (cookie, wanted) = (listing.cookie.0, listing.wanted);
    let answer = directory
        .vfs()
        .read_directory(&caller, node, cookie, wanted, &mut visit);
    stages::proceed(RequestStage::Encode);
    let eof = answer.value.map_err(status::of_error)?;
    if encoder.entries() == 0 && !eof {
        return Err(NfsStat3::Toosmall);
    }
    probe!(NfsdReaddir {
        fhandle: directory.handle_hash(),
        cookie,
        entries: encoder.entries(),
        eof,
        plus: wanted == ReaddirDetail::Nodes
    });
    encoder.finish(eof);
    Ok(())
}
