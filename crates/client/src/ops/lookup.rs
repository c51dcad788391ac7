//! Lookup of a name.
//!
//! Owns when LOOKUP is sent, and sends it. Policy decides; the dentry cache stores the results.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use curt_observe::{Cause, ClientCounter, probe, scope};
use curt_policy::{
    AccessDecision, AccessReason, MonotonicTime, MutationTicket, NameLabel,
    access::AllowedBy,
    complete_directory,
    kernel_cache::attribute_lifetime,
    names::{
        CreateHints, CreateProbe, DentryState, DentryUpdate, LookupDecision, LookupFinding, LookupHit,
        LookupReason, LookupTime, LookupView, decide_cached_lookup,
    },
    open::{self as rules, SpeculativeOpen},
};
use curt_types::{Access, Fault, FileKind};
use rustix::io::Errno;

use crate::{
    api::{FoundInode, InodeId, LookupResult},
    data::DataOwner,
    dentry_cache::{CachedDentry, NameInDirectory, ResolvedName},
    errno,
    inode::{Inode, InodeFlag, InodeState, SavedRequest, rights_reply::RightsReply, type_state::OpenedWith},
    ops::{
        close::OpenGuard,
        getattr,
        kernel_names::{self, NamedObject},
        permission, readlink,
        steps::open_retry,
    },
    protocol::{LookupOpenReply, LookupOpenRequest, NfsReply, OpenOwner, ReadData},
    readdir::{
        names,
        prefetch::{self, FillOutcome, MissCounting},
    },
    superblock::{Op, Superblock},
};

/// The information by which a LOOKUP reply is judged.
#[derive(Clone, Copy)]
struct LookupReplyContext<'a> {
    directory: &'a Arc<Inode>,
    name: &'a [u8],
    ticket: MutationTicket,
    adopted: bool,
    sent_at: MonotonicTime,
}

/// The origin of a lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LookupBy {
    /// A kernel or a program.
    User,
    /// Another operation of this client.
    Operation,
}

/// Most lookups of a name for a retried open, if each result differs from the one before.
const LOOKUPS_MAX: usize = 16;

/// One of the rounds of a lookup.
#[derive(Debug, Clone, Copy)]
struct LookupRound {
    by: LookupBy,
    is_first: bool,
    /// The outcome of this lookup's prefetches.
    filled: FillOutcome,
}

/// A result, and the reply to a user if it can be sent at once: its lifetimes have begun. Otherwise
/// the reply may have to wait, and its lifetimes begin afterwards.
type ResolvedReply = (ResolvedName, Option<LookupResult>);

/// The next step of a lookup.
enum LookupStep {
    Serve(AllowedBy, ResolvedReply),
    /// Send LOOKUP for this reason, although the lookup could be served. The entry is that of the
    /// name.
    Confirm(AllowedBy, LookupReason, CachedDentry),
    Revalidate,
    AskAccess(AccessReason),
    Deny,
    Lookup(LookupReason, Option<CachedDentry>),
}

impl CachedDentry {
    fn state(&self) -> DentryState {
        if self.child.is_some() { DentryState::Positive } else { DentryState::Negative }
    }
}

impl InodeState {
    /// Begins the lookup of a name in this directory, after which the caller may request
    /// attributes.
    ///
    /// # Errors
    /// ENOTDIR if it is known not to be a directory.
    fn begin_lookup(&mut self) -> Result<(), Errno> {
        match self.attributes.newest().map(|known| known.kind) {
            Some(FileKind::Directory) | None => {
                self.note_stat();
                Ok(())
            }
            Some(_) => Err(Errno::NOTDIR),
        }
    }
}

/// The signs that `cached` is looked up in order to create its name.
fn create_signs(
    op: &Op<'_>,
    directory: &Arc<Inode>,
    locked: &InodeState,
    cached: &CachedDentry,
) -> CreateHints {
    let Some(child) = cached.child.as_ref().filter(|_| op.sb.is_used_by_kernel()) else {
        return CreateHints::default();
    };
    let known = locked.by_type.directory_if_any().and_then(|directory| directory.create_probe);
    let is_unused = child.has(InodeFlag::LookedUp);
    CreateHints {
        repeated: known.filter(|(last, _)| is_unused && *last == child.id()).map(|(_, probe)| probe),
        kernel_has_name: op.sb.kernel_dentries.lasted(
            child.id(),
            directory,
            op.sb.core.kernel_time(op.began),
        ),
    }
}

