//! CB_NOTIFY_LOCK, to clients that answer in all ways; and the other end of a backchannel.

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use curt_proto::nfs4::*;
use curt_rpc::client::{CallError, CallReply, RpcRequest};
use curt_rpc::server::Backchannel;
use curt_types::FileHandle;
use curt_xdr::{Decoder, Encode, Opaque};
use parking_lot::{Condvar, Mutex};

use super::locks::{BOTH, REST, is_denied, lock, locking, new_owner, unlock};
use super::test_client::{Opened, Server, TestClient, channel, creating, opening};

pub(super) type CallbackOutcome = Result<Vec<u8>, CallError>;
type AnswerCallback = Box<dyn Fn(&CbSequenceArgs4) -> CallbackOutcome + Send + Sync>;

/// A client's end of a backchannel: it answers as the test says, and passes the calls on.
struct FakeBackchannel {
    connection: usize,
    answer: AnswerCallback,
    calls: Mutex<mpsc::Sender<(SequenceId, Vec<u8>)>>,
}

impl Backchannel for FakeBackchannel {
    fn call(&self, request: &RpcRequest<'_>, _: Duration) -> Result<CallReply, CallError> {
        assert_eq!((request.program, request.version, request.procedure), (123, 1, 1));
        let mut arguments = Vec::new();
        request.copy_arguments(&mut arguments);
        let decoder = &mut Decoder::new(&arguments);
        let header: CallbackHeader<'_> = decoder.get().unwrap();
        assert_eq!((header.minor_version, header.operations), (1, 2));
        assert_eq!(decoder.get::<CallbackOperation>().unwrap(), CallbackOperation::Sequence);
        let sequence: CbSequenceArgs4 = decoder.get().unwrap();
        assert!(sequence.slot <= sequence.highest_slot && sequence.highest_slot.0 < 2);
        let asked = match decoder.get::<CallbackOperation>().unwrap() {
            CallbackOperation::NotifyLock => {
                decoder.get::<CbNotifyLockArgs4<'_>>().unwrap().owner.owner.bytes().to_vec()
            }
            CallbackOperation::RecallAny => {
                let asked: CbRecallAnyArgs4 = decoder.get().unwrap();
                assert_eq!(asked.types, Bitmap4::EMPTY.with(0).with(2));
                format!("keep {}", asked.objects_to_keep).into_bytes()
            }
            other => panic!("{other:?}"),
        };
        let _ = self.calls.lock().send((sequence.sequence, asked));
        (self.answer)(&sequence).map(CallReply::from_results)
    }

    fn is_open(&self) -> bool {
        true
    }

    fn connection(&self) -> usize {
        self.connection
    }
}

/// The results of a callback that the client accepts.
pub(super) fn accepted(asked: &CbSequenceArgs4) -> Vec<u8> {
    accepted_as(CallbackOperation::NotifyLock, asked)
}

/// The reply with the operation of the callback.
pub(super) fn accepted_as(operation: CallbackOperation, asked: &CbSequenceArgs4) -> Vec<u8> {
    executed(asked, operation, NfsStat4::Ok)
}

/// The results of a callback whose second operation has this status.
pub(super) fn executed(asked: &CbSequenceArgs4, operation: CallbackOperation, status: NfsStat4) -> Vec<u8> {
    let mut out = Vec::new();
    CompoundReplyHeader { status, tag: Opaque::default(), results: 2 }.encode(&mut out);
    CallbackOperation::Sequence.encode(&mut out);
    NfsStat4::Ok.encode(&mut out);
    CbSequenceOk4 {
        session: asked.session,
        sequence: asked.sequence,
        slot: asked.slot,
        highest_slot: asked.slot,
        target_highest_slot: asked.slot,
    }
    .encode(&mut out);
    operation.encode(&mut out);
    status.encode(&mut out);
    out
}

/// The results of a callback whose CB_SEQUENCE fails.
fn no_slot(status: NfsStat4) -> Vec<u8> {
    let mut out = Vec::new();
    CompoundReplyHeader { status, tag: Opaque::default(), results: 1 }.encode(&mut out);
    CallbackOperation::Sequence.encode(&mut out);
    status.encode(&mut out);
    out
}

pub(super) type Calls = mpsc::Receiver<(SequenceId, Vec<u8>)>;

