//! READDIR (RFC 1813 section 3.3.16).

use curt_proto::nfs3::{
    Cookie, DirectoryEntry, Fileid, Filename, ListingEncoder, ReaddirArguments, ReplyFull,
};
use curt_rpc::server::CallFailure;
use curt_vfs::{ReaddirDetail, VfsDirEntry};

use super::listing::{ReaddirRequest, run as list};
use crate::request::{NfsRequest, VerifiedHandle};

pub(super) fn run(
    request: &mut NfsRequest<'_, '_>,
    arguments: &ReaddirArguments,
    reply: &mut Vec<u8>,
) -> Result<(), CallFailure> {
    let listing = ReaddirRequest {
        directory: arguments.directory,
        cookie: arguments.cookie,
        verifier: arguments.verifier,
        directory_count: u32::MAX,
        max_count: arguments.count,
        wanted: ReaddirDetail::Names,
    };
    list(request, &listing, push, reply)
}

fn push(
    _: &VerifiedHandle<'_>,
    entry: &VfsDirEntry<'_>,
    encoder: &mut ListingEncoder<'_>,
) -> Result<(), ReplyFull> {
    let name = Filename::new(entry.name).map_err(|_| ReplyFull)?;
    encoder.push(&DirectoryEntry {
        fileid: Fileid(entry.fileid),
        name,
        cookie: Cookie(entry.cookie),
    })
}