/// Records the lookup of a cached name for [`create_signs`] of the next one.
fn note_repeated(op: &Op<'_>, locked: &mut InodeState, cached: &CachedDentry) {
    if let Some(child) = &cached.child
        && op.sb.is_used_by_kernel()
        && cached.label.sent_at < op.began
    {
        let is_unused = child.set(InodeFlag::LookedUp);
        match &mut locked.by_type.directory().create_probe {
            Some((last, probe)) if is_unused && *last == child.id() => probe.note_lookup(op.began),
            probe => *probe = Some((child.id(), CreateProbe::begun(op.began))),
        }
    }
}

/// Returns the inode `id`, which need not have counted lookups any more, and counts one lookup.
/// Always sends GETATTR.
///
/// # Errors
/// ESTALE: the object is gone, or its ID was dropped. Those of GETATTR.
pub fn lookup_id(op: &Op<'_>, id: InodeId) -> Result<LookupResult, Errno> {
    let held = op.sb.find_inode(id).ok();
    let inode = held.or_else(|| op.sb.registry.forgotten(id)).ok_or(Errno::STALE)?;
    getattr::send_getattr(op, &inode)?;
    found(op, NameInDirectory::new(&inode, b"."), &inode, None).map(LookupResult::Positive)
}

/// If the caller's open failed with ESTALE, sends LOOKUP for a name that was cached before: the
/// kernel retries once, and the cached file may have been replaced as well.
fn revalidate_for_open(
    op: &Op<'_>,
    directory: &Arc<Inode>,
    name: &[u8],
    resolved: ResolvedName,
) -> Result<ResolvedName, Errno> {
    let cached = match &resolved {
        ResolvedName::Object(inode, Some(label)) => {
            CachedDentry { child: Some(Arc::clone(inode)), label: *label }
        }
        ResolvedName::Missing(Some(label)) => CachedDentry { child: None, label: *label },
        ResolvedName::Object(_, None) | ResolvedName::Missing(None) => return Ok(resolved),
    };
    if !op.sb.stale_opens.is_outdated(op.pid, cached.label.sent_at, op.began) {
        return Ok(resolved);
    }
    let reason = LookupReason::DirectoryChanged;
    count_lookup(op.sb, reason, Some(&cached));
    let _why = scope::with_cause(Cause::NameAgain);
    revalidate_name(op, directory, name, reason, Some(cached), SpeculativeOpen::Nothing)
}

/// If the caller's open failed with ESTALE, holds the file that `name` refers to for the retry.
/// `resolved` is the result of the lookup; the name may refer to another object once the file's
/// removals have ended.
fn hold_for_open(
    op: &Op<'_>,
    directory: &Arc<Inode>,
    name: &[u8],
    mut resolved: ResolvedName,
) -> Result<ResolvedName, Errno> {
    open_retry::expire(op);
    if !op.sb.stale_opens.contains(op.pid) {
        return Ok(resolved);
    }
    for _ in 0..LOOKUPS_MAX {
        let ResolvedName::Object(found, _) = &resolved else {
            drop(open_retry::take_stale_open(op));
            break;
        };
        let found = Arc::clone(found);
        let Some(opening) = OpenGuard::begin_if_file(op, &found)? else {
            break;
        };
        resolved = resolve(op, directory, name)?;
        if matches!(&resolved, ResolvedName::Object(again, _) if Arc::ptr_eq(again, &found)) {
            opening.leave();
            open_retry::hold_for_retry(op, found);
            break;
        }
    }
    Ok(resolved)
}

/// The object that `name` in `directory` refers to. A [`LookupResult::Positive`] counts one lookup
/// of the object. Its attributes are as recent as the mount options require for a lookup;
/// `attributes_valid` is zero if stat(2) must revalidate them.
///
/// `.` and `..` are supported; `..` of the root is the root.
///
/// # Errors
/// EACCES if the caller may not search the directory, ENAMETOOLONG, ENOTDIR, ESTALE, those of
/// LOOKUP.
pub fn lookup(op: &Op<'_>, directory: InodeId, name: &[u8]) -> Result<LookupResult, Errno> {
    let directory = op.sb.find_inode(directory)?;
    kernel_names::check_path(op, &directory)?;
    let (mut resolved, ready) = resolve_by(op, &directory, name, LookupBy::User)?;
    if let Some(reply) = ready {
        if let ResolvedName::Object(inode, _) = &resolved {
            count_found(op.sb, &directory, inode);
        }
        return Ok(reply);
    }
    if !op.sb.stale_opens.is_empty() {
        resolved = revalidate_for_open(op, &directory, name, resolved)?;
        resolved = hold_for_open(op, &directory, name, resolved)?;
    }
    let name = NameInDirectory::new(&directory, name);
    match resolved {
        ResolvedName::Object(inode, label) => {
            readlink::revalidate_target(op, &inode)?;
            found(op, name, &inode, label).map(LookupResult::Positive)
        }
        ResolvedName::Missing(label) => {
            Ok(LookupResult::Negative { entry_valid: kernel_names::grant(op, name, None, label) })
        }
    }
}