/// Binds a backchannel to a client's session.
pub(super) fn bind(
    client: &TestClient<'_>,
    answer: impl Fn(&CbSequenceArgs4) -> CallbackOutcome + Send + Sync + 'static,
) -> Calls {
    bind_connection(client, 1, answer)
}

/// Binds a connection with the number of the connection.
fn bind_connection(
    client: &TestClient<'_>,
    connection: usize,
    answer: impl Fn(&CbSequenceArgs4) -> CallbackOutcome + Send + Sync + 'static,
) -> Calls {
    let (sender, calls) = mpsc::channel();
    let session = client.server.service.held.session(&client.session).unwrap();
    session.set_callback(123, crate::state::CallbackSecurity::None);
    session.bind_backchannel(Arc::new(FakeBackchannel {
        connection,
        answer: Box::new(answer),
        calls: Mutex::new(sender),
    }));
    calls
}

/// A call that should come.
pub(super) fn call(calls: &Calls) -> (u32, Vec<u8>) {
    let (SequenceId(sequence), owner) = calls.recv_timeout(Duration::from_secs(60)).unwrap();
    (sequence, owner)
}

/// The status flags of SEQUENCE.
fn flags(client: &TestClient<'_>) -> u32 {
    let reply = client.run(&|_| {});
    let mut results = CompoundResults::new(&reply).unwrap();
    results.next::<SequenceOk4>(Nfs4Operation::Sequence).unwrap().status_flags.0
}

/// A file that one client has open.
struct Held<'s> {
    one: TestClient<'s>,
    root: FileHandle,
    file: FileHandle,
    open: Stateid,
}

fn held(server: &Server) -> Held<'_> {
    let one = server.client("one");
    let root = one.files();
    let Opened { handle: file, stateid: open, result } =
        one.open(&root, &creating("file", "o", BOTH, 0)).unwrap();
    assert_eq!(result.flags.0 & OpenResultFlags::MAY_NOTIFY_LOCK, 0);
    Held { one, root, file, open }
}

impl Held<'_> {
    /// The first client locks the first bytes.
    fn lock(&self) -> Stateid {
        lock(&self.one, &self.file, &first_bytes(self.open, b"a")).unwrap()
    }

    fn unlock(&self, stateid: Stateid) {
        unlock(&self.one, &self.file, stateid, 0, REST).unwrap();
    }

    /// Another client opens the file.
    fn open_by(&self, client: &TestClient<'_>) -> Stateid {
        client.open(&self.root, &opening("file", "o", BOTH, 0)).unwrap().stateid
    }
}

/// A lock of the first bytes, which its owner waits for.
fn first_bytes(open: Stateid, owner: &[u8]) -> LockArgs4<'_> {
    locking(LockType4::WriteWait, 0, 8, new_owner(open, owner))
}

/// Another client opens the file and asks in vain for the first bytes.
fn wait_for_lock(client: &TestClient<'_>, held: &Held<'_>, owner: &[u8]) {
    assert!(is_denied(&lock(client, &held.file, &first_bytes(held.open_by(client), owner))));
}

// SEMANTICS: stateful-10.
#[test]
fn the_first_waiter_is_notified_and_gets_the_lock() {
    let server = Server::new().calling_back();
    let held = held(&server);
    let (two, three) = (&server.client("two"), &server.client("three"));
    let calls = [&held.one, two, three].map(|client| bind(client, |asked| Ok(accepted(asked))));
    let file = &held.file;
    let open = |client: &TestClient<'_>| {
        let opened = client.open(&held.root, &opening("file", "o", BOTH, 0)).unwrap();
        assert_ne!(opened.result.flags.0 & OpenResultFlags::MAY_NOTIFY_LOCK, 0);
        opened.stateid
    };
    let (of_two, of_three) = (open(two), open(three));
    let mut stateid = held.lock();
    for sequence in 1..=3 {
        assert!(is_denied(&lock(two, file, &first_bytes(of_two, b"b"))));
        assert!(is_denied(&lock(three, file, &first_bytes(of_three, b"c"))));
        held.unlock(stateid);
        assert_eq!(call(&calls[1]), (sequence, b"b".to_vec()));
        let got = lock(two, file, &first_bytes(of_two, b"b")).unwrap();
        unlock(two, file, got, 0, REST).unwrap();
        assert_eq!(call(&calls[2]), (sequence, b"c".to_vec()));
        let got = lock(three, file, &first_bytes(of_three, b"c")).unwrap();
        unlock(three, file, got, 0, REST).unwrap();
        stateid = held.lock();
    }
    assert!(calls[0].try_recv().is_err());
}

