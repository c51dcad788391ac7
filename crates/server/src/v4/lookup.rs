//! LOOKUP and LOOKUPP (RFC 8881 sections 18.13 and 18.14).

use curt_proto::nfs4::{LookupArgs4, Nfs4Operation, NfsStat4};
use curt_vfs::LookupUse;
use curt_xdr::Decoder;

use super::names::FoundName;
use super::{Compound, Object, Outcome, decoded, names};

pub(super) fn lookup<'r>(
    compound: &mut Compound<'r, '_>,
    arguments: &mut Decoder<'r>,
    _reply: &mut Vec<u8>,
) -> Outcome {
    let LookupArgs4 { name } = decoded(arguments)?;
    let is_directory = compound.kept_attributes().is_some_and(|known| names::is_directory(&known));
    // Before a removal the type is compared.
    let wanted = match compound.next_operation(arguments) {
        Some(Nfs4Operation::Verify | Nfs4Operation::Nverify) => LookupUse::Name,
        _ => LookupUse::Object,
    };
    let (directory, request) = compound.current_in_request()?;
    let found = names::find(request, directory, name.bytes(), wanted, is_directory)?;
    let FoundName { object, attributes } = found;
    enter(compound, object)?;
    compound.keep_attributes(attributes);
    Ok(())
}

pub(super) fn lookupp<'r>(
    compound: &mut Compound<'r, '_>,
    _arguments: &mut Decoder<'r>,
    _reply: &mut Vec<u8>,
) -> Outcome {
    let directory = compound.current()?;
    let parent = names::parent(&mut compound.request, &directory)?;
    enter(compound, parent)
}

/// Makes the object the current filehandle, if the client may use it with this flavor.
fn enter<'r>(compound: &mut Compound<'r, '_>, object: Object<'r>) -> Outcome {
    if matches!(object, Object::WrongFlavor(_)) {
        return Err(NfsStat4::Wrongsec.into());
    }
    compound.set_current(object);
    Ok(())
}