/// The result for an object that was found under a name; counts one lookup of it. The reply is sent
/// without a further wait: the lifetimes in it begin now.
pub(crate) fn found(
    op: &Op<'_>,
    name: NameInDirectory<'_>,
    inode: &Arc<Inode>,
    label: Option<NameLabel>,
) -> Result<FoundInode, Errno> {
    readlink::await_target_dropped(op, inode);
    let found = last_found(op, inode).ok_or(Errno::STALE)?;
    count_found(op.sb, name.directory, inode);
    let object = NamedObject { inode, kind: found.attributes.kind };
    let entry_valid = kernel_names::grant(op, name, Some(object), label);
    Ok(FoundInode { entry_valid, ..found })
}

/// The result for `inode` without a lifetime of its name; `None` if no attributes are known.
fn last_found(op: &Op<'_>, inode: &Inode) -> Option<FoundInode> {
    let locked = inode.lock();
    let attributes = inode.attributes_in(&locked)?;
    let valid = attribute_lifetime(&locked.attributes, op.now(), &op.options);
    drop(locked);
    // While data are dirty, the server determines times and size: stat(2) must request them.
    let attributes_valid = if inode.has_unsent() { Duration::ZERO } else { valid };
    Some(FoundInode { id: inode.id(), attributes, entry_valid: Duration::ZERO, attributes_valid })
}

/// As [`last_found`], if it can be sent at once: a reply for a symbolic link waits until the kernel
/// has dropped an old target.
fn ready_child(op: &Op<'_>, inode: &Inode) -> Option<FoundInode> {
    let found = last_found(op, inode)?;
    let is_ready = found.attributes.kind != FileKind::Symlink || readlink::is_target_settled(op, inode);
    is_ready.then_some(found)
}

/// Counts one lookup of `inode`, which was found in `directory`.
fn count_found(sb: &Superblock, directory: &Inode, inode: &Arc<Inode>) {
    directory.set(InodeFlag::ReturnedNames);
    sb.count_lookup(inode);
}

/// Resolves `name`, from the cache if it is valid.
pub(crate) fn resolve(op: &Op<'_>, directory: &Arc<Inode>, name: &[u8]) -> Result<ResolvedName, Errno> {
    let (resolved, _) = resolve_by(op, directory, name, LookupBy::Operation)?;
    Ok(resolved)
}

/// As [`resolve`]; also returns the reply, if it is from the cache and can be sent at once.
fn resolve_by(
    op: &Op<'_>,
    directory: &Arc<Inode>,
    name: &[u8],
    by: LookupBy,
) -> Result<ResolvedReply, Errno> {
    check_name(op.sb, name)?;
    if let Some(resolved) = resolve_itself(op, directory, name, by)? {
        return Ok((resolved, None));
    }
    let mut why = None;
    let mut prefetches = LookupPrefetches::default();
    for round in op.rounds() {
        let round = LookupRound { by, is_first: round == 0, filled: prefetches.filled };
        match next_step(op, NameInDirectory::new(directory, name), round)? {
            LookupStep::Serve(allowed_by, resolved) => {
                op.sb.count_allowed(allowed_by, why);
                return Ok(resolved);
            }
            LookupStep::Confirm(allowed_by, reason, cached) => {
                op.sb.count_allowed(allowed_by, why);
                count_lookup(op.sb, reason, Some(&cached));
                let _why = scope::with_cause(Cause::NameAgain);
                let speculative = SpeculativeOpen::Nothing;
                let resolved = revalidate_name(op, directory, name, reason, Some(cached), speculative)?;
                names::compare_with_listing(op.sb, directory, name, reason, &resolved);
                return Ok((resolved, None));
            }
            LookupStep::Deny => {
                permission::count_denied(op.sb, why);
                return Err(Errno::ACCESS);
            }
            LookupStep::Revalidate => revalidate_for_name(op, directory, name)?,
            LookupStep::AskAccess(reason) => {
                permission::send_access(op, directory, reason)?;
                why = Some(reason);
            }
            LookupStep::Lookup(reason, former) => {
                let speculative = decide_speculative_open(op, name, former.as_ref());
                let is_opening = matches!(speculative, SpeculativeOpen::Open(_));
                // A file that is opened by the look-up takes a request in any case.
                let counting = if is_opening { MissCounting::Later } else { MissCounting::Now };
                if prefetches.begin(op, directory, name, former.is_some(), counting)? {
                    continue;
                }
                count_lookup(op.sb, reason, former.as_ref());
                let _why = former.is_some().then(|| scope::with_cause(Cause::NameAgain));
                let resolved = revalidate_name(op, directory, name, reason, former, speculative)?;
                if is_opening && !is_file(&resolved) {
                    prefetch::note_miss(op.sb, directory);
                }
                names::compare_with_listing(op.sb, directory, name, reason, &resolved);
                return Ok((resolved, None));
            }
        }
    }
    Err(Errno::IO)
}

