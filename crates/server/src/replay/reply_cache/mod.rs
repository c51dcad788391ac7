//! The duplicate request cache (RFC 1813 section 4.5): sent replies, for calls that are repeated.
//!
//! The reply to each call that changes names or attributes is cached for a while. It is sent again
//! for a call from the same address with the same xid and the same significant bytes, over any
//! connection and from any port.
//!
//! The memory of the process is lost when it ends. So calls and replies are also saved in a file
//! for the next run ([`saved`]), even if the server is killed. Calls that were begun and not
//! answered are recognised ([`interrupted`]).
//!
//! Invariants: no caller gets the reply to another (a keyed hash over the credential and arguments
//! must match, too); the cache is bounded in number and bytes, and a client that sends many calls
//! evicts its own replies first; no lock is held while a call is executed; a call in progress is
//! not executed again for its duplicate.

mod fingerprint;
mod interrupted;
mod saved;
mod table;
#[cfg(test)]
mod tests;

use std::{
    io,
    path::Path,
    sync::Arc,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use curt_observe::events::{ShortText, procedure_name};
use curt_observe::{ServerCounter, ServerCounters, probe};
use curt_rpc::clock::TimeSource;
use curt_rpc::message::CallMessage;
use curt_rpc::server::{CallContext, CallFailure};
use curt_types::Timestamp;
use parking_lot::{Condvar, Mutex};

use self::fingerprint::{Fingerprint, FingerprintHasher};
use self::interrupted::{InterruptedCall, InterruptedCalls};
use self::saved::SavedReplies;
use self::table::{ExecutionId, ReplyCacheKey, ReplyCacheLookup, ReplyCacheShardLimits, ReplyCacheTable};
use super::Execution;

/// Maximum size of a cached reply in bytes. The longest reply, to a RENAME or a CREATE, has less
/// than 300.
pub(crate) const REPLY_MAX: usize = 1024;

/// The limits of the cache.
#[derive(Clone, Debug)]
pub(crate) struct ReplyCacheLimits {
    /// Maximum number of replies, a multiple of the number of shards.
    pub(crate) entries: usize,
    /// Maximum bytes of replies, including the indexes.
    pub(crate) bytes: usize,
    /// Time for which a reply is cached: a client that has not retransmitted a call by then does
    /// not do so any more.
    pub(crate) age: Duration,
    /// Maximum time for which a duplicate waits for the end of the first call. After that it is
    /// dropped. The reply to the first call still comes, and there may be another duplicate.
    pub(crate) wait: Duration,
    /// Maximum number of duplicates that wait, each on a serving thread. Further ones are dropped.
    pub(crate) waiters: usize,
}

impl Default for ReplyCacheLimits {
    fn default() -> Self {
        Self {
            entries: 32_768,
            bytes: 16 << 20,
            age: Duration::from_secs(120),
            wait: Duration::from_secs(10),
            waiters: 32,
        }
    }
}

/// As many shards as threads that contend for locks on machines of today.
const SHARDS: usize = 32;

/// The duplicate request cache.
pub(crate) struct ReplyCache {
    shards: Box<[ReplyCacheShard]>,
    fingerprints: FingerprintHasher,
    bounds: ReplyCacheLimits,
    waiters: AtomicUsize,
    saved: Option<SavedReplies>,
    interrupted: InterruptedCalls,
    clock: TimeSource,
    counters: Arc<ServerCounters>,
}

struct ReplyCacheShard {
    table: Mutex<ReplyCacheTable>,
    /// Notified when a call of this shard has ended.
    ended: Condvar,
}

impl ReplyCache {
    /// An empty cache. `secret` keys the hash, so that peers cannot cause collisions.
    pub(crate) fn new(
        bounds: ReplyCacheLimits,
        secret: [u8; 16],
        clock: TimeSource,
        counters: Arc<ServerCounters>,
    ) -> Self {
        let each = ReplyCacheShardLimits {
            entries: (bounds.entries / SHARDS).max(1),
            bytes: bounds.bytes / SHARDS,
            age: bounds.age,
        };
        let shard =
            || ReplyCacheShard { table: Mutex::new(ReplyCacheTable::new(each)), ended: Condvar::new() };
        Self {
            shards: (0..SHARDS).map(|_| shard()).collect(),
            fingerprints: FingerprintHasher::new(secret),
            bounds,
            waiters: AtomicUsize::new(0),
            saved: None,
            interrupted: InterruptedCalls::default(),
            clock,
            counters,
        }
    }

    /// Saves calls and replies in the file at `path` from now on, and loads those of earlier runs
    /// from it.
    pub(crate) fn save(&mut self, path: &Path, secret: &[u8; 16]) -> io::Result<()> {
        let (saved, calls) = SavedReplies::open(path, secret)?;
        let now = self.now();
        let is_young = |at: Duration| now.saturating_sub(at) < self.bounds.age;
        let mut answered = Vec::new();
        for call in &calls {
            let Some((since, reply)) = call.answer.as_ref().filter(|(since, _)| is_young(*since)) else {
                continue;
            };
            let InterruptedCall { key, fingerprint, .. } = call.begun;
            let mut table = self.shard(&key).table.lock();
            if table.restore(key, fingerprint, *since, reply) {
                self.counters.count(ServerCounter::ReplyCacheRestored);
            }
            if is_success(reply) {
                answered.push((call.begun.subjects, *since));
            }
        }
        let unanswered = calls.iter().filter(|call| call.answer.is_none());
        let begun = unanswered.map(|call| call.begun).filter(|begun| is_young(begun.at));
        let until = self.latest_change_time();
        self.interrupted = InterruptedCalls::new(begun, answered.into_iter(), until, self.bounds.age);
        self.saved = Some(saved);
        Ok(())
    }

    fn shard(&self, key: &ReplyCacheKey) -> &ReplyCacheShard {
        &self.shards[self.fingerprints.place(key) % SHARDS]
    }

    /// Answers `call` with its cached reply, or executes it and caches the reply.
    pub(super) fn answer(
        &self,
        call: &CallMessage<'_>,
        context: &mut CallContext<'_>,
        reply: &mut Vec<u8>,
        execution: &mut dyn Execution,
    ) -> Result<(), CallFailure> {
        let counters = &*self.counters;
        let key = ReplyCacheKey { peer: context.peer().ip(), xid: call.xid };
        let fingerprint = self.fingerprints.of(call, context.peer());
        let shard = self.shard(&key);
        let mut table = shard.table.lock();
        loop {
            match table.lookup(key, fingerprint, self.now()) {
                ReplyCacheLookup::Replay(kept) => {
                    reply.extend_from_slice(&kept.reply);
                    counters.count(ServerCounter::ReplyCacheHit);
                    if kept.is_restored {
                        counters.count(ServerCounter::ReplyCacheHitRestored);
                    }
                    trace_duplicate(call, context, "answered as then");
                    return Ok(());
                }
                ReplyCacheLookup::Execute(ticket) => {
                    drop(table);
                    counters.count(ServerCounter::ReplyCacheMiss);
                    let mut running = ExecutingCall { shard, key, ticket, is_cached: false };
                    let start = reply.len();
                    self.execute(key, fingerprint, call, context, reply, execution)?;
                    if !self.insert(&mut running, reply.get(start..).unwrap_or_default()) {
                        counters.count(ServerCounter::ReplyCacheNotCached);
                    }
                    return Ok(());
                }
                ReplyCacheLookup::ExecuteUncached => {
                    drop(table);
                    counters.count(ServerCounter::ReplyCacheNotCached);
                    return execution.run(None, context, reply).map(|_| ());
                }
                ReplyCacheLookup::Running(first) => {
                    drop(table);
                    // Hand the connection over, so that the calls behind this one do not wait.
                    context.may_block();
                    if !self.wait(shard, key, first) {
                        counters.count(ServerCounter::ReplyCacheDropped);
                        trace_duplicate(call, context, "still being executed");
                        return Err(CallFailure::NoReply);
                    }
                    table = shard.table.lock();
                }
            }
        }
    }

    /// Executes a new call, and saves its beginning and its reply.
    fn execute(
        &self,
        key: ReplyCacheKey,
        fingerprint: Fingerprint,
        call: &CallMessage<'_>,
        context: &mut CallContext<'_>,
        reply: &mut Vec<u8>,
        execution: &mut dyn Execution,
    ) -> Result<(), CallFailure> {
        let Some(saved) = &self.saved else {
            return execution.run(None, context, reply).map(|_| ());
        };
        let interrupted = self.interrupted.take(key, fingerprint, self.now());
        let begun = interrupted.unwrap_or_else(|| InterruptedCall {
            key,
            fingerprint,
            subjects: execution.subjects(&|directory, name| self.fingerprints.of_name(directory, name)),
            at: self.now(),
            time: self.earliest_change_time(),
        });
        let number = saved.begin(&begun);
        let start = reply.len();
        let outcome = execution.run(None, context, reply);
        if let (Some(interrupted), Err(_)) = (interrupted, &outcome) {
            // It waits, and is executed again.
            self.interrupted.put_back(interrupted);
        }
        let mut failed = outcome?;
        if let (Some(_), Some(fault)) = (interrupted, failed)
            && let Some(claim) = self.interrupted.claim(&begun, fault, self.now())
        {
            let mut own = Vec::new();
            if execution.run(Some(claim.window), context, &mut own)?.is_some() {
                self.interrupted.withdraw_claim(&begun, claim);
            } else {
                failed = None;
                reply.truncate(start);
                reply.append(&mut own);
                self.counters.count(ServerCounter::ReplyCacheRecognised);
                trace_duplicate(call, context, "executed before the restart");
            }
        }
        if failed.is_none() {
            self.interrupted.changed(begun.subjects, self.now());
        }
        if let Some(number) = number {
            saved.answer(number, &begun, self.now(), reply.get(start..).unwrap_or_default());
        }
        Ok(())
    }

    /// Caches the reply to an executed call. Returns whether it was cached.
    fn insert(&self, running: &mut ExecutingCall<'_>, reply: &[u8]) -> bool {
        if reply.len() > REPLY_MAX {
            return false;
        }
        let mut table = running.shard.table.lock();
        running.is_cached = table.insert(running.key, running.ticket, reply, self.now());
        running.is_cached
    }

    /// A clock that all processes of this boot share, and that an administrator cannot set.
    fn now(&self) -> Duration {
        self.clock.since_boot()
    }

    /// The earliest time that a file system may set for a change made from now on.
    fn earliest_change_time(&self) -> Timestamp {
        timestamp(self.clock.coarse_wall_clock())
    }

    /// The latest time that a file system may have set for a change made until now. Since Linux
    /// 6.13 some use the fine clock after a query of the time (multigrain timestamps).
    fn latest_change_time(&self) -> Timestamp {
        timestamp(self.clock.wall_clock())
    }

    /// Waits for the end of a call in progress on another thread. Returns whether it ended in time.
    fn wait(&self, shard: &ReplyCacheShard, key: ReplyCacheKey, first: ExecutionId) -> bool {
        // Relaxed: a limit, which orders no other memory.
        let allowed = self.waiters.fetch_add(1, Ordering::Relaxed) < self.bounds.waiters;
        let mut table = shard.table.lock();
        let runs = |table: &mut ReplyCacheTable| allowed && table.is_running(key, first);
        shard.ended.wait_while_for(&mut table, runs, self.bounds.wait);
        self.waiters.fetch_sub(1, Ordering::Relaxed);
        allowed && !table.is_running(key, first)
    }
}

pub(crate) fn timestamp(time: SystemTime) -> Timestamp {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::new(i64::try_from(since.as_secs()).unwrap_or(i64::MAX), since.subsec_nanos())
}

/// Whether results are those of a success: in every version they begin with a status, and zero is
/// success.
fn is_success(results: &[u8]) -> bool {
    results.starts_with(&[0; 4])
}

/// Emits the event that a call is a duplicate.
fn trace_duplicate(call: &CallMessage<'_>, context: &CallContext<'_>, reason: &str) {
    probe!(NfsdDrcFound {
        xid: call.xid,
        procedure: procedure_name(call.program, call.version, call.procedure).bytes(),
        peer: ShortText::of(context.peer()).bytes(),
        reason
    });
}

/// A call in progress. It ends when this is dropped, also by a panic. If no reply was cached then,
/// a waiting duplicate is executed itself.
struct ExecutingCall<'a> {
    shard: &'a ReplyCacheShard,
    key: ReplyCacheKey,
    ticket: ExecutionId,
    is_cached: bool,
}

impl Drop for ExecutingCall<'_> {
    fn drop(&mut self) {
        if !self.is_cached {
            self.shard.table.lock().abandon(self.key, self.ticket);
        }
        self.shard.ended.notify_all();
    }
}
