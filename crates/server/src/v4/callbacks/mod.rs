//! Callbacks to clients (RFC 8881 sections 2.10.3, 20.6, 20.9 and 20.11).
//!
//! A few threads of their own make the calls ([`queue`]), over connections that the client has
//! bound to one of its sessions, in the slots of the backchannel.

mod codec;
mod queue;

use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use curt_observe::events::handle_hash;
use curt_observe::{ServerCounter, probe};
use curt_proto::nfs4::{CALLBACK_VERSION, CallbackOperation, Clientid, NfsStat4};
use curt_rpc::client::{CallError, RpcRequest};
use curt_rpc::server::client_network;
use curt_types::Fault;
use curt_vfs::LeaseWatcher;
use curt_xdr::Encoded;

use self::codec::{CallbackArguments, CallbackResult};
use self::queue::{CallbackQueue, THREADS};
use crate::lock_service::LockCallbacks;
use crate::recalls::RecallSender;
use crate::service::{NfsService, NfsServiceError};
use crate::state::locks::{CallbackAnswer, LockCallback, LockClient};
use crate::state::{
    CallbackRoute, CallbackRouting, CallbackSlotOutcome, Client, Recall, SentCallback, Session,
};

/// Time limit of a call.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Calls for one callback, if the client's slot is in another state than expected, or in use.
const ATTEMPTS: usize = 4;
/// The pause before a call to a client that asked for one.
const PAUSE: Duration = Duration::from_millis(50);
/// Maximum size of the results of a callback.
const RESULTS_MAX: usize = 2048;
/// The number of CB_COMPOUND.
const CB_COMPOUND: u32 = 1;
/// The bytes of a call before its arguments, without the body of its credential.
const CALL_HEADER: usize = 40;

/// A callback.
enum ClientCallback {
    NotifyLock(LockCallback),
    /// CB_RECALL_ANY, with the number of objects to keep.
    RecallAny(u32),
    Recall(Recall),
}

/// The callbacks that wait for a thread.
type ClientCallbackQueue = CallbackQueue<ClientCallback>;

/// Passes what the lock table and the table of delegations decide to clients.
struct ClientCallbacks(Arc<ClientCallbackQueue>);

impl LockCallbacks for ClientCallbacks {
    fn send(&self, callback: LockCallback) {
        if let LockClient::Clientid(client) = callback.lock.client {
            self.0.add(Clientid(client), ClientCallback::NotifyLock(callback));
        }
    }

    fn client_begins(&self, _: LockClient) -> Result<(), Fault> {
        // A client that locks has an open, for which it was recorded.
        Ok(())
    }

    fn client_ends(&self, _: LockClient) {}
}

impl RecallSender for ClientCallbacks {
    fn send(&self, recall: Recall) {
        self.0.add(recall.client, ClientCallback::Recall(recall));
    }
}

/// Ends the threads with the service.
pub(crate) struct CallbackThreads(Arc<ClientCallbackQueue>);

impl Drop for CallbackThreads {
    fn drop(&mut self) {
        self.0.end();
    }
}

fn work(queue: &ClientCallbackQueue, service: &Weak<NfsService>) {
    while let Some(taken) = queue.next() {
        let Some(service) = service.upgrade() else { return };
        let client = taken.turn.client;
        let session = service.held.session_with_callbacks(client);
        // Without a session the thread does not wait for the client.
        let begun = match session.map(|session| client_network(session.client.peer)) {
            Some(address) => queue.begin(taken, address),
            None => Some(taken),
        };
        let Some(taken) = begun else { continue };
        let outcome = match &taken.callback {
            ClientCallback::NotifyLock(callback) => service.notify_lock(client, callback),
            ClientCallback::RecallAny(keep) => service.recall_any(client, *keep),
            ClientCallback::Recall(recall) => service.recall(recall),
        };
        match outcome {
            Ok(has_answered) => queue.finish(taken.turn, has_answered),
            Err(SlotsInUse) => queue.put_back(taken),
        }
    }
}

/// A callback was not sent, because other callbacks use all slots of the session.
struct SlotsInUse;

/// How a client took a callback.
enum Delivery {
    /// The client has answered with this status, after this time.
    Answered(NfsStat4, Duration),
    /// The callback is larger than the client's limit.
    TooLarge,
    /// The client has not answered, and the call may have arrived.
    Unanswered,
    /// There is no way to the client.
    Undelivered,
}

