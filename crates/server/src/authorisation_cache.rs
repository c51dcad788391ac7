//! The authorisation cache of a connection. It caches the results of the last requests, so that the
//! next request need not repeat the work. One comparison of the handle, the credential and the
//! generation of decisions finds a file together with its caller.
//!
//! The levels, each used only on a miss in the one above: the last files with their callers; the
//! last exports with the decision for this client; the last callers, squashed. Signature checks are
//! not cached separately, because a check costs less than a look-up
//! (docs/decisions/request-layers.md).
//!
//! Invariants: refusals are not cached; a decision of another generation
//! (`ExportsTable::generation`) is never used again; everything is bounded, and belongs to one
//! connection, so that connections never contend for locks.

use std::sync::{Arc, Weak};

use curt_rpc::auth::{AuthSysGids, OpaqueAuth};
use curt_types::FileHandle;
use parking_lot::Mutex;

use crate::exports::{CredentialFlavor, Export, ExportRules};
use crate::file_handle::{ExportId, FileSystemId, HandleContents, SIGNATURE};
use crate::squash::SquashedIdentity;

/// Maximum number of cached files with their callers.
const FILES_MAX: usize = 8;
/// Maximum number of cached exports with the decisions about them.
const EXPORTS_MAX: usize = 8;
/// Maximum number of cached callers.
const CALLERS_MAX: usize = 16;

/// Permission for a caller to use a file of an export, under these rules.
pub(crate) struct Authorisation {
    /// The generation of the decision.
    pub(crate) generation: u64,
    pub(crate) handle: FileHandle,
    pub(crate) who: CallerCredential,
    pub(crate) signed: HandleContents,
    pub(crate) export: Arc<Export>,
    pub(crate) rules: ExportRules,
    pub(crate) identity: Arc<SquashedIdentity>,
}

/// The parts of a credential that identify the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallerCredential {
    pub(crate) flavor: CredentialFlavor,
    uid: u32,
    gid: u32,
    groups: AuthSysGids,
}

impl CallerCredential {
    /// The caller of a credential; none for flavours that this server does not support.
    pub(crate) fn of(credential: &OpaqueAuth<'_>) -> Option<Self> {
        let flavor = CredentialFlavor::of(credential)?;
        let (uid, gid, groups) = match credential {
            OpaqueAuth::Sys(sys) => (sys.uid, sys.gid, sys.groups),
            OpaqueAuth::None | OpaqueAuth::Other { .. } => (0, 0, AuthSysGids::default()),
        };
        Some(Self { flavor, uid, gid, groups })
    }
}

/// The authorisation cache of one connection.
#[derive(Default)]
pub(crate) struct AuthorisationCache(Mutex<AuthorisationCacheState>);

#[derive(Default)]
struct AuthorisationCacheState {
    generation: u64,
    /// Each with the tag of its handle, which is compared first.
    authorisations: Vec<(u64, Arc<Authorisation>)>,
    /// The index of the entry used last: most often the next request uses it again.
    last_used: usize,
    exports: Vec<CachedDecision>,
    callers: Vec<CachedIdentity>,
    /// Indexes of the entries that are replaced next.
    next_victim: usize,
}

/// A file system of an export.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExportKey {
    pub(crate) export: ExportId,
    pub(crate) file_system: FileSystemId,
}

struct CachedDecision {
    of: ExportKey,
    flavor: CredentialFlavor,
    export: Arc<Export>,
    rules: ExportRules,
}

struct CachedIdentity {
    who: CallerCredential,
    rules: ExportRules,
    identity: Arc<SquashedIdentity>,
}

impl AuthorisationCacheState {
    /// The cache, emptied if its entries are of an earlier generation; none if `generation` is no
    /// longer the latest.
    fn of_generation(&mut self, generation: u64) -> Option<&mut Self> {
        if self.generation < generation {
            *self = Self { generation, ..Self::default() };
        }
        (self.generation == generation).then_some(self)
    }
}

impl AuthorisationCache {
    /// The cached grant for a handle and a credential.
    pub(crate) fn find(
        &self,
        generation: u64,
        handle: &[u8],
        who: &CallerCredential,
    ) -> Option<Arc<Authorisation>> {
        let mut last = self.0.lock();
        let last = last.of_generation(generation)?;
        let mark = handle_tag(handle);
        let is_it = |(other, grant): &(u64, Arc<Authorisation>)| {
            *other == mark && grant.handle.as_bytes() == handle && grant.who == *who
        };
        if let Some((_, grant)) = last.authorisations.get(last.last_used).filter(|kept| is_it(kept)) {
            return Some(Arc::clone(grant));
        }
        last.last_used = last.authorisations.iter().position(is_it)?;
        last.authorisations.get(last.last_used).map(|(_, grant)| Arc::clone(grant))
    }

