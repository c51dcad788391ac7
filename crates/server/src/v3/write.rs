//! WRITE (RFC 1813 section 3.3.7).

use curt_proto::nfs3::{Outcome, Stability, Status, WccData, WriteArguments, WriteOk};
use curt_trace::{ServerCounter, probe};

use crate::attributes::MAX_SIZE;
use crate::request::{Refusal, Request, Target};
use crate::status;

pub(super) fn run(
    request: &mut Request<'_, '_>,
    arguments: &WriteArguments<'_>,
) -> Result<Outcome<WriteOk, WccData>, Refusal> {
    let target = request.resolve(&arguments.file)?;
    let data = arguments.data.bytes();
    if let Err(status) = check(&target, arguments) {
        return super::not_begun(&target, status);
    }
    // `async`: the reply says what was asked for, as knfsd's does.
    let is_async = target.rules().asynchronous;
    let asked = if is_async {
        Stability::Unstable
    } else {
        arguments.stability
    };
    // Read before anything is written, on either way.
    let verifier = target.write_verifier();
    let (offset, stability) = (arguments.offset, to_vfs(asked));
    let (vfs, caller, node) = (target.vfs(), target.caller(), &target.node);
    let ready = match asked {
        Stability::Unstable => vfs.write_at_hand(&caller, node, offset, data),
        Stability::DataSync | Stability::FileSync => None,
    };
    let changed = ready.unwrap_or_else(|| {
        request.may_wait(&target);
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
                stable: to_wire(written.stability) as u32
            });
            let committed = if is_async {
                arguments.stability
            } else {
                to_wire(written.stability)
            };
            Outcome::Ok(WriteOk {
                wcc,
                count: written.count,
                committed,
                verifier,
            })
        }
        Err(error) => Outcome::Failed(status::of_error_on_data(error), wcc),
    })
}

/// Whether a write may be begun.
fn check(target: &Target<'_>, arguments: &WriteArguments<'_>) -> Result<(), Status> {
    target.writable()?;
    if usize::try_from(arguments.count) != Ok(arguments.data.bytes().len()) {
        return Err(Status::Inval);
    }
    let end = arguments.offset.checked_add(u64::from(arguments.count));
    if end.is_none_or(|end| end > MAX_SIZE) {
        return Err(Status::Fbig);
    }
    Ok(())
}

const fn to_vfs(stability: Stability) -> curt_vfs::Stability {
    match stability {
        Stability::Unstable => curt_vfs::Stability::Unstable,
        Stability::DataSync => curt_vfs::Stability::DataSync,
        Stability::FileSync => curt_vfs::Stability::FileSync,
    }
}

const fn to_wire(stability: curt_vfs::Stability) -> Stability {
    match stability {
        curt_vfs::Stability::Unstable => Stability::Unstable,
        curt_vfs::Stability::DataSync => Stability::DataSync,
        curt_vfs::Stability::FileSync => Stability::FileSync,
    }
}
