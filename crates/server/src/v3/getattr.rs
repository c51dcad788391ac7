//! GETATTR (RFC 1813 section 3.3.1): needs no permission.

use curt_proto::nfs3::{Fattr, FileHandle, Outcome};

use crate::request::{Refusal, Request};
use crate::status;

pub(super) fn run(request: &mut Request<'_, '_>, object: FileHandle) -> Result<Outcome<Fattr>, Refusal> {
    let target = request.resolve(&object)?;
    request.may_wait_for(&target);
    Ok(match target.vfs().attributes(&target.node) {
        Ok(attributes) => Outcome::Ok(target.fattr(&attributes)),
        Err(error) => Outcome::Failed(status::of_error(error), ()),
    })
}
