//! ACCESS (RFC 8881 section 18.1).

use curt_proto::nfs4::{AccessArgs4, AccessOk4, NfsStat4};
use curt_types::{Access, FileKind};
use curt_xdr::{Decoder, Encode};

use super::{Compound, Object, Outcome, decoded};
use crate::ops;

/// The rights to extended attributes of minor version 2 (RFC 8276 section 8.5): READ, WRITE, LIST.
const XATTRS: u32 = 0x1c0;
/// The rights that a directory of the pseudo file system grants to everybody.
const PSEUDO: Access = Access::READ.with(Access::LOOKUP);

/// The rights that have a meaning for objects of a type.
const fn supported(kind: FileKind) -> Access {
    match kind {
        FileKind::Directory => Access::ALL.without(Access::EXECUTE),
        _ => Access::READ.with(Access::MODIFY).with(Access::EXTEND).with(Access::EXECUTE),
    }
}

pub(super) fn access<'r>(
    compound: &mut Compound<'r, '_>,
    arguments: &mut Decoder<'r>,
    reply: &mut Vec<u8>,
) -> Outcome {
    let AccessArgs4 { access } = decoded(arguments)?;
    let known = Access::ALL.bits() | if compound.minor_version >= 2 { XATTRS } else { 0 };
    if access & !known != 0 {
        return Err(NfsStat4::Inval.into());
    }
    let asked = Access::from_bits(access);
    let (kind, granted) = match compound.current()? {
        Object::Pseudo(_) => (FileKind::Directory, asked.common(PSEUDO)),
        object => {
            let target = object.exported_or(NfsStat4::Serverfault)?;
            let answer = ops::access(&mut compound.request, target, asked);
            let granted = answer.value?;
            compound.keep_attributes(answer.attributes);
            (answer.attributes.map_or(FileKind::Regular, |attributes| attributes.kind), granted)
        }
    };
    let supported = asked.common(supported(kind));
    AccessOk4 { supported: supported.bits(), access: granted.common(supported).bits() }.encode(reply);
    Ok(())
}
