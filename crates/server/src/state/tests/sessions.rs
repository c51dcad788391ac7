//! Sessions and slots.

use std::sync::atomic::{AtomicBool, Ordering};

use curt_proto::nfs4::{CallbackOperation, SequenceStatusFlags};
use curt_rpc::client::{CallError, CallReply, RpcRequest};
use curt_rpc::server::Backchannel;

use super::super::sessions::{fixed_memory, slot_memory};
use super::super::slots::{FINGERPRINT_END, SAMPLE, SAMPLES};
use super::super::{CallbackRoute, CallbackRouting, CallbackSecurity, CallbackSlotOutcome, SentCallback};
use super::*;

/// A connection that is never called.
struct Connection {
    number: usize,
    is_open: AtomicBool,
}

impl Connection {
    fn new(number: usize) -> Arc<Self> {
        Arc::new(Self { number, is_open: AtomicBool::new(true) })
    }
}

impl Backchannel for Connection {
    fn call(&self, _: &RpcRequest<'_>, _: Duration) -> Result<CallReply, CallError> {
        Err(CallError::Closed)
    }

    fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Relaxed)
    }

    fn connection(&self) -> usize {
        self.number
    }
}

/// CREATE_SESSION over a connection that becomes the backchannel.
fn creation_over(connection: &Arc<Connection>, client: Clientid, sequence: u32) -> CreateSession {
    let backchannel: Arc<dyn Backchannel> = Arc::<Connection>::clone(connection);
    CreateSession {
        backchannel: Some(backchannel),
        callback_security: Some(CallbackSecurity::None),
        ..creation(client, sequence)
    }
}

/// The memory of a session with this fore channel.
fn session_memory(fore: &ChannelLimits) -> usize {
    usize::try_from(fore.slots).unwrap() * slot_memory(fore) + fixed_memory(&FORE)
}

fn replayed(outcome: Result<Sequenced, StateFault>) -> Vec<u8> {
    match outcome {
        Ok(Sequenced::Replay(reply)) => reply,
        _ => panic!("not replayed"),
    }
}

fn refused(outcome: Result<Sequenced, StateFault>) -> StateFault {
    outcome.err().expect("the request is refused")
}

#[test]
fn create_session_is_executed_once_for_each_sequence_id() {
    let state = state();
    let exchanged = exchange(&state, "a");
    let create = |sequence: u32| state.create_session(&creation(exchanged.client, sequence), at(0));
    for wrong in [0, 2, u32::MAX] {
        assert_eq!(create(wrong), Err(StateFault::Misordered));
    }
    let first = create(1).unwrap();
    assert_eq!(create(1), Ok(first));
    assert_eq!(create(3), Err(StateFault::Misordered));
    assert_eq!(create(0), Err(StateFault::Misordered));
    let second = create(2).unwrap();
    assert_ne!(first.session, second.session);
    assert_eq!(create(2), Ok(second));
    assert_eq!(create(1), Err(StateFault::Misordered));
    assert_eq!(state.clients(at(0))[0].sessions, 2);
}

#[test]
fn only_the_principal_of_exchange_id_confirms_a_record() {
    let state = state();
    let exchanged = exchange(&state, "a");
    let other =
        |sequence| CreateSession { principal: Principal::Uid(1), ..creation(exchanged.client, sequence) };
    let own = |sequence| creation(exchanged.client, sequence);
    assert_eq!(state.create_session(&other(1), at(0)), Err(StateFault::ClientInUse));
    // RFC 8881 section 18.36.4: it has used the sequence id, and its result is repeated.
    assert_eq!(state.create_session(&own(1), at(0)), Err(StateFault::ClientInUse));
    state.create_session(&own(2), at(0)).unwrap();
    state.create_session(&other(3), at(0)).unwrap();
}

