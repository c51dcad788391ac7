//! WRITE (RFC 1813 section 3.3.7).

use curt_observe::{ServerCounter, probe};
use curt_types::{Fault, Stability};

use super::WccOp;
use super::attributes::MAX_SIZE;
use crate::request::{NfsRequest, VerifiedHandle};

/// The result of a WRITE.
pub(crate) struct Written {
    pub(crate) count: u32,
    /// The stability that the reply reports.
    pub(crate) committed: Stability,
    pub(crate) verifier: [u8; 8],
}

pub(crate) fn write(
    request: &mut NfsRequest<'_, '_>,
    current: &VerifiedHandle<'_>,
    offset: u64,
    data: &[u8],
    stability: Stability,
) -> WccOp<Written> {
    if let Err(fault) = current.writable().and_then(|()| check(offset, data)) {
        return current.not_begun(fault);
    }
    // `async`: the reply reports the requested stability, as knfsd's does.
    let is_async = current.rules().asynchronous;
    let asked = if is_async { Stability::Unstable } else { stability };
    // The verifier is read before the write, whether or not the write may block.
    let verifier = current.write_verifier();
    let (vfs, caller, node) = (current.vfs(), current.caller(), &current.node);
    let ready = match asked {
        Stability::Unstable => vfs.write_nowait(&caller, node, offset, data),
        Stability::DataSync | Stability::FileSync => None,
    };
    let changed = ready.unwrap_or_else(|| {
        request.may_block(current);
        vfs.write(&caller, node, offset, data, asked)
    });
    current.wcc(changed).map(|written| {
        let counters = &request.service.counters;
        counters.add(ServerCounter::WriteBytes, u64::from(written.count));
        probe!(NfsdWrite {
            fhandle: current.handle_hash(),
            offset,
            res: written.count,
            stable: written.stability as u32
        });
        Written {
            count: written.count,
            committed: if is_async { stability } else { written.stability },
            verifier,
        }
    })
}

/// Whether a file can have data in this range.
fn check(offset: u64, data: &[u8]) -> Result<(), Fault> {
    let end = u64::try_from(data.len()).ok().and_then(|length| offset.checked_add(length));
    match end {
        Some(end) if end <= MAX_SIZE => Ok(()),
        _ => Err(Fault::Fbig),
    }
}
