//! OPEN (RFC 8881 section 18.16).

use curt_observe::{ServerCounter, probe};
use curt_proto::nfs4::{
    Attribute, Bitmap4, ChangeInfo, CreateHow4, DelegationType, Fattr4, NfsStat4, Nfsace4, NoDelegation,
    OpenArgs4, OpenClaim, OpenDelegation, OpenHow, OpenOk4, OpenResultFlags, ShareAccess4, Stateid,
};
use curt_types::{Access, Attributes, Fault, FileKind, SetAttributes};
use curt_vfs::{CreateMode, NewNode};
use curt_xdr::{Decoder, Encode};

use super::change::{change, change_info};
use super::settable_attributes::{EXCLUSIVE_CREATE, Settable, initial};
use super::{Compound, Object, OpFailure, Outcome, decoded, io, names};
use crate::ops::{self, OpResult, PostOp};
use crate::replay::reply_cache::timestamp;
use crate::request::{NfsRequest, VerifiedHandle};
use crate::service::NfsService;
use crate::state::{
    DelegationRefusal, DelegationRequest, OpenGranted, OpenRequest, Session, ShareBits, ShareMode,
};

/// The attributes that hold the verifier of an exclusive creation until the client sets them.
const VERIFIER_ATTRIBUTES: Bitmap4 = Attribute::set(&[Attribute::TimeAccess, Attribute::TimeModify]);

/// An OPEN that creates a file takes no longer.
const CREATION_SECONDS_MAX: i64 = 60;

pub(super) fn open<'r>(
    compound: &mut Compound<'r, '_>,
    arguments: &mut Decoder<'r>,
    reply: &mut Vec<u8>,
) -> Outcome {
    let asked: OpenArgs4<'r> = decoded(arguments)?;
    let mode = share_mode(asked.share_access, asked.share_deny)?;
    let wanted = wanted_delegation(&asked)?;
    let current = compound.current()?;
    let is_reclaim = matches!(asked.claim, OpenClaim::Previous(_));
    check_claim(&asked)?;
    begin(compound, mode, is_reclaim)?;
    let delegations = &compound.request.service.held.delegations;
    let creation = matches!(asked.how, OpenHow::Create(_)).then(|| delegations.begin_creation());
    let found = find(compound, current, &asked, mode)?;
    let FoundFile { object, is_new, directory, mut set, resize } = found;
    let target = object.exported_or(NfsStat4::Isdir)?;
    // What this OPEN has created is the caller's and a regular file.
    if !is_new {
        // An exclusive creation that is repeated finds its file without a mode.
        let owner_may = is_exclusive(&asked.how) || is_open_already(&asked.claim);
        check_existing(&mut compound.request, target, mode, owner_may)?;
    }
    // No delegation is granted until the access is reserved.
    let begin = |kind| compound.request.begin_allowed_change(&target.file_key(), kind);
    let change = mode.change().map(begin).transpose()?;
    let pin = target.vfs().pin(&target.node).map_err(Fault::from)?;
    let service = compound.request.service;
    let slot = compound.slot.as_ref().ok_or(OpFailure::Status(NfsStat4::OpNotInSession))?;
    let request = OpenRequest {
        owner: asked.owner.owner.bytes(),
        file: target.file_key(),
        mode,
        is_reclaim,
        is_admitted: is_new,
        pin: Some(pin),
    };
    let granted: OpenGranted = service.open_state(slot.client(), &request)?;
    drop(creation);
    if let Some(size) = resize {
        let sized = SetAttributes { size: Some(size), ..SetAttributes::default() };
        match ops::setattr(&mut compound.request, target, &sized, None).value {
            Ok(()) => {}
            // An error would say that nothing was created.
            Err(_) if is_new => set = set.without(Attribute::set(&[Attribute::Size])),
            Err(fault) => {
                service.held.withdraw_open(slot.client(), &granted);
                return Err(fault.into());
            }
        }
    }
    drop(change);
    let delegation = delegate(compound, target, mode, wanted);
    let slot = compound.slot()?;
    service.ask_for_state(slot.client());
    let flags = result_flags(slot.session());
    let stateid = granted.stateid;
    OpenOk4 { stateid, directory, flags, attributes_set: set, delegation }.encode(reply);
    compound.set_current(object);
    compound.current_stateid = Some(granted.stateid);
    Ok(())
}

