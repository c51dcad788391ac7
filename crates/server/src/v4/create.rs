//! CREATE (RFC 8881 section 18.4): all objects but regular files, which OPEN creates.

use curt_proto::nfs4::{Attribute, CreateArgs4, CreateOk4, CreateType4, NfsStat4};
use curt_vfs::{NewNode, SpecialFile};
use curt_xdr::{Decoder, Encode};

use super::change::change_info;
use super::settable_attributes::initial;
use super::{Compound, Object, Outcome, decoded, names};
use crate::ops;

/// The new object becomes the current filehandle.
pub(super) fn create<'r>(
    compound: &mut Compound<'r, '_>,
    arguments: &mut Decoder<'r>,
    reply: &mut Vec<u8>,
) -> Outcome {
    let CreateArgs4 { kind, name, attributes } = decoded(arguments)?;
    let object = compound.current()?;
    names::check(name.bytes())?;
    if attributes.mask.contains(Attribute::Size.number()) {
        return Err(NfsStat4::Inval.into());
    }
    let set = initial(&attributes, compound.minor_version)?;
    let values = &set.values;
    let node = match kind {
        CreateType4::Directory => NewNode::Directory(values),
        CreateType4::BlockDevice(device) => NewNode::Special(SpecialFile::BlockDevice(device.into()), values),
        CreateType4::CharacterDevice(device) => {
            NewNode::Special(SpecialFile::CharacterDevice(device.into()), values)
        }
        CreateType4::Symlink(target) => NewNode::Symlink(target.bytes(), values),
        CreateType4::Socket => NewNode::Special(SpecialFile::Socket, values),
        CreateType4::Fifo => NewNode::Special(SpecialFile::Fifo, values),
        CreateType4::Other(_) => return Err(NfsStat4::Badtype.into()),
    };
    let directory = object.changeable()?;
    let made = ops::make(&mut compound.request, directory, name.bytes(), node);
    let child = made.value?;
    let attributes_set = child.attributes.map_or(set.mask, |child| set.applied_to(&child));
    let object = compound.request.resolve(child.handle.as_bytes())?;
    CreateOk4 { directory: change_info(&made.attributes), attributes_set }.encode(reply);
    compound.set_current(Object::Exported(object));
    compound.keep_attributes(child.attributes);
    Ok(())
}