#[test]
fn channels_are_negotiated_within_both_limits() {
    let state = state();
    let exchanged = exchange(&state, "a");
    let with = |fore, back| CreateSession { fore, back, ..creation(exchanged.client, 1) };
    let small = [
        ChannelLimits { request: 20, ..FORE },
        ChannelLimits { reply: 0, ..FORE },
        ChannelLimits { operations: 0, ..FORE },
    ];
    for small in small {
        assert_eq!(state.create_session(&with(small, FORE), at(0)), Err(StateFault::TooSmall));
        assert_eq!(state.create_session(&with(FORE, small), at(0)), Err(StateFault::TooSmall));
    }
    let none = ChannelLimits { slots: 0, ..FORE };
    assert_eq!(state.create_session(&with(none, FORE), at(0)), Err(StateFault::Invalid));
    let huge = u32::MAX;
    let huge = ChannelLimits { request: huge, reply: huge, cached: huge, operations: huge, slots: huge };
    let limits = StateLimits::default();
    let created = state.create_session(&with(huge, huge), at(0)).unwrap();
    assert_eq!((created.fore, created.back), (limits.fore, limits.back));
    // The sequence id comes before the limits.
    let small_at = |sequence| CreateSession { fore: small[0], ..creation(exchanged.client, sequence) };
    assert_eq!(state.create_session(&small_at(1), at(0)), Ok(created));
    assert_eq!(state.create_session(&small_at(3), at(0)), Err(StateFault::Misordered));
    assert_eq!(state.create_session(&small_at(2), at(0)), Err(StateFault::TooSmall));
    let created = state.create_session(&creation(exchanged.client, 2), at(0)).unwrap();
    assert_eq!(created.fore, FORE);
}

#[test]
fn sessions_are_limited_by_number_and_by_the_memory_of_their_replies() {
    let limits = StateLimits {
        sessions_per_client: 2,
        session_bytes: 8 * session_memory(&FORE),
        ..StateLimits::default()
    };
    let state = with_limits(limits);
    let exchanged = exchange(&state, "a");
    let create = |sequence: u32| state.create_session(&creation(exchanged.client, sequence), at(0));
    let first = create(1).unwrap();
    assert_eq!(first.fore.slots, 4);
    // An eighth of what is left has room for three.
    let second = create(2).unwrap();
    assert_eq!(second.fore.slots, 3);
    assert_eq!(create(3), Err(StateFault::NoSpace));
    state.destroy_session(&first.session, None).unwrap();
    state.destroy_session(&second.session, None).unwrap();
    assert_eq!(create(3), Err(StateFault::NoSpace), "the result of the sequence id");
    assert_eq!(create(4).unwrap().fore.slots, 4);
    let tiny = with_limits(StateLimits { session_bytes: 4096, ..StateLimits::default() });
    let exchanged = exchange(&tiny, "a");
    // What was delayed is repeated with its sequence id.
    for _ in 0..2 {
        assert_eq!(tiny.create_session(&creation(exchanged.client, 1), at(0)), Err(StateFault::Delay));
    }
    assert_eq!(tiny.create_session(&creation(exchanged.client, 2), at(0)), Err(StateFault::Misordered));
}

#[test]
fn a_slot_executes_each_request_once_and_replays_it_exactly() {
    let state = state();
    let (_, session) = client(&state, "a");
    let first = request(session, 0, 1);
    executed(state.sequence(&first, at(0))).finish(b"reply");
    for _ in 0..3 {
        assert_eq!(replayed(state.sequence(&first, at(0))), b"reply");
    }
    let other = SequenceRequest { fingerprint: 2, ..first };
    assert_eq!(refused(state.sequence(&other, at(0))), StateFault::FalseRetry);
    for wrong in [0, 3, u32::MAX] {
        assert_eq!(refused(state.sequence(&request(session, 0, wrong), at(0))), StateFault::Misordered);
    }
    // The slots are independent.
    executed(state.sequence(&request(session, 1, 1), at(0))).finish(b"other");
    assert_eq!(replayed(state.sequence(&first, at(0))), b"reply");
    executed(state.sequence(&request(session, 0, 2), at(0))).finish(b"next");
    assert_eq!(refused(state.sequence(&first, at(0))), StateFault::Misordered);
    assert_eq!(replayed(state.sequence(&request(session, 0, 2), at(0))), b"next");
}