// SEMANTICS: stateful-10.
#[test]
fn the_bytes_are_kept_for_a_client_that_has_answered() {
    let server = Server::new().calling_back();
    let held = held(&server);
    let (two, three) = (server.client("two"), server.client("three"));
    let calls = bind(&two, |asked| Ok(accepted(asked)));
    let (file, of_two, of_three) = (&held.file, held.open_by(&two), held.open_by(&three));
    let begin = Instant::now();
    let mut is_kept = false;
    while !is_kept {
        assert!(begin.elapsed() < Duration::from_secs(60), "another client got them each time");
        calls.try_iter().for_each(drop);
        let stateid = held.lock();
        assert!(is_denied(&lock(&two, file, &first_bytes(of_two, b"b"))));
        held.unlock(stateid);
        call(&calls);
        // The server may not have the answer yet.
        let tried = lock(&three, file, &locking(LockType4::Write, 0, 8, new_owner(of_three, b"c")));
        if let Ok(stateid) = &tried {
            unlock(&three, file, *stateid, 0, REST).unwrap();
        }
        let got = lock(&two, file, &first_bytes(of_two, b"b")).unwrap();
        unlock(&two, file, got, 0, REST).unwrap();
        is_kept = is_denied(&tried);
    }
}

#[test]
fn a_client_that_answers_is_called_in_all_its_slots_at_once() {
    let server = Server::new().calling_back();
    let held = held(&server);
    let two = server.client_with("two", ChannelAttributes { requests_max: 2, ..channel() });
    let (one, file, of_two) = (&held.one, &held.file, held.open_by(&two));
    let most = Arc::new((Mutex::new((0, 0)), Condvar::new()));
    let calls = bind(&two, {
        let most = Arc::clone(&most);
        move |asked| {
            let (counts, changed) = &*most;
            let mut counts = counts.lock();
            counts.0 += 1;
            counts.1 = counts.1.max(counts.0);
            changed.notify_all();
            let is_first = asked.slot == SlotId(0) && asked.sequence == SequenceId(1);
            let deadline = Instant::now() + Duration::from_secs(60);
            while !is_first && counts.1 < 2 && !changed.wait_until(&mut counts, deadline).timed_out() {}
            counts.0 -= 1;
            Ok(accepted(asked))
        }
    });
    let range = |place: u64, kind, owner| locking(kind, place * 10, 8, owner);
    let mut of_one = Vec::new();
    for place in 0..3 {
        let owner = new_owner(held.open, b"a");
        of_one.push(lock(one, file, &range(place, LockType4::Write, owner)).unwrap());
        let owner = new_owner(of_two, b"b");
        assert!(is_denied(&lock(&two, file, &range(place, LockType4::WriteWait, owner))));
    }
    let stateid = Stateid { seqid: 0, ..of_one[0] };
    unlock(one, file, stateid, 0, 8).unwrap();
    call(&calls);
    unlock(one, file, stateid, 10, 8).unwrap();
    unlock(one, file, stateid, 20, 8).unwrap();
    call(&calls);
    call(&calls);
    let (counts, changed) = &*most;
    let mut counts = counts.lock();
    while counts.1 < 2 {
        assert!(!changed.wait_for(&mut counts, Duration::from_secs(60)).timed_out(), "one at a time");
    }
}

#[test]
fn a_slot_whose_state_is_not_known_is_found_again() {
    for wrong in [NfsStat4::SeqMisordered, NfsStat4::RetryUncachedRep, NfsStat4::SeqFalseRetry] {
        let server = Server::new().calling_back();
        let (held, two) = (held(&server), server.client("two"));
        let calls = bind(&two, move |asked| match asked.sequence {
            SequenceId(1) => Ok(no_slot(wrong)),
            _ => Ok(accepted(asked)),
        });
        let stateid = held.lock();
        wait_for_lock(&two, &held, b"b");
        held.unlock(stateid);
        assert_eq!([call(&calls).0, call(&calls).0], [1, 2], "{wrong}");
        assert_eq!(flags(&two), 0);
    }
}