    /// Adds a grant; it replaces another if the cache is full.
    pub(crate) fn insert(&self, grant: Authorisation) -> Arc<Authorisation> {
        let mut last = self.0.lock();
        let Some(last) = last.of_generation(grant.generation) else {
            return Arc::new(grant);
        };
        let mark = handle_tag(grant.handle.as_bytes());
        if last.authorisations.len() < FILES_MAX {
            last.last_used = last.authorisations.len();
            last.authorisations.push((mark, Arc::new(grant)));
        } else {
            last.last_used = (last.last_used + 1) % FILES_MAX;
            let (other, kept) = &mut last.authorisations[last.last_used];
            *other = mark;
            // Reuse the allocation of the replaced grant if no request uses it.
            match Arc::get_mut(kept) {
                Some(kept) => *kept = grant,
                None => *kept = Arc::new(grant),
            }
        }
        Arc::clone(&last.authorisations[last.last_used].1)
    }

    /// The cached decision about an export for this client.
    pub(crate) fn find_decision(
        &self,
        generation: u64,
        of: ExportKey,
        flavor: CredentialFlavor,
    ) -> Option<(Arc<Export>, ExportRules)> {
        let mut last = self.0.lock();
        let known = last.of_generation(generation)?.exports.iter();
        known
            .filter(|known| known.of == of && known.flavor == flavor)
            .map(|known| (Arc::clone(&known.export), known.rules))
            .next()
    }

    pub(crate) fn insert_decision(
        &self,
        generation: u64,
        of: ExportKey,
        flavor: CredentialFlavor,
        export: &Arc<Export>,
        rules: ExportRules,
    ) {
        let mut last = self.0.lock();
        let Some(last) = last.of_generation(generation) else {
            return;
        };
        let export = Arc::clone(export);
        let decision = CachedDecision { of, flavor, export, rules };
        insert_bounded(&mut last.exports, decision, EXPORTS_MAX, &mut last.next_victim);
    }

    /// The cached identity for a credential under these rules.
    pub(crate) fn find_identity(
        &self,
        generation: u64,
        who: &CallerCredential,
        rules: &ExportRules,
    ) -> Option<Arc<SquashedIdentity>> {
        let mut last = self.0.lock();
        let known = last.of_generation(generation)?.callers.iter();
        known
            .filter(|known| known.who == *who && known.rules == *rules)
            .map(|known| Arc::clone(&known.identity))
            .next()
    }

    pub(crate) fn insert_identity(
        &self,
        generation: u64,
        who: CallerCredential,
        rules: ExportRules,
        identity: &Arc<SquashedIdentity>,
    ) {
        let mut last = self.0.lock();
        let Some(last) = last.of_generation(generation) else {
            return;
        };
        let identity = Arc::clone(identity);
        let known = CachedIdentity { who, rules, identity };
        insert_bounded(&mut last.callers, known, CALLERS_MAX, &mut last.next_victim);
    }

    fn invalidate(&self, generation: u64) {
        self.0.lock().of_generation(generation);
    }
}

/// Adds an item to at most `most`; it replaces another if they are full.
fn insert_bounded<T>(kept: &mut Vec<T>, new: T, most: usize, turn: &mut usize) {
    if kept.len() < most {
        kept.push(new);
    } else {
        *turn = (*turn + 1) % most;
        kept[*turn] = new;
    }
}

/// The part of a handle that differs between most handles: the signature, if it has one.
fn handle_tag(handle: &[u8]) -> u64 {
    handle.get(SIGNATURE).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u64::from_ne_bytes(*bytes))
}

/// The authorisation caches of all connections. References to removed exports must be dropped at
/// once, because a file system in use cannot be unmounted.
#[derive(Default)]
pub(crate) struct AuthorisationCaches(Mutex<Vec<Weak<AuthorisationCache>>>);

impl AuthorisationCaches {
    /// Registers the cache of a new connection.
    pub(crate) fn new_cache(&self) -> Arc<AuthorisationCache> {
        let grants = Arc::new(AuthorisationCache::default());
        let mut all = self.0.lock();
        // Ended connections are removed only when the vector would have to grow: amortised constant
        // time.
        if all.len() == all.capacity() {
            all.retain(|other| other.strong_count() > 0);
        }
        all.push(Arc::downgrade(&grants));
        grants
    }

    /// Drops the decisions before `generation` of all connections.
    pub(crate) fn invalidate(&self, generation: u64) {
        let all: Vec<_> = self.0.lock().iter().filter_map(Weak::upgrade).collect();
        for grants in all {
            grants.invalidate(generation);
        }
    }
}
