//! SECINFO and SECINFO_NO_NAME (RFC 8881 sections 18.29 and 18.45): the flavors that a client may
//! use. There is no current filehandle afterwards (section 2.6.3.1.1.8).

use curt_proto::nfs4::{NfsStat4, Secinfo, SecinfoArgs4, SecinfoNoNameArgs4, SecinfoOk4};
use curt_xdr::{Decoder, Encode, VarArray};

use super::{Compound, Object, OpFailure, Outcome, decoded, names};
use crate::exports::CredentialFlavor;

/// The flavors of the pseudo file system.
const PSEUDO: [CredentialFlavor; 2] = [CredentialFlavor::Sys, CredentialFlavor::None];

pub(super) fn secinfo<'r>(
    compound: &mut Compound<'r, '_>,
    arguments: &mut Decoder<'r>,
    reply: &mut Vec<u8>,
) -> Outcome {
    let SecinfoArgs4 { name } = decoded(arguments)?;
    let directory = compound.current()?;
    let found = match names::lookup(&mut compound.request, &directory, name.bytes()) {
        // WRONGSEC is no status of SECINFO (RFC 8881 section 2.6.3.1.1.5). Names of an export that
        // refuses the flavor are not looked up: they get the flavors of the directory.
        Err(OpFailure::Status(NfsStat4::Wrongsec)) => Ok(directory),
        found => found,
    };
    answer(compound, &found.map_err(no_link)?, reply)
}

/// The status of a directory that is a symbolic link: a status of its own is none of these
/// operations (RFC 8881 section 15.2).
fn no_link(failure: OpFailure) -> OpFailure {
    if failure.status() == NfsStat4::Symlink { NfsStat4::Notdir.into() } else { failure }
}

pub(super) fn secinfo_no_name<'r>(
    compound: &mut Compound<'r, '_>,
    arguments: &mut Decoder<'r>,
    reply: &mut Vec<u8>,
) -> Outcome {
    let style = decoded(arguments)?;
    let current = compound.current()?;
    match style {
        SecinfoNoNameArgs4::Current => answer(compound, &current, reply),
        SecinfoNoNameArgs4::Parent => {
            let parent = names::parent(&mut compound.request, &current).map_err(no_link)?;
            answer(compound, &parent, reply)
        }
    }
}

fn answer(compound: &mut Compound<'_, '_>, object: &Object<'_>, reply: &mut Vec<u8>) -> Outcome {
    let flavors = flavors(compound, object)?;
    let flavors = flavors.into_iter().map(|flavor| Secinfo::Flavor(flavor.number())).collect();
    let flavors = VarArray::new(flavors).map_err(|_| OpFailure::Status(NfsStat4::Serverfault))?;
    SecinfoOk4 { flavors }.encode(reply);
    compound.consume_current();
    Ok(())
}

/// The flavors that this client may use for an object, the preferred first.
fn flavors(compound: &Compound<'_, '_>, object: &Object<'_>) -> Result<Vec<CredentialFlavor>, OpFailure> {
    let service = compound.request.service;
    let export = match object {
        Object::Pseudo(_) => return Ok(PSEUDO.to_vec()),
        Object::Exported(target) => target.export().id,
        Object::WrongFlavor(handle) => service.key.verify(handle.as_bytes())?.export,
    };
    Ok(service.exports.current().flavors(compound.request.context.peer(), export)?)
}