/// Checks whether the client may open files now. It is recorded if it has opened none before, which
/// may block.
fn begin(compound: &mut Compound<'_, '_>, mode: ShareMode, is_reclaim: bool) -> Outcome {
    let (service, client) = (compound.request.service, compound.slot()?.client());
    // An OPEN that is refused denies nothing.
    service.held.may_open(client, is_reclaim)?;
    client.note_denial(mode);
    if !compound.slot()?.client().is_recorded() {
        compound.request.context.may_block();
    }
    Ok(compound.request.service.begin_open(compound.slot()?.client(), is_reclaim)?)
}

/// A client that cannot be called back asks for locks more often without `MAY_NOTIFY_LOCK`.
fn result_flags(session: &Session) -> OpenResultFlags {
    let notifies = if session.takes_callbacks() { OpenResultFlags::MAY_NOTIFY_LOCK } else { 0 };
    OpenResultFlags(OpenResultFlags::LOCKTYPE_POSIX | notifies)
}

/// The file of an OPEN, which is created if the arguments say so.
fn find<'r>(
    compound: &mut Compound<'r, '_>,
    current: Object<'r>,
    asked: &OpenArgs4<'r>,
    mode: ShareMode,
) -> Result<FoundFile<'r>, OpFailure> {
    Ok(match asked.claim {
        OpenClaim::Null(name) => find_or_create(compound, &current, name.bytes(), &asked.how, mode)?,
        OpenClaim::Previous(_) | OpenClaim::Fh => FoundFile::existing(current),
        OpenClaim::DelegateCur(stateid, name) => {
            let object = names::lookup(&mut compound.request, &current, name.bytes())?;
            check_delegation(compound, &object, stateid)?;
            FoundFile::existing(object)
        }
        OpenClaim::DelegCurFh(stateid) => {
            check_delegation(compound, &current, stateid)?;
            FoundFile::existing(current)
        }
        // A client that restarts loses its delegations.
        OpenClaim::DelegatePrev(_) | OpenClaim::DelegPrevFh => return Err(NfsStat4::Notsupp.into()),
    })
}

/// The access and the denial of OPEN and OPEN_DOWNGRADE, without the delegation wanted.
pub(super) fn share_mode(access: ShareAccess4, deny: u32) -> Result<ShareMode, OpFailure> {
    let invalid = OpFailure::Status(NfsStat4::Inval);
    if access.0 & !ShareAccess4::ALL != 0 || access.access() == 0 {
        return Err(invalid);
    }
    let bits = |bits| ShareBits::from_wire(bits).ok_or(invalid);
    Ok(ShareMode { access: bits(access.access())?, deny: bits(deny)? })
}

/// The delegation that a client wants in OPEN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WantedDelegation {
    /// Nothing: it takes one, and no reason why there is none.
    Unsaid,
    /// The client wants a delegation for reading.
    Read,
    /// The client wants a delegation for writing only.
    Write,
    /// The client wants no delegation.
    None(NoDelegation),
    /// The client had this delegation before the server restarted, or had none.
    Reclaimed(DelegationType),
}

fn wanted_delegation(asked: &OpenArgs4<'_>) -> Result<WantedDelegation, OpFailure> {
    let wanted = match asked.share_access.wanted() {
        0 => WantedDelegation::Unsaid,
        ShareAccess4::WANT_NO_DELEG => WantedDelegation::None(NoDelegation::NotWanted),
        ShareAccess4::WANT_CANCEL => WantedDelegation::None(NoDelegation::Cancelled),
        ShareAccess4::WANT_READ_DELEG | ShareAccess4::WANT_ANY_DELEG => WantedDelegation::Read,
        ShareAccess4::WANT_WRITE_DELEG => WantedDelegation::Write,
        _ => return Err(NfsStat4::Inval.into()),
    };
    Ok(match asked.claim {
        OpenClaim::Previous(kind) => WantedDelegation::Reclaimed(kind),
        _ => wanted,
    })
}

