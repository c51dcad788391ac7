//! WRITE (RFC 1813 section 3.3.7).

use curt_proto::nfs3::{NfsResult, NfsStat3, StableHow, WccData, WriteArguments, WriteOk};
use curt_trace::{ServerCounter, probe};

use crate::attributes::MAX_SIZE;
use crate::request::{NfsRequest, Refusal, VerifiedHandle};
use crate::status;

pub(super) fn run(
    request: &mut NfsRequest<'_, '_>,
    arguments: &WriteArguments<'_>,
) -> Result<NfsResult<WriteOk, WccData>, Refusal> {
    let target = request.resolve(&arguments.file)?;
    let data = arguments.data.bytes();
    if let Err(status) = check(&target, arguments) {
        return super::not_begun(&target, status);
    }
    // `async`: the reply says what was asked for, as knfsd's does.
    let is_async = target.rules().asynchronous;
    let asked = if is_async {
        StableHow::Unstable
    } else {
        arguments.stable
    };
    // Read before anything is written, on either way.
    let verifier = target.write_verifier();
    let (offset, stability) = (arguments.offset, asked.into());
    let (vfs, caller, node) = (target.vfs(), target.caller(), &target.node);
    let ready = match asked {
        StableHow::Unstable => vfs.write_nowait(&caller, node, offset, data),
        StableHow::DataSync | StableHow::FileSync => None,
    };
    let changed = ready.unwrap_or_else(|| {
        request.may_block(&target);
        vfs.write(&caller, node, offset, data, stability)
    });
    let wcc = target.wcc(changed.before, changed.after);
    Ok(match changed.value {
        Ok(written) => {
            let counters = &request.service.counters;
            counters.add(ServerCounter::WriteBytes, u64::from(written.count));
            probe!(NfsdWrite {
                fhandle: target.handle_hash(),
                offset,
                res: written.count,
                stable: StableHow::from(written.stability) as u32
            });
            let committed = if is_async {
                arguments.stable
            } else {
                written.stability.into()
            };
            NfsResult::Ok(WriteOk {
                wcc,
                count: written.count,
                committed,
                verifier,
            })
        }
        Err(error) => NfsResult::Failed(status::of_error_on_data(error), wcc),
    })
}

/// Whether a write may be begun.
fn check(target: &VerifiedHandle<'_>, arguments: &WriteArguments<'_>) -> Result<(), NfsStat3> {
    target.writable()?;
    if usize::try_from(arguments.count) != Ok(arguments.data.bytes().len()) {
        return Err(NfsStat3::Inval);
    }
    let end = arguments.offset.checked_add(u64::from(arguments.count));
    if end.is_none_or(|end| end > MAX_SIZE) {
        return Err(NfsStat3::Fbig);
    }
    Ok(())
}
