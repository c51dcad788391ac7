//! READDIRPLUS (RFC 1813 section 3.3.17).

use curt_proto::nfs3::{
    Cookie, DirectoryEntryPlus, Fileid, Filename, Full, ListingEncoder, ReaddirPlusArguments,
};
use curt_rpc::server::CallFailure;
use curt_vfs::{Entry, Wanted};

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
    let (handle, attributes) = entry.node.as_ref().map(|node| directory.introduce(node)).unzip();
    let (fileid, cookie) = (Fileid(entry.fileid), Cookie(entry.cookie));
    encoder.push_plus(&DirectoryEntryPlus {
        fileid,
        name,
        cookie,
        attributes,
        handle,
    })
}
