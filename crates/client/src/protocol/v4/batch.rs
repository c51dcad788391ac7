//! Intents on many objects in one compound, whose operations the session's size limits.

use std::time::Instant;

use curt_proto::nfs4::{
    ChangeInfo, Component, CompoundEncoder, GetfhOk4, LookupArgs4, Nfs4Operation, NverifyArgs4, ReadArgs4,
    RemoveArgs4, RemoveOk4, Stateid,
};
use curt_types::{Fault, FileHandle, Wcc};
use curt_xdr::DecodeError;
use parking_lot::Mutex;

use super::{
    NfsV4,
    attributes::{self, EncodedAttributes, directory_step},
    compound::request::{CompoundRequest, OWN_OPERATIONS_MAX, RESULTS_SMALL, get_attributes, put_fh},
    read_results::{as_length, decode_optional_read},
    remove::compared,
    results::{CompoundResultReader, Execution},
    server_traits::ServerFeature,
};
use crate::protocol::{Answer, BatchOperations, LookupReply, PathReply, RpcCaller};

/// The operations of a path beside its LOOKUPs: PUTFH, GETFH, GETATTR, READ.
const PATH_OPERATIONS: usize = 4;

/// Bytes of the results of a path beside the data.
const PATH_RESULTS: usize = 2048;

/// Longest arguments of a path beside its names, in bytes: a handle, attributes, a READ.
const PATH_BYTES: usize = 256;

/// Longest arguments of a removal beside its name, in bytes.
const REMOVAL_BYTES: usize = 64;

/// Bytes of LOOKUP or REMOVE of a name.
const fn name_bytes(name: &[u8]) -> usize {
    8 + name.len().next_multiple_of(4)
}

/// The operations of a removal, and those around all of them: SEQUENCE, PUTFH, SAVEFH, GETATTR.
const REMOVAL_OPERATIONS: usize = 4;
const FRAME_OPERATIONS: usize = 4;

/// The most removals of one compound, whose reply the server keeps.
const REMOVALS_MAX: usize = 32;

/// A request that may have been executed, and whose reply is lost.
#[derive(Clone, Copy)]
struct EarlierRequest {
    sent_at: Instant,
    /// By then it was executed, if it was.
    lost_at: Instant,
}

/// One path, whose names can be encoded.
type Names<'a> = Vec<Component<'a>>;

impl BatchOperations for NfsV4 {
    fn find_paths(
        &self,
        caller: RpcCaller<'_>,
        from: &FileHandle,
        paths: &[Vec<&[u8]>],
        read: Option<u32>,
    ) -> Option<Answer<Vec<Result<PathReply, Fault>>, ()>> {
        let find = || self.find_first_paths(caller, from, paths, read).transpose();
        self.as_session_allows(find).transpose()
    }

    fn remove_names(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        names: &[&[u8]],
    ) -> Option<Answer<Vec<Result<(), Fault>>, Wcc>> {
        let earlier = Mutex::default();
        let remove = || self.remove_first_names(caller, directory, names, &earlier).transpose();
        self.as_session_allows(remove).transpose()
    }
}

