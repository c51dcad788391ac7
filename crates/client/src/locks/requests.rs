//! The requests for locks, and which thread sends them.
//!
//! A request to the server is sent by the thread whose event caused it, after that event's callers
//! are answered; further ones are sent by threads of their own, which nothing else uses: a lock
//! manager that does not respond must delay neither reads and writes, nor the interruption of
//! waits.

use std::sync::Arc;

use curt_observe::{Cause, ClientCounter, scope};
use curt_policy::locks::{LockCallId, LockError, LockProcedure, LockReply, LockServerCall, LockWait};
use curt_rpc::client::CallError;
use curt_types::{Fault, FileHandle};

use super::{
    LockEffects, MountLocks, MountLocksInner, is_lock,
    senders::{RequestKind, RequestSenders, SendPermit},
    trace_state,
};
use crate::protocol::{LockAnswer, LockMode, OpenCaller, WireLock};

impl MountLocks {
    /// Executes the effects of an event; requests are sent by this thread.
    pub(super) fn perform(self: &Arc<Self>, effects: LockEffects) {
        self.perform_on(None, effects);
    }

    /// As [`Self::perform`], on a thread that sends requests of one kind.
    pub(super) fn perform_on(self: &Arc<Self>, own: Option<RequestKind>, effects: LockEffects) {
        let mut sends = self.answer_all(effects);
        loop {
            let mut here = None;
            for call in sends {
                match self.permit(own, &call).filter(|_| here.is_none()) {
                    Some(permit) => here = Some((call, permit)),
                    None => self.send_elsewhere(call),
                }
            }
            let Some((call, permit)) = here else { return };
            let reply = self.send(&call);
            drop(permit);
            sends = self.answer_all(self.replied(&call, reply));
        }
    }

