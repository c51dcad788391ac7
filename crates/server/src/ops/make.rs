//! CREATE, MKDIR, SYMLINK and MKNOD (RFC 1813 sections 3.3.8 to 3.3.11).

use curt_types::{Device, Fault, SetAttributes};
use curt_vfs::{CreateMode, SpecialFile};

use super::attributes;
use super::name::{NamePurpose, check};
use super::repeated;
use super::{FoundObject, WccOp};
use crate::request::{NfsRequest, VerifiedHandle};

/// What is to be made, and with which attributes.
#[derive(Clone, Copy)]
pub(crate) enum NewObject<'a> {
    /// A regular file, or one that exists, as the mode says.
    File(CreateMode<'a>),
    /// A directory.
    Directory(&'a SetAttributes),
    /// A symbolic link to this target.
    Symlink(&'a [u8], &'a SetAttributes),
    /// A device, FIFO or socket.
    Special(SpecialFile, &'a SetAttributes),
}

impl<'a> NewObject<'a> {
    /// The attributes that it gets; none where the caller sets them afterwards.
    pub(super) const fn set(&self) -> Option<&'a SetAttributes> {
        match self {
            Self::File(CreateMode::Exclusive(_)) => None,
            Self::File(CreateMode::Unchecked(set) | CreateMode::Guarded(set))
            | Self::Directory(set)
            | Self::Symlink(_, set)
            | Self::Special(_, set) => Some(set),
        }
    }

    fn check(&self) -> Result<(), Fault> {
        if let Self::Special(SpecialFile::BlockDevice(device) | SpecialFile::CharacterDevice(device), _) =
            self
        {
            check_numbers(*device)?;
        }
        self.set().map_or(Ok(()), attributes::check)
    }
}

/// Makes an object called `name` in the current target.
pub(crate) fn make(
    request: &mut NfsRequest<'_, '_>,
    current: &VerifiedHandle<'_>,
    name: &[u8],
    object: NewObject<'_>,
) -> WccOp<FoundObject> {
    let allowed = current
        .writable()
        .and_then(|()| check(name, NamePurpose::Create))
        .and_then(|()| object.check());
    if let Err(fault) = allowed {
        return current.not_begun(fault);
    }
    let made = if let Some(window) = request.repeated {
        repeated::make(request, current, name, object, window)
    } else {
        request.may_block(current);
        let (vfs, caller, node) = (current.vfs(), current.caller(), &current.node);
        match object {
            NewObject::File(mode) => vfs.create(&caller, node, name, mode),
            NewObject::Directory(set) => vfs.make_directory(&caller, node, name, set),
            NewObject::Symlink(target, set) => vfs.make_symlink(&caller, node, name, target, set),
            NewObject::Special(special, set) => vfs.make_special(&caller, node, name, special, set),
        }
    };
    current.wcc(made).map(|made| current.child(&made.node, name))
}

/// The bits of a major device number that Linux has.
const MAJOR_BITS: u32 = 12;
/// The bits of a minor device number that Linux has.
const MINOR_BITS: u32 = 20;

/// Refuses numbers that would name another device.
const fn check_numbers(device: Device) -> Result<(), Fault> {
    if device.major >> MAJOR_BITS != 0 || device.minor >> MINOR_BITS != 0 {
        return Err(Fault::Inval);
    }
    Ok(())
}
