//! Replies that were sent, for calls that come twice (RFC 1813 section 4.5, the duplicate request cache).
//!
//! A client that lost its connection does not know which of its calls were executed, and sends them again, over a new connection and from another
//! port. A MKDIR that is executed twice answers "exists", a REMOVE "no such file": for programs that is an error that nobody made. So the
//! reply of each call that changes names or attributes is kept for a while, and a call that is the same in every byte that means
//! something, from the same address and with the same transaction number, is answered with it.
//!
//! Kept are SETATTR, CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, RENAME and LINK: the calls that cannot be repeated, and those that can but would
//! undo what was done since if they came late (SETATTR of a size, CREATE of a file that is there). WRITE and COMMIT can be repeated,
//! and a client sends no other WRITE of a range before it knows what became of the first. They, and what only reads, never come here:
//! their path touches no lock of this module.
//!
//! Invariants: no caller is answered with what was said to another (a keyed hash over the credential and arguments must agree, too); what is kept is
//! bounded in number and bytes, and a client that sends much displaces its own replies first; no lock is held while a call is executed;
//! a call that is being executed when its duplicate comes is not executed twice.

mod fingerprint;
mod table;
#[cfg(test)]
mod tests;

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use curt_proto::nfs3::Procedure;
use curt_rpc::message::Call;
use curt_rpc::server::{CallFailure, Context};
use curt_trace::events::{Short, procedure_name};
use curt_trace::{ServerCounter, ServerCounters, probe};
use parking_lot::{Condvar, Mutex};

use self::fingerprint::Fingerprints;
use self::table::{Begin, Key, Table, TableBounds, Ticket};

/// The longest reply that is kept, in bytes. The longest there is, of a RENAME or a CREATE, has less than 300.
pub(crate) const REPLY_MAX: usize = 1024;

/// How much is kept and for how long.
#[derive(Clone, Debug)]
pub(crate) struct Bounds {
    /// Replies at once, a multiple of the number of shards.
    pub(crate) entries: usize,
    /// Bytes of replies at once, what it costs to find them included.
    pub(crate) bytes: usize,
    /// How long a reply is kept: a client that has not asked again by then does not ask again with the same number.
    pub(crate) age: Duration,
    /// How long a duplicate waits for the end of the first. After that it is dropped; the first one's reply still comes, and so may another duplicate.
    pub(crate) wait: Duration,
    /// How many duplicates wait at once, each with a serving thread. One more is dropped.
    pub(crate) waiters: usize,
}

impl Default for Bounds {
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

/// As many locks as threads could want at once on machines of today.
const SHARDS: usize = 32;

/// What was answered lately.
pub(crate) struct ReplyCache {
    shards: Box<[Shard]>,
    fingerprints: Fingerprints,
    bounds: Bounds,
    epoch: Instant,
    waiters: AtomicUsize,
}

struct Shard {
    table: Mutex<Table>,
    /// Rung whenever a call of this shard has ended.
    ended: Condvar,
}

/// Whether replies to `procedure` are kept; the module says why.
pub(crate) const fn is_kept(procedure: Procedure) -> bool {
    match procedure {
        Procedure::Setattr
        | Procedure::Create
        | Procedure::Mkdir
        | Procedure::Symlink
        | Procedure::Mknod
        | Procedure::Remove
        | Procedure::Rmdir
        | Procedure::Rename
        | Procedure::Link => true,
        Procedure::Null
        | Procedure::Getattr
        | Procedure::Lookup
        | Procedure::Access
        | Procedure::Readlink
        | Procedure::Read
        | Procedure::Write
        | Procedure::Readdir
        | Procedure::ReaddirPlus
        | Procedure::Fsstat
        | Procedure::Fsinfo
        | Procedure::Pathconf
        | Procedure::Commit => false,
    }
}

impl ReplyCache {
    /// An empty one. `secret` keeps peers from making calls that look the same to it.
    pub(crate) fn new(bounds: Bounds, secret: [u8; 16]) -> Self {
        let each = TableBounds {
            entries: (bounds.entries / SHARDS).max(1),
            bytes: bounds.bytes / SHARDS,
            age: bounds.age,
        };
        let shard = || Shard {
            table: Mutex::new(Table::new(each)),
            ended: Condvar::new(),
        };
        Self {
            shards: (0..SHARDS).map(|_| shard()).collect(),
            fingerprints: Fingerprints::new(secret),
            bounds,
            epoch: Instant::now(),
            waiters: AtomicUsize::new(0),
        }
    }

