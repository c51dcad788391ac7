//! READ (RFC 1813 section 3.3.6). Small amounts of data are copied from the page cache into the
//! reply; large ones are sent from the page cache to the socket. Before it waits for a disk, the
//! thread hands the connection over.

use curt_observe::{ServerCounter, probe};
use curt_types::Fault;
use curt_vfs::{FetchOptions, FetchResult};

use super::attributes::MAX_SIZE;
use super::{OpResult, PostOp};
use crate::request::{NfsRequest, VerifiedHandle};

/// The largest READ, WRITE and READDIR, in bytes.
pub(crate) const TRANSFER_MAX: u32 = 1 << 20;

/// Where data cannot be sent from files: the size in bytes from which the copy alone justifies
/// handing the connection over.
const LARGE_COPY: u32 = 256 << 10;

/// Reads up to `count` bytes from `offset`. They are appended to `data`, or the result contains the
/// range of the file.
pub(crate) fn read(
    request: &mut NfsRequest<'_, '_>,
    current: &VerifiedHandle<'_>,
    offset: u64,
    count: u32,
    data: &mut Vec<u8>,
) -> PostOp<FetchResult> {
    let count = count.min(TRANSFER_MAX);
    let (vfs, caller) = (current.vfs(), current.caller());
    let end = offset.checked_add(u64::from(count));
    // No file extends beyond the largest offset, and system calls would return an error instead of
    // no data. A read of nothing still checks whether the caller may read.
    let (from, count) = if end.is_none_or(|end| end > MAX_SIZE) { (MAX_SIZE, 0) } else { (offset, count) };
    let sendfile = request.context.allows_sendfile();
    let fetch = |wait, data: &mut Vec<u8>| {
        let how = FetchOptions { sendfile, wait };
        vfs.fetch(&caller, &current.node, from, count, how, data)
    };
    let ready = if sendfile || count < LARGE_COPY { fetch(false, data) } else { None };
    let fetched = ready.or_else(|| {
        request.context.may_block();
        fetch(true, data)
    });
    // With `wait` a tree always returns a result.
    let Some(fetched) = fetched else {
        return OpResult { attributes: None, value: Err(Fault::Serverfault) };
    };
    if let Ok(FetchResult::Copied(read) | FetchResult::FileRange(curt_vfs::FileRange { read, .. })) =
        &fetched.value
    {
        probe!(NfsdRead { fhandle: current.handle_hash(), offset, res: read.count, eof: read.eof });
        let counters = &request.service.counters;
        counters.add(ServerCounter::ReadBytes, u64::from(read.count));
    }
    current.post_op(fetched)
}