/// The delegation that the client gets with its open of `target`, or why it gets none.
fn delegate(
    compound: &mut Compound<'_, '_>,
    target: &VerifiedHandle<'_>,
    mode: ShareMode,
    wanted: WantedDelegation,
) -> OpenDelegation<'static> {
    let none = |why| match wanted {
        WantedDelegation::Unsaid | WantedDelegation::Reclaimed(_) => OpenDelegation::None,
        WantedDelegation::Read | WantedDelegation::Write | WantedDelegation::None(_) => {
            OpenDelegation::NoneExt(why)
        }
    };
    let is_reclaim = match wanted {
        WantedDelegation::None(why) => return none(why),
        WantedDelegation::Write => return none(NoDelegation::WriteNotSupportedForType),
        WantedDelegation::Reclaimed(DelegationType::Read) => true,
        WantedDelegation::Reclaimed(_) => return OpenDelegation::None,
        WantedDelegation::Unsaid | WantedDelegation::Read => false,
    };
    let service = compound.request.service;
    let Some(slot) = compound.slot.as_ref() else { return OpenDelegation::None };
    if !service.grants_delegations() || !slot.session().takes_callbacks() {
        return none(NoDelegation::Resource(false));
    }
    if mode.access != ShareBits::READ {
        return none(NoDelegation::Contention(false));
    }
    if service.held.delegations.is_creating() && may_be_new(service, target) {
        return none(NoDelegation::Contention(false));
    }
    let (file, handle, granted_by) = (target.file_key(), target.handle(), slot.call());
    let delegable = service.held.check_delegable(slot.client(), &file, is_reclaim, service.uptime());
    if delegable.is_ok() && !slot.client().may_have_delegations() {
        compound.request.context.may_block();
    }
    let granted = delegable.and_then(|()| service.local_changes(target)).and_then(|local| {
        let is_changed = |attributes: Attributes| service.may_be_changed_unnoticed(attributes.ctime);
        let is_unchanged = || target.attributes().is_some_and(|attributes| !is_changed(attributes));
        let reclaim: Option<&dyn Fn() -> bool> = if is_reclaim { Some(&is_unchanged) } else { None };
        let asked = DelegationRequest { file, handle, granted_by, reclaim, local };
        service.delegate(slot.client(), asked)
    });
    match granted {
        Ok(stateid) => {
            service.counters.count(ServerCounter::DelegationsGranted);
            probe!(NfsdDelegation { fhandle: target.handle_hash(), reason: "granted" });
            // The ACE names no user who may open without a request: the client sends ACCESS.
            OpenDelegation::Read { stateid, recall: false, permissions: Nfsace4::default() }
        }
        Err(DelegationRefusal::Contention) => none(NoDelegation::Contention(false)),
        Err(DelegationRefusal::Resource) => none(NoDelegation::Resource(false)),
    }
}

/// Whether an OPEN in progress may have created a file.
fn may_be_new(service: &NfsService, target: &VerifiedHandle<'_>) -> bool {
    let now = timestamp(service.clock.coarse_wall_clock()).seconds();
    target.attributes().is_none_or(|attributes| attributes.ctime.seconds() + CREATION_SECONDS_MAX > now)
}

/// Whether the client has this delegation of the file that it opens.
fn check_delegation(compound: &Compound<'_, '_>, object: &Object<'_>, stateid: Stateid) -> Outcome {
    let target = object.exported_or(NfsStat4::BadStateid)?;
    let held = &compound.request.service.held;
    Ok(held.check_delegation(compound.slot()?.client(), &stateid, &target.file_key())?)
}

/// Whether the client has had the file open, and keeps its right as with a local descriptor. A
/// handle alone does not tell: Linux opens files by their handles, and leaves the check to the
/// server.
const fn is_open_already(claim: &OpenClaim<'_>) -> bool {
    match claim {
        OpenClaim::Previous(_) | OpenClaim::DelegateCur(..) | OpenClaim::DelegCurFh(_) => true,
        OpenClaim::Null(_) | OpenClaim::Fh | OpenClaim::DelegatePrev(_) | OpenClaim::DelegPrevFh => false,
    }
}

/// Checks whether the claim is consistent with the other arguments. The owner is one of the
/// session's client, whatever its client id says (RFC 8881 section 18.16.3).
fn check_claim(asked: &OpenArgs4<'_>) -> Outcome {
    match (&asked.how, &asked.claim) {
        // All other claims concern an existing file.
        (OpenHow::NoCreate, _) | (_, OpenClaim::Null(_)) => Ok(()),
        (OpenHow::Create(_), _) => Err(NfsStat4::Inval.into()),
    }
}

