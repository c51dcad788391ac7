//! What a connection remembers of its last requests, so that the next one need not repeat the work: a file and a caller are
//! granted together, by one comparison of the handle, the credential and the number of all current decisions.
//!
//! The layers, each used only if the one above has no answer: the last files with their callers; the last exports with the decision
//! for this client; the last callers, squashed. Signature checks are not remembered separately, because checking costs less than
//! looking up (docs/decisions/request-layers.md).
//!
//! Invariants: refusals are not remembered; what was decided under another number (`ExportsTable::generation`) is never used
//! again; everything is bounded, and belongs to one connection, so that connections never wait for each other's locks.

use std::sync::{Arc, Weak};

use curt_proto::nfs3::FileHandle;
use curt_rpc::auth::{Auth, Groups};
use parking_lot::Mutex;

use crate::exports::{CredentialFlavor, Export, ExportRules};
use crate::file_handle::{ExportId, FileSystemId, SIGNATURE, Signed};
use crate::identity::Identity;

/// How many files with their callers are remembered.
const FILES_MAX: usize = 8;
/// How many exports, with what was decided of them.
const EXPORTS_MAX: usize = 8;
/// How many callers.
const CALLERS_MAX: usize = 16;

/// That a caller may use a file of an export, by these rules.
pub(crate) struct Grant {
    /// The number of the decisions that this is one of.
    pub(crate) generation: u64,
    pub(crate) handle: FileHandle,
    pub(crate) who: Who,
    pub(crate) signed: Signed,
    pub(crate) export: Arc<Export>,
    pub(crate) rules: ExportRules,
    pub(crate) identity: Arc<Identity>,
}

/// What of a credential says who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Who {
    pub(crate) flavor: CredentialFlavor,
    uid: u32,
    gid: u32,
    groups: Groups,
}

impl Who {
    /// None for flavours that are not spoken here.
    pub(crate) fn of(credential: &Auth<'_>) -> Option<Self> {
        let flavor = CredentialFlavor::of(credential)?;
        let (uid, gid, groups) = match credential {
            Auth::Sys(sys) => (sys.uid, sys.gid, sys.groups),
            Auth::None | Auth::Other { .. } => (0, 0, Groups::default()),
        };
        Some(Self {
            flavor,
            uid,
            gid,
            groups,
        })
    }
}

/// Of one connection.
#[derive(Default)]
pub(crate) struct Grants(Mutex<Last>);

#[derive(Default)]
struct Last {
    generation: u64,
    /// Each with the mark of its handle.
    files: Vec<(u64, Arc<Grant>)>,
    /// Which of them was asked for last: mostly it is asked for again.
    file: usize,
    exports: Vec<Decision>,
    callers: Vec<Known>,
    /// Which of these make room next.
    turn: usize,
}

struct Decision {
    of: (ExportId, FileSystemId),
    flavor: CredentialFlavor,
    export: Arc<Export>,
    rules: ExportRules,
}

struct Known {
    who: Who,
    rules: ExportRules,
    identity: Arc<Identity>,
}

impl Last {
    /// What was decided under a number, and nothing else; none for a number that is no longer the last.
    fn under(&mut self, generation: u64) -> Option<&mut Self> {
        if self.generation < generation {
            *self = Self {
                generation,
                ..Self::default()
            };
        }
        (self.generation == generation).then_some(self)
    }
}

impl Grants {
    /// The grant for a handle and a credential.
    pub(crate) fn find(&self, generation: u64, handle: &FileHandle, who: &Who) -> Option<Arc<Grant>> {
        let mut last = self.0.lock();
        let last = last.under(generation)?;
        let mark = mark(handle);
        let is_it = |(other, grant): &(u64, Arc<Grant>)| {
            *other == mark && grant.handle == *handle && grant.who == *who
        };
        if let Some((_, grant)) = last.files.get(last.file).filter(|kept| is_it(kept)) {
            return Some(Arc::clone(grant));
        }
        last.file = last.files.iter().position(is_it)?;
        last.files.get(last.file).map(|(_, grant)| Arc::clone(grant))
    }

