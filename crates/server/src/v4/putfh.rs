//! PUTFH, PUTROOTFH and PUTPUBFH (RFC 8881 sections 18.19, 18.21 and 18.20).

use curt_proto::nfs4::{Nfs4Operation, NfsFh4, NfsStat4};
use curt_xdr::Decoder;

use super::{Compound, Object, Outcome, decoded, names};

pub(super) fn putfh<'r>(
    compound: &mut Compound<'r, '_>,
    arguments: &mut Decoder<'r>,
    _reply: &mut Vec<u8>,
) -> Outcome {
    let handle: NfsFh4<'_> = decoded(arguments)?;
    let object = names::of_handle(&mut compound.request, handle.bytes())?;
    put(compound, object, arguments)
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
/// operation that follows must be one that needs no right to the object itself, or this one fails
/// (RFC 8881 section 2.6.3.1.1).
fn put<'r>(compound: &mut Compound<'r, '_>, object: Object<'r>, rest: &Decoder<'_>) -> Outcome {
    use Nfs4Operation::{
        Lookup, Lookupp, Open, Putfh, Putpubfh, Putrootfh, Restorefh, Savefh, Secinfo, SecinfoNoName,
    };
    let next = || rest.clone().u32().ok().and_then(Nfs4Operation::from_number);
    if let Object::WrongFlavor(_) = object
        && let Some(next) = next()
    {
        let decides_itself = matches!(
            next,
            Lookup
                | Lookupp
                | Open
                | Putfh
                | Putpubfh
                | Putrootfh
                | Restorefh
                | Savefh
                | Secinfo
                | SecinfoNoName
        );
        if !decides_itself {
            return Err(NfsStat4::Wrongsec.into());
        }
    }
    compound.set_current(object);
    Ok(())
}