#[test]
fn a_request_in_progress_is_not_executed_again() {
    let state = state();
    let (_, session) = client(&state, "a");
    let slot = executed(state.sequence(&request(session, 0, 1), at(0)));
    assert_eq!(refused(state.sequence(&request(session, 0, 1), at(0))), StateFault::Delay);
    assert_eq!(refused(state.sequence(&request(session, 0, 2), at(0))), StateFault::Misordered);
    // A client that has given the request up asks about it by another.
    let other = SequenceRequest { fingerprint: 2, ..request(session, 0, 1) };
    assert_eq!(refused(state.sequence(&other, at(0))), StateFault::Delay);
    slot.finish(b"reply");
    assert_eq!(refused(state.sequence(&other, at(0))), StateFault::FalseRetry);
    assert_eq!(replayed(state.sequence(&request(session, 0, 1), at(0))), b"reply");
}

#[test]
fn a_reply_that_is_not_cached_is_not_repeated() {
    let state = state();
    let (_, session) = client(&state, "a");
    let uncached = SequenceRequest { is_cached: false, ..request(session, 0, 1) };
    let slot = executed(state.sequence(&uncached, at(0)));
    let grant = *slot.grant();
    slot.finish(b"reply");
    let is_uncached = |outcome| matches!(outcome, Ok(Sequenced::Uncached(again)) if again == grant);
    assert!(is_uncached(state.sequence(&uncached, at(0))));
    // Nor one whose execution did not end.
    drop(executed(state.sequence(&request(session, 1, 1), at(0))));
    assert!(matches!(state.sequence(&request(session, 1, 1), at(0)), Ok(Sequenced::Uncached(_))));
    executed(state.sequence(&request(session, 1, 2), at(0))).finish(&[1; 4096]);
    assert_eq!(replayed(state.sequence(&request(session, 1, 2), at(0))), [1; 4096]);
    executed(state.sequence(&request(session, 1, 3), at(0))).finish(&[1; 4097]);
    assert!(matches!(state.sequence(&request(session, 1, 3), at(0)), Ok(Sequenced::Uncached(_))));
}

#[test]
fn sequence_ids_wrap_around() {
    let state = state();
    let (_, session) = client(&state, "a");
    state.session(&session).unwrap().slot(SlotId(0)).unwrap().set_sequence(SequenceId(u32::MAX - 1));
    for sequence in [u32::MAX, 0, 1] {
        executed(state.sequence(&request(session, 0, sequence), at(0))).finish(b"reply");
        assert_eq!(replayed(state.sequence(&request(session, 0, sequence), at(0))), b"reply");
    }
}