/// Resolves `.`, and `..` of the root.
fn resolve_itself(
    op: &Op<'_>,
    directory: &Arc<Inode>,
    name: &[u8],
    by: LookupBy,
) -> Result<Option<ResolvedName>, Errno> {
    let counter = match name {
        b"." => ClientCounter::DotHit,
        b".." if Arc::ptr_eq(directory, &op.sb.root) => ClientCounter::DotdotHit,
        _ => return Ok(None),
    };
    if by == LookupBy::User {
        directory.lock().begin_lookup()?;
    }
    permission::require(op, directory, Access::LOOKUP)?;
    op.sb.count(counter);
    Ok(Some(ResolvedName::Object(Arc::clone(directory), None)))
}

/// The prefetches of one lookup: at most one of each kind, because prefetched names are invalid at
/// once if other clients change the directory continuously.
#[derive(Default)]
struct LookupPrefetches {
    has_asked_listing: bool,
    has_filled: bool,
    filled: FillOutcome,
}

impl LookupPrefetches {
    /// Fetches `name` together with others, if that is worth it; returns whether the name may be
    /// cached then. With `softreval` and a cached name, only LOOKUP is sent: it can time out and
    /// use the cache.
    fn begin(
        &mut self,
        op: &Op<'_>,
        directory: &Arc<Inode>,
        name: &[u8],
        was_known: bool,
        counting: MissCounting,
    ) -> Result<bool, Errno> {
        let can_wait = !was_known || op.sb.soft_revalidation.is_none();
        let may_ask = !std::mem::replace(&mut self.has_asked_listing, true) && can_wait;
        if may_ask && prefetch::fill_from_listing(op, directory, name, was_known) {
            return Ok(true);
        }
        if std::mem::replace(&mut self.has_filled, true) || !can_wait {
            return Ok(false);
        }
        self.filled = prefetch::fill(op, directory, name, counting)?;
        Ok(self.filled != FillOutcome::Nothing)
    }
}

/// Revalidates `directory`, because a cached name of it is needed.
fn revalidate_for_name(op: &Op<'_>, directory: &Arc<Inode>, name: &[u8]) -> Result<(), Errno> {
    op.sb.count(ClientCounter::DirGetattrForName);
    let _why = scope::with_cause(Cause::NameCheck);
    probe!(NfsLookupRevalidateEnter { dir: directory.event_fileid(), name });
    let answer = getattr::revalidate(op, directory);
    probe!(NfsLookupRevalidateExit {
        dir: directory.event_fileid(),
        name,
        error: errno::event_status(&answer)
    });
    answer
}

/// Refuses names that no directory can contain.
pub(crate) fn check_name(sb: &Superblock, name: &[u8]) -> Result<(), Errno> {
    let longest = sb.path_limits.longest_name();
    if name.is_empty() {
        return Err(Errno::NOENT);
    }
    if name.iter().any(|byte| matches!(byte, 0 | b'/')) {
        return Err(Errno::INVAL);
    }
    if u32::try_from(name.len()).map_or(true, |length| length > longest) {
        return Err(Errno::NAMETOOLONG);
    }
    Ok(())
}

