//! From a name to what it leads to.
//!
//! Owns when LOOKUP is sent (`asking` sends it). Policy decides, the DentryCache keeps.

mod request;

use std::{sync::Arc, time::Duration};

use curt_policy::{
    AccessReason, NameLabel, ObjectKind, Rights,
    access::AllowedBy,
    kernel_cache,
    lookup::{LookupDecision, LookupView, decide_cached_lookup},
    names::{DentryState as Known, LookupReason, LookupTime},
};
use curt_trace::{Cause, ClientCounter, scope};
use curt_trace::{events::Event, probe};
use rustix::io::Errno;

use crate::{
    api::{FoundInode, LookupResult},
    client::{Client, OpContext},
    dentry_cache::CachedDentry,
    errno,
    identity::{Caller, InodeId},
    inode::{Inode, InodeFacts, TypeState},
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

/// Who looks a name up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LookupBy {
    /// A kernel or a program.
    User,
    /// Another operation of this client.
    Operation,
}

/// An answer from memory.
#[derive(Debug, Clone, Copy)]
struct NameHit {
    source: NameHitSource,
    /// How long the asker may keep it without asking.
    entry_valid: Duration,
    allowed_by: AllowedBy,
    /// The server is to be asked all the same: the asker may be about to make the name.
    is_create_probe: bool,
}

/// What a look-up is to do next.
enum LookupStep {
    Serve(ResolvedName, NameHit),
    Revalidate,
    AskAccess(AccessReason),
    Deny,
    Lookup(LookupReason, Option<CachedDentry>),
}