    pub(super) fn permit(&self, own: Option<RequestKind>, call: &LockServerCall) -> Option<SendPermit<'_>> {
        let kind = kind_of(call);
        if own == Some(kind) { Some(SendPermit::OWN) } else { self.senders(kind).permit() }
    }

    pub(super) const fn senders(&self, kind: RequestKind) -> &RequestSenders {
        let [locks, releases] = &self.senders;
        match kind {
            RequestKind::Lock => locks,
            RequestKind::Release => releases,
        }
    }

    /// As [`Self::perform`], but other threads send the requests and report grants. Reporting a
    /// grant can wait for the kernel to drop pages of the file.
    pub(super) fn perform_elsewhere(self: &Arc<Self>, mut effects: LockEffects) {
        let (granted, others) = effects.answers.into_iter().partition(|(_, _, result)| result.is_ok());
        effects.answers = others;
        self.answer_all(effects).into_iter().for_each(|call| self.send_elsewhere(call));
        let granted = LockEffects { answers: granted, ..LockEffects::default() };
        if !granted.is_empty() {
            let locks = Arc::clone(self);
            let task = Box::new(move || drop(locks.answer_all(granted)));
            self.senders(RequestKind::Release).threads.spawn(task);
        }
    }

    pub(super) fn send_elsewhere(self: &Arc<Self>, call: LockServerCall) {
        let (locks, kind) = (Arc::clone(self), kind_of(&call));
        let task = move || {
            let is_in_vain = is_lock(&call) && locks.state.lock().agent.is_withdrawn(call.id);
            // Nothing has changed at the server.
            let reply = if is_in_vain { LockReply::Denied } else { locks.send(&call) };
            let effects = locks.replied(&call, reply);
            locks.perform_on(Some(kind), effects);
        };
        self.senders(kind).threads.spawn(Box::new(task));
    }

    /// Sends a request and waits for the reply.
    pub(super) fn send(self: &Arc<Self>, call: &LockServerCall) -> LockReply {
        let (inode, identity, owner) = {
            let mut state = self.state.lock();
            let MountLocksInner { files, owners, agent, .. } = &mut *state;
            let Some((inode, identity)) = files.sender(call.id) else {
                return LockReply::Unknown(LockError::Failed(Fault::Io));
            };
            let Some(owner) = self.number(owners, agent, call.wire_owner) else {
                return LockReply::Refused(LockError::NoLocks);
            };
            (inode, identity, owner)
        };
        let _scope = scope::enter(scope::RequestScope { object: inode.id().0, ..scope::current() });
        let _cause = scope::with_cause(Cause::Lock);
        let open = identity.open_context();
        let opener = OpenCaller { open: &open, interrupt: &self.stop };
        let caller = opener.rpc();
        let (protocol, file) = (&self.core.protocol, inode.handle());
        let lock = |lock_type| WireLock { owner, range: call.range, lock_type };
        if call.is_undo {
            self.core.count(ClientCounter::LockUndo);
        }
        let answer = match call.procedure {
            LockProcedure::Lock { lock_type, wait } => {
                self.core.count(ClientCounter::LockWire);
                trace_state(&inode, call.range, "asked");
                self.send_lock(call, opener, file, &lock(lock_type), wait)
            }
            LockProcedure::Reclaim { lock_type } => {
                self.core.count(ClientCounter::LockWire);
                trace_state(&inode, call.range, "reclaimed");
                protocol.lock(opener, file, &lock(lock_type), LockMode::Reclaim)
            }
            LockProcedure::Unlock => {
                self.core.count(ClientCounter::LockUnlockWire);
                trace_state(&inode, call.range, "unlocking");
                protocol.unlock(caller, file, owner, call.range)
            }
            LockProcedure::Cancel { lock_type } => {
                self.core.count(ClientCounter::LockCancelWire);
                trace_state(&inode, call.range, "cancelled");
                protocol.cancel_lock(caller, file, &lock(lock_type))
            }
        };
        answer.unwrap_or_else(|error| match error {
            CallError::Unreachable(_) => LockReply::Grace,
            error => {
                tracing::debug!(%error, ?call, "a request for a lock got no reply");
                LockReply::Unknown(of_call(error))
            }
        })
    }

    /// Sends a LOCK. If it may have been sent twice, what a copy of it locks later is undone.
    fn send_lock(
        self: &Arc<Self>,
        call: &LockServerCall,
        opener: OpenCaller<'_>,
        file: &FileHandle,
        lock: &WireLock,
        wait: LockWait,
    ) -> LockAnswer {
        let protocol = &self.core.protocol;
        let mode = match wait {
            LockWait::No => LockMode::Try,
            LockWait::Repeat => LockMode::Repeat,
            LockWait::Block => LockMode::Block,
        };
        let sent_again = protocol.lock_requests_sent_again();
        let answer = protocol.lock(opener, file, lock, mode);
        // Another thread's request may have been sent again, which costs this owner a LOCK.
        // Without a reply it may still be on its way, and the next LOCK repeats it.
        let is_sent_again = protocol.lock_requests_sent_again() != sent_again;
        if sent_again.is_some() && (is_sent_again || answer.is_err()) {
            let id = LockCallId { request: self.next_request(), owner: call.wire_owner, ..call.id };
            let effects = self.event(|state, _| state.agent.sent_again(id, lock.range, lock.lock_type));
            self.perform_elsewhere(effects);
        }
        answer
    }
}

const fn kind_of(call: &LockServerCall) -> RequestKind {
    match call.procedure {
        LockProcedure::Lock { .. } | LockProcedure::Reclaim { .. } => RequestKind::Lock,
        LockProcedure::Unlock | LockProcedure::Cancel { .. } => RequestKind::Release,
    }
}

/// The error of a request that got no reply.
const fn of_call(error: CallError) -> LockError {
    match error {
        CallError::Interrupted => LockError::Interrupted,
        CallError::Denied(_) => LockError::Failed(Fault::Acces),
        _ => LockError::Failed(Fault::Io),
    }
}