impl NfsV4 {
    /// As [`BatchOperations::find_paths`], of as many paths as the session allows now. A file is
    /// read without an open: the anonymous stateid respects what others deny.
    fn find_first_paths(
        &self,
        caller: RpcCaller<'_>,
        from: &FileHandle,
        paths: &[Vec<&[u8]>],
        read: Option<u32>,
    ) -> Option<Answer<Vec<Result<PathReply, Fault>>, ()>> {
        let limits = self.session.lock().limits;
        let mut bytes = limits.operations_bytes_max();
        // Beside them there is SEQUENCE.
        let mut room = usize::try_from(limits.operations_max).unwrap_or(usize::MAX).checked_sub(1)?;
        let count = read.unwrap_or(0);
        let results_each = PATH_RESULTS.saturating_add(as_length(count));
        let most = usize::try_from(limits.response_max).unwrap_or(usize::MAX).saturating_sub(RESULTS_SMALL);
        let mut names: Vec<Names<'_>> = Vec::new();
        for path in paths.iter().take(most / results_each) {
            let components: Result<Names<'_>, _> = path.iter().map(|name| Component::new(name)).collect();
            let needs = PATH_BYTES + path.iter().map(|name| name_bytes(name)).sum::<usize>();
            let left = room.checked_sub(path.len() + PATH_OPERATIONS).zip(bytes.checked_sub(needs));
            let (Ok(components), Some(left)) = (components, left) else { break };
            names.push(components);
            (room, bytes) = left;
        }
        if names.is_empty() {
            return None;
        }
        let append = |operations: &mut CompoundEncoder<'_>, _: Stateid| {
            for path in &names {
                put_fh(operations, from);
                for name in path {
                    operations.push(&LookupArgs4 { name: *name });
                }
                operations.bare(Nfs4Operation::Getfh);
                get_attributes(operations, attributes::OBJECT);
                if let Some(count) = read {
                    operations.push(&ReadArgs4 { stateid: Stateid::ANONYMOUS, offset: 0, count });
                }
            }
        };
        let operation = if read.is_some() { Nfs4Operation::Read } else { Nfs4Operation::Lookup };
        let request = CompoundRequest {
            results_max: RESULTS_SMALL.saturating_add(results_each.saturating_mul(names.len())),
            may_piggyback: false,
            ..CompoundRequest::idempotent(caller, operation, &append)
        };
        Some(self.ask(&request, |results| {
            let mut found = Vec::with_capacity(names.len());
            for path in &names {
                let one = match path_reply(results, path.len(), read) {
                    // Malformed (knfsd: see `CompoundResults::status`). The rest is asked for
                    // again.
                    Err(_) if !found.is_empty() => break,
                    one => one?,
                };
                let was_last = one.is_err() || results.operations.is_at_end();
                found.push(one);
                if was_last {
                    break;
                }
            }
            Ok((Ok(found), ()))
        }))
    }

    /// As [`BatchOperations::remove_names`], of as many names as the session allows now. `earlier`:
    /// what may have been executed of the request, which is made again for another session.
    fn remove_first_names(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        names: &[&[u8]],
        earlier: &Mutex<Option<EarlierRequest>>,
    ) -> Option<Answer<Vec<Result<(), Fault>>, Wcc>> {
        if !self.server.has(ServerFeature::TypeComparison) {
            return None;
        }
        let names = self.removable_at_once(names)?;
        let directory_type = EncodedAttributes::directory_type();
        let append = |operations: &mut CompoundEncoder<'_>, _: Stateid| {
            put_fh(operations, directory);
            operations.bare(Nfs4Operation::Savefh);
            for name in &names {
                operations.push(&LookupArgs4 { name: *name });
                operations.push(&NverifyArgs4 { attributes: directory_type.fattr() });
                operations.bare(Nfs4Operation::Restorefh);
                operations.push(&RemoveArgs4 { name: *name });
            }
            get_attributes(operations, attributes::OBJECT);
        };
        // The first REMOVE: what is behind it is not executed twice either.
        let request = CompoundRequest::non_idempotent(caller, Nfs4Operation::Remove, 5, &append);
        let operations = FRAME_OPERATIONS + REMOVAL_OPERATIONS * names.len();
        let operations = u32::try_from(operations).unwrap_or(u32::MAX).max(OWN_OPERATIONS_MAX + 1);
        let (before, sent_at) = (*earlier.lock(), self.rpc.now());
        let again = |execution| {
            if execution == Execution::Possible {
                let sent_at = before.map_or(sent_at, |before| before.sent_at);
                *earlier.lock() = Some(EarlierRequest { sent_at, lost_at: self.rpc.now() });
            }
        };
        let request = CompoundRequest { operations, again: Some(&again), ..request };
        let mut answer = self.ask(&request, |results| {
            let start = results.pass(Nfs4Operation::Putfh)?.and(results.pass(Nfs4Operation::Savefh)?);
            if let Err(fault) = start {
                return Ok((Ok(vec![Err(fault)]), Wcc::default()));
            }
            let mut removed = Vec::with_capacity(names.len());
            let mut steps: Option<ChangeInfo> = None;
            for _ in &names {
                match removal(results)? {
                    Ok(step) => {
                        steps = Some(steps.map_or(step, |before| joined(before, step)));
                        removed.push(Ok(()));
                    }
                    // The server asks for time after others were removed: the rest is sent again.
                    Err(Fault::Jukebox) if !removed.is_empty() => break,
                    Err(fault) => {
                        removed.push(Err(fault));
                        break;
                    }
                }
            }
            let after = if removed.len() == names.len() { results.attributes()? } else { None };
            Ok((Ok(removed), directory_step(steps, after)))
        });
        if let (Ok(answer), Some(before)) = (&mut answer, before) {
            answer.sent_at = before.sent_at;
            answer.lost_at = answer.lost_at.or(Some(before.lost_at));
        }
        let first = answer.as_ref().ok().and_then(|answer| answer.outcome.as_ref().ok()?.first());
        match first {
            Some(Ok(())) => self.server.accepted(&[ServerFeature::TypeComparison]),
            // NOTSUPP may concern NVERIFY or REMOVE; removing the names one by one shows which.
            Some(Err(Fault::Notsupp)) => return None,
            Some(Err(_)) | None => {}
        }
        Some(answer)
    }

    /// The first of these names, as many as one compound can remove; `None` if that is none.
    fn removable_at_once<'n>(&self, names: &[&'n [u8]]) -> Option<Names<'n>> {
        let limits = self.session.lock().limits;
        let mut bytes = limits.operations_bytes_max();
        let room =
            usize::try_from(limits.operations_max).unwrap_or(usize::MAX).checked_sub(FRAME_OPERATIONS)?;
        // Delegations of what is removed are returned in the same compound.
        let each = REMOVAL_OPERATIONS + if self.delegations.returns_count() > 0 { 2 } else { 0 };
        let most = (room / each).min(REMOVALS_MAX);
        let fits = |name: &&&[u8]| {
            let left = bytes.checked_sub(REMOVAL_BYTES + 2 * name_bytes(name));
            bytes = left.unwrap_or(0);
            left.is_some()
        };
        let names = names.iter().take(most).take_while(fits);
        let names: Result<Names<'_>, _> = names.map(|name| Component::new(name)).collect();
        names.ok().filter(|names| !names.is_empty())
    }
}

