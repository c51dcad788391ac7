//! READDIRPLUS (RFC 1813 section 3.3.17).

use curt_proto::nfs3::{
    Cookie, DirectoryEntryPlus, Fileid, Filename, Full, ListingEncoder, ReaddirPlusArguments,
};
use curt_rpc::server::CallFailure;
use curt_vfs::{Entry, Node, Wanted};

use super::listing::{Listing, run as list};
use crate::request::{Request, Target};

pub(super) fn run(
    request: &mut Request<'_, '_>,
    arguments: &ReaddirPlusArguments,
    reply: &mut Vec<u8>,
) -> Result<(), CallFailure> {
    let listing = Listing {
        directory: arguments.directory,
        cookie: arguments.cookie,
        verifier: arguments.verifier,
        directory_count: arguments.directory_count,
        max_count: arguments.max_count,
        wanted: Wanted::Nodes,
    };
    list(request, &listing, push, reply)
}

fn push(directory: &Target<'_>, entry: &Entry<'_>, encoder: &mut ListingEncoder<'_>) -> Result<(), Full> {
    let name = Filename::new(entry.name).map_err(|_| Full)?;
    // What is mounted there is found by LOOKUP, which knows whether this caller may enter it.
    let is_covered = |node: &&Node| directory.export().child_at(&node.handle).is_some();
    let node = entry.node.as_ref().filter(|node| !is_covered(node));
    let (handle, attributes) = node.map(|node| directory.introduce(node, entry.name)).unzip();
    let (fileid, cookie) = (Fileid(entry.fileid), Cookie(entry.cookie));
    encoder.push_plus(&DirectoryEntryPlus {
        fileid,
        name,
        cookie,
        attributes,
        handle,
    })
}