impl NfsService {
    /// Starts the threads that call NFSv4 clients, once, before requests. They end with the
    /// service.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn serve_callbacks(self: &Arc<Self>) -> Result<(), NfsServiceError> {
        let queue = Arc::new(ClientCallbackQueue::default());
        for _ in 0..THREADS {
            let (queue, service) = (Arc::clone(&queue), Arc::downgrade(self));
            let work = move || work(&queue, &service);
            thread::Builder::new()
                .name("callbacks".into())
                .spawn(work)
                .map_err(NfsServiceError::LockThread)?;
        }
        let callbacks = Arc::new(ClientCallbacks(Arc::clone(&queue)));
        let _ = self.callback_threads.set(CallbackThreads(queue));
        self.locks.serve_clientids(Arc::<ClientCallbacks>::clone(&callbacks));
        let _ = self.this.set(Arc::downgrade(self));
        if self.uses_leases {
            let _ = self.lease_watcher.set(LeaseWatcher::start().map_err(NfsServiceError::DelegationThread)?);
        }
        self.waiting_calls.start(callbacks, self.clock.clone()).map_err(NfsServiceError::DelegationThread)?;
        self.locks.start(self.clock.clone()).map_err(NfsServiceError::LockThread)
    }

    /// Notifies a client that a lock for which it waits may be free. Returns whether it has
    /// answered.
    fn notify_lock(&self, client: Clientid, callback: &LockCallback) -> Result<bool, SlotsInUse> {
        let arguments =
            CallbackArguments::NotifyLock { file: &callback.handle, client, owner: &callback.lock.name };
        let answer = match self.call_client(client, &arguments)? {
            Delivery::Answered(NfsStat4::Ok, round_trip) => CallbackAnswer::Accepted { round_trip },
            // A client that cannot be called polls.
            Delivery::Answered(..) | Delivery::TooLarge => CallbackAnswer::Refused,
            Delivery::Unanswered => CallbackAnswer::Unanswered,
            Delivery::Undelivered => CallbackAnswer::Undelivered,
        };
        let has_answered = matches!(answer, CallbackAnswer::Accepted { .. } | CallbackAnswer::Refused);
        if !has_answered {
            self.counters.count(ServerCounter::LockCallbacksUndelivered);
        }
        self.locks.answered(callback.lock.client, callback.id, answer, self.clock.now());
        Ok(has_answered)
    }

    /// Asks a client to return state before it gets no more, if it is about to reach its limit.
    pub(crate) fn ask_for_state(&self, client: &Client) {
        let Some(keep) = self.held.state_to_return(client, self.uptime()) else { return };
        if let Some(threads) = self.callback_threads.get() {
            threads.0.add(client.id, ClientCallback::RecallAny(keep));
        }
    }

    /// CB_RECALL_ANY. Returns whether the client has answered.
    fn recall_any(&self, client: Clientid, keep: u32) -> Result<bool, SlotsInUse> {
        let delivery = self.call_client(client, &CallbackArguments::RecallAny { keep })?;
        tracing::info!(client = client.0, "an NFSv4 client has much state and is asked to return some");
        Ok(matches!(delivery, Delivery::Answered(..)))
    }

    /// Recalls a delegation. Returns whether the client has answered.
    fn recall(&self, recall: &Recall) -> Result<bool, SlotsInUse> {
        let Recall { client, stateid, handle, .. } = recall;
        let granted_by = Some(recall.granted_by).filter(|call| self.held.is_last_call(call));
        let arguments = CallbackArguments::Recall { stateid: *stateid, file: handle, granted_by };
        let (is_delivered, has_answered) = match self.call_client(*client, &arguments)? {
            Delivery::Answered(NfsStat4::Ok, _) => (true, true),
            Delivery::Answered(..) | Delivery::TooLarge => (false, true),
            Delivery::Unanswered | Delivery::Undelivered => (false, false),
        };
        if !is_delivered {
            probe!(NfsdDelegation { fhandle: handle_hash(handle.as_bytes()), reason: "not answered" });
        }
        self.held.delegations.recall_ended(recall, is_delivered, self.uptime());
        Ok(has_answered)
    }

    /// Sends a callback. What its slot has sent before without a known outcome is sent again first.
    /// The answer to that is the answer to this callback if it was sent here, or is the recall of
    /// the same delegation. An equal notification of a lock is another one.
    fn call_client(
        &self,
        client: Clientid,
        callback: &CallbackArguments<'_>,
    ) -> Result<Delivery, SlotsInUse> {
        let mut outcome = Delivery::Undelivered;
        let mut sent_here = None;
        for _ in 0..ATTEMPTS {
            let Some(session) = self.held.session_with_callbacks(client) else { break };
            let mut route = match session.callback_route() {
                CallbackRouting::Route(route) => route,
                CallbackRouting::Busy => return Err(SlotsInUse),
                CallbackRouting::Closed => break,
            };
            let own = callback.encoded(&session, &route);
            let (sent, is_own) = match route.unsettled.take() {
                Some(earlier) => {
                    let is_recall = own.operation == CallbackOperation::Recall && own.is_same(&earlier);
                    let is_own = is_recall || sent_here.as_ref() == Some(&earlier);
                    (earlier, is_own)
                }
                None if is_too_large(&session, &route, &own) => {
                    session.release_callback_slot(&route, CallbackSlotOutcome::Unused);
                    return Ok(Delivery::TooLarge);
                }
                None => (own, true),
            };
            let begun = self.clock.now();
            let result = call(&session, &route, &sent);
            if is_own {
                sent_here = Some(sent.clone());
            }
            session.release_callback_slot(&route, slot_outcome(&result, sent));
            match result {
                Ok(CallbackResult::Executed(status)) if is_own => {
                    let round_trip = self.clock.now().saturating_duration_since(begun);
                    return Ok(Delivery::Answered(status, round_trip));
                }
                // The slot is free for this callback, or is further than it seemed.
                Ok(
                    CallbackResult::Executed(_)
                    | CallbackResult::NoSlot(
                        NfsStat4::SeqMisordered | NfsStat4::SeqFalseRetry | NfsStat4::RetryUncachedRep,
                    ),
                ) => {}
                Ok(CallbackResult::NoSlot(NfsStat4::Delay)) => thread::sleep(PAUSE),
                Ok(CallbackResult::NoSlot(_)) | Err(_) => {
                    session.callback_failed(&route.connection);
                    self.held.check_callback_path(client);
                    if is_own {
                        // The call may have arrived, if there was no reply.
                        outcome = Delivery::Unanswered;
                    }
                    // The thread has waited long enough for this client. Its next callback tries
                    // another connection.
                    if matches!(result, Err(CallError::TimedOut { .. })) {
                        break;
                    }
                }
            }
        }
        Ok(outcome)
    }
}

