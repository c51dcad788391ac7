//! From a name to what it leads to.
//!
//! Owns when LOOKUP is sent (`asking` sends it). Policy decides, the DentryCache keeps.

mod request;

use std::{sync::Arc, time::Duration};

use curt_policy::{
    AccessDecision, NameDecision, NameIntent, NameLabel, NameView, kernel_cache,
    names::{DentryState as Known, LookupReason, LookupTime, decide_lookup},
};
use curt_trace::{Cause, ClientCounter, scope};
use curt_trace::{events::Event, probe};
use curt_types::Access;
use rustix::io::Errno;

use crate::{
    api::{FoundInode, LookupResult},
    client::{Client, OpContext},
    dentry_cache::CachedDentry,
    errno,
    identity::{Caller, InodeId},
    inode::Inode,
    listing::FillOutcome,
};

/// What a name leads to, and how that was learned if it was kept.
#[derive(Debug)]
pub(crate) enum ResolvedName {
    Object(Arc<Inode>, Option<NameLabel>),
    Missing(Option<NameLabel>),
}

/// Where a kept answer comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NameHitSource {
    /// The name itself is kept.
    Name,
    /// All names of the directory are, and it is not among them.
    Listing,
}

/// What a look-up is to do next.
enum LookupStep {
    Serve(ResolvedName, NameHitSource),
    Revalidate,
    AskAccess(curt_policy::AccessReason),
    Deny,
    Lookup(LookupReason, Option<CachedDentry>),
}

impl Client {
    /// What `name` in `directory` leads to. A [`LookupResult::Positive`] holds one look-up of the
    /// object. Its attributes are as old as the rules of the mount's options allow for a name;
    /// `attributes_valid` is zero if stat(2) would have to ask.
    ///
    /// `.` and `..` are answered too; `..` of the root is the root.
    ///
    /// # Errors
    /// EACCES if the caller may not search the directory, ENAMETOOLONG, ENOTDIR, ESTALE, those of
    /// LOOKUP.
    pub fn lookup(&self, caller: &Caller, directory: InodeId, name: &[u8]) -> Result<LookupResult, Errno> {
        let directory = self.find_directory(directory)?;
        let asked = self.op_context(caller);
        self.note_stat(&directory);
        let resolved = self.resolve_for_kernel(&asked, &directory, name)?;
        match self.hold_for_open(&asked, caller, &directory, name, resolved)? {
            ResolvedName::Object(inode, label) => {
                let found = self.found(&directory, &inode, label)?;
                Ok(LookupResult::Positive(found))
            }
            ResolvedName::Missing(label) => Ok(LookupResult::Negative {
                entry_valid: self.name_lifetime(&directory, Known::Negative, label),
            }),
        }
    }

    /// What `name` leads to, from memory only if whoever asks cannot be known to be about to make
    /// it.
    fn resolve_for_kernel(
        &self,
        asked: &OpContext,
        directory: &Arc<Inode>,
        name: &[u8],
    ) -> Result<ResolvedName, Errno> {
        let kept = match self.resolve(asked, directory, name)? {
            ResolvedName::Object(inode, Some(label))
                if self.is_create_probe(asked, directory, &inode, label) =>
            {
                CachedDentry {
                    child: Some(inode),
                    label,
                }
            }
            resolved => return Ok(resolved),
        };
        self.count_lookup(LookupReason::Unknown, Some(&kept));
        let _why = scope::with_cause(Cause::NameAgain);
        self.revalidate_name(asked, directory, name, LookupReason::Unknown, Some(kept))
    }

    /// What is told of an object that was found; holds a look-up of it.
    pub(crate) fn found(
        &self,
        directory: &Inode,
        inode: &Arc<Inode>,
        label: Option<NameLabel>,
    ) -> Result<FoundInode, Errno> {
        let entry_valid = self.name_lifetime(directory, Known::Positive, label);
        let (attributes, attributes_valid) = {
            let now = self.core.now();
            let options = self.core.options();
            let facts = inode.facts();
            let attributes = inode.attributes_in(&facts).ok_or(Errno::STALE)?;
            (
                attributes,
                kernel_cache::attribute_lifetime(&facts.state, now, &options),
            )
        };
        // Times and size of what is not sent yet are the server's to tell: stat has to come back.
        let attributes_valid = if inode.has_unsent() {
            Duration::ZERO
        } else {
            attributes_valid
        };
        directory.tells_a_name();
        self.hold(inode);
        Ok(FoundInode {
            id: inode.id(),
            attributes,
            entry_valid,
            attributes_valid,
        })
    }

