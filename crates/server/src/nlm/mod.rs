//! NLM version 4 and NSM as a server: the locks of NFSv3 (RFC 1813 appendix II; XNFS).
//!
//! Decides which host may do what. The table of [`locks`](crate::state::locks) decides who gets a
//! lock. NLM is not authenticated. A host is the address that its requests come from: it can
//! release its own locks only, and is called back at that address only. Names in arguments are
//! information. Invariants: a host is in the list on disk before the reply to its first lock; no
//! mutex is held while a host is called, and no serving thread waits for one. A lock or reservation
//! is reclaimed only by a host that was in the list when this run began.

mod deferred;
mod host_states;
mod hosts;
mod lock_peers;
mod monitor;
mod requests;
mod restart;
mod shares;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use curt_observe::events::{ShortText, handle_hash};
use curt_observe::stages::{self, RequestStage};
use curt_observe::{ServerCounter, probe};
use curt_proto::Operation;
use curt_proto::nlm4::{NlmProcedure, NlmResult, NlmStat4, NlmTestArguments};
use curt_rpc::message::CallMessage;
use curt_rpc::server::{CallContext, CallFailure};
use curt_types::Fault;
use curt_xdr::{Decode, Encode, decode_all};
use parking_lot::Mutex;

pub(crate) use deferred::DeferredRequest;
pub use lock_peers::{GrantId, GrantedCallOutcome, GrantedLock, LockPeers, PeerCall, PeerCallKind};
pub(crate) use monitor::call as call_monitor;
pub use restart::{HostToNotify, LockServing, RestartNotices};

use crate::lock_service::LockCallbacks;
use crate::service::NfsService;
use crate::state::locks::{LockCallback, LockClient};
use crate::state_directory::PersistentState;
use deferred::DeferredRequests;
use hosts::{HostRecordError, HostTable, known_local};
use requests::{Monitoring, NlmRequest};
use shares::HostShares;

/// Ports below this one are root's (IPPORT_RESERVED).
const PORT_RESERVED: u16 = 1024;

/// The state of NLM and NSM.
#[derive(Default)]
pub(crate) struct LockManager {
    /// Without it the programs are not served.
    serving: OnceLock<LockServing>,
    hosts: HostTable,
    shares: Mutex<HostShares>,
    deferred: DeferredRequests,
}

impl LockManager {
    /// Begins to change the list as was requested, after the changes before it, and has the hosts
    /// of the list watched.
    fn update_list(self: &Arc<Self>, state: &Arc<PersistentState>) {
        let Some(serving) = self.serving.get() else { return };
        let (manager, state, peers) = (Arc::clone(self), Arc::clone(state), Arc::clone(&serving.peers));
        let update = move || {
            let save = |list: &_| {
                let saved = state.save_monitored(list);
                saved.inspect_err(|error| {
                    tracing::error!(%error, "the list of hosts with locks is not saved");
                })
            };
            let changes = manager.hosts.update(save, |host| manager.shares.lock().has_host(host));
            changes.removed.into_iter().for_each(|host| peers.watch(host, false));
            changes.added.into_iter().for_each(|host| peers.watch(host, true));
        };
        serving.peers.run(Box::new(update));
    }

    /// Writes a host to the list, unless it is there.
    fn record(self: &Arc<Self>, state: &Arc<PersistentState>, address: IpAddr) -> Result<(), Fault> {
        // The request for which it is recorded refers to it.
        let Some(host) = self.hosts.find(address) else { return Err(Fault::Jukebox) };
        if host.is_recorded() {
            return Ok(());
        }
        let outcome = self.hosts.want(address, host);
        self.update_list(state);
        outcome.recv().unwrap_or(Err(HostRecordError::NotSaved)).map_err(|error| {
            tracing::warn!(host = %address, %error, "no lock for the host: it could not be notified of a restart");
            match error {
                HostRecordError::TooMany => Fault::Dquot,
                HostRecordError::NotSaved => Fault::Io,
            }
        })
    }

