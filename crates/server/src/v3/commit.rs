//! COMMIT (RFC 1813 section 3.3.21).

use curt_proto::nfs3::{CommitArguments, CommitOk, NfsResult, WccData};

use crate::request::{NfsRequest, Refusal};
use crate::status;

pub(super) fn run(
    request: &mut NfsRequest<'_, '_>,
    arguments: CommitArguments,
) -> Result<NfsResult<CommitOk, WccData>, Refusal> {
    let target = request.resolve(&arguments.file)?;
    if let Err(status) = target.writable() {
        return super::not_begun(&target, status);
    }
    if target.rules().asynchronous {
        return Ok(NfsResult::Ok(CommitOk {
            wcc: target.unchanged_wcc(),
            verifier: target.write_verifier(),
        }));
    }
    request.may_block(&target);
    let (offset, count) = (arguments.offset, arguments.count);
    let changed = target.vfs().commit(&target.caller(), &target.node, offset, count);
    let wcc = target.wcc(changed.before, changed.after);
    Ok(match changed.value {
        Ok(()) => NfsResult::Ok(CommitOk {
            wcc,
            verifier: target.write_verifier(),
        }),
        Err(error) => NfsResult::Failed(status::of_error_on_data(error), wcc),
    })
}
