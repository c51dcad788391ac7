//! WRITE (RFC 8881 section 18.32).

use curt_proto::nfs4::{DATA_MAX, NfsStat4, Verifier4, WriteArgs4, WriteOk4};
use curt_xdr::{Decoder, Encode};

use super::{Compound, Outcome, decoded, io};
use crate::ops;
use crate::state::IoDirection;

pub(super) fn write<'r>(
    compound: &mut Compound<'r, '_>,
    arguments: &mut Decoder<'r>,
    reply: &mut Vec<u8>,
) -> Outcome {
    let WriteArgs4 { stateid, offset, stable, data } = decoded(arguments)?;
    let object = compound.current()?;
    let target = object.exported_or(NfsStat4::Isdir)?;
    let _change = io::check_stateid(compound, target, stateid, IoDirection::Write)?;
    let data = data.bytes();
    let data = &data[..data.len().min(DATA_MAX)];
    let written = ops::write(&mut compound.request, target, offset, data, stable.into());
    let written = written.value.map_err(|fault| io::failure(fault, written.attributes.after.as_ref()))?;
    WriteOk4 {
        count: written.count,
        committed: written.committed.into(),
        verifier: Verifier4(written.verifier),
    }
    .encode(reply);
    Ok(())
}
