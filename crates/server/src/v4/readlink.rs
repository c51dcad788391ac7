//! READLINK (RFC 8881 section 18.24).

use curt_proto::nfs4::NfsStat4;
use curt_types::{Fault, FileKind};
use curt_xdr::{Decoder, put_opaque};

use super::{Compound, Outcome};
use crate::ops;

pub(super) fn readlink<'r>(
    compound: &mut Compound<'r, '_>,
    _arguments: &mut Decoder<'r>,
    reply: &mut Vec<u8>,
) -> Outcome {
    let object = compound.current()?;
    let target = object.exported_or(NfsStat4::WrongType)?;
    compound.request.may_block_on_metadata(target);
    let answer = ops::readlink(target);
    let is_link = answer.attributes.is_none_or(|attributes| attributes.kind == FileKind::Symlink);
    let text = answer.value.map_err(|fault| match fault {
        Fault::Inval if !is_link => NfsStat4::WrongType,
        fault => fault.into(),
    })?;
    put_opaque(reply, &text);
    Ok(())
}
