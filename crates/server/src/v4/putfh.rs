//! PUTFH, PUTROOTFH and PUTPUBFH (RFC 8881 sections 18.19, 18.21 and 18.20).

use curt_proto::nfs4::{Nfs4Operation, NfsFh4, NfsStat4, OpenArgs4};
use curt_xdr::Decoder;

use super::{Compound, Object, Outcome, decoded, names};

pub(super) fn putfh<'r>(
    compound: &mut Compound<'r, '_>,
    arguments: &mut Decoder<'r>,
    _reply: &mut Vec<u8>,
) -> Outcome {
    let handle: NfsFh4<'_> = decoded(arguments)?;
    let object = names::of_handle(&mut compound.request, handle.bytes())?;
    // Other operations find out themselves whether the object still exists.
    let is_checked = matches!(compound.next_operation(arguments), None | Some(Nfs4Operation::Getfh));
    let checked = is_checked.then(|| object.clone());
    put(compound, object, arguments)?;
    match checked.map(|object| names::attributes(&mut compound.request, &object)) {
        Some(Err(failure)) if failure == NfsStat4::Stale.into() => Err(failure),
        _ => Ok(()),
    }
}

/// The root of all that the client sees. The public filehandle is the same.
pub(super) fn putrootfh<'r>(
    compound: &mut Compound<'r, '_>,
    arguments: &mut Decoder<'r>,
    _reply: &mut Vec<u8>,
) -> Outcome {
    let root = names::root(&mut compound.request)?;
    put(compound, root, arguments)
}

/// Sets the current filehandle. The object's export may accept only other flavors: then the
/// operations that follow decide whether this one fails (RFC 8881 section 2.6.3.1.1).
pub(super) fn put<'r>(compound: &mut Compound<'r, '_>, object: Object<'r>, rest: &Decoder<'r>) -> Outcome {
    let left = compound.operations - compound.position - 1;
    if matches!(object, Object::WrongFlavor(_)) && !accepts_any_flavor(rest.clone(), left) {
        return Err(NfsStat4::Wrongsec.into());
    }
    compound.set_current(object);
    Ok(())
}

/// Whether these operations need no right to the object that was put before them, or check it
/// themselves. SAVEFH does not count.
fn accepts_any_flavor(mut rest: Decoder<'_>, left: u32) -> bool {
    use Nfs4Operation::{
        Lookup, Lookupp, Open, Putfh, Putpubfh, Putrootfh, Restorefh, Savefh, Secinfo, SecinfoNoName,
    };
    for _ in 0..left {
        match rest.u32().ok().and_then(Nfs4Operation::from_number) {
            Some(Savefh) => {}
            Some(Lookup | Lookupp | Putfh | Putpubfh | Putrootfh | Restorefh | Secinfo | SecinfoNoName) => {
                return true;
            }
            Some(Open) => return rest.get::<OpenArgs4<'_>>().is_ok_and(|open| open.claim.is_by_name()),
            _ => return false,
        }
    }
    true
}
