//! Callbacks to clients (RFC 8881 sections 2.10.3, 20.9 and 20.11): CB_SEQUENCE and CB_NOTIFY_LOCK.
//!
//! A few threads of their own make the calls, over connections that the client has bound to one of
//! its sessions. Only one callback of a client is in progress at a time, in slot 0 of the
//! backchannel. Half of the threads are for clients that have answered last time. So clients that
//! do not answer, and new ones, delay each other only.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use curt_observe::ServerCounter;
use curt_proto::nfs4::{
    CALLBACK_VERSION, CallbackHeader, CallbackOperation, CbNotifyLockArgs4, CbSequenceArgs4, CbSequenceOk4,
    Clientid, CompoundReplyHeader, NfsFh4, NfsStat4, OpaqueLimited, SlotId, StateOwner,
};
use curt_rpc::auth::{AuthSysCredential, AuthSysGids, MachineName, RpcCredential};
use curt_rpc::client::{CallError, RpcRequest};
use curt_types::Fault;
use curt_xdr::{DecodeError, Decoder, Encode, VarArray, put_fixed};
use parking_lot::{Condvar, Mutex};

use crate::locking::LockCallbacks;
use crate::service::{NfsService, SetupError};
use crate::state::locks::{CallbackAnswer, LockCallback, LockClient};
use crate::state::{CallbackRoute, CallbackSecurity, Session};

/// The threads.
const THREADS: usize = 4;
/// Those that may call clients which have not answered last time, or were never called.
const THREADS_FOR_SLOW: usize = THREADS / 2;
/// Time limit of a call.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Calls for one callback, if the client's slot is in another state than expected, or in use.
const ATTEMPTS: usize = 4;
/// The pause before a call to a client that asked for one.
const PAUSE: Duration = Duration::from_millis(50);
/// Maximum size of the results of a callback.
const RESULTS_MAX: usize = 2048;
/// Clients that have answered; beyond that all are forgotten.
const ANSWERING_MAX: usize = 16_384;
/// The operations of a callback.
const OPERATIONS: u32 = 2;
/// The number of CB_COMPOUND.
const CB_COMPOUND: u32 = 1;
/// The bytes of a call before its arguments, without the body of its credential.
const CALL_HEADER: usize = 40;

/// The callbacks that wait for a thread. Their number is limited by that of waiting locks.
#[derive(Default)]
struct Waiting {
    callbacks: HashMap<Clientid, VecDeque<LockCallback>>,
    /// Clients with callbacks, none of which is in progress.
    ready: VecDeque<Clientid>,
    /// Clients that have answered the last callback.
    answering: HashSet<Clientid>,
    /// Threads that call other clients.
    slow_threads: usize,
    /// The service is gone.
    is_over: bool,
}

/// A callback that a thread has taken.
struct Taken {
    client: Clientid,
    callback: LockCallback,
    is_slow: bool,
}

impl Waiting {
    fn add(&mut self, client: Clientid, callback: LockCallback) {
        let queue = self.callbacks.entry(client).or_insert_with(|| {
            self.ready.push_back(client);
            VecDeque::new()
        });
        queue.push_back(callback);
    }

    fn take(&mut self) -> Option<Taken> {
        let may_be_slow = self.slow_threads < THREADS_FOR_SLOW;
        let at = self.ready.iter().position(|client| may_be_slow || self.answering.contains(client))?;
        let client = self.ready.remove(at)?;
        let callback = self.callbacks.get_mut(&client)?.pop_front()?;
        let is_slow = !self.answering.contains(&client);
        self.slow_threads += usize::from(is_slow);
        Some(Taken { client, callback, is_slow })
    }

    /// The callback of a client has ended.
    fn finish(&mut self, client: Clientid, was_slow: bool, has_answered: bool) {
        self.slow_threads -= usize::from(was_slow);
        if has_answered {
            if self.answering.len() >= ANSWERING_MAX {
                self.answering.clear();
            }
            self.answering.insert(client);
        } else {
            self.answering.remove(&client);
        }
        if self.callbacks.get(&client).is_some_and(VecDeque::is_empty) {
            self.callbacks.remove(&client);
        } else {
            self.ready.push_back(client);
        }
    }
}

#[derive(Default)]
struct CallbackQueue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

/// Passes what the lock table decides to clients.
struct ClientCallbacks(Arc<CallbackQueue>);

impl Drop for ClientCallbacks {
    fn drop(&mut self) {
        self.0.waiting.lock().is_over = true;
        self.0.changed.notify_all();
    }
}

impl LockCallbacks for ClientCallbacks {
    fn send(&self, callback: LockCallback) {
        if let LockClient::Clientid(client) = callback.lock.client {
            self.0.waiting.lock().add(Clientid(client), callback);
            self.0.changed.notify_one();
        }
    }

    fn client_begins(&self, _: LockClient) -> Result<(), Fault> {
        // A client that locks has an open, for which it was recorded.
        Ok(())
    }

    fn client_ends(&self, _: LockClient) {}
}