    /// Keeps a grant, if need be in the place of another.
    pub(crate) fn keep(&self, grant: Grant) -> Arc<Grant> {
        let mut last = self.0.lock();
        let Some(last) = last.under(grant.generation) else {
            return Arc::new(grant);
        };
        let mark = mark(&grant.handle);
        if last.files.len() < FILES_MAX {
            last.file = last.files.len();
            last.files.push((mark, Arc::new(grant)));
        } else {
            last.file = (last.file + 1) % FILES_MAX;
            let (other, kept) = &mut last.files[last.file];
            *other = mark;
            // In the memory of the older one, if nobody uses that any more.
            match Arc::get_mut(kept) {
                Some(kept) => *kept = grant,
                None => *kept = Arc::new(grant),
            }
        }
        Arc::clone(&last.files[last.file].1)
    }

    /// What was decided of an export for this client.
    pub(crate) fn decision(
        &self,
        generation: u64,
        of: (ExportId, FileSystemId),
        flavor: CredentialFlavor,
    ) -> Option<(Arc<Export>, ExportRules)> {
        let mut last = self.0.lock();
        let known = last.under(generation)?.exports.iter();
        known
            .filter(|known| known.of == of && known.flavor == flavor)
            .map(|known| (Arc::clone(&known.export), known.rules))
            .next()
    }

    pub(crate) fn keep_decision(
        &self,
        generation: u64,
        of: (ExportId, FileSystemId),
        flavor: CredentialFlavor,
        (export, rules): (&Arc<Export>, ExportRules),
    ) {
        let mut last = self.0.lock();
        let Some(last) = last.under(generation) else {
            return;
        };
        let export = Arc::clone(export);
        let decision = Decision {
            of,
            flavor,
            export,
            rules,
        };
        put(&mut last.exports, decision, EXPORTS_MAX, &mut last.turn);
    }

    /// Who a credential is taken for by these rules.
    pub(crate) fn identity(&self, generation: u64, who: &Who, rules: &ExportRules) -> Option<Arc<Identity>> {
        let mut last = self.0.lock();
        let known = last.under(generation)?.callers.iter();
        known
            .filter(|known| known.who == *who && known.rules == *rules)
            .map(|known| Arc::clone(&known.identity))
            .next()
    }

    pub(crate) fn keep_identity(
        &self,
        generation: u64,
        who: Who,
        rules: ExportRules,
        identity: &Arc<Identity>,
    ) {
        let mut last = self.0.lock();
        let Some(last) = last.under(generation) else {
            return;
        };
        let identity = Arc::clone(identity);
        let known = Known { who, rules, identity };
        put(&mut last.callers, known, CALLERS_MAX, &mut last.turn);
    }

    fn forget(&self, generation: u64) {
        self.0.lock().under(generation);
    }
}

/// Puts something among at most `most`, in the place of another if need be.
fn put<T>(kept: &mut Vec<T>, new: T, most: usize, turn: &mut usize) {
    if kept.len() < most {
        kept.push(new);
    } else {
        *turn = (*turn + 1) % most;
        kept[*turn] = new;
    }
}

/// What tells most handles apart at a glance: the signature, of those that have one.
fn mark(handle: &FileHandle) -> u64 {
    handle
        .as_bytes()
        .get(SIGNATURE)
        .and_then(<[u8]>::first_chunk)
        .map_or(0, |bytes| u64::from_ne_bytes(*bytes))
}

/// The memories of all connections: what they hold of exports that are no more must go at once, for a file system that is
/// used cannot be unmounted.
#[derive(Default)]
pub(crate) struct AllGrants(Mutex<Vec<Weak<Grants>>>);

impl AllGrants {
    /// Those of a new connection.
    pub(crate) fn begin(&self) -> Arc<Grants> {
        let grants = Arc::new(Grants::default());
        let mut all = self.0.lock();
        // Only when the memory would have to grow: so the look costs little for each that is added.
        if all.len() == all.capacity() {
            all.retain(|other| other.strong_count() > 0);
        }
        all.push(Arc::downgrade(&grants));
        grants
    }

    /// Has every connection forget what was decided before `generation`.
    pub(crate) fn forget(&self, generation: u64) {
        let all: Vec<_> = self.0.lock().iter().filter_map(Weak::upgrade).collect();
        for grants in all {
            grants.forget(generation);
        }
    }
}