    /// Answers `call` with what it was answered before, or by `execute`, whose reply is kept.
    pub(crate) fn answer(
        &self,
        call: &Call<'_>,
        context: &mut Context<'_>,
        reply: &mut Vec<u8>,
        counters: &ServerCounters,
        execute: impl FnOnce(&mut Context<'_>, &mut Vec<u8>) -> Result<(), CallFailure>,
    ) -> Result<(), CallFailure> {
        let key = Key {
            peer: context.peer().ip(),
            xid: call.xid,
        };
        let fingerprint = self.fingerprints.of(call, context.peer());
        let shard = &self.shards[self.fingerprints.place(&key) % SHARDS];
        let mut table = shard.table.lock();
        loop {
            match table.begin(key, fingerprint, self.epoch.elapsed()) {
                Begin::Replay(kept) => {
                    reply.extend_from_slice(kept);
                    counters.count(ServerCounter::ReplyCacheHit);
                    found(call, context, "answered as then");
                    return Ok(());
                }
                Begin::First(ticket) => {
                    drop(table);
                    counters.count(ServerCounter::ReplyCacheMiss);
                    let mut running = Running {
                        shard,
                        key,
                        ticket,
                        is_kept: false,
                    };
                    let start = reply.len();
                    execute(context, reply)?;
                    if !self.keep(&mut running, reply.get(start..).unwrap_or_default()) {
                        counters.count(ServerCounter::ReplyCacheNotCached);
                    }
                    return Ok(());
                }
                Begin::Unkept => {
                    drop(table);
                    counters.count(ServerCounter::ReplyCacheNotCached);
                    return execute(context, reply);
                }
                Begin::Running(first) => {
                    drop(table);
                    // The calls behind it are not to wait.
                    context.may_block();
                    if !self.wait(shard, key, first) {
                        counters.count(ServerCounter::ReplyCacheDropped);
                        found(call, context, "still being executed");
                        return Err(CallFailure::NoReply);
                    }
                    table = shard.table.lock();
                }
            }
        }
    }

    /// Keeps the reply to a call that was executed; whether it did.
    fn keep(&self, running: &mut Running<'_>, reply: &[u8]) -> bool {
        if reply.len() > REPLY_MAX {
            return false;
        }
        let mut table = running.shard.table.lock();
        running.is_kept = table.keep(running.key, running.ticket, reply, self.epoch.elapsed());
        running.is_kept
    }

    /// Waits for the end of a call that another thread executes; whether it came in time.
    fn wait(&self, shard: &Shard, key: Key, first: Ticket) -> bool {
        // Relaxed: a bound, which orders nothing.
        let allowed = self.waiters.fetch_add(1, Ordering::Relaxed) < self.bounds.waiters;
        let deadline = Instant::now() + self.bounds.wait;
        let mut table = shard.table.lock();
        while allowed && table.is_running(key, first) {
            if shard.ended.wait_until(&mut table, deadline).timed_out() {
                break;
            }
        }
        self.waiters.fetch_sub(1, Ordering::Relaxed);
        allowed && !table.is_running(key, first)
    }
}

/// Tells that a call had come before.
fn found(call: &Call<'_>, context: &Context<'_>, reason: &str) {
    probe!(NfsdDrcFound {
        xid: call.xid,
        procedure: procedure_name(call.program, call.procedure).bytes(),
        peer: Short::of(context.peer()).bytes(),
        reason
    });
}

/// A call that is being executed, until this goes: also by a panic. A duplicate that waits is then executed itself, if nothing was kept.
struct Running<'a> {
    shard: &'a Shard,
    key: Key,
    ticket: Ticket,
    is_kept: bool,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            self.shard.table.lock().abandon(self.key, self.ticket);
        }
        self.shard.ended.notify_all();
    }
}