/// The file of an OPEN.
struct FoundFile<'r> {
    object: Object<'r>,
    is_new: bool,
    /// The directory's change attribute.
    directory: ChangeInfo,
    /// The attributes that were set.
    set: Bitmap4,
    /// The size to be set once the access is reserved.
    resize: Option<u64>,
}

impl<'r> FoundFile<'r> {
    fn existing(object: Object<'r>) -> Self {
        Self { object, is_new: false, directory: ChangeInfo::default(), set: Bitmap4::EMPTY, resize: None }
    }

    /// An existing file of which an unchecked creation sets the size: only zero, and no other
    /// attribute, is set.
    fn truncated(self, size: Option<u64>, mode: ShareMode) -> Result<Self, OpFailure> {
        match size {
            Some(0) if mode.access.contains(ShareBits::WRITE) => {
                Ok(Self { set: Attribute::set(&[Attribute::Size]), resize: Some(0), ..self })
            }
            Some(0) => Err(NfsStat4::Inval.into()),
            Some(_) | None => Ok(self),
        }
    }
}

fn find_or_create<'r>(
    compound: &mut Compound<'r, '_>,
    directory: &Object<'r>,
    name: &[u8],
    how: &OpenHow<'_>,
    mode: ShareMode,
) -> Result<FoundFile<'r>, OpFailure> {
    let OpenHow::Create(how) = how else {
        let object = names::lookup(&mut compound.request, directory, name)?;
        return unchanged(&mut compound.request, directory, object);
    };
    let Object::Exported(target) = directory else {
        // The pseudo file system is read-only.
        return take(compound, directory, name, how, mode, NfsStat4::Rofs.into());
    };
    // Decided before there is a new file: a client repeats what was delayed.
    let room = compound.request.service.held.has_room(compound.slot()?.client());
    let allowed = target.writable().map_err(OpFailure::from);
    match allowed.and_then(|()| room.map_err(OpFailure::from)) {
        Ok(()) => create(&mut compound.request, compound.minor_version, target, name, how, mode),
        Err(refusal) => take(compound, directory, name, how, mode, refusal),
    }
}

/// A file that was found in a directory which the OPEN did not change.
fn unchanged<'r>(
    request: &mut NfsRequest<'r, '_>,
    directory: &Object<'r>,
    object: Object<'r>,
) -> Result<FoundFile<'r>, OpFailure> {
    let status = names::attributes(request, directory)?;
    let change = change(&status);
    let info = ChangeInfo { atomic: true, before: change, after: change };
    Ok(FoundFile { directory: info, ..FoundFile::existing(object) })
}

/// The existing file that the arguments accept. `refusal`: why no file can be created.
fn take<'r>(
    compound: &mut Compound<'r, '_>,
    directory: &Object<'r>,
    name: &[u8],
    how: &CreateHow4<'_>,
    mode: ShareMode,
    refusal: OpFailure,
) -> Result<FoundFile<'r>, OpFailure> {
    let object = match names::lookup(&mut compound.request, directory, name) {
        Err(OpFailure::Status(NfsStat4::Noent)) => return Err(refusal),
        looked_up => looked_up?,
    };
    let size = match how {
        CreateHow4::Unchecked(fattr) => initial(fattr, compound.minor_version)?.values.size,
        // An earlier request of the client may have created it.
        CreateHow4::Exclusive(_) | CreateHow4::Exclusive41(..) if refusal.status() != NfsStat4::Rofs => {
            return Err(refusal);
        }
        _ => return Err(NfsStat4::Exist.into()),
    };
    let found = unchanged(&mut compound.request, directory, object)?;
    found.truncated(size, mode)
}

