//! READLINK (RFC 1813 section 3.3.5).

use curt_proto::nfs3::{Fattr, NfsFh3, NfsPath, NfsResult, NfsStat3, ReadlinkOk};
use curt_rpc::server::CallFailure;

use crate::request::NfsRequest;
use crate::status;

pub(super) fn run(
    request: &mut NfsRequest<'_, '_>,
    link: NfsFh3,
    reply: &mut Vec<u8>,
) -> Result<(), CallFailure> {
    let link = match request.resolve(&link) {
        Ok(link) => link,
        Err(refusal) => return super::finish::<ReadlinkOk<'_>, Option<Fattr>>(Err(refusal), reply),
    };
    let mut target = Vec::new();
    let answer = link.vfs().read_link(&link.caller(), &link.node, &mut target);
    let attributes = link.post_op(answer.attributes);
    let outcome = match answer.value.map(|()| NfsPath::new(&target)) {
        Ok(Ok(target)) => NfsResult::Ok(ReadlinkOk { attributes, target }),
        Ok(Err(_)) => NfsResult::Failed(NfsStat3::Io, attributes),
        Err(error) => NfsResult::Failed(status::of_error(error), attributes),
    };
    super::finish(Ok(outcome), reply)
}