/// One removal.
fn removal(results: &mut CompoundResultReader<'_>) -> Result<Result<ChangeInfo, Fault>, DecodeError> {
    if let Err(fault) = results.pass(Nfs4Operation::Lookup)? {
        return Ok(Err(fault));
    }
    if let Err(fault) = compared(results, Nfs4Operation::Nverify)? {
        return Ok(Err(fault));
    }
    if let Err(fault) = results.pass(Nfs4Operation::Restorefh)? {
        return Ok(Err(fault));
    }
    let ok: Result<RemoveOk4, Fault> = results.next(Nfs4Operation::Remove)?;
    Ok(ok.map(|ok| ok.directory))
}

/// Two steps as one, if nothing was between them.
const fn joined(first: ChangeInfo, second: ChangeInfo) -> ChangeInfo {
    let is_joined = first.atomic && second.atomic && first.after == second.before;
    ChangeInfo { atomic: is_joined, before: first.before, after: second.after }
}

/// The results of one path. A READ that fails does not concern the object that was found.
fn path_reply(
    results: &mut CompoundResultReader<'_>,
    names: usize,
    read: Option<u32>,
) -> Result<Result<PathReply, Fault>, DecodeError> {
    let walk = std::iter::once(Nfs4Operation::Putfh);
    for operation in walk.chain(std::iter::repeat_n(Nfs4Operation::Lookup, names)) {
        if let Err(fault) = results.pass(operation)? {
            return Ok(Err(fault));
        }
    }
    let handle: GetfhOk4<'_> = match results.next(Nfs4Operation::Getfh)? {
        Ok(handle) => handle,
        Err(fault) => return Ok(Err(fault)),
    };
    let found = LookupReply { handle: FileHandle::from(handle.object), attributes: results.attributes()? };
    let data = match read {
        None => None,
        Some(count) => decode_optional_read(results, count)?,
    };
    Ok(Ok(PathReply { found, data }))
}