/// Creates a file, or finds the existing one that the arguments accept.
fn create<'r>(
    request: &mut NfsRequest<'r, '_>,
    minor_version: u32,
    directory: &VerifiedHandle<'r>,
    name: &[u8],
    how: &CreateHow4<'_>,
    mode: ShareMode,
) -> Result<FoundFile<'r>, OpFailure> {
    names::check(name)?;
    let parse = |fattr: &Fattr4<'_>| initial(fattr, minor_version);
    let (mut set, verifier) = match how {
        CreateHow4::Unchecked(fattr) | CreateHow4::Guarded(fattr) => (parse(fattr)?, None),
        CreateHow4::Exclusive(verifier) => (Settable::default(), Some(*verifier)),
        CreateHow4::Exclusive41(verifier, fattr) => {
            if !fattr.mask.without(EXCLUSIVE_CREATE).is_empty() {
                return Err(NfsStat4::Inval.into());
            }
            (parse(fattr)?, Some(*verifier))
        }
    };
    let is_unchecked = matches!(how, CreateHow4::Unchecked(_));
    // An existing file is truncated only after its access is reserved.
    let size = if is_unchecked { set.values.size.take() } else { None };
    let file = match (how, verifier) {
        (_, Some(verifier)) => CreateMode::Exclusive(verifier.0),
        (CreateHow4::Unchecked(_), _) => CreateMode::Unchecked(&set.values),
        _ => CreateMode::Guarded(&set.values),
    };
    let OpResult { attributes: around, value } = ops::make(request, directory, name, NewNode::File(file));
    let info = change_info(&around);
    let made = match value {
        Ok(made) => made,
        // The object is not a regular file, which has a status of its own.
        Err(Fault::Exist) if is_unchecked => {
            let object = names::lookup(request, &Object::Exported(directory.clone()), name)?;
            return Ok(FoundFile { directory: info, ..FoundFile::existing(object) });
        }
        Err(fault) => return Err(names::not_a_directory(fault, around.after.as_ref())),
    };
    let object = names::of_handle(request, made.handle.as_bytes())?;
    let found = FoundFile { directory: info, ..FoundFile::existing(object) };
    if verifier.is_none() && !made.is_new {
        return found.truncated(size, mode);
    }
    let mut attributes = made.attributes;
    if let (Some(_), Object::Exported(target)) = (verifier, &found.object)
        && set.values != SetAttributes::default()
    {
        match set_created(request, target, &set.values) {
            Ok(after) => attributes = after,
            // The file is there; the client learns that they are not set.
            Err(_) => set.mask = Bitmap4::EMPTY,
        }
    }
    let verifier_mask = if verifier.is_some() { VERIFIER_ATTRIBUTES } else { Bitmap4::EMPTY };
    let mask = attributes.map_or(set.mask, |attributes| set.applied_to(&attributes));
    let resize = size.filter(|size| *size > 0);
    Ok(FoundFile { is_new: made.is_new, set: mask.union(verifier_mask), resize, ..found })
}

const fn is_exclusive(how: &OpenHow<'_>) -> bool {
    matches!(how, OpenHow::Create(CreateHow4::Exclusive(_) | CreateHow4::Exclusive41(..)))
}

/// Sets the attributes of a file that was created exclusively. An owner or a group that the caller
/// may not set is left out, as in other creations.
fn set_created<'r>(
    request: &mut NfsRequest<'r, '_>,
    target: &VerifiedHandle<'r>,
    set: &SetAttributes,
) -> Result<Option<Attributes>, Fault> {
    let mut changed = ops::setattr(request, target, set, None);
    if changed.value == Err(Fault::Perm) {
        let rest = SetAttributes { uid: None, gid: None, ..*set };
        changed = ops::setattr(request, target, &rest, None);
    }
    changed.value.map(|()| changed.attributes.after)
}

/// Whether an existing object is a regular file that the caller may open. With `owner_may` the
/// owner always may.
fn check_existing(
    request: &mut NfsRequest<'_, '_>,
    target: &VerifiedHandle<'_>,
    mode: ShareMode,
    owner_may: bool,
) -> Outcome {
    let asked = Access::READ.with(Access::MODIFY).with(Access::EXECUTE);
    // Its attributes and the caller's rights at once.
    let PostOp { attributes, value: granted } = ops::access(request, target, asked);
    if let Some(status) = attributes
        && status.kind != FileKind::Regular
    {
        return Err(io::not_regular(status.kind).into());
    }
    let writes = mode.access.contains(ShareBits::WRITE);
    if writes {
        target.writable()?;
    }
    let is_owner = attributes.is_some_and(|status| status.uid == target.caller().uid);
    if owner_may && is_owner {
        return Ok(());
    }
    let granted = granted?;
    // Permission to execute implies reading, because executing reads. Denying READ to others needs
    // permission to write.
    let reads = granted.contains(Access::READ) || granted.contains(Access::EXECUTE);
    let wants_write = writes || mode.deny.contains(ShareBits::READ);
    if mode.access.contains(ShareBits::READ) && !reads || wants_write && !granted.contains(Access::MODIFY) {
        return Err(NfsStat4::Access.into());
    }
    Ok(())
}
