//! LOOKUP, CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, RENAME, LINK (RFC 1813 sections 3.3.3 and
//! 3.3.8 to 3.3.15).

use curt_proto::nfs3::{
    CreateArguments, CreateHow, CreateOk, DirOpArgs, Fattr, LinkArguments, LinkWcc, LookupOk, MkdirArguments,
    MknodArguments, MknodData, NfsFh3, RenameArguments, RenameWcc, SymlinkArguments, WccData,
};
use curt_rpc::server::CallFailure;
use curt_types::{Fault, SetAttributes};
use curt_vfs::{CreateMode, NewNode, SpecialFile};

use super::{Results, not_begun, post_op, results, set_attributes, wcc, wire_handle};
use crate::ops::{self, BothAttributes, BothOp, NamePurpose, OpResult};
use crate::request::{NfsRequest, Refusal, VerifiedHandle};

#[inline]
pub(super) fn lookup(
    request: &mut NfsRequest<'_, '_>,
    arguments: DirOpArgs<'_>,
) -> Results<LookupOk, Option<Fattr>> {
    let current = request.resolve(arguments.directory.as_bytes())?;
    let found = ops::lookup(request, &current, arguments.name.bytes());
    Ok(post_op(found, |found, directory| LookupOk {
        object: wire_handle(&found.handle),
        attributes: found.attributes.map(Fattr::from),
        directory,
    }))
}

pub(super) fn create(
    request: &mut NfsRequest<'_, '_>,
    arguments: &CreateArguments<'_>,
) -> Results<CreateOk, WccData> {
    let set = match &arguments.how {
        CreateHow::Unchecked(set) | CreateHow::Guarded(set) => set_attributes(set),
        CreateHow::Exclusive(_) => Ok(SetAttributes::default()),
    };
    let file = set.as_ref().map(|set| {
        NewNode::File(match arguments.how {
            CreateHow::Unchecked(_) => CreateMode::Unchecked(set),
            CreateHow::Guarded(_) => CreateMode::Guarded(set),
            CreateHow::Exclusive(verifier) => CreateMode::Exclusive(verifier.0),
        })
    });
    make(request, arguments.place, file)
}

pub(super) fn mkdir(
    request: &mut NfsRequest<'_, '_>,
    arguments: &MkdirArguments<'_>,
) -> Results<CreateOk, WccData> {
    let set = set_attributes(&arguments.attributes);
    make(request, arguments.place, set.as_ref().map(NewNode::Directory))
}

pub(super) fn symlink(
    request: &mut NfsRequest<'_, '_>,
    arguments: &SymlinkArguments<'_>,
) -> Results<CreateOk, WccData> {
    let (set, target) = (set_attributes(&arguments.attributes), arguments.target.bytes());
    let link = set.as_ref().map(|set| NewNode::Symlink(target, set));
    make(request, arguments.place, link)
}

pub(super) fn mknod(
    request: &mut NfsRequest<'_, '_>,
    arguments: &MknodArguments<'_>,
) -> Results<CreateOk, WccData> {
    let (special, set) = match &arguments.what {
        MknodData::BlockDevice(set, device) => (SpecialFile::BlockDevice((*device).into()), set),
        MknodData::CharacterDevice(set, device) => (SpecialFile::CharacterDevice((*device).into()), set),
        MknodData::Socket(set) => (SpecialFile::Socket, set),
        MknodData::Fifo(set) => (SpecialFile::Fifo, set),
        // The type has a procedure of its own, or is unknown.
        MknodData::Other(_) => return make(request, arguments.place, Err(&Fault::Badtype)),
    };
    let set = set_attributes(set);
    let node = set.as_ref().map(|set| NewNode::Special(special, set));
    make(request, arguments.place, node)
}

/// The common part of CREATE, MKDIR, SYMLINK and MKNOD. The arguments are checked in their order:
/// the handle, the name, then the object. A type that MKNOD cannot create is refused before the
/// directory is searched or a permission is checked, as knfsd does.
fn make(
    request: &mut NfsRequest<'_, '_>,
    place: DirOpArgs<'_>,
    object: Result<NewNode<'_>, &Fault>,
) -> Results<CreateOk, WccData> {
    let (current, name) = (request.resolve(place.directory.as_bytes())?, place.name.bytes());
    let object = match object {
        Ok(object) => object,
        Err(fault) => {
            let named = ops::check_name(name, NamePurpose::Create);
            return Ok(not_begun(&current, named.err().unwrap_or(*fault)));
        }
    };
    let made = ops::make(request, &current, name, object);
    Ok(wcc(made, |made, directory| CreateOk {
        object: Some(wire_handle(&made.handle)),
        attributes: made.attributes.map(Fattr::from),
        directory,
    }))
}

/// REMOVE and RMDIR.
pub(super) fn remove(
    request: &mut NfsRequest<'_, '_>,
    arguments: DirOpArgs<'_>,
    purpose: NamePurpose,
) -> Results<WccData, WccData> {
    let current = request.resolve(arguments.directory.as_bytes())?;
    let removed = ops::remove(request, &current, arguments.name.bytes(), purpose);
    Ok(wcc(removed, |(), directory| directory))
}

pub(super) fn rename(
    request: &mut NfsRequest<'_, '_>,
    arguments: &RenameArguments<'_>,
) -> Results<RenameWcc, RenameWcc> {
    let (from, to) = (arguments.from, arguments.to);
    let renamed = both(request, &from.directory, &to.directory, |request, saved, current| {
        ops::rename(request, saved, current, from.name.bytes(), to.name.bytes())
    })?;
    let wire = |both: BothAttributes| RenameWcc { from: both.saved.into(), to: both.current.into() };
    Ok(results(renamed, wire, |(), wcc| wcc))
}

pub(super) fn link(
    request: &mut NfsRequest<'_, '_>,
    arguments: &LinkArguments<'_>,
) -> Results<LinkWcc, LinkWcc> {
    let DirOpArgs { directory, name } = arguments.place;
    let linked = both(request, &arguments.file, &directory, |request, saved, current| {
        ops::link(request, saved, current, name.bytes())
    })?;
    let wire = |both: BothAttributes| LinkWcc {
        attributes: both.saved.after.map(Fattr::from),
        directory: both.current.into(),
    };
    Ok(results(linked, wire, |(), wcc| wcc))
}

/// The common part of RENAME and LINK: if one of the two handles does not resolve, the reply has
/// the attributes of the other.
fn both<'r>(
    request: &mut NfsRequest<'r, '_>,
    saved: &NfsFh3,
    current: &NfsFh3,
    change: impl FnOnce(&mut NfsRequest<'r, '_>, &VerifiedHandle<'r>, &VerifiedHandle<'r>) -> BothOp,
) -> Result<BothOp, CallFailure> {
    let mut resolve = |handle: &NfsFh3| match request.resolve(handle.as_bytes()) {
        Ok(target) => Ok(Ok(target)),
        Err(Refusal::Fault(fault)) => Ok(Err(fault)),
        Err(Refusal::Call(failure)) => Err(failure),
    };
    let (saved, current) = (resolve(saved)?, resolve(current)?);
    let unchanged = |target: &Result<VerifiedHandle<'_>, _>| {
        target.as_ref().map(VerifiedHandle::unchanged).unwrap_or_default()
    };
    Ok(match (&saved, &current) {
        (Ok(saved), Ok(current)) => change(request, saved, current),
        (Err(fault), _) | (_, Err(fault)) => OpResult {
            attributes: BothAttributes { saved: unchanged(&saved), current: unchanged(&current) },
            value: Err(*fault),
        },
    })
}