/// Decides under one lock of the directory.
fn next_step(op: &Op<'_>, name: NameInDirectory<'_>, round: LookupRound) -> Result<LookupStep, Errno> {
    let NameInDirectory { directory, name: bytes } = name;
    let (is_parent, is_user) = (bytes == b"..", round.by == LookupBy::User);
    let cached = if is_parent { None } else { op.sb.dentries.cached_name(directory, bytes) };
    // Read first, because no two inodes are locked at once.
    let child = cached.as_ref().and_then(|cached| cached.child.as_ref());
    let counted_in = child.and_then(|child| child.unused_in());
    let child = child.filter(|_| is_user).and_then(|child| ready_child(op, child));
    let mut locked = directory.lock();
    if is_user && round.is_first {
        locked.begin_lookup()?;
    }
    let cached = if is_parent { locked.parent() } else { cached };
    let decision = decide_name(op, name, &locked, cached.as_ref(), round.by, child);
    let LookupDecision::Lookup(reason) = decision else {
        let reply = hit_reply(op, &mut locked, name, round.by, decision, cached.as_ref(), child);
        let used = note_hit(op.sb, &mut locked, name, decision, cached.as_ref(), counted_in.as_ref());
        drop(locked);
        used.note_elsewhere(op.sb);
        return Ok(step(decision, cached, reply));
    };
    let Some(absence) = names::negative_under_lock(op.sb, &mut locked, bytes) else {
        return Ok(LookupStep::Lookup(reason, cached));
    };
    let decision = decide_name(op, name, &locked, Some(&absence), round.by, None);
    if let LookupDecision::Lookup(reason) = decision {
        return Ok(LookupStep::Lookup(reason, cached));
    }
    if let (LookupDecision::Serve(served), Some(former)) = (decision, &cached)
        && !complete_directory::answers_for(former.state())
    {
        return Ok(LookupStep::Confirm(served.allowed_by, reason, former.clone()));
    }
    let (mut reply, mut dropped) = (None, Vec::new());
    let mut used = note_hit(op.sb, &mut locked, name, decision, Some(&absence), None);
    if let LookupDecision::Serve(_) = decision {
        dropped = op.sb.dentries.keep_missing(name, absence.label);
        op.sb.count(ClientCounter::DirFillMissing);
        reply = hit_reply(op, &mut locked, name, round.by, decision, Some(&absence), None);
        used.saved = if round.filled == FillOutcome::Sent { None } else { locked.note_saved() };
    }
    drop(locked);
    drop(dropped);
    used.note_elsewhere(op.sb);
    Ok(step(decision, Some(absence), reply))
}

/// The reply to a user from a cached entry, if it can be sent at once: the lifetime of the name is
/// granted under the lock of the directory. `child`: the result for its object.
fn hit_reply(
    op: &Op<'_>,
    locked: &mut InodeState,
    name: NameInDirectory<'_>,
    by: LookupBy,
    decision: LookupDecision,
    cached: Option<&CachedDentry>,
    child: Option<FoundInode>,
) -> Option<LookupResult> {
    let (LookupBy::User, Some(cached)) = (by, cached) else {
        return None;
    };
    let lifetime = match decision {
        LookupDecision::Serve(served) => Some(served.lifetime),
        LookupDecision::Confirm(_) => None,
        LookupDecision::Deny
        | LookupDecision::Revalidate
        | LookupDecision::AskAccess(_)
        | LookupDecision::Lookup(_) => return None,
    };
    note_repeated(op, locked, cached);
    let is_ready = child.is_some() || cached.child.is_none();
    let lifetime = lifetime.filter(|_| is_ready && op.sb.stale_opens.is_empty())?;
    let kind = child.map(|child| child.attributes.kind);
    let object = cached.child.as_ref().zip(kind).map(|(inode, kind)| NamedObject { inode, kind });
    let entry_valid = kernel_names::grant_locked(op, locked, name, object, cached.label, lifetime);
    Some(match child {
        Some(child) => LookupResult::Positive(FoundInode { entry_valid, ..child }),
        None => LookupResult::Negative { entry_valid },
    })
}