    /// Begins to remove a host without locks from the list, unless it has reservations.
    fn end(self: &Arc<Self>, state: &Arc<PersistentState>, address: IpAddr) {
        let has_ended =
            !self.shares.lock().has_host(address) && self.hosts.find(address).is_some_and(|host| host.end());
        if has_ended {
            self.update_list(state);
        }
    }
}

/// Passes what the lock table decides to the hosts.
struct HostCallbacks {
    manager: Arc<LockManager>,
    state: Arc<PersistentState>,
}

impl LockCallbacks for HostCallbacks {
    fn send(&self, callback: LockCallback) {
        let manager = &*self.manager;
        let (LockClient::Host(peer), Some(serving)) = (callback.lock.client, manager.serving.get()) else {
            return;
        };
        let granted = GrantedLock::of(&callback, &serving.host_name);
        probe!(NfsdLockGranted {
            peer: ShortText::of(peer).bytes(),
            fhandle: handle_hash(granted.file.as_bytes()),
            lock_first: granted.range.first(),
            lock_last: granted.range.last()
        });
        // What is not queued is sent again.
        let kind = PeerCallKind::Granted(granted);
        let _ = serving.peers.call(PeerCall { peer, local: callback.local, kind });
    }

    fn client_begins(&self, client: LockClient) -> Result<(), Fault> {
        match client {
            LockClient::Host(address) => self.manager.record(&self.state, address),
            LockClient::Clientid(_) | LockClient::Local => Ok(()),
        }
    }

    fn client_ends(&self, client: LockClient) {
        if let LockClient::Host(address) = client {
            self.manager.end(&self.state, address);
        }
    }
}