    pub(crate) fn name_lifetime(
        &self,
        directory: &Inode,
        known: Known,
        label: Option<NameLabel>,
    ) -> Duration {
        let Some(label) = label else { return Duration::ZERO };
        let now = self.core.now();
        let options = self.core.options();
        let clock = self.core.server_clock(directory.fsid().unwrap_or(0));
        let facts = directory.facts();
        kernel_cache::name_lifetime(known, label, &facts.state, &clock, now, &options)
    }

    /// A child of `directory` was asked about: listings with attributes are worth while.
    pub(crate) fn note_stat(&self, directory: &Inode) {
        if let crate::inode::TypeState::Directory(kept) = &mut directory.facts().by_type {
            kept.names_since_stat = 0;
        }
    }

    /// Finds what `name` leads to, from memory where that is allowed.
    pub(crate) fn resolve(
        &self,
        asked: &OpContext,
        directory: &Arc<Inode>,
        name: &[u8],
    ) -> Result<ResolvedName, Errno> {
        self.check_name(name)?;
        if name == b"." {
            self.require(asked, directory, Access::LOOKUP)?;
            self.count(ClientCounter::DotHit);
            return Ok(ResolvedName::Object(Arc::clone(directory), None));
        }
        if name == b".." && Arc::ptr_eq(directory, &self.root) {
            self.require(asked, directory, Access::LOOKUP)?;
            self.count(ClientCounter::DotdotHit);
            return Ok(ResolvedName::Object(Arc::clone(directory), None));
        }
        let mut why = None;
        let (mut was_filled, mut filled) = (false, FillOutcome::Nothing);
        // Once: where others change the directory all the time, what comes with others is void at
        // once.
        let mut was_asked_for = false;
        for _ in asked.rounds() {
            match self.next_step(asked, directory, name) {
                LookupStep::Serve(resolved, source) => {
                    if let (NameHitSource::Listing, ResolvedName::Missing(Some(label))) = (source, &resolved)
                    {
                        self.note_negative_from_listing(directory, name, *label, filled);
                    }
                    self.count_allowed(asked, directory, Access::LOOKUP, why);
                    return Ok(resolved);
                }
                LookupStep::Deny => {
                    self.count_denied(why);
                    return Err(Errno::ACCESS);
                }
                LookupStep::Revalidate => self.revalidate_for_name(asked, directory, name)?,
                LookupStep::AskAccess(reason) => {
                    self.send_access(asked, directory, reason)?;
                    why = Some(reason);
                }
                LookupStep::Lookup(reason, former) => {
                    // While the server may be silent, what was known may have to do.
                    let can_wait = former.is_none() || self.soft_revalidation.is_none();
                    let was_known = former.is_some();
                    let may_ask = !std::mem::replace(&mut was_asked_for, true) && can_wait;
                    if may_ask && self.refetch_with_attributes(asked, directory, name, was_known) {
                        continue;
                    }
                    let can_fill = !was_filled && can_wait;
                    was_filled = true;
                    if can_fill {
                        filled = self.fill(asked, directory, name)?;
                        if filled != FillOutcome::Nothing {
                            continue;
                        }
                    }
                    self.count_lookup(reason, former.as_ref());
                    let _why = former.is_some().then(|| scope::with_cause(Cause::NameAgain));
                    let resolved = self.revalidate_name(asked, directory, name, reason, former)?;
                    self.compare_with_listing(directory, name, reason, &resolved);
                    return Ok(resolved);
                }
            }
        }
        Err(Errno::IO)
    }

    /// Asks about `directory` since a name of it is wanted that was known when its attributes were.
    fn revalidate_for_name(
        &self,
        asked: &OpContext,
        directory: &Arc<Inode>,
        name: &[u8],
    ) -> Result<(), Errno> {
        self.count(ClientCounter::DirGetattrForName);
        let _why = scope::with_cause(Cause::NameCheck);
        probe!(NfsLookupRevalidateEnter {
            dir: directory.fileid_if_enabled(Event::NfsLookupRevalidateEnter),
            name
        });
        let answer = self.revalidate(asked, directory);
        probe!(NfsLookupRevalidateExit {
            dir: directory.fileid_if_enabled(Event::NfsLookupRevalidateExit),
            name,
            error: errno::event_status(&answer)
        });
        answer
    }

