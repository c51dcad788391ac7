//! GETATTR (RFC 1813 section 3.3.1): needs no permission.

use curt_proto::nfs3::{Fattr, NfsFh3, NfsResult};

use crate::request::{NfsRequest, Refusal};
use crate::status;

pub(super) fn run(request: &mut NfsRequest<'_, '_>, object: NfsFh3) -> Result<NfsResult<Fattr>, Refusal> {
    let target = request.resolve(&object)?;
    request.may_block_on_metadata(&target);
    Ok(match target.vfs().attributes(&target.node) {
        Ok(attributes) => NfsResult::Ok(target.fattr(&attributes)),
        Err(error) => NfsResult::Failed(status::of_error(error), ()),
    })
}