#[test]
fn sessions_and_slots_that_do_not_exist_are_refused() {
    let state = state();
    let (_, session) = client(&state, "a");
    for bit in 0..128 {
        let mut forged = session;
        forged.0[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(refused(state.sequence(&request(forged, 0, 1), at(0))), StateFault::BadSession);
        assert_eq!(state.destroy_session(&forged, None), Err(StateFault::BadSession));
    }
    for slot in [4, 5, u32::MAX] {
        assert_eq!(refused(state.sequence(&request(session, slot, 1), at(0))), StateFault::BadSlot);
        let high = SequenceRequest { highest_slot: SlotId(slot), ..request(session, 0, 1) };
        assert_eq!(refused(state.sequence(&high, at(0))), StateFault::BadHighSlot);
    }
    let grant = *executed(state.sequence(&request(session, 3, 1), at(0))).grant();
    assert_eq!((grant.highest_slot, grant.target_highest_slot), (SlotId(3), SlotId(3)));
}

#[test]
fn a_session_whose_cache_holds_no_reply_refuses_requests_to_be_cached() {
    let state = state();
    let exchanged = exchange(&state, "a");
    let fore = ChannelLimits { cached: 10, ..FORE };
    let created =
        state.create_session(&CreateSession { fore, ..creation(exchanged.client, 1) }, at(0)).unwrap();
    let cached = request(created.session, 0, 1);
    assert_eq!(refused(state.sequence(&cached, at(0))), StateFault::TooBigToCache);
    executed(state.sequence(&SequenceRequest { is_cached: false, ..cached }, at(0))).finish(b"");
    // Nor does SEQUENCE use a slot if its own result is too large for the session.
    let largest = usize::try_from(FORE.reply).unwrap();
    let next = SequenceRequest { is_cached: false, ..request(created.session, 0, 2) };
    let long = SequenceRequest { reply_min: largest + 1, ..next };
    assert_eq!(refused(state.sequence(&long, at(0))), StateFault::ReplyTooBig);
    executed(state.sequence(&SequenceRequest { reply_min: largest, ..next }, at(0))).finish(b"");
}

#[test]
fn requests_beyond_the_limits_of_the_session_do_not_use_the_slot() {
    let state = state();
    let (_, session) = client(&state, "a");
    let at_limit = SequenceRequest { operations: 16, size: 8192, ..request(session, 0, 1) };
    let many = SequenceRequest { operations: 17, ..at_limit };
    assert_eq!(refused(state.sequence(&many, at(0))), StateFault::TooManyOperations);
    let large = SequenceRequest { size: 8193, ..at_limit };
    assert_eq!(refused(state.sequence(&large, at(0))), StateFault::RequestTooBig);
    executed(state.sequence(&at_limit, at(0))).finish(b"");
}

#[test]
fn fingerprints_differ_in_principal_length_ends_and_samples_and_in_all_bytes_of_a_small_request() {
    const ALL: usize = 2 * FINGERPRINT_END + SAMPLES * SAMPLE;
    let state = state();
    let of = |contents: &[u8]| state.fingerprint(Principal::Uid(0), contents);
    for length in [1, 2 * FINGERPRINT_END, ALL, ALL + 1, 2 * ALL, (1 << 20) + 300] {
        let contents = vec![7; length];
        assert_eq!(of(&contents), of(&contents));
        assert_ne!(of(&contents), state.fingerprint(Principal::Uid(1), &contents));
        assert_ne!(of(&contents), of(&contents[1..]));
        let covers = |place: usize| {
            let mut other = contents.clone();
            other[place] = 8;
            of(&contents) != of(&other)
        };
        assert_eq!([0, length - 1].map(covers), [true; 2], "{length}");
        if length < ALL {
            continue;
        }
        let middle = FINGERPRINT_END..length - FINGERPRINT_END;
        assert_eq!([middle.start - 1, middle.end].map(covers), [true; 2], "{length}");
        let distance = middle.len() / SAMPLES;
        let at = |number: usize| covers(middle.start + number * distance + distance / 2);
        assert!((0..SAMPLES).all(at), "{length}");
        // Between two samples, if there is anything.
        assert_eq!(covers(middle.start + distance), distance < SAMPLE + 2, "{length}");
    }
    assert_ne!(of(&[1]), of(&[2]));
}

#[test]
fn a_session_ends_when_none_but_the_caller_uses_it() {
    let state = state();
    let (_, session) = client(&state, "a");
    let other = executed(state.sequence(&request(session, 0, 1), at(0)));
    assert_eq!(state.destroy_session(&session, None), Err(StateFault::Delay));
    let own = executed(state.sequence(&request(session, 1, 1), at(0)));
    assert_eq!(state.destroy_session(&session, Some(&own)), Err(StateFault::Delay));
    other.finish(b"");
    state.destroy_session(&session, Some(&own)).unwrap();
    own.finish(b"reply");
    assert_eq!(refused(state.sequence(&request(session, 1, 1), at(0))), StateFault::BadSession);
    assert_eq!(state.destroy_session(&session, None), Err(StateFault::BadSession));
}

#[test]
fn a_client_may_have_several_sessions_and_they_share_its_state() {
    let state = state();
    let exchanged = exchange(&state, "a");
    let one = state.create_session(&creation(exchanged.client, 1), at(0)).unwrap();
    let two = state.create_session(&creation(exchanged.client, 2), at(0)).unwrap();
    let first = executed(state.sequence(&request(one.session, 0, 1), at(0)));
    state.reclaim_complete(first.client()).unwrap();
    let stateid = open(&state, first.client(), "o", file(1), mode(1, 0)).unwrap();
    first.finish(b"");
    let second = executed(state.sequence(&request(two.session, 0, 1), at(0)));
    state.close(second.client(), &stateid, &file(1)).unwrap();
}

#[test]
fn a_new_backchannel_clears_the_flags_of_one_that_was_lost() {
    let state = state();
    let client = exchange(&state, "a").client;
    let connection = Connection::new(1);
    let one = state.create_session(&creation_over(&connection, client, 1), at(0)).unwrap().session;
    let mut sequence = 0;
    let mut flags = || {
        sequence += 1;
        let slot = executed(state.sequence(&request(one, 0, sequence), at(0)));
        let flags = slot.grant().status_flags;
        slot.finish(b"");
        flags
    };
    assert_eq!(flags(), 0);
    connection.is_open.store(false, Ordering::Relaxed);
    state.check_callback_path(client);
    let of_session = SequenceStatusFlags::CB_PATH_DOWN_SESSION;
    assert_eq!(flags(), of_session | SequenceStatusFlags::CB_PATH_DOWN);
    let other = Connection::new(2);
    state.create_session(&creation_over(&other, client, 2), at(0)).unwrap();
    assert_eq!(flags(), of_session, "the other session has one");
    let session = state.session(&one).unwrap();
    session.bind_backchannel(Connection::new(3));
    assert_eq!(flags(), 0);
}

/// knfsd sets the flag for such clients, too.
#[test]
fn a_client_is_told_of_a_lost_backchannel_and_not_of_one_that_it_has_never_bound() {
    let state = state();
    let client = exchange(&state, "a").client;
    let one = state.create_session(&creation(client, 1), at(0)).unwrap().session;
    let mut sequence = 0;
    let mut flags = || {
        sequence += 1;
        state.check_callback_path(client);
        let slot = executed(state.sequence(&request(one, 0, sequence), at(0)));
        let flags = slot.grant().status_flags;
        slot.finish(b"");
        flags
    };
    assert_eq!(flags(), 0, "it has never bound one");
    let connection = Connection::new(1);
    state.create_session(&creation_over(&connection, client, 2), at(0)).unwrap();
    assert_eq!(flags(), 0);
    connection.is_open.store(false, Ordering::Relaxed);
    assert_eq!(flags(), SequenceStatusFlags::CB_PATH_DOWN);
}

#[test]
fn a_connection_that_is_bound_repeatedly_is_called_once() {
    let state = state();
    let client = exchange(&state, "a").client;
    let created = state.create_session(&creation_over(&Connection::new(1), client, 1), at(0)).unwrap();
    let session = state.session(&created.session).unwrap();
    session.bind_backchannel(Connection::new(2));
    for _ in 0..3 {
        session.bind_backchannel(Connection::new(1));
    }
    for expected in [1, 2] {
        let CallbackRouting::Route(route) = session.callback_route() else { panic!("no route") };
        assert_eq!(route.connection.connection(), expected);
        session.callback_failed(&route.connection);
    }
    assert!(matches!(session.callback_route(), CallbackRouting::Closed));
}

#[test]
fn callbacks_use_the_slots_of_the_session_each_with_its_sequence() {
    let state = state();
    let client = exchange(&state, "a").client;
    let creation = creation_over(&Connection::new(1), client, 1);
    let creation = CreateSession { back: ChannelLimits { slots: 2, ..creation.back }, ..creation };
    let created = state.create_session(&creation, at(0)).unwrap();
    let session = state.session(&created.session).unwrap();
    let take = || match session.callback_route() {
        CallbackRouting::Route(route) => route,
        CallbackRouting::Busy | CallbackRouting::Closed => panic!("no slot is free"),
    };
    let of = |route: &CallbackRoute| (route.slot.0, route.sequence.0, route.highest_slot.0);
    let (first, second) = (take(), take());
    assert_eq!((of(&first), of(&second)), ((0, 1, 0), (1, 1, 1)));
    assert!(matches!(session.callback_route(), CallbackRouting::Busy));
    // It was not executed: its sequence id is used again.
    session.release_callback_slot(&first, CallbackSlotOutcome::Unused);
    let again = take();
    assert_eq!((of(&again), again.unsettled.clone()), ((0, 1, 1), None));
    session.release_callback_slot(&again, CallbackSlotOutcome::Used);
    assert_eq!(of(&take()), (0, 2, 1));
    // It may have been executed: it comes first, until that is known.
    let sent =
        SentCallback { operation: CallbackOperation::Recall, arguments: b"header, recall".into(), begin: 8 };
    session.release_callback_slot(&second, CallbackSlotOutcome::Unknown(sent.clone()));
    session.release_callback_slot(&again, CallbackSlotOutcome::Used);
    let second = take();
    assert_eq!((of(&second), second.unsettled.as_ref()), ((1, 1, 1), Some(&sent)));
    assert!(sent.is_same(&SentCallback { arguments: b"recall".into(), begin: 0, ..sent.clone() }));
    assert!(!sent.is_same(&SentCallback { arguments: b"header, RECALL".into(), ..sent.clone() }));
    session.release_callback_slot(&second, CallbackSlotOutcome::Used);
    assert_eq!(of(&take()), (0, 2, 0));
    let second = take();
    assert_eq!((of(&second), second.unsettled.clone()), ((1, 2, 1), None));
}

#[test]
fn the_sessions_of_one_address_leave_memory_for_replies_to_others() {
    // Room for 64 sessions.
    let state =
        with_limits(StateLimits { session_bytes: 64 * session_memory(&FORE), ..StateLimits::default() });
    let from = |address: u8, owner: &str| {
        let presented =
            ExchangeId { peer: IpAddr::from([10, 0, 0, address]), ..presented(owner, 1, Principal::Uid(0)) };
        state.exchange_id(&presented, at(0)).unwrap().client
    };
    let take_all = |address: u8| {
        for number in 0..100 {
            let client = from(address, &format!("{address} {number}"));
            for sequence in 1..=20 {
                match state.create_session(&creation(client, sequence), at(0)) {
                    Ok(_) => {}
                    Err(fault) => return fault,
                }
            }
        }
        panic!("one address has taken everything");
    };
    assert_eq!(take_all(1), StateFault::NoSpace);
    let other = state.create_session(&creation(from(2, "one"), 1), at(0)).unwrap();
    assert_eq!(other.fore.slots, 4);
    take_all(2);
    state.create_session(&creation(from(3, "one"), 1), at(0)).unwrap();
}

#[test]
fn sessions_without_cached_replies_are_limited_by_their_own_memory() {
    let session_bytes = 64 * session_memory(&FORE);
    let state = with_limits(StateLimits { session_bytes, ..StateLimits::default() });
    let fore = ChannelLimits { cached: 0, ..FORE };
    let mut count = 0;
    let refused = (0..100).find_map(|number| {
        let client = exchange(&state, &number.to_string()).client;
        (1..=64).find_map(|sequence| {
            let created = state.create_session(&CreateSession { fore, ..creation(client, sequence) }, at(0));
            count += usize::from(created.is_ok());
            created.err()
        })
    });
    assert_eq!(refused, Some(StateFault::NoSpace));
    let most = session_bytes / 2 / session_memory(&fore);
    assert!((most - 2..=most + 1).contains(&count), "{count} sessions of {most}");
}