// SEMANTICS: stateful-10.
#[test]
fn a_client_that_does_not_answer_learns_of_it_and_loses_its_place() {
    type Answer = fn(&CbSequenceArgs4) -> CallbackOutcome;
    let answers: [Answer; 5] = [
        |_| Err(CallError::TimedOut { softerr: false }),
        |_| Err(CallError::Closed),
        |_| Ok(no_slot(NfsStat4::Badsession)),
        |_| Ok(b"nonsense".to_vec()),
        // The reply to another callback.
        |asked| Ok(accepted(&CbSequenceArgs4 { sequence: SequenceId(77), ..asked.clone() })),
    ];
    for (at, answer) in answers.into_iter().enumerate() {
        let server = Server::new().calling_back();
        let (held, two, three) = (held(&server), server.client("two"), server.client("three"));
        let silent = bind(&two, answer);
        let calls = bind(&three, |asked| Ok(accepted(asked)));
        let stateid = held.lock();
        wait_for_lock(&two, &held, b"b");
        wait_for_lock(&three, &held, b"b");
        held.unlock(stateid);
        assert_eq!(call(&silent).0, 1, "{at}");
        assert_eq!(call(&calls).0, 1, "{at}");
        let down = SequenceStatusFlags::CB_PATH_DOWN | SequenceStatusFlags::CB_PATH_DOWN_SESSION;
        assert_eq!((flags(&two), flags(&three)), (down, 0), "{at}");
        drop(bind(&two, answer));
        assert_eq!(flags(&two), 0, "{at}");
    }
}

/// A second attempt takes a thread's time. That a connection is lost is known at once.
#[test]
fn a_callback_without_an_answer_is_not_sent_over_another_connection() {
    type Answer = fn(&CbSequenceArgs4) -> CallbackOutcome;
    let answers: [(Answer, usize); 2] =
        [(|_| Err(CallError::TimedOut { softerr: false }), 1), (|_| Err(CallError::Closed), 2)];
    for (answer, expected) in answers {
        let server = Server::new().calling_back();
        let (held, two, three) = (held(&server), server.client("two"), server.client("three"));
        let silent = [1, 2].map(|connection| bind_connection(&two, connection, answer));
        let calls = bind(&three, |asked| Ok(accepted(asked)));
        let stateid = held.lock();
        wait_for_lock(&two, &held, b"b");
        wait_for_lock(&three, &held, b"b");
        held.unlock(stateid);
        // The next waiter is called when the callback of the first has ended.
        call(&calls);
        assert_eq!(silent.iter().map(|calls| calls.try_iter().count()).sum::<usize>(), expected);
    }
}

/// The client may have asked for the lock in between, and would repeat its answer.
#[test]
fn a_notification_does_not_take_the_sequence_id_of_an_equal_one_that_was_not_answered() {
    let server = Server::new().calling_back();
    let (held, two) = (held(&server), server.client("two"));
    let wait = first_bytes(held.open_by(&two), b"b");
    let lost = bind(&two, |_| Err(CallError::TimedOut { softerr: false }));
    let stateid = held.lock();
    assert!(is_denied(&lock(&two, &held.file, &wait)));
    held.unlock(stateid);
    assert_eq!(call(&lost).0, 1);
    while server.service.locks.counts().waiters > 0 {
        std::thread::yield_now();
    }
    let stateid = held.lock();
    let calls = bind(&two, |asked| Ok(accepted(asked)));
    assert!(is_denied(&lock(&two, &held.file, &wait)));
    held.unlock(stateid);
    assert_eq!([call(&calls).0, call(&calls).0], [1, 2]);
}

#[test]
fn a_request_that_waits_leaves_the_queue_when_its_open_is_closed() {
    let server = Server::new().calling_back();
    let (held, two) = (held(&server), server.client("two"));
    let calls = bind(&two, |asked| Ok(accepted(asked)));
    let opens =
        ["p", "q"].map(|owner| two.open(&held.root, &opening("file", owner, BOTH, 0)).unwrap().stateid);
    let stateid = held.lock();
    // These owners of locks have no stateid.
    for (open, owner) in opens.iter().zip([b"b", b"c"]) {
        assert!(is_denied(&lock(&two, &held.file, &first_bytes(*open, owner))));
    }
    assert_eq!(server.service.locks.counts().waiters, 2);
    let stateid_of_open = opens[0];
    let close = CloseArgs4 { seqid: 0, stateid: stateid_of_open };
    assert_eq!(two.at(&held.file, &|compound| compound.push(&close)), NfsStat4::Ok);
    assert_eq!(server.service.locks.counts().waiters, 1);
    held.unlock(stateid);
    assert_eq!(call(&calls).1, b"c");
}