impl CachedDentry {
    fn state(&self) -> Known {
        if self.child.is_some() {
            Known::Positive
        } else {
            Known::Negative
        }
    }
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
        let directory = self.find_inode(directory)?;
        let asked = self.op_context(caller);
        let (mut resolved, mut hit) = self.resolve_by(&asked, &directory, name, LookupBy::User)?;
        if let (
            ResolvedName::Object(inode, Some(label)),
            Some(NameHit {
                is_create_probe: true,
                ..
            }),
        ) = (&resolved, hit)
        {
            let kept = CachedDentry {
                child: Some(Arc::clone(inode)),
                label: *label,
            };
            self.count_lookup(LookupReason::Unknown, Some(&kept));
            let _why = scope::with_cause(Cause::NameAgain);
            resolved = self.revalidate_name(&asked, &directory, name, LookupReason::Unknown, Some(kept))?;
            hit = None;
        }
        if !self.stale_opens.is_empty() {
            resolved = self.hold_for_open(&asked, caller, &directory, name, resolved)?;
            hit = None;
        }
        let entry_valid = |known, label| match hit {
            Some(hit) => hit.entry_valid,
            None => self.name_lifetime(&asked, &directory, known, label),
        };
        match resolved {
            ResolvedName::Object(inode, label) => {
                let valid = entry_valid(Known::Positive, label);
                let found = self.found_for(&asked, &directory, &inode, valid)?;
                Ok(LookupResult::Positive(found))
            }
            ResolvedName::Missing(label) => Ok(LookupResult::Negative {
                entry_valid: entry_valid(Known::Negative, label),
            }),
        }
    }

    /// What is told of an object that was found under a name; holds a look-up of it.
    pub(crate) fn found(
        &self,
        asked: &OpContext,
        directory: &Inode,
        inode: &Arc<Inode>,
        label: Option<NameLabel>,
    ) -> Result<FoundInode, Errno> {
        let entry_valid = self.name_lifetime(asked, directory, Known::Positive, label);
        self.found_for(asked, directory, inode, entry_valid)
    }

    fn found_for(
        &self,
        asked: &OpContext,
        directory: &Inode,
        inode: &Arc<Inode>,
        entry_valid: Duration,
    ) -> Result<FoundInode, Errno> {
        let now = asked.now(&self.core);
        let (attributes, valid) = {
            let facts = inode.facts();
            let attributes = inode.attributes_in(&facts).ok_or(Errno::STALE)?;
            (
                attributes,
                kernel_cache::attribute_lifetime(&facts.state, now, &asked.options),
            )
        };
        // Times and size of what is not sent yet are the server's to tell: stat has to come back.
        let attributes_valid = if inode.has_unsent() { Duration::ZERO } else { valid };
        directory.tells_a_name();
        self.hold(inode);
        Ok(FoundInode {
            id: inode.id(),
            attributes,
            entry_valid,
            attributes_valid,
        })
    }

    fn name_lifetime(
        &self,
        asked: &OpContext,
        directory: &Inode,
        known: Known,
        label: Option<NameLabel>,
    ) -> Duration {
        let Some(label) = label else { return Duration::ZERO };
        let now = asked.now(&self.core);
        let facts = directory.facts();
        let clock = self.core.server_clock(facts.fsid().unwrap_or(0));
        kernel_cache::name_lifetime(known, label, &facts.state, &clock, now, &asked.options)
    }

    /// A child of `directory` was asked about: listings with attributes are worth while.
    pub(crate) fn note_stat(&self, directory: &Inode) {
        directory.facts().note_stat();
    }

    /// Finds what `name` leads to, from memory where that is allowed.
    pub(crate) fn resolve(
        &self,
        asked: &OpContext,
        directory: &Arc<Inode>,
        name: &[u8],
    ) -> Result<ResolvedName, Errno> {
        let (resolved, _) = self.resolve_by(asked, directory, name, LookupBy::Operation)?;
        Ok(resolved)
    }

    /// The same; also tells how it was answered from memory, if it was.
    fn resolve_by(
        &self,
        asked: &OpContext,
        directory: &Arc<Inode>,
        name: &[u8],
        by: LookupBy,
    ) -> Result<(ResolvedName, Option<NameHit>), Errno> {
        self.check_name(name)?;
        let itself = match name {
            b"." => Some(ClientCounter::DotHit),
            b".." if Arc::ptr_eq(directory, &self.root) => Some(ClientCounter::DotdotHit),
            _ => None,
        };
        if let Some(counter) = itself {
            if by == LookupBy::User {
                directory.facts().begin_lookup()?;
            }
            self.require(asked, directory, Rights::LOOKUP)?;
            self.count(counter);
            return Ok((ResolvedName::Object(Arc::clone(directory), None), None));
        }
        let mut why = None;
        let (mut was_filled, mut filled) = (false, FillOutcome::Nothing);
        // Once: where others change the directory all the time, what comes with others is void at
        // once.
        let mut was_asked_for = false;
        for round in asked.rounds() {
            match self.next_step(asked, directory, name, by, round)? {
                LookupStep::Serve(resolved, hit) => {
                    if let (NameHitSource::Listing, ResolvedName::Missing(Some(label))) =
                        (hit.source, &resolved)
                    {
                        self.note_negative_from_listing(directory, name, *label, filled);
                    }
                    self.count_allowed_by(hit.allowed_by, why);
                    return Ok((resolved, Some(hit)));
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
                    return Ok((resolved, None));
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

    /// Decides under one lock of the directory, unless its listing has to be searched.
    fn next_step(
        &self,
        asked: &OpContext,
        directory: &Inode,
        name: &[u8],
        by: LookupBy,
        round: usize,
    ) -> Result<LookupStep, Errno> {
        let is_parent = name == b"..";
        let kept = if is_parent {
            None
        } else {
            self.cached_name(directory, name)
        };
        let mut facts = directory.facts();
        if by == LookupBy::User && round == 0 {
            facts.begin_lookup()?;
        }
        let kept = if is_parent { facts.parent() } else { kept };
        let decision = self.decide_name(asked, directory, &facts, kept.as_ref());
        let is_create_probe = match (decision, &kept) {
            (LookupDecision::Serve { .. }, Some(kept)) if by == LookupBy::User => {
                self.is_create_probe(asked, &mut facts, kept)
            }
            _ => false,
        };
        drop(facts);
        if let LookupDecision::Lookup(_) = decision
            && let Some(absence) = self.negative_from_listing(directory, name)
        {
            let facts = directory.facts();
            let by_listing = self.decide_name(asked, directory, &facts, Some(&absence));
            drop(facts);
            return Ok(match by_listing {
                LookupDecision::Lookup(reason) => LookupStep::Lookup(reason, kept),
                better => self.step(
                    directory,
                    name,
                    better,
                    Some(absence),
                    NameHitSource::Listing,
                    false,
                ),
            });
        }
        Ok(self.step(
            directory,
            name,
            decision,
            kept,
            NameHitSource::Name,
            is_create_probe,
        ))
    }

    fn step(
        &self,
        directory: &Inode,
        name: &[u8],
        decision: LookupDecision,
        kept: Option<CachedDentry>,
        source: NameHitSource,
        is_create_probe: bool,
    ) -> LookupStep {
        match (decision, kept) {
            (
                LookupDecision::Serve {
                    entry_valid,
                    allowed_by,
                },
                Some(kept),
            ) => {
                self.note_hit(directory, name, &kept);
                let resolved = match kept.child {
                    Some(child) => ResolvedName::Object(child, Some(kept.label)),
                    None => ResolvedName::Missing(Some(kept.label)),
                };
                let hit = NameHit {
                    source,
                    entry_valid,
                    allowed_by,
                    is_create_probe,
                };
                LookupStep::Serve(resolved, hit)
            }
            (LookupDecision::Serve { .. }, None) => LookupStep::Lookup(LookupReason::Unknown, None),
            (LookupDecision::Deny, _) => LookupStep::Deny,
            (LookupDecision::Revalidate, _) => LookupStep::Revalidate,
            (LookupDecision::AskAccess(reason), _) => LookupStep::AskAccess(reason),
            (LookupDecision::Lookup(reason), kept) => LookupStep::Lookup(reason, kept),
        }
    }

    fn decide_name(
        &self,
        asked: &OpContext,
        directory: &Inode,
        facts: &InodeFacts,
        kept: Option<&CachedDentry>,
    ) -> LookupDecision {
        let now = asked.now(&self.core);
        let view = LookupView {
            entry: kept.map(|kept| (kept.state(), kept.label)),
            directory: &facts.state,
            freshness: facts.freshness(asked, now, &asked.options),
            access: directory.access_view(facts, &asked.identity, false, now),
            clock: &self.core.server_clock(facts.fsid().unwrap_or(0)),
            wanted: LookupTime {
                began: asked.began,
                now,
            },
        };
        decide_cached_lookup(&view, &asked.options)
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

impl InodeFacts {
    /// A name in it is looked up, by somebody who may ask about what it leads to.
    ///
    /// # Errors
    /// ENOTDIR if it is known to be none.
    fn begin_lookup(&mut self) -> Result<(), Errno> {
        match self.state.facts().map(|known| known.kind) {
            Some(ObjectKind::Directory) | None => {
                self.note_stat();
                Ok(())
            }
            Some(ObjectKind::Regular | ObjectKind::Symlink | ObjectKind::Special) => Err(Errno::NOTDIR),
        }
    }

    fn note_stat(&mut self) {
        if let TypeState::Directory(kept) = &mut self.by_type {
            kept.names_since_stat = 0;
        }
    }
}

#[cfg(test)]
mod tests;