    /// Refuses names that no directory can hold.
    pub(crate) fn check_name(&self, name: &[u8]) -> Result<(), Errno> {
        let longest = self.path_limits.longest_name();
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

    fn next_step(&self, asked: &OpContext, directory: &Inode, name: &[u8]) -> LookupStep {
        let kept = self.cached_dentry(directory, name);
        let decision = self.decide_name(asked, directory, kept.as_ref());
        let (mut decision, mut kept, mut source) = (decision, kept, NameHitSource::Name);
        if let NameDecision::Lookup(_) = decision
            && let Some(absence) = self.negative_from_listing(directory, name)
        {
            match self.decide_name(asked, directory, Some(&absence)) {
                NameDecision::Lookup(why) => decision = NameDecision::Lookup(why),
                better => (decision, kept, source) = (better, Some(absence), NameHitSource::Listing),
            }
        }
        let may_search = || self.access_decision(asked, directory, Access::LOOKUP, false);
        match (decision, kept) {
            (NameDecision::ServePositive | NameDecision::ServeNegative, Some(kept)) => match may_search() {
                AccessDecision::Allow => {
                    self.note_hit(directory, name, &kept);
                    let resolved = match kept.child {
                        Some(child) => ResolvedName::Object(child, Some(kept.label)),
                        None => ResolvedName::Missing(Some(kept.label)),
                    };
                    LookupStep::Serve(resolved, source)
                }
                AccessDecision::Deny => LookupStep::Deny,
                AccessDecision::Revalidate => LookupStep::Revalidate,
                AccessDecision::Ask(why) => LookupStep::AskAccess(why),
            },
            // An answer about access brings the directory's attributes as well.
            (NameDecision::RevalidateDirectory, _) => match may_search() {
                AccessDecision::Ask(why) => LookupStep::AskAccess(why),
                AccessDecision::Deny => LookupStep::Deny,
                AccessDecision::Allow | AccessDecision::Revalidate => LookupStep::Revalidate,
            },
            (NameDecision::Lookup(why), kept) => LookupStep::Lookup(why, kept),
            (
                NameDecision::ServePositive | NameDecision::ServeNegative | NameDecision::LeaveToServer,
                kept,
            ) => LookupStep::Lookup(LookupReason::Unknown, kept),
        }
    }

    fn decide_name(&self, asked: &OpContext, directory: &Inode, kept: Option<&CachedDentry>) -> NameDecision {
        let options = self.core.options();
        let clock = self.core.server_clock(directory.fsid().unwrap_or(0));
        let wanted = LookupTime {
            began: asked.began,
            now: self.core.now(),
        };
        let facts = directory.facts();
        let mut view = match kept {
            Some(kept) => {
                let known = if kept.child.is_some() {
                    Known::Positive
                } else {
                    Known::Negative
                };
                NameView::of(known, kept.label, &facts.state, &clock, wanted, &options)
            }
            None => NameView::absent(&facts.state, wanted, &options),
        };
        view.directory = facts.freshness(asked, wanted.now, &options);
        decide_lookup(&view, NameIntent::Use, &options)
    }

    fn note_hit(&self, directory: &Inode, name: &[u8], kept: &CachedDentry) {
        self.count(match (name, &kept.child) {
            (b"..", _) => ClientCounter::DotdotHit,
            (_, Some(_)) => ClientCounter::PosHit,
            (_, None) => ClientCounter::NegHit,
        });
        if let Some(child) = &kept.child
            && self.note_use(child)
            && self.note_spared(directory)
        {
            self.count(ClientCounter::DirFillUsed);
        }
    }

    fn count_lookup(&self, why: LookupReason, former: Option<&CachedDentry>) {
        let was_missing = former.map(|kept| kept.child.is_none());
        self.count(match (was_missing, why) {
            (None, _) => ClientCounter::PosMiss,
            (Some(false), _) => ClientCounter::PosStale,
            (Some(true), LookupReason::Racy) => ClientCounter::NegRacyRequery,
            (Some(true), LookupReason::TooOld) => ClientCounter::NegExpire,
            (Some(true), LookupReason::DirectoryChanged) => ClientCounter::NegPurgeDirchange,
            (Some(true), LookupReason::Unknown) => ClientCounter::NegMiss,
        });
    }
}
