//! READDIR and READDIRPLUS (RFC 1813, sections 3.3.16 and 3.3.17).

use curt_proto::nfs3::{
    Cookie, DirectoryEntry, DirectoryEntryPlus, Fattr, NfsProcedure, NfsResult, ReaddirArguments, ReaddirOk,
    ReaddirPlusArguments,
};
use curt_rpc::client::CallError;
use curt_types::{Attributes, Fault, FileHandle};
use curt_xdr::{Decode, DecodeError, Encode};

use super::{Answer, ListRequest, NfsReply, NfsV3, ReaddirPage, RpcCaller, attributes, nfs_fh3};
use crate::protocol::ReaddirEntry;

impl NfsV3 {
    /// Lists names of a directory. A name that no directory can contain makes the reply malformed.
    pub(super) fn readdir(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        request: ListRequest,
    ) -> Answer<ReaddirPage, Option<Attributes>> {
        let (directory, cookie) = (nfs_fh3(directory)?, Cookie(request.cookie));
        let (verifier, count) = (request.verifier.into(), request.size);
        let list = |procedure, arguments: &(dyn Encode + Sync)| {
            self.send(caller, procedure, arguments, &[], results_max(count))
        };
        let (procedure, incoming) = if request.plus {
            let arguments = ReaddirPlusArguments {
                directory,
                cookie,
                verifier,
                directory_count: count,
                max_count: count,
            };
            let procedure = NfsProcedure::ReaddirPlus;
            (procedure, list(procedure, &arguments)?)
        } else {
            let arguments = ReaddirArguments { directory, cookie, verifier, count };
            (NfsProcedure::Readdir, list(NfsProcedure::Readdir, &arguments)?)
        };
        let results = incoming.reply.results();
        let (outcome, attributes) = if request.plus {
            self.page(procedure, results, |entry: DirectoryEntryPlus<'_>| ReaddirEntry {
                fileid: entry.fileid.0,
                name: entry.name.bytes().into(),
                cookie: entry.cookie.0,
                handle: entry.handle.map(FileHandle::from),
                attributes: attributes(entry.attributes),
            })?
        } else {
            self.page(procedure, results, |entry: DirectoryEntry<'_>| ReaddirEntry {
                fileid: entry.fileid.0,
                name: entry.name.bytes().into(),
                cookie: entry.cookie.0,
                handle: None,
                attributes: None,
            })?
        };
        Ok(NfsReply { sent_at: incoming.sent_at, lost_at: None, outcome, attributes })
    }

    fn page<'a, E: Decode<'a>>(
        &self,
        procedure: NfsProcedure,
        results: &'a [u8],
        listed: impl Fn(E) -> ReaddirEntry,
    ) -> Result<(Result<ReaddirPage, Fault>, Option<Attributes>), CallError> {
        match self.results(procedure, results)? {
            NfsResult::<ReaddirOk<'a, E>, Option<Fattr>>::Ok(ok) => {
                let about = attributes(ok.attributes);
                let page = page(ok, listed).map_err(|error| self.malformed(procedure, error))?;
                Ok((Ok(page), about))
            }
            NfsResult::Failed(status, fattr) => Ok((Err(status.into()), attributes(fattr))),
        }
    }
}

/// Bytes by which results may exceed the requested size: the Linux server ends a reply after the
/// entry that exceeds it.
const EXCESS_MAX: usize = 4096;

/// Longest results accepted if `count` bytes are requested.
fn results_max(count: u32) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX).saturating_add(EXCESS_MAX)
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
            return Err(DecodeError::BadValue { name: "a name of so many bytes", value: length });
        }
        names.push(name);
    }
    let end = entries.eof().ok_or(DecodeError::Short)?;
    Ok(ReaddirPage { verifier: ok.verifier.into(), names, end })
}
