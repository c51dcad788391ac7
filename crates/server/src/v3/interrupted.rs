//! What an earlier run of the server did and did not tell: when a call comes again that was
//! interrupted (`reply_cache`) and that failed as one does that was executed before, the tree may
//! show that it was.
//!
//! A name that was to be made is the call's own if its object is of the right kind, is as new as
//! the call (its ctime lies between the call's beginning and this run's), holds nothing yet, and
//! its directory has changed since. A name that was to be taken away and is not there is the call's
//! own if the directory has changed since the call began; a rename's object has to be at the other
//! name, and its ctime in that time. The module comment of `reply_cache::interrupted` says what
//! comes before this.

use curt_proto::nfs3::{
    CreateArguments, CreateHow, DirOpArgs, Filename, LinkArguments, LinkWcc, MkdirArguments, MknodArguments,
    MknodData, NfsProcedure, NfsResult, NfsStat3, RenameArguments, RenameWcc, Sattr, SymlinkArguments,
};
use curt_rpc::server::CallFailure;
use curt_types::{Attributes, FileKind, SetAttributes, Timestamp};
use curt_vfs::{CreatedNode, ReaddirDetail, VfsNode, Visit, WccResult};
use curt_xdr::Encode;

use super::{created, decoded, finish, removed};
use crate::attributes::set_from_wire;
use crate::name::{NamePurpose, check};
use crate::reply_cache::ExecutionWindow;
use crate::request::{HandlePair, NfsRequest, Refusal, VerifiedHandle};

/// Whether a call of `procedure` may have failed so because it was executed before.
const fn is_of_a_repetition(procedure: NfsProcedure, status: NfsStat3) -> bool {
    match procedure {
        NfsProcedure::Create
        | NfsProcedure::Mkdir
        | NfsProcedure::Symlink
        | NfsProcedure::Mknod
        | NfsProcedure::Link => {
            matches!(status, NfsStat3::Exist)
        }
        NfsProcedure::Remove | NfsProcedure::Rmdir | NfsProcedure::Rename => {
            matches!(status, NfsStat3::Noent)
        }
        _ => false,
    }
}

/// Appends the results of a success if the tree shows that the call was executed in `window`;
/// otherwise nothing.
pub(crate) fn recognise(
    procedure: NfsProcedure,
    failed: NfsStat3,
    request: &mut NfsRequest<'_, '_>,
    arguments: &[u8],
    window: ExecutionWindow,
    reply: &mut Vec<u8>,
) -> Result<(), CallFailure> {
    if !is_of_a_repetition(procedure, failed) {
        return Ok(());
    }
    // All of it is rare, and may wait for a disk.
    request.context.may_block();
    match procedure {
        NfsProcedure::Create => {
            let arguments = decoded::<CreateArguments<'_>>(arguments)?;
            let CreateHow::Guarded(set) = arguments.how else {
                return Ok(());
            };
            let is_own =
                |_: &VerifiedHandle<'_>, node: &VfsNode| node.attributes.size == set.size.unwrap_or(0);
            let object = NewObject {
                place: arguments.place,
                kind: FileKind::Regular,
                set: &set,
            };
            made(request, &object, window, is_own, reply)
        }
        NfsProcedure::Mkdir => {
            let MkdirArguments { place, attributes } = decoded(arguments)?;
            let object = NewObject {
                place,
                kind: FileKind::Directory,
                set: &attributes,
            };
            made(request, &object, window, is_empty, reply)
        }
        NfsProcedure::Symlink => {
            let arguments = decoded::<SymlinkArguments<'_>>(arguments)?;
            let is_own = |directory: &VerifiedHandle<'_>, node: &VfsNode| {
                let mut target = Vec::new();
                let read = directory
                    .vfs()
                    .read_link(&directory.caller(), &node.handle, &mut target);
                read.value.is_ok() && target == arguments.target.bytes()
            };
            let object = NewObject {
                place: arguments.place,
                kind: FileKind::Symlink,
                set: &arguments.attributes,
            };
            made(request, &object, window, is_own, reply)
        }
        NfsProcedure::Mknod => {
            let MknodArguments { place, what } = decoded(arguments)?;
            let Some((kind, set)) = special(&what) else {
                return Ok(());
            };
            let object = NewObject { place, kind, set };
            made(request, &object, window, |_, _| true, reply)
        }
        NfsProcedure::Link => linked(request, &decoded(arguments)?, window, reply),
        NfsProcedure::Remove | NfsProcedure::Rmdir => taken(request, decoded(arguments)?, window, reply),
        NfsProcedure::Rename => renamed(request, &decoded(arguments)?, window, reply),
        _ => Ok(()),
    }
}

