//! READDIR (RFC 1813 section 3.3.16).

use curt_proto::nfs3::{Cookie, DirectoryEntry, Fileid, Filename, Full, ListingEncoder, ReaddirArguments};
use curt_rpc::server::CallFailure;
use curt_vfs::{Entry, Wanted};

use super::listing::{Listing, run as list};
use crate::request::{Request, Target};

pub(super) fn run(
    request: &mut Request<'_, '_>,
    arguments: &ReaddirArguments,
    reply: &mut Vec<u8>,
) -> Result<(), CallFailure> {
    let listing = Listing {
        directory: arguments.directory,
        cookie: arguments.cookie,
        verifier: arguments.verifier,
        directory_count: u32::MAX,
        max_count: arguments.count,
        wanted: Wanted::Names,
    };
    list(request, &listing, push, reply)
}

fn push(_: &Target<'_>, entry: &Entry<'_>, encoder: &mut ListingEncoder<'_>) -> Result<(), Full> {
    let name = Filename::new(entry.name).map_err(|_| Full)?;
    encoder.push(&DirectoryEntry {
        fileid: Fileid(entry.fileid),
        name,
        cookie: Cookie(entry.cookie),
    })
}