impl CallbackQueue {
    /// The next callback; none at the end.
    fn next(&self) -> Option<Taken> {
        let mut waiting = self.waiting.lock();
        loop {
            if waiting.is_over {
                return None;
            }
            if let Some(taken) = waiting.take() {
                return Some(taken);
            }
            self.changed.wait(&mut waiting);
        }
    }

    fn work(&self, service: &Weak<NfsService>) {
        while let Some(Taken { client, callback, is_slow }) = self.next() {
            let Some(service) = service.upgrade() else { return };
            let answer = service.notify_lock(client, &callback);
            let has_answered = matches!(answer, CallbackAnswer::Accepted { .. } | CallbackAnswer::Refused);
            if !has_answered {
                service.counters.count(ServerCounter::LockCallbacksUndelivered);
            }
            let lock_client = callback.lock.client;
            service.locks.answered(lock_client, callback.id, answer, service.clock.now());
            self.waiting.lock().finish(client, is_slow, has_answered);
            self.changed.notify_one();
        }
    }
}

/// How a client answered a call.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    /// CB_NOTIFY_LOCK has this status.
    Notified(NfsStat4),
    /// CB_SEQUENCE failed with this status.
    NoSlot(NfsStat4),
}

impl NfsService {
    /// Starts the threads that call NFSv4 clients, once, before requests. They end with the
    /// service.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn serve_callbacks(self: &Arc<Self>) -> Result<(), SetupError> {
        let queue = Arc::new(CallbackQueue::default());
        for _ in 0..THREADS {
            let (queue, service) = (Arc::clone(&queue), Arc::downgrade(self));
            let work = move || queue.work(&service);
            thread::Builder::new().name("callbacks".into()).spawn(work).map_err(SetupError::LockThread)?;
        }
        self.locks.serve_clientids(Arc::new(ClientCallbacks(queue)));
        self.locks.start(self.clock.clone()).map_err(SetupError::LockThread)
    }

    /// Tells a client that a lock for which it waits may be free.
    fn notify_lock(&self, client: Clientid, callback: &LockCallback) -> CallbackAnswer {
        let mut outcome = CallbackAnswer::Undelivered;
        for _ in 0..ATTEMPTS {
            let Some(session) = self.held.session_with_callbacks(client) else { return outcome };
            let Some(route) = session.callback_route() else { return outcome };
            let begun = self.clock.now();
            let arguments = arguments(&session, &route, client, callback);
            let credential = credential(&route.security);
            if CALL_HEADER + credential_size(&credential) + arguments.len() > size(session.back.request) {
                // The client asks again in its own time.
                return CallbackAnswer::Refused;
            }
            match call(&session, &route, &credential, &arguments) {
                Ok(Answer::Notified(status)) => {
                    session.callback_executed(route.sequence);
                    return match status {
                        NfsStat4::Ok => CallbackAnswer::Accepted {
                            round_trip: self.clock.now().saturating_duration_since(begun),
                        },
                        _ => CallbackAnswer::Refused,
                    };
                }
                // The reply to an earlier callback was lost: the slot is further than it seemed.
                Ok(Answer::NoSlot(
                    NfsStat4::SeqMisordered | NfsStat4::SeqFalseRetry | NfsStat4::RetryUncachedRep,
                )) => session.callback_executed(route.sequence),
                Ok(Answer::NoSlot(NfsStat4::Delay)) => thread::sleep(PAUSE),
                Ok(Answer::NoSlot(_)) | Err(_) => {
                    session.callback_failed(&route.connection);
                    self.held.check_callback_path(client);
                    // The call may have arrived, if there was no reply.
                    outcome = CallbackAnswer::Unanswered;
                }
            }
        }
        outcome
    }
}

fn size(limit: u32) -> usize {
    usize::try_from(limit).unwrap_or(usize::MAX)
}

/// The arguments of CB_COMPOUND.
fn arguments(session: &Session, route: &CallbackRoute, client: Clientid, callback: &LockCallback) -> Vec<u8> {
    let mut out = Vec::new();
    CallbackHeader {
        minor_version: session.minor_version,
        operations: OPERATIONS,
        ..CallbackHeader::default()
    }
    .encode(&mut out);
    CallbackOperation::Sequence.encode(&mut out);
    CbSequenceArgs4 {
        session: session.id,
        sequence: route.sequence,
        slot: SlotId(0),
        highest_slot: SlotId(0),
        cache_this: false,
        referring: VarArray::default(),
    }
    .encode(&mut out);
    CallbackOperation::NotifyLock.encode(&mut out);
    let owner = OpaqueLimited::new(&callback.lock.name).unwrap_or_default();
    CbNotifyLockArgs4 {
        object: NfsFh4::from(&callback.handle),
        owner: StateOwner { clientid: client, owner },
    }
    .encode(&mut out);
    out
}