/// What MKNOD makes, with which attributes.
const fn special(what: &MknodData) -> Option<(FileKind, &Sattr)> {
    match what {
        MknodData::BlockDevice(set, _) => Some((FileKind::BlockDevice, set)),
        MknodData::CharacterDevice(set, _) => Some((FileKind::CharacterDevice, set)),
        MknodData::Socket(set) => Some((FileKind::Socket, set)),
        MknodData::Fifo(set) => Some((FileKind::Fifo, set)),
        MknodData::Other(_) => None,
    }
}

/// Whether `time` lies in `window`. A file system that keeps whole seconds has cut off the rest.
fn is_within(time: Timestamp, window: ExecutionWindow) -> bool {
    is_since(time, window.from) && time <= window.until
}

fn is_since(time: Timestamp, from: Timestamp) -> bool {
    time >= from || time.nanoseconds() == 0 && time.seconds() == from.seconds()
}

/// The object at a name, if both have changed in `window`, the directory perhaps later.
fn new_at(
    directory: &VerifiedHandle<'_>,
    name: Filename<'_>,
    window: ExecutionWindow,
) -> Option<(VfsNode, Attributes)> {
    let name = check(name, NamePurpose::Create).ok()?;
    let found = directory.vfs().lookup(&directory.caller(), &directory.node, name);
    let (node, above) = (found.value.ok()?, found.attributes?);
    let is_new = is_within(node.attributes.ctime, window) && is_since(above.mtime, window.from);
    is_new.then_some((node, above))
}

/// The reply says that the change is durable, and whoever made it ended perhaps before it was.
fn make_durable(directory: &VerifiedHandle<'_>) -> bool {
    directory.vfs().sync_all().is_ok()
}

/// What a call was to make.
struct NewObject<'a> {
    place: DirOpArgs<'a>,
    kind: FileKind,
    set: &'a Sattr,
}

/// Appends what CREATE, MKDIR, SYMLINK and MKNOD answer, if the object at `object.place` is what
/// they made.
fn made(
    request: &mut NfsRequest<'_, '_>,
    object: &NewObject<'_>,
    window: ExecutionWindow,
    is_own: impl Fn(&VerifiedHandle<'_>, &VfsNode) -> bool,
    reply: &mut Vec<u8>,
) -> Result<(), CallFailure> {
    let Some(directory) = target(request.resolve(&object.place.directory))? else {
        return Ok(());
    };
    let Some((mut node, above)) = new_at(&directory, object.place.name, window) else {
        return Ok(());
    };
    let is_alike = node.attributes.kind == object.kind && is_of_caller(&directory, &node, object.set);
    if !is_alike || !is_own(&directory, &node) {
        return Ok(());
    }
    set_rest(&directory, &mut node, object.set);
    if !make_durable(&directory) {
        return Ok(());
    }
    let changed = WccResult {
        before: None,
        after: Some(above),
        value: Ok(CreatedNode { node, new: true }),
    };
    finish(Ok(created(&directory, object.place.name.bytes(), changed)), reply)
}

/// Whether the owner and the mode of `node` are those that the caller would have given it. A
/// default ACL takes bits away; setgid comes from the directory.
fn is_of_caller(directory: &VerifiedHandle<'_>, node: &VfsNode, set: &Sattr) -> bool {
    const SET_GID: u32 = 0o2000;
    let Attributes { uid, mode, .. } = node.attributes;
    let is_owner = uid == directory.caller().uid || set.uid == Some(uid);
    let wanted = set.mode.unwrap_or(0o7777) | SET_GID;
    is_owner && (node.attributes.kind == FileKind::Symlink || mode & 0o7777 & !wanted == 0)
}

/// Sets owner, group and times, for the server may have ended between making an object and setting
/// them. What the caller may not set stays as it is, as when it is made.
fn set_rest(directory: &VerifiedHandle<'_>, node: &mut VfsNode, set: &Sattr) {
    let Ok(set) = set_from_wire(set) else { return };
    let caller = directory.caller();
    let rest = SetAttributes {
        mode: None,
        uid: set
            .uid
            .filter(|uid| caller.privileged && *uid != node.attributes.uid),
        gid: set.gid.filter(|gid| *gid != node.attributes.gid),
        size: None,
        ..set
    };
    if rest != SetAttributes::default() {
        let changed = directory.vfs().set_attributes(&caller, &node.handle, &rest, None);
        node.attributes = changed.after.unwrap_or(node.attributes);
    }
}

fn is_empty(directory: &VerifiedHandle<'_>, node: &VfsNode) -> bool {
    let mut any = false;
    let mut visit = |entry: &curt_vfs::VfsDirEntry<'_>| {
        any = !matches!(entry.name, b"." | b"..");
        if any { Visit::Stop } else { Visit::Continue }
    };
    let caller = directory.caller();
    let listed = directory
        .vfs()
        .read_directory(&caller, &node.handle, 0, ReaddirDetail::Names, &mut visit);
    listed.value.is_ok() && !any
}

