//! READDIR and READDIRPLUS (RFC 1813 §3.3.16, 3.3.17).

use curt_proto::nfs3::{
    Cookie, CookieVerifier, DirectoryEntry, DirectoryEntryPlus, Fattr, FileHandle, NfsProcedure, NfsResult,
    ReaddirArguments, ReaddirOk, ReaddirPlusArguments,
};
use curt_rpc::client::CallError;
use curt_xdr::{Decode, DecodeError};

use super::{read_results, send};
use crate::protocol::{Attributes, NfsReply, ReaddirEntry, ReaddirPage, RpcCaller, RpcClient};

/// READDIR: names of a directory that follow `cookie`, in results of `count` bytes at most. `about`
/// is the directory.
///
/// # Errors
/// No answer, or one that makes no sense: names that no directory can hold.
pub fn readdir(
    wire: &RpcClient,
    asker: RpcCaller<'_>,
    directory: &FileHandle,
    cookie: u64,
    verifier: CookieVerifier,
    count: u32,
) -> Result<NfsReply<ReaddirPage, Option<Attributes>>, CallError> {
    let procedure = NfsProcedure::Readdir;
    let arguments = ReaddirArguments {
        directory: *directory,
        cookie: Cookie(cookie),
        verifier,
        count,
    };
    let incoming = send(wire, asker, procedure, &arguments, &[], results_max(count))?;
    let outcome: NfsResult<ReaddirOk<'_, DirectoryEntry<'_>>, Option<Fattr>> =
        read_results(wire, procedure, incoming.reply.results())?;
    let (outcome, about) = match outcome {
        NfsResult::Ok(ok) => {
            let attributes = ok.attributes.map(Attributes::from);
            let page = page(ok, |entry| ReaddirEntry {
                fileid: entry.fileid.0,
                name: entry.name.bytes().into(),
                cookie: entry.cookie.0,
                handle: None,
                attributes: None,
            });
            (
                Ok(page.map_err(|error| wire.malformed(procedure.name(), error))?),
                attributes,
            )
        }
        NfsResult::Failed(status, fattr) => (Err(status.into()), fattr.map(Attributes::from)),
    };
    Ok(NfsReply {
        sent_at: incoming.sent_at,
        repeated_at: None,
        outcome,
        attributes: about,
    })
}

/// READDIRPLUS: as READDIR, with attributes and handles.
///
/// # Errors
/// No answer, or one that makes no sense: names that no directory can hold.
pub fn readdirplus(
    wire: &RpcClient,
    asker: RpcCaller<'_>,
    directory: &FileHandle,
    cookie: u64,
    verifier: CookieVerifier,
    count: u32,
) -> Result<NfsReply<ReaddirPage, Option<Attributes>>, CallError> {
    let procedure = NfsProcedure::ReaddirPlus;
    let (directory_count, max_count) = (count, count);
    let arguments = ReaddirPlusArguments {
        directory: *directory,
        cookie: Cookie(cookie),
        verifier,
        directory_count,
        max_count,
    };
    let incoming = send(wire, asker, procedure, &arguments, &[], results_max(count))?;
    let outcome: NfsResult<ReaddirOk<'_, DirectoryEntryPlus<'_>>, Option<Fattr>> =
        read_results(wire, procedure, incoming.reply.results())?;
    let (outcome, about) = match outcome {
        NfsResult::Ok(ok) => {
            let attributes = ok.attributes.map(Attributes::from);
            let page = page(ok, |entry| ReaddirEntry {
                fileid: entry.fileid.0,
                name: entry.name.bytes().into(),
                cookie: entry.cookie.0,
                handle: entry.handle,
                attributes: entry.attributes.map(Attributes::from),
            });
            (
                Ok(page.map_err(|error| wire.malformed(procedure.name(), error))?),
                attributes,
            )
        }
        NfsResult::Failed(status, fattr) => (Err(status.into()), fattr.map(Attributes::from)),
    };
    Ok(NfsReply {
        sent_at: incoming.sent_at,
        repeated_at: None,
        outcome,
        attributes: about,
    })
}

/// Bytes by which results may exceed what was asked for: knfsd of Linux ends a reply after the
/// entry that goes beyond.
const EXCESS_MAX: usize = 4096;

/// What may come back when `count` bytes were asked for.
fn results_max(count: u32) -> usize {
    usize::try_from(count)
        .unwrap_or(usize::MAX)
        .saturating_add(EXCESS_MAX)
}

fn page<'a, E: Decode<'a>>(
    ok: ReaddirOk<'a, E>,
    listed: impl Fn(E) -> ReaddirEntry,
) -> Result<ReaddirPage, DecodeError> {
    let mut entries = ok.entries;
    let mut names = Vec::new();
    for entry in entries.by_ref() {
        let name = listed(entry?);
        if name.name.is_empty() || name.name.iter().any(|byte| matches!(byte, b'/' | 0)) {
            let length = u32::try_from(name.name.len()).unwrap_or(u32::MAX);
            return Err(DecodeError::BadValue {
                name: "a name of so many bytes",
                value: length,
            });
        }
        names.push(name);
    }
    let end = entries.eof().ok_or(DecodeError::Short)?;
    Ok(ReaddirPage {
        verifier: ok.verifier,
        names,
        end,
    })
}