fn step(decision: LookupDecision, cached: Option<CachedDentry>, reply: Option<LookupResult>) -> LookupStep {
    match (decision, cached) {
        (LookupDecision::Serve(served), Some(cached)) => {
            let resolved = match cached.child {
                Some(child) => ResolvedName::Object(child, Some(cached.label)),
                None => ResolvedName::Missing(Some(cached.label)),
            };
            LookupStep::Serve(served.allowed_by, (resolved, reply))
        }
        (LookupDecision::Confirm(served), Some(cached)) => {
            LookupStep::Confirm(served.allowed_by, LookupReason::Unknown, cached)
        }
        (LookupDecision::Serve(_) | LookupDecision::Confirm(_), None) => {
            LookupStep::Lookup(LookupReason::Unknown, None)
        }
        (LookupDecision::Deny, _) => LookupStep::Deny,
        (LookupDecision::Revalidate, _) => LookupStep::Revalidate,
        (LookupDecision::AskAccess(reason), _) => LookupStep::AskAccess(reason),
        (LookupDecision::Lookup(reason), cached) => LookupStep::Lookup(reason, cached),
    }
}

/// `child`: the result for the object of `cached`.
fn decide_name(
    op: &Op<'_>,
    name: NameInDirectory<'_>,
    locked: &InodeState,
    cached: Option<&CachedDentry>,
    by: LookupBy,
    child: Option<FoundInode>,
) -> LookupDecision {
    let (now, directory) = (op.now(), name.directory);
    let clock = op.sb.core.clocks.of(locked.fsid().unwrap_or(0));
    let user = cached.filter(|_| by == LookupBy::User);
    let kind = child.map(|child| child.attributes.kind);
    let view = LookupView {
        entry: cached.map(|cached| (cached.state(), cached.label)),
        is_parent: name.name == b"..",
        directory: directory.directory_view(locked, &clock),
        freshness: locked.freshness(op.time(), &op.options),
        access: directory.access_view(locked, &op.identity, now),
        wanted: LookupTime { began: op.began, now },
        kernel: user.and_then(|_| kernel_names::view(op, locked, name.name, kind)),
        create: user.map(|cached| create_signs(op, directory, locked, cached)).unwrap_or_default(),
    };
    decide_cached_lookup(&view, &op.options)
}

/// The use of a cached name, as far as it is recorded outside the name's directory.
#[derive(Default)]
struct NameUse {
    saved: Option<SavedRequest>,
    /// The object, if its use is not recorded yet.
    child: Option<Arc<Inode>>,
}

impl NameUse {
    /// Records it there. Called with no inode locked.
    fn note_elsewhere(self, sb: &Superblock) {
        if let Some(child) = self.child {
            child.note_use();
        }
        if let Some(saved) = self.saved {
            saved.note_elsewhere(&sb.core);
        }
    }
}

/// Records in the directory that a cached name of it is used. `counted_in`: [`Inode::unused_in`] of
/// its object.
fn note_hit(
    sb: &Superblock,
    locked: &mut InodeState,
    name: NameInDirectory<'_>,
    decision: LookupDecision,
    cached: Option<&CachedDentry>,
    counted_in: Option<&Arc<Inode>>,
) -> NameUse {
    let mut used = NameUse::default();
    let (LookupDecision::Serve(served) | LookupDecision::Confirm(served), Some(cached)) = (decision, cached)
    else {
        return used;
    };
    sb.count(match served.hit {
        LookupHit::Parent => ClientCounter::DotdotHit,
        LookupHit::Positive => ClientCounter::PosHit,
        LookupHit::Negative => ClientCounter::NegHit,
    });
    let Some(child) = &cached.child else { return used };
    if child.clear(InodeFlag::Primed) {
        used.saved = locked.note_saved();
        if used.saved.is_some() {
            sb.count(ClientCounter::DirFillUsed);
        }
    }
    if counted_in.is_none_or(|home| !Arc::ptr_eq(home, name.directory)) {
        used.child = Some(child).filter(|child| !child.has(InodeFlag::UsedSinceRefresh)).cloned();
    } else if !child.set(InodeFlag::UsedSinceRefresh) {
        locked.by_type.directory().prefetch.used();
    }
    used
}

fn count_lookup(sb: &Superblock, why: LookupReason, former: Option<&CachedDentry>) {
    let was_missing = former.map(|cached| cached.child.is_none());
    sb.count(match (was_missing, why) {
        (None, _) => ClientCounter::PosMiss,
        (Some(false), _) => ClientCounter::PosStale,
        (Some(true), LookupReason::Racy) => ClientCounter::NegRacyRequery,
        (Some(true), LookupReason::TooOld) => ClientCounter::NegExpire,
        (Some(true), LookupReason::DirectoryChanged) => ClientCounter::NegPurgeDirchange,
        (Some(true), LookupReason::Unknown) => ClientCounter::NegMiss,
    });
}