fn linked(
    request: &mut NfsRequest<'_, '_>,
    arguments: &LinkArguments<'_>,
    window: ExecutionWindow,
    reply: &mut Vec<u8>,
) -> Result<(), CallFailure> {
    let HandlePair::Both(file, directory) =
        request.resolve_both(&arguments.file, &arguments.place.directory)?
    else {
        return Ok(());
    };
    let found = new_at(&directory, arguments.place.name, window);
    let is_own = |(node, _): &(VfsNode, Attributes)| node.handle == file.node;
    let Some((node, above)) = found.filter(|found| is_own(found) && make_durable(&directory)) else {
        return Ok(());
    };
    let wcc = LinkWcc {
        attributes: file.post_op(Some(node.attributes)),
        directory: directory.wcc(None, Some(above)),
    };
    NfsResult::<LinkWcc, LinkWcc>::Ok(wcc).encode(reply);
    Ok(())
}

fn taken(
    request: &mut NfsRequest<'_, '_>,
    place: DirOpArgs<'_>,
    window: ExecutionWindow,
    reply: &mut Vec<u8>,
) -> Result<(), CallFailure> {
    let Some(directory) = target(request.resolve(&place.directory))? else {
        return Ok(());
    };
    let after = directory.vfs().attributes(&directory.node).ok();
    let has_changed = after.is_some_and(|after| is_since(after.mtime, window.from));
    if !has_changed || !make_durable(&directory) {
        return Ok(());
    }
    let changed = WccResult {
        before: None,
        after,
        value: Ok(()),
    };
    finish(Ok(removed(&directory, changed)), reply)
}

fn renamed(
    request: &mut NfsRequest<'_, '_>,
    arguments: &RenameArguments<'_>,
    window: ExecutionWindow,
    reply: &mut Vec<u8>,
) -> Result<(), CallFailure> {
    let HandlePair::Both(from, to) =
        request.resolve_both(&arguments.from.directory, &arguments.to.directory)?
    else {
        return Ok(());
    };
    let before = from.vfs().attributes(&from.node).ok();
    let has_changed = before.is_some_and(|before| is_since(before.mtime, window.from));
    if !has_changed || new_at(&to, arguments.to.name, window).is_none() || !make_durable(&to) {
        return Ok(());
    }
    let wcc = RenameWcc {
        from: from.unchanged_wcc(),
        to: to.unchanged_wcc(),
    };
    NfsResult::<RenameWcc, RenameWcc>::Ok(wcc).encode(reply);
    Ok(())
}

/// What a handle stands for; none if it cannot be used, which the failure said already.
fn target<'r>(
    resolved: Result<VerifiedHandle<'r>, Refusal>,
) -> Result<Option<VerifiedHandle<'r>>, CallFailure> {
    match resolved {
        Ok(target) => Ok(Some(target)),
        Err(Refusal::Status(_)) => Ok(None),
        Err(Refusal::Call(failure)) => Err(failure),
    }
}
