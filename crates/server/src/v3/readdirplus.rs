//! READDIRPLUS (RFC 1813 section 3.3.17).

use curt_proto::nfs3::{
    Cookie, DirectoryEntryPlus, Fileid, Filename, ListingEncoder, ReaddirPlusArguments, ReplyFull,
};
use curt_rpc::server::CallFailure;
use curt_vfs::{ReaddirDetail, VfsDirEntry, VfsNode};

use super::listing::{ReaddirRequest, run as list};
use crate::request::{NfsRequest, VerifiedHandle};

pub(super) fn run(
    request: &mut NfsRequest<'_, '_>,
    arguments: &ReaddirPlusArguments,
    reply: &mut Vec<u8>,
) -> Result<(), CallFailure> {
    let listing = ReaddirRequest {
        directory: arguments.directory,
        cookie: arguments.cookie,
        verifier: arguments.verifier,
        directory_count: arguments.directory_count,
        max_count: arguments.max_count,
        wanted: ReaddirDetail::Nodes,
    };
    list(request, &listing, push, reply)
}

fn push(
    directory: &VerifiedHandle<'_>,
    entry: &VfsDirEntry<'_>,
    encoder: &mut ListingEncoder<'_>,
) -> Result<(), ReplyFull> {
    let name = Filename::new(entry.name).map_err(|_| ReplyFull)?;
    // What is mounted there is found by LOOKUP, which knows whether this caller may enter it.
    let is_covered = |node: &&VfsNode| directory.export().child_at(&node.handle).is_some();
    let node = entry.node.as_ref().filter(|node| !is_covered(node));
    let (handle, attributes) = node.map(|node| directory.child_handle(node, entry.name)).unzip();
    let (fileid, cookie) = (Fileid(entry.fileid), Cookie(entry.cookie));
    encoder.push_plus(&DirectoryEntryPlus {
        fileid,
        name,
        cookie,
        attributes,
        handle,
    })
}
