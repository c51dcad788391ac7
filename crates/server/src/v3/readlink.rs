//! READLINK (RFC 1813 section 3.3.5).

use curt_proto::nfs3::{Fattr, FileHandle, Outcome, Path, ReadlinkOk, Status};
use curt_rpc::server::CallFailure;

use crate::request::Request;
use crate::status;

pub(super) fn run(
    request: &mut Request<'_, '_>,
    link: FileHandle,
    reply: &mut Vec<u8>,
) -> Result<(), CallFailure> {
    let link = match request.resolve(&link) {
        Ok(link) => link,
        Err(refusal) => return super::finish::<ReadlinkOk<'_>, Option<Fattr>>(Err(refusal), reply),
    };
    let mut target = Vec::new();
    let answer = link.vfs().read_link(&link.caller(), &link.node, &mut target);
    let attributes = link.post_op(answer.attributes);
    let outcome = match answer.value.map(|()| Path::new(&target)) {
        Ok(Ok(target)) => Outcome::Ok(ReadlinkOk { attributes, target }),
        Ok(Err(_)) => Outcome::Failed(Status::Io, attributes),
        Err(error) => Outcome::Failed(status::of_error(error), attributes),
    };
    super::finish(Ok(outcome), reply)
}