/// Whether the client has used the sequence id of a call that ended so.
fn slot_outcome(result: &Result<CallbackResult, CallError>, sent: SentCallback) -> CallbackSlotOutcome {
    match result {
        Ok(
            CallbackResult::Executed(_)
            // An earlier reply was lost: the slot is further than it seemed.
            | CallbackResult::NoSlot(
                NfsStat4::SeqMisordered | NfsStat4::SeqFalseRetry | NfsStat4::RetryUncachedRep,
            ),
        ) => CallbackSlotOutcome::Used,
        // The client executes the same call later, or what it has executed is not known.
        Ok(CallbackResult::NoSlot(NfsStat4::Delay | NfsStat4::Serverfault)) | Err(_) => {
            CallbackSlotOutcome::Unknown(sent)
        }
        Ok(CallbackResult::NoSlot(_)) => CallbackSlotOutcome::Unused,
    }
}

fn size(limit: u32) -> usize {
    usize::try_from(limit).unwrap_or(usize::MAX)
}

/// Whether a call is larger than the client's limit.
fn is_too_large(session: &Session, route: &CallbackRoute, callback: &SentCallback) -> bool {
    let credential = codec::credential_size(&codec::credential(&route.security));
    CALL_HEADER + credential + callback.arguments.len() > size(session.back.request)
}

/// Calls the client.
fn call(
    session: &Session,
    route: &CallbackRoute,
    callback: &SentCallback,
) -> Result<CallbackResult, CallError> {
    let request = RpcRequest {
        program: route.program,
        version: CALLBACK_VERSION,
        procedure: CB_COMPOUND,
        credential: &codec::credential(&route.security),
        arguments: &Encoded(&callback.arguments),
        results_max: RESULTS_MAX,
    };
    let reply = route.connection.call(&request, TIMEOUT)?;
    Ok(codec::answer(reply.results(), session.id, route, callback.operation)?)
}
