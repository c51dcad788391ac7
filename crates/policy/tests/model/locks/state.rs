//! A state of the world of locks: processes, agents, messages and a server.

use std::collections::{BTreeMap, BTreeSet};

use curt_policy::locks::{
    LocalLockOwner, LockAgent, LockCallId, LockError, LockProcedure, LockRanges, LockReply, LockServerCall,
    LockTimer, LockWait,
};
use curt_types::{ByteRange, LockType};

use super::world::{Callbacks, Wanted};

/// The client of each process.
pub(crate) const CLIENT_OF: [usize; 3] = [0, 0, 1];

#[derive(Clone, Debug, Hash)]
pub(crate) struct State {
    pub(crate) agents: [LockAgent; 2],
    pub(crate) processes: [Process; 3],
    pub(crate) server: Server,
    /// In no order.
    pub(crate) messages: BTreeSet<Message>,
    /// Polls that are due, also those that have become ineffective; in a definite order.
    pub(crate) timers: Vec<(usize, LockTimer)>,
    pub(crate) interrupts: u8,
    pub(crate) polls: u8,
    pub(crate) restarts: u8,
    pub(crate) false_restarts: u8,
    pub(crate) refusals: u8,
    pub(crate) losses: u8,
    pub(crate) repeats: u8,
    pub(crate) resends: u8,
    /// LOCKs that are executed twice; until their reply.
    pub(crate) sent_again: BTreeMap<(usize, LockCallId), (ByteRange, LockType)>,
}

#[derive(Clone, Debug, Hash)]
pub(crate) struct Process {
    pub(crate) operations: u8,
    pub(crate) call: Option<SystemCall>,
    /// The locks it may rely on. While it changes a lock, the weaker of both.
    pub(crate) held: LockRanges,
    /// Calls of its own so far: the next number of a request.
    pub(crate) calls: u64,
    /// Numbers of requests that were interrupted.
    pub(crate) interrupted: BTreeSet<u64>,
}

/// A system call of a process.
#[derive(Clone, Debug, Hash)]
pub(crate) enum SystemCall {
    Lock {
        wanted: Wanted,
        /// The locks it held before.
        before: LockRanges,
        /// Somebody else held, or was getting or giving back, a conflicting lock meanwhile.
        is_excused: bool,
    },
    Unlock,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Message {
    Call(usize, OrderedCall),
    /// A copy of one, whose reply nobody waits for.
    Copy(usize, OrderedCall),
    Reply(usize, LockCallId, OrderedReply),
    /// A callback to a client.
    Granted(usize, OrderedCallback),
}

/// A callback, in an order that means nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct OrderedCallback {
    pub(crate) wire_owner: LocalLockOwner,
    pub(crate) range: ByteRange,
    pub(crate) lock_type: LockType,
    /// The callback was delivered before.
    pub(crate) is_repeated: bool,
}

/// A call, in an order that means nothing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct OrderedCall {
    pub(crate) id: LockCallId,
    pub(crate) wire_owner: LocalLockOwner,
    pub(crate) range: ByteRange,
    /// LOCK, and how it waits; or CANCEL; or UNLOCK.
    pub(crate) lock: Option<(LockType, LockWait)>,
    pub(crate) is_cancel: bool,
    pub(crate) is_reclaim: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum OrderedReply {
    Granted,
    Denied,
    Blocked,
    Grace,
    Refused,
}

impl From<OrderedReply> for LockReply {
    fn from(reply: OrderedReply) -> Self {
        match reply {
            OrderedReply::Granted => Self::Granted,
            OrderedReply::Denied => Self::Denied,
            OrderedReply::Blocked => Self::Blocked,
            OrderedReply::Grace => Self::Grace,
            OrderedReply::Refused => Self::Refused(LockError::NoLocks),
        }
    }
}

