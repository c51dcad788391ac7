//! COMMIT (RFC 8881 section 18.3).

use curt_proto::nfs4::{CommitArgs4, CommitOk4, NfsStat4, Verifier4};
use curt_types::Fault;
use curt_xdr::{Decoder, Encode};

use super::{Compound, Outcome, decoded, io};
use crate::ops;

pub(super) fn commit<'r>(
    compound: &mut Compound<'r, '_>,
    arguments: &mut Decoder<'r>,
    reply: &mut Vec<u8>,
) -> Outcome {
    let CommitArgs4 { offset, count } = decoded(arguments)?;
    let object = compound.current()?;
    // A range beyond the last byte ends there: COMMIT has no status for it (RFC 8881 section 15.2).
    let target = object.exported_or(NfsStat4::Isdir)?;
    if target.rules().asynchronous {
        io::check_regular(&mut compound.request, target)?;
    }
    let committed = ops::commit(&mut compound.request, target, offset, count);
    let after = committed.attributes.after;
    let verifier = match committed.value {
        // A read-only file system has nothing to be written, and COMMIT has no NFS4ERR_ROFS.
        Err(Fault::Rofs) => target.write_verifier(),
        committed => committed.map_err(|fault| io::failure(fault, after.as_ref()))?,
    };
    CommitOk4 { verifier: Verifier4(verifier) }.encode(reply);
    Ok(())
}