fn credential(security: &CallbackSecurity) -> RpcCredential {
    match security {
        CallbackSecurity::None => RpcCredential::None,
        CallbackSecurity::Sys { machine_name, uid, gid } => RpcCredential::Sys(AuthSysCredential {
            machine_name: MachineName::new(machine_name),
            uid: *uid,
            gid: *gid,
            groups: AuthSysGids::first_of(&[]),
        }),
    }
}

/// Size of the body of a credential.
fn credential_size(credential: &RpcCredential) -> usize {
    let RpcCredential::Sys(sys) = credential else { return 0 };
    let mut encoded = Vec::new();
    sys.encode(&mut encoded);
    encoded.len() - 8
}

/// Arguments that are encoded already.
struct Encoded<'a>(&'a [u8]);

impl Encode for Encoded<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        put_fixed(out, self.0);
    }
}

fn call(
    session: &Session,
    route: &CallbackRoute,
    credential: &RpcCredential,
    arguments: &[u8],
) -> Result<Answer, CallError> {
    let request = RpcRequest {
        program: route.program,
        version: CALLBACK_VERSION,
        procedure: CB_COMPOUND,
        credential,
        arguments: &Encoded(arguments),
        bulk: &[],
        results_max: RESULTS_MAX,
    };
    let reply = route.connection.call(&request, TIMEOUT)?;
    let answer = decoded(reply.results())?;
    match answer {
        Decoded::Sequence(ok, status)
            if ok.session == session.id && ok.sequence == route.sequence && ok.slot == SlotId(0) =>
        {
            Ok(Answer::Notified(status))
        }
        // The reply is to another callback.
        Decoded::Sequence(..) => Ok(Answer::NoSlot(NfsStat4::Serverfault)),
        Decoded::Failed(status) => Ok(Answer::NoSlot(status)),
    }
}

/// The results of CB_COMPOUND.
enum Decoded {
    /// CB_SEQUENCE's, and the status of CB_NOTIFY_LOCK.
    Sequence(CbSequenceOk4, NfsStat4),
    /// The status of CB_SEQUENCE, or of the compound.
    Failed(NfsStat4),
}

fn decoded(results: &[u8]) -> Result<Decoded, DecodeError> {
    let decoder = &mut Decoder::new(results);
    let header: CompoundReplyHeader<'_> = decoder.get()?;
    if header.results == 0 {
        return Ok(Decoded::Failed(match header.status {
            NfsStat4::Ok => NfsStat4::Serverfault,
            status => status,
        }));
    }
    match status_of(CallbackOperation::Sequence, decoder)? {
        NfsStat4::Ok => {}
        status => return Ok(Decoded::Failed(status)),
    }
    let sequence: CbSequenceOk4 = decoder.get()?;
    // A client that executed CB_SEQUENCE only has refused the rest.
    let status = match header.results {
        1 => NfsStat4::Serverfault,
        _ => status_of(CallbackOperation::NotifyLock, decoder)?,
    };
    Ok(Decoded::Sequence(sequence, status))
}

fn status_of(operation: CallbackOperation, decoder: &mut Decoder<'_>) -> Result<NfsStat4, DecodeError> {
    let answered: CallbackOperation = decoder.get()?;
    let status: NfsStat4 = decoder.get()?;
    let is_other = answered != operation && answered != CallbackOperation::Illegal;
    Ok(if is_other { NfsStat4::Serverfault } else { status })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use curt_types::{ByteRange, FileHandle, LockType};

    use super::*;
    use crate::state::locks::{CallbackId, CallbackStyle, LockHolder};

    fn callback(client: u64) -> LockCallback {
        LockCallback {
            id: CallbackId(client),
            style: CallbackStyle::Notified,
            handle: FileHandle::new(b"handle").unwrap(),
            local: None,
            lock: LockHolder {
                client: LockClient::Clientid(client),
                process: 0,
                name: Arc::from(&b"owner"[..]),
                lock_type: LockType::Write,
                range: ByteRange::WHOLE,
            },
            attempt: 0,
        }
    }

    #[test]
    fn clients_that_have_not_answered_do_not_occupy_all_threads() {
        let mut waiting = Waiting::default();
        let add = |waiting: &mut Waiting, client| waiting.add(Clientid(client), callback(client));
        add(&mut waiting, 9);
        assert_eq!(waiting.take().unwrap().client, Clientid(9));
        waiting.finish(Clientid(9), true, true);
        for client in 1..=4 {
            add(&mut waiting, client);
        }
        for client in 1..=2 {
            assert_eq!(waiting.take().unwrap().client, Clientid(client));
        }
        assert!(waiting.take().is_none());
        add(&mut waiting, 9);
        let taken = waiting.take().unwrap();
        assert_eq!((taken.client, taken.is_slow), (Clientid(9), false));
        waiting.finish(Clientid(1), true, false);
        assert_eq!(waiting.take().unwrap().client, Clientid(3));
        // The one that does not answer any more is as slow as others.
        waiting.finish(Clientid(9), false, false);
        add(&mut waiting, 9);
        assert!(waiting.take().is_none());
    }
}