/// Answers a call of NLM version 4.
pub(crate) fn call(
    service: &NfsService,
    call: &CallMessage<'_>,
    context: &mut CallContext<'_>,
    reply: &mut Vec<u8>,
) -> Result<(), CallFailure> {
    let Some(serving) = service.lock_manager.serving.get() else {
        return Err(CallFailure::ProgramUnavailable);
    };
    let procedure = NlmProcedure::from_number(call.procedure).ok_or(CallFailure::ProcedureUnavailable)?;
    service.begin_call(Operation::Nlm(procedure), context);
    let (peer, local) = (context.peer(), known_local(context.local().ip()));
    let mut request = NlmRequest::new(service, call, context);
    let mut message = Vec::new();
    let result = result_of(procedure);
    let results = if result.is_some() { &mut message } else { reply };
    match procedure {
        NlmProcedure::Null => decoded::<()>(call)?,
        NlmProcedure::Test | NlmProcedure::TestMsg => requests::test(&mut request, &decoded(call)?, results)?,
        NlmProcedure::Lock | NlmProcedure::LockMsg => {
            requests::lock(&mut request, &decoded(call)?, Monitoring::Yes, results)?;
        }
        NlmProcedure::NmLock => requests::lock(&mut request, &decoded(call)?, Monitoring::No, results)?,
        NlmProcedure::Cancel | NlmProcedure::CancelMsg => {
            requests::cancel(&mut request, &decoded(call)?, results)?;
        }
        NlmProcedure::Unlock | NlmProcedure::UnlockMsg => {
            requests::unlock(&mut request, &decoded(call)?, results)?;
        }
        NlmProcedure::Share => requests::share(&mut request, &decoded(call)?, results)?,
        NlmProcedure::Unshare => requests::unshare(&mut request, &decoded(call)?, results)?,
        // Any user of the host can send from other ports.
        NlmProcedure::FreeAll => {
            decoded::<curt_proto::nlm4::NlmNotify<'_>>(call)?;
            if peer.port() < PORT_RESERVED {
                service.release_host(peer.ip());
            }
        }
        // This service waits for no lock.
        NlmProcedure::Granted => {
            let arguments: NlmTestArguments<'_> = decoded(call)?;
            NlmResult { cookie: arguments.cookie, status: NlmStat4::Denied }.encode(results);
        }
        NlmProcedure::GrantedMsg => drop(decoded::<NlmTestArguments<'_>>(call)?),
        NlmProcedure::GrantedRes => {
            let NlmResult { cookie, status } = decoded(call)?;
            service.granted_result(peer.ip(), cookie.bytes(), status);
        }
        // This service sends none of the messages that these answer.
        NlmProcedure::TestRes | NlmProcedure::LockRes | NlmProcedure::CancelRes | NlmProcedure::UnlockRes => {
        }
    }
    stages::proceed(RequestStage::Encode);
    if let Some(procedure) = result {
        let kind = PeerCallKind::Result { procedure, arguments: message };
        // A host that has no result repeats its message.
        let _ = serving.peers.call(PeerCall { peer: peer.ip(), local, kind });
    }
    Ok(())
}

/// The procedure that answers a message.
const fn result_of(procedure: NlmProcedure) -> Option<NlmProcedure> {
    match procedure {
        NlmProcedure::TestMsg => Some(NlmProcedure::TestRes),
        NlmProcedure::LockMsg => Some(NlmProcedure::LockRes),
        NlmProcedure::CancelMsg => Some(NlmProcedure::CancelRes),
        NlmProcedure::UnlockMsg => Some(NlmProcedure::UnlockRes),
        _ => None,
    }
}

fn decoded<'a, T: Decode<'a>>(call: &CallMessage<'a>) -> Result<T, CallFailure> {
    decode_all(call.arguments).map_err(|_| CallFailure::GarbageArguments)
}

impl NfsService {
    /// Frees all locks and reservations of a host.
    fn release_host(&self, host: IpAddr) {
        self.lock_manager.deferred.end_all_of(host);
        self.lock_manager.shares.lock().release_host(&self.held.shares, host, None);
        self.locks.release_client(LockClient::Host(host), self.clock.now());
        self.end_without_shares(host);
    }

    /// A host without reservations leaves the list when it has had no locks for a while, either.
    fn end_without_shares(&self, host: IpAddr) {
        let manager = &self.lock_manager;
        let is_listed = manager.hosts.find(host).is_some_and(|host| host.is_listed());
        if is_listed && !manager.shares.lock().has_host(host) {
            self.locks.end_later(LockClient::Host(host));
        }
    }

    /// A queued GRANTED is about to be sent to `peer`. Returns `false` if its lock is not pending
    /// any more: then it must not be sent, because a later request of the host may be about the
    /// same lock.
    #[must_use]
    pub fn begin_grant(&self, peer: IpAddr, id: GrantId) -> bool {
        self.locks.begin_grant(LockClient::Host(peer), id.callback())
    }

    /// Reports the outcome of a GRANTED that was sent to `peer`, `round_trip` after that.
    pub fn grant_answered(
        &self,
        peer: IpAddr,
        id: GrantId,
        outcome: GrantedCallOutcome,
        round_trip: Duration,
    ) {
        let is_undelivered = outcome == GrantedCallOutcome::Undelivered;
        if is_undelivered {
            self.counters.count(ServerCounter::LockCallbacksUndelivered);
        }
        let now = self.clock.now();
        if let Some(host) = self.lock_manager.hosts.find(peer)
            && host.note_callback(is_undelivered, now)
        {
            tracing::warn!(
                host = %peer,
                "callbacks for locks do not reach the host: its processes get them late, or never \
                 (a firewall must let its port 111 and the ports that `rpcinfo -p` shows pass)"
            );
        }
        let answer = outcome.answer(round_trip);
        self.locks.answered(LockClient::Host(peer), id.callback(), answer, now);
    }

    /// The answer to a GRANTED_MSG. The round trip is not known.
    fn granted_result(&self, peer: IpAddr, cookie: &[u8], status: NlmStat4) {
        if let Some(id) = GrantId::of_cookie(cookie) {
            self.grant_answered(peer, id, GrantedCallOutcome::of_status(status), Duration::ZERO);
        }
    }
}