/// Sends LOOKUP. With `softreval`, the cached name is used if the server does not respond, unless
/// the directory is known to have changed.
pub(crate) fn revalidate_name(
    op: &Op<'_>,
    directory: &Arc<Inode>,
    name: &[u8],
    reason: LookupReason,
    former: Option<CachedDentry>,
    speculative: SpeculativeOpen,
) -> Result<ResolvedName, Errno> {
    let usable = match reason {
        LookupReason::DirectoryChanged => None,
        LookupReason::Unknown | LookupReason::TooOld | LookupReason::Racy => former.clone(),
    };
    let Some(usable) = usable.filter(|_| op.sb.soft_revalidation.is_some()) else {
        return send_lookup_with_open(op, directory, name, former, speculative);
    };
    if !op.uses_cache.get()
        && let Some(resolved) = getattr::with_softreval(op, |op| {
            send_lookup_with_open(op, directory, name, former.clone(), speculative)
        })?
    {
        return Ok(resolved);
    }
    match permission::access_decision(op, directory, Access::LOOKUP) {
        AccessDecision::Allow => Ok(match usable.child {
            Some(child) => ResolvedName::Object(child, None),
            None => ResolvedName::Missing(None),
        }),
        AccessDecision::Deny | AccessDecision::Revalidate | AccessDecision::Ask(_) => {
            send_lookup_with_open(op, directory, name, former, speculative)
        }
    }
}

/// Decides whether the look-up of a name also opens or reads the file that it finds.
fn decide_speculative_open(op: &Op<'_>, name: &[u8], former: Option<&CachedDentry>) -> SpeculativeOpen {
    if former.is_some_and(|former| former.child.is_some()) || name == b".." {
        return SpeculativeOpen::Nothing;
    }
    let delegates = op.options.uses_delegations() && op.protocol().expects_delegations();
    op.sb.core.speculations(|benefits| rules::decide_speculative_open(&op.options, delegates, benefits))
}

fn is_file(resolved: &ResolvedName) -> bool {
    let ResolvedName::Object(inode, _) = resolved else { return false };
    inode.lock().attributes.newest().is_some_and(|known| known.kind == FileKind::Regular)
}

/// Sends LOOKUP. `former` is the cached entry of the name.
pub(crate) fn send_lookup(
    op: &Op<'_>,
    directory: &Arc<Inode>,
    name: &[u8],
    former: Option<CachedDentry>,
) -> Result<ResolvedName, Errno> {
    send_lookup_with_open(op, directory, name, former, SpeculativeOpen::Nothing)
}

/// Sends a LOOKUP with additional operations.
fn send_lookup_with_open(
    op: &Op<'_>,
    directory: &Arc<Inode>,
    name: &[u8],
    former: Option<CachedDentry>,
    speculative: SpeculativeOpen,
) -> Result<ResolvedName, Errno> {
    let ticket = directory.lock().attributes.ticket();
    let (caller, handle) = (op.rpc_caller(), directory.handle());
    let owner = OpenOwner { number: op.identity.number, credential: &op.identity.credential };
    let speculative = match speculative {
        SpeculativeOpen::Nothing => None,
        SpeculativeOpen::Read(read) => Some(LookupOpenRequest { rights: Access::ALL, read, open: None }),
        SpeculativeOpen::Open(read) => {
            Some(LookupOpenRequest { rights: Access::ALL, read, open: Some(owner) })
        }
    };
    let answer = match speculative {
        Some(speculative) => op.protocol().find_to_open(caller, handle, name, speculative),
        None => op.protocol().find(caller, handle, name).map(|answer| NfsReply {
            sent_at: answer.sent_at,
            lost_at: answer.lost_at,
            outcome: answer.outcome.map(LookupOpenReply::from),
            attributes: answer.attributes,
        }),
    };
    let answer = answer.map_err(errno::of_call)?;
    let sent_at = op.sb.core.moment(answer.sent_at);
    let adopted =
        answer.attributes.as_ref().is_some_and(|attributes| directory.absorb(attributes, sent_at).adopted);
    let learning = LookupReplyContext { directory, name, ticket, adopted, sent_at };
    let reply = RightsReply::new(sent_at, answer.attributes.as_ref());
    match answer.outcome {
        Ok(found) => {
            directory.prove(&op.identity, Access::LOOKUP, reply);
            let inode = op.sb.registry.inode(&found.found.handle);
            inode.clear(InodeFlag::Stale);
            absorb_found(op, &inode, found, answer.sent_at)?;
            let label = learn(op.sb, &learning, Some(&inode));
            inode.note_use();
            note_false_negative(op.sb, directory, former.as_ref(), label);
            Ok(ResolvedName::Object(inode, label))
        }
        Err(Fault::Noent) => {
            directory.prove(&op.identity, Access::LOOKUP, reply);
            op.sb.count(ClientCounter::NegMiss);
            Ok(ResolvedName::Missing(learn(op.sb, &learning, None)))
        }
        Err(status) => {
            directory.note_refusal(&op.identity, status, Access::LOOKUP, reply);
            Err(directory.note_failed_status(status))
        }
    }
}

