//! NFS versions 4.1 and 4.2 (RFC 8881, RFC 7862): [`NfsV4`] implements [`Protocol`] by one compound
//! for each intent, unless the server makes another one necessary.
//!
//! `compound` sends a compound until it is answered, `session` has the slots, `recovery` does what
//! the session needs, `open_table` has the opens, `abandoned_opens` the OPENs without a reply,
//! `delegation_table` the read delegations, `lock_states` the locks, `callback` answers the server,
//! `maintenance` works in the background for opens, delegations and the lease, `attributes`
//! converts. The compounds of the intents are in `files`, `lookup`, `create`, `remove`, `listing`,
//! `io`, `open`, `batch` and `lock`.
//!
//! In a compound, attributes that are to show a change come after it; those that label a result
//! (names, rights, data) come before it. So a change of another client between the two is seen as a
//! change later, never missed.

mod abandoned_opens;
mod attributes;
mod batch;
mod callback;
mod compound;
mod create;
mod delegation_table;
mod files;
pub mod identity;
mod io;
mod listing;
mod lock;
mod lock_states;
mod lookup;
mod maintenance;
mod maintenance_tasks;
pub mod mounting;
mod open;
mod open_codec;
mod open_key;
mod open_table;
mod piggybacked;
mod read_results;
mod recovery;
mod remove;
mod results;
mod server_traits;
mod session;

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use curt_rpc::{auth::RpcCredential, client::Interrupt};
use curt_types::{Fault, FileHandle};

use self::{
    abandoned_opens::AbandonedOpens,
    callback::CallbackService,
    delegation_table::DelegationTable,
    identity::ClientIdentity,
    lock_states::LockStateTable,
    maintenance_tasks::{MaintenanceTasks, TASKS},
    open_table::OpenTable,
    server_traits::ServerTraits,
    session::SessionMonitor,
};
use super::{DelegationEvents, DelegationOperations, NfsReply, Protocol, RpcClient, deadline::within};
use crate::threads::{Background, separate};

/// NFS version 4.1 or 4.2 in one session.
#[derive(Debug)]
pub struct NfsV4 {
    rpc: Arc<RpcClient>,
    minor_version: u32,
    identity: ClientIdentity,
    /// The credential of the session's own requests.
    machine: RpcCredential,
    /// Requests wait for a server that may get over what is wrong with it.
    is_hard: bool,
    session: Arc<SessionMonitor>,
    /// How many lost connections had been replaced at the last reply.
    replacements: AtomicU64,
    server: ServerTraits,
    opens: OpenTable,
    abandoned: AbandonedOpens,
    delegations: Arc<DelegationTable>,
    locks: Arc<LockStateTable>,
    callbacks: Arc<CallbackService>,
    /// Threads for maintenance, apart from those of write-back, which wait for its results.
    background: Arc<dyn Background>,
    this: Weak<Self>,
    /// The mount has ended: no session is created any more but to end this one, and no delegation
    /// is returned by itself.
    has_ended: AtomicBool,
    tasks: MaintenanceTasks,
}

impl NfsV4 {
    /// NFS version 4 over the connection of `rpc`, whose calls of the server `callbacks` answers.
    fn new(
        rpc: Arc<RpcClient>,
        minor_version: u32,
        identity: ClientIdentity,
        machine: RpcCredential,
        is_hard: bool,
        callbacks: Arc<CallbackService>,
        background: &Arc<dyn Background>,
    ) -> Arc<Self> {
        let session = callbacks.sessions();
        let delegations = callbacks.delegations();
        session.lock().lease.end = Arc::clone(delegations.lease());
        Arc::new_cyclic(|this: &Weak<Self>| {
            let call = |method: fn(&Self)| {
                let this = Weak::clone(this);
                Box::new(move || this.upgrade().iter().for_each(|this| method(this)))
            };
            delegations.set_must_return(call(Self::return_delegations));
            callbacks.set_slots_recalled(call(Self::report_slots));
            Self {
                rpc,
                minor_version,
                identity,
                machine,
                is_hard,
                session,
                replacements: AtomicU64::new(0),
                server: ServerTraits::default(),
                opens: OpenTable::default(),
                abandoned: AbandonedOpens::default(),
                delegations,
                locks: callbacks.locks(),
                callbacks,
                background: separate(background, TASKS),
                this: Weak::clone(this),
                has_ended: AtomicBool::new(false),
                tasks: MaintenanceTasks::default(),
            }
        })
    }

    /// A local refusal, for a request that cannot be encoded.
    fn refusal<R, A: Default>(&self, fault: Fault) -> NfsReply<R, A> {
        NfsReply { sent_at: self.rpc.now(), lost_at: None, outcome: Err(fault), attributes: A::default() }
    }
}

impl Protocol for NfsV4 {
    fn rpc(&self) -> &Arc<RpcClient> {
        &self.rpc
    }

    fn server(&self) -> (String, Vec<&'static str>) {
        self.server.report()
    }

    fn end(&self, limit: Duration) {
        self.has_ended.store(true, Relaxed);
        self.delegations.allow(false);
        within(limit, &Interrupt::never(), |ends| {
            if let Err(error) = self.destroy(ends) {
                tracing::debug!(%error, "the session is not destroyed");
            }
        });
    }
}

impl DelegationOperations for NfsV4 {
    fn report_delegations(&self, events: Weak<dyn DelegationEvents>, origin: Instant) {
        self.delegations.report(events, origin);
    }

    fn allow_delegations(&self, are_allowed: bool) {
        self.delegations.allow(are_allowed);
    }

    fn delegations(&self) -> usize {
        self.delegations.held()
    }

    fn expects_delegations(&self) -> bool {
        self.delegations.is_expected(|| self.rpc.now()) && self.session.lock().backchannel.is_usable()
    }

    fn give_up_delegation(&self, file: &FileHandle) {
        self.delegations.give_up(file);
    }
}
