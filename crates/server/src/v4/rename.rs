//! RENAME (RFC 8881 section 18.26).

use curt_proto::nfs4::{NfsStat4, RenameArgs4, RenameOk4};
use curt_types::Fault;
use curt_xdr::{Decoder, Encode};

use super::change::change_info;
use super::{Compound, Outcome, decoded, names};
use crate::ops;

/// Renames a name in the saved directory to one in the current directory.
pub(super) fn rename<'r>(
    compound: &mut Compound<'r, '_>,
    arguments: &mut Decoder<'r>,
    reply: &mut Vec<u8>,
) -> Outcome {
    let RenameArgs4 { from, to } = decoded(arguments)?;
    let (source, target) = (compound.saved()?, compound.current()?);
    names::check(from.bytes())?;
    names::check(to.bytes())?;
    names::check_same_tree(&source, &target)?;
    let (source, target) = (source.changeable()?, target.changeable()?);
    let renamed = ops::rename(&mut compound.request, source, target, from.bytes(), to.bytes());
    if let Err(fault) = renamed.value {
        let kinds = [&renamed.attributes.saved, &renamed.attributes.current];
        let is_file = |kind: &curt_types::Wcc| kind.after.is_some_and(|after| !names::is_directory(&after));
        let status = match fault {
            // Another error may be found first, but an object that is no directory has no names.
            _ if kinds.into_iter().any(is_file) => NfsStat4::Notdir,
            // What has the new name cannot be replaced by an object of the other kind (RFC 8881
            // section 18.26.3).
            Fault::Isdir | Fault::Notdir => NfsStat4::Exist,
            fault => fault.into(),
        };
        return Err(status.into());
    }
    RenameOk4 {
        source: change_info(&renamed.attributes.saved),
        target: change_info(&renamed.attributes.current),
    }
    .encode(reply);
    compound.keep_attributes(renamed.attributes.current.after);
    Ok(())
}