impl From<LockServerCall> for OrderedCall {
    fn from(call: LockServerCall) -> Self {
        let LockServerCall { id, wire_owner, range, procedure, .. } = call;
        let (lock, is_cancel) = match procedure {
            LockProcedure::Lock { lock_type, wait } => (Some((lock_type, wait)), false),
            LockProcedure::Cancel { lock_type } => (Some((lock_type, LockWait::Block)), true),
            LockProcedure::Reclaim { lock_type } => (Some((lock_type, LockWait::No)), false),
            LockProcedure::Unlock => (None, false),
        };
        let is_reclaim = matches!(procedure, LockProcedure::Reclaim { .. });
        Self { id, wire_owner, range, lock, is_cancel, is_reclaim }
    }
}

/// A server of NLM or NFSv4.
#[derive(Clone, Debug, Default, Hash)]
pub(crate) struct Server {
    pub(crate) locks: BTreeMap<(usize, LocalLockOwner), LockRanges>,
    pub(crate) blocked: Vec<(usize, LocalLockOwner, ByteRange, LockType)>,
    pub(crate) is_in_grace: bool,
}

impl Server {
    fn conflicts(&self, owner: (usize, LocalLockOwner), range: ByteRange, lock_type: LockType) -> bool {
        self.locks.iter().any(|(other, locks)| {
            *other != owner && locks.overlapping(range).any(|(_, held)| held.conflicts(lock_type))
        })
    }

    /// Executes a call; its callbacks come beside the reply.
    pub(crate) fn execute(
        &mut self,
        client: usize,
        call: &OrderedCall,
        callbacks: Callbacks,
    ) -> (OrderedReply, Vec<Message>) {
        let owner = (client, call.wire_owner);
        let reply = match call.lock {
            Some((lock_type, _)) if call.is_cancel => {
                let entry = (client, call.wire_owner, call.range, lock_type);
                self.blocked.retain(|blocked| *blocked != entry);
                // Also if it was granted.
                OrderedReply::Granted
            }
            Some(_) if self.is_in_grace && !call.is_reclaim => OrderedReply::Grace,
            Some(_) if !self.is_in_grace && call.is_reclaim => OrderedReply::Refused,
            Some((lock_type, wait)) => {
                let entry = (client, call.wire_owner, call.range, lock_type);
                if !self.conflicts(owner, call.range, lock_type) {
                    self.blocked.retain(|blocked| *blocked != entry);
                    self.locks.entry(owner).or_default().set(call.range, Some(lock_type));
                    OrderedReply::Granted
                } else if wait == LockWait::Block && callbacks != Callbacks::None {
                    if !self.blocked.contains(&entry) {
                        self.blocked.push(entry);
                    }
                    OrderedReply::Blocked
                } else {
                    OrderedReply::Denied
                }
            }
            None => {
                self.locks.entry(owner).or_default().set(call.range, None);
                OrderedReply::Granted
            }
        };
        self.locks.retain(|_, locks| !locks.is_empty());
        (reply, self.grant_blocked(callbacks))
    }

    fn grant_blocked(&mut self, kind: Callbacks) -> Vec<Message> {
        let mut callbacks = Vec::new();
        let mut index = 0;
        while let Some((client, owner, range, lock_type)) = self.blocked.get(index).copied() {
            if self.conflicts((client, owner), range, lock_type) {
                index += 1;
            } else {
                self.blocked.remove(index);
                if kind == Callbacks::Grant {
                    self.locks.entry((client, owner)).or_default().set(range, Some(lock_type));
                }
                let callback = OrderedCallback { wire_owner: owner, range, lock_type, is_repeated: false };
                callbacks.push(Message::Granted(client, callback));
            }
        }
        callbacks
    }

    /// The locks it holds for a client.
    pub(crate) fn held_for(&self, client: usize) -> LockRanges {
        let mut held = LockRanges::default();
        for (_, locks) in self.locks.iter().filter(|((its, _), _)| *its == client) {
            held.strengthen(locks);
        }
        held
    }
}