/// Caches what a LOOKUP has found of an object.
fn absorb_found(
    op: &Op<'_>,
    inode: &Arc<Inode>,
    found: LookupOpenReply,
    sent_at: Instant,
) -> Result<(), Errno> {
    let LookupOpenReply { found, granted, data, was_opened, delegation } = found;
    // A change on this mount has an inode for the file. If this one is new, the reply shows all
    // changes that have ended, and the ticket any other.
    let ticket = inode.lock().attributes.ticket();
    let is_new = inode.lock().attributes.newest().is_none();
    if let Some(delegation) = &delegation {
        inode.hold_delegation(delegation);
    }
    let Some(attributes) = &found.attributes else { return getattr::send_getattr(op, inode) };
    let sent = op.sb.core.moment(sent_at);
    let (is_adopted, dated) = if is_new {
        inode.absorb_opened(attributes, sent, ticket, delegation.as_ref())
    } else {
        (inode.absorb(attributes, sent).adopted, sent)
    };
    if let Some(granted) = granted {
        let rights = Access::applicable_to(attributes.kind);
        let reply = RightsReply::new(dated, Some(attributes));
        inode.absorb_answer(&op.identity, rights, granted.common(rights), reply);
    }
    if was_opened {
        inode.lock().by_type.file().opened_ahead.set(OpenedWith::Lookup);
        op.sb.core.speculations(|benefits| benefits.lookup_opens.record(false));
        op.sb.count(ClientCounter::LookupOpen);
    }
    if let Some(data) = data.filter(|_| is_adopted && attributes.kind == FileKind::Regular) {
        enter_data(op, inode, data, op.sb.core.instant(dated).max(sent_at));
    }
    Ok(())
}

/// Caches what was read together with a LOOKUP, with the caller's credential.
fn enter_data(op: &Op<'_>, inode: &Arc<Inode>, data: ReadData, sent_at: Instant) {
    let owner = Arc::clone(inode) as Arc<dyn DataOwner>;
    inode.lock().by_type.file().first_user.get_or_insert(op.identity.number);
    let is_whole = op.sb.core.data.enter_untouched(&owner, data, sent_at);
    op.sb.core.speculations(|benefits| benefits.lookup_reads.record(false));
    if is_whole {
        op.sb.count(ClientCounter::LookupRead);
    }
}

/// Handles a negative entry that was wrong although the directory's timestamps are unchanged: the
/// server's timestamps are coarser than assumed.
fn note_false_negative(
    sb: &Superblock,
    directory: &Inode,
    former: Option<&CachedDentry>,
    label: Option<NameLabel>,
) {
    let was_missing = former.filter(|cached| cached.child.is_none()).map(|cached| cached.label.epoch);
    if was_missing.is_some() && was_missing == label.map(|label| label.epoch) {
        sb.count(ClientCounter::NegFalse);
        sb.core.clocks.proven_coarse(directory.fsid().unwrap_or(0));
    }
}

/// Caches the result of a LOOKUP, if policy allows it.
fn learn(
    sb: &Superblock,
    learning: &LookupReplyContext<'_>,
    child: Option<&Arc<Inode>>,
) -> Option<NameLabel> {
    let LookupReplyContext { directory, name, ticket, adopted, sent_at } = *learning;
    let said = if child.is_some() { LookupFinding::Object } else { LookupFinding::Nothing };
    let learned = curt_policy::names::learn(said, ticket, &directory.lock().attributes, adopted, sent_at);
    if child.is_none() && learned == DentryUpdate::Forget {
        sb.count(ClientCounter::NegRejectRace);
    }
    sb.dentries.cache_learned(directory, name, child, learned, Some(ticket))
}

#[cfg(test)]
mod tests;
