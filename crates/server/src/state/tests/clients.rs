//! Records of clients.

use super::super::{IoDirection, WantedAccess, is_mostly_used};
use super::*;

const ROOT: Principal = Principal::Uid(0);
const OTHER: Principal = Principal::Uid(1);

fn update(verifier: u8, principal: Principal) -> ExchangeId<'static> {
    ExchangeId { is_update: true, ..presented("a", verifier, principal) }
}

#[test]
fn an_unconfirmed_record_is_replaced_whatever_the_verifier_and_principal() {
    for (verifier, principal) in [(1, ROOT), (2, ROOT), (1, OTHER), (2, OTHER)] {
        let state = state();
        let first = exchange(&state, "a");
        let second = state.exchange_id(&presented("a", verifier, principal), at(0)).unwrap();
        assert_ne!(first.client, second.client);
        assert!(!second.is_confirmed);
        assert_eq!(state.create_session(&creation(first.client, 1), at(0)), Err(StateFault::StaleClient));
    }
}

#[test]
fn a_confirmed_client_that_presents_itself_again_keeps_its_id_and_state() {
    let state = state();
    let first = exchange(&state, "a");
    let session = session_of(&state, first);
    let again = exchange(&state, "a");
    assert_eq!((again.client, again.is_confirmed), (first.client, true));
    assert_eq!(again.sequence, SequenceId(2));
    executed(state.sequence(&request(session.session, 0, 1), at(0)));
}

#[test]
fn a_restarted_client_loses_its_state_when_it_confirms_its_new_record() {
    let state = state();
    let (old, session) = client(&state, "a");
    open(&state, &old, "o", file(1), mode(3, 3)).unwrap();
    let new = state.exchange_id(&presented("a", 2, ROOT), at(0)).unwrap();
    assert_ne!(new.client, old.id);
    executed(state.sequence(&request(session, 0, 1), at(0))).finish(b"");
    assert_eq!(state.shares.opens(&file(1)), 1);
    session_of(&state, new);
    assert!(matches!(state.sequence(&request(session, 0, 2), at(0)), Err(StateFault::BadSession)));
    assert_eq!(state.shares.opens(&file(1)), 0);
    assert_eq!(open(&state, &old, "o", file(1), mode(3, 3)), Err(StateFault::DeadSession));
    assert_eq!(state.clients(at(0)).len(), 1);
}

#[test]
fn another_principal_gets_an_owner_only_if_nothing_is_lost() {
    let state = state();
    let (old, session) = client(&state, "a");
    let other = presented("a", 1, OTHER);
    assert_eq!(state.exchange_id(&other, at(0)), Err(StateFault::ClientInUse));
    state.destroy_session(&session, None).unwrap();
    open(&state, &old, "o", file(1), mode(1, 0)).unwrap();
    assert_eq!(state.exchange_id(&other, at(0)), Err(StateFault::ClientInUse));
    let new = state.exchange_id(&other, at(91)).unwrap();
    release(&state);
    assert_ne!(new.client, old.id);
    assert_eq!(state.create_session(&creation(old.id, 2), at(91)), Err(StateFault::StaleClient));
    assert_eq!(state.shares.files(), 0);
}

#[test]
fn an_update_needs_a_confirmed_record_its_verifier_and_its_principal() {
    let state = state();
    assert_eq!(state.exchange_id(&update(1, ROOT), at(0)), Err(StateFault::NoRecord));
    let first = exchange(&state, "a");
    for (verifier, principal) in [(1, ROOT), (2, ROOT), (1, OTHER), (2, OTHER)] {
        assert_eq!(state.exchange_id(&update(verifier, principal), at(0)), Err(StateFault::NoRecord));
    }
    session_of(&state, first);
    assert_eq!(state.exchange_id(&update(2, OTHER), at(0)), Err(StateFault::NotSame));
    assert_eq!(state.exchange_id(&update(2, ROOT), at(0)), Err(StateFault::NotSame));
    assert_eq!(state.exchange_id(&update(1, OTHER), at(0)), Err(StateFault::NotPermitted));
    let named = ExchangeId { implementation: b"new", ..update(1, ROOT) };
    let updated = state.exchange_id(&named, at(0)).unwrap();
    assert_eq!((updated.client, updated.is_confirmed), (first.client, true));
    assert_eq!(&*state.clients(at(0))[0].implementation, b"new");
}

#[test]
fn a_client_is_destroyed_only_without_sessions_and_state() {
    let state = state();
    let (client, session) = client(&state, "a");
    assert_eq!(state.destroy_clientid(Clientid(1)), Err(StateFault::StaleClient));
    assert_eq!(state.destroy_clientid(client.id), Err(StateFault::ClientBusy));
    let stateid = open(&state, &client, "o", file(1), mode(1, 0)).unwrap();
    state.destroy_session(&session, None).unwrap();
    assert_eq!(state.destroy_clientid(client.id), Err(StateFault::ClientBusy));
    state.close(&client, &stateid, &file(1)).unwrap();
    state.destroy_clientid(client.id).unwrap();
    assert_eq!(state.destroy_clientid(client.id), Err(StateFault::StaleClient));
    let unconfirmed = exchange(&state, "b");
    state.destroy_clientid(unconfirmed.client).unwrap();
}

#[test]
fn a_lease_lasts_its_time_after_the_last_sequence() {
    let state = state();
    let (_, session) = client(&state, "a");
    executed(state.sequence(&request(session, 0, 1), at(60))).finish(b"");
    assert_eq!(expire(&state, at(150)), 0);
    assert_eq!(expire(&state, at(151)), 1);
    assert!(matches!(state.sequence(&request(session, 0, 2), at(151)), Err(StateFault::BadSession)));
    assert_eq!(state.clients(at(151)).len(), 0);
}

// SEMANTICS: stateful-5.
#[test]
fn an_expired_client_keeps_its_state_for_a_day_or_until_the_server_is_crowded() {
    let day = 24 * 60 * 60;
    for (opens, time, expired) in [(1 << 19, day, 0), (1 << 19, day + 1, 1), (4, 91, 0), (5, 91, 1)] {
        let limits = StateLimits { states: if opens == 5 { 4 } else { opens * 4 }, ..StateLimits::default() };
        let state = with_limits(limits);
        let (one, session) = client(&state, "a");
        open(&state, &one, "o", file(1), mode(3, 3)).unwrap();
        if opens == 5 {
            let other = client_at(&state, "b", "10.0.0.2");
            other.renew(at(time));
            for (client, number) in [(&one, 2), (&other, 3), (&other, 4)] {
                let _ = open(&state, client, "o", file(number), mode(1, 0));
            }
            assert!(is_mostly_used(state.states.load(std::sync::atomic::Ordering::Relaxed), 3));
        }
        assert_eq!(expire(&state, at(time)), expired, "{opens} {time}");
        let returned = state.sequence(&request(session, 0, 1), at(time));
        assert_eq!(returned.is_ok(), expired == 0);
    }
}

#[test]
fn a_lease_does_not_expire_while_a_compound_is_executed() {
    let state = state();
    let (_, session) = client(&state, "a");
    let slot = executed(state.sequence(&request(session, 0, 1), at(0)));
    assert_eq!(expire(&state, at(1000)), 0);
    slot.finish(b"");
    assert_eq!(expire(&state, at(1000)), 1);
}

#[test]
fn a_client_that_returns_before_its_lease_is_ended_keeps_it() {
    let state = state();
    let (_, session) = client(&state, "a");
    executed(state.sequence(&request(session, 0, 1), at(1000))).finish(b"");
    assert_eq!(expire(&state, at(1001)), 0);
    executed(state.sequence(&request(session, 0, 2), at(1001))).finish(b"");
}

#[test]
fn an_unconfirmed_record_lives_for_a_lease() {
    let state = state();
    let exchanged = exchange(&state, "a");
    assert_eq!((expire(&state, at(90)), expire(&state, at(91))), (0, 1));
    assert_eq!(state.create_session(&creation(exchanged.client, 1), at(91)), Err(StateFault::StaleClient));
}

// SEMANTICS: stateful-5.
#[test]
fn an_expired_client_loses_its_state_when_somebody_wants_its_file() {
    let state = state();
    let (one, _) = client(&state, "a");
    let (idle, _) = client(&state, "idle");
    open(&state, &one, "o", file(1), mode(3, 3)).unwrap();
    open(&state, &idle, "o", file(3), mode(3, 3)).unwrap();
    let (two, _) = client(&state, "b");
    let wanted = WantedAccess::Open(mode(1, 0));
    assert_eq!(state.expire_holders(&file(1), wanted, at(90)), 0);
    two.renew(at(95));
    assert_eq!(state.expire_holders(&file(2), wanted, at(95)), 0);
    assert_eq!(state.expire_holders(&file(1), wanted, at(95)), 1);
    assert_eq!(state.departing().iter().map(|client| client.id).collect::<Vec<_>>(), [one.id]);
    // Until the state is released, nobody else gets it.
    assert_eq!(open(&state, &two, "o", file(1), mode(1, 0)), Err(StateFault::ShareDenied));
    assert!(state.is_denied_by_departing(&file(1), wanted));
    release(&state);
    assert!(!state.is_denied_by_departing(&file(1), wanted));
    open(&state, &two, "o", file(1), mode(1, 0)).unwrap();
}

// SEMANTICS: stateful-5.
#[test]
fn an_expired_client_keeps_what_is_in_nobodys_way() {
    let state = state();
    let (one, _) = client(&state, "a");
    let (two, _) = client(&state, "b");
    open(&state, &one, "o", file(1), mode(1, 2)).unwrap();
    open(&state, &two, "o", file(1), mode(1, 0)).unwrap();
    // The examination once a second says when the next lease may expire.
    assert_eq!(expire(&state, at(90)), 0);
    let now = at(91);
    for wanted in
        [WantedAccess::Open(mode(1, 0)), WantedAccess::Open(mode(1, 2)), WantedAccess::Io(IoDirection::Read)]
    {
        assert_eq!(state.expire_holders(&file(1), wanted, now), 0, "{wanted:?}");
    }
    // The client that only reads is not in the way of one that writes.
    assert_eq!(state.expire_holders(&file(1), WantedAccess::Io(IoDirection::Write), now), 1);
    assert_eq!(state.departing()[0].id, one.id);
    release(&state);
    assert_eq!(state.expire_holders(&file(1), WantedAccess::Open(mode(2, 1)), now), 1);
    assert_eq!(state.departing()[0].id, two.id);
}

#[test]
fn reclaims_are_completed_once_and_before_the_first_open() {
    let state = state();
    let created = session_of(&state, exchange(&state, "a"));
    let client = Arc::clone(&state.session(&created.session).unwrap().client);
    assert_eq!(open(&state, &client, "o", file(1), mode(1, 0)), Err(StateFault::Grace));
    state.reclaim_complete(&client).unwrap();
    assert_eq!(state.reclaim_complete(&client), Err(StateFault::CompleteAlready));
    open(&state, &client, "o", file(1), mode(1, 0)).unwrap();
}

#[test]
fn unconfirmed_records_are_evicted_oldest_first() {
    let state = with_limits(StateLimits { unconfirmed: 2, ..StateLimits::default() });
    let (confirmed, _) = client(&state, "confirmed");
    let ids: Vec<_> = (0..5).map(|number| exchange(&state, &format!("{number}")).client).collect();
    let left: Vec<_> = state.clients(at(0)).iter().map(|client| client.client).collect();
    assert_eq!(left, [confirmed.id, ids[3], ids[4]]);
}

#[test]
fn an_address_takes_no_unconfirmed_records_of_others() {
    let state = with_limits(StateLimits { unconfirmed: 4, ..StateLimits::default() });
    let present = |peer: u8, number: usize| {
        let owner = format!("{peer}/{number}");
        let presented = presented(&owner, 1, ROOT);
        let from = ExchangeId { peer: [10, 0, 0, peer].into(), ..presented };
        state.exchange_id(&from, at(0)).unwrap()
    };
    let slow = present(1, 0);
    let many: Vec<_> = (0..100).map(|number| present(2, number)).collect();
    session_of(&state, slow);
    assert!(many.iter().rev().take(3).all(|of_many| client_of(&state, of_many.client).is_some()));
    assert_eq!(state.clients(at(0)).len(), 4);
    // Of addresses with one each, the oldest goes.
    let one_each: Vec<_> = (3..8).map(|peer| present(peer, 0)).collect();
    let is_left = |exchanged: &ExchangedId| client_of(&state, exchanged.client).is_some();
    assert_eq!(one_each.iter().map(is_left).collect::<Vec<_>>(), [false, true, true, true, true]);
}

#[test]
fn an_address_leaves_as_many_records_to_others_as_it_has() {
    let state = with_limits(StateLimits { clients: 8, ..StateLimits::default() });
    let taken = |peer: u8| {
        let present = |number: usize| {
            let owner = format!("{peer}/{number}");
            let presented = presented(&owner, 1, ROOT);
            state.exchange_id(&ExchangeId { peer: [10, 0, 0, peer].into(), ..presented }, at(0))
        };
        (0..8).take_while(|number| present(*number) != Err(StateFault::Delay)).count()
    };
    assert_eq!([taken(1), taken(2), taken(3), taken(4)], [4, 2, 1, 1]);
}

#[test]
fn all_addresses_of_an_ipv6_network_count_as_one() {
    let state = with_limits(StateLimits { clients: 8, states: 8, ..StateLimits::default() });
    let present = |number: usize, network: u16| {
        let owner = format!("{network}/{number}");
        let peer = format!("2001:db8:0:{network}::{number}").parse().unwrap();
        let presented = ExchangeId { peer, ..presented(&owner, 1, ROOT) };
        state.exchange_id(&presented, at(0)).map(|exchanged| exchanged.client)
    };
    let taken: Vec<_> = (0..8).map_while(|number| present(number, 1).ok()).collect();
    assert_eq!((taken.len(), present(0, 2).is_ok()), (4, true));
    taken.iter().for_each(|id| expire_client(&state, *id));
    let clients = [1, 2].map(|host| client_at(&state, &host.to_string(), &format!("2001:db8:0:3::{host}")));
    let open_in_turn = |number: u8| {
        let client = &clients[usize::from(number) % 2];
        open(&state, client, "o", file(number), mode(1, 0)).is_ok()
    };
    assert_eq!((0..8).filter(|number| open_in_turn(*number)).count(), 4);
    assert_eq!(&*state.clients(at(0))[1].owner, b"1");
    assert_eq!(state.clients(at(0))[1].peer.to_string(), "2001:db8:0:3::1");
}

// SEMANTICS: stateful-15.
#[test]
fn the_clients_of_an_address_leave_as_many_states_to_others_as_they_have() {
    let state = with_limits(StateLimits { states: 24, ..StateLimits::default() });
    let take = |client: &Client, owner: &str| {
        let taken = |number: &u8| open(&state, client, owner, file(*number), mode(1, 0)).is_ok();
        (0..24).take_while(taken).count()
    };
    let many = ["a", "b", "c", "d"].map(|owner| client_at(&state, owner, "10.0.0.1"));
    let other = client_at(&state, "other", "10.0.0.2");
    assert_eq!(many.each_ref().map(|client| take(client, "o")), [12, 0, 0, 0]);
    // A client that has none itself waits for those of its address.
    assert_eq!(open(&state, &many[1], "o", file(1), mode(1, 0)), Err(StateFault::Delay));
    assert_eq!(open(&state, &many[0], "p", file(1), mode(1, 0)), Err(StateFault::NoSpace));
    assert_eq!(take(&other, "o"), 6);
    // What an address gives back, its other clients may have.
    expire_client(&state, many[0].id);
    assert_eq!(take(&many[1], "o"), 9);
    expire_client(&state, many[1].id);
    expire_client(&state, other.id);
    assert_eq!(take(&many[2], "o"), 12);
}

#[test]
fn an_address_without_clients_is_forgotten() {
    let state = state();
    let client = client_at(&state, "a", "10.0.0.1");
    expire_client(&state, client.id);
    drop(client);
    expire(&state, at(1));
    assert!(state.clients.lock().addresses.is_empty());
}

#[test]
fn the_administrator_sees_and_expires_clients() {
    let state = state();
    let (client, session) = client(&state, "a");
    open(&state, &client, "o", file(1), mode(1, 0)).unwrap();
    open(&state, &client, "o", file(2), mode(1, 0)).unwrap();
    open(&state, &client, "p", file(2), mode(2, 0)).unwrap();
    let summary = &state.clients(at(5))[0];
    assert_eq!(
        (summary.client, &*summary.owner, &*summary.implementation),
        (client.id, &b"a"[..], &b"test"[..])
    );
    assert_eq!((summary.sessions, summary.owners, summary.opens), (1, 2, 3));
    assert!(summary.is_confirmed && summary.since_renewal == at(5));
    expire_client(&state, client.id);
    assert_eq!(state.expire_client(client.id).err(), Some(StateFault::StaleClient));
    assert!(matches!(state.sequence(&request(session, 0, 1), at(5)), Err(StateFault::BadSession)));
    assert_eq!(state.shares.files(), 0);
}

#[test]
fn who_sees_the_clients_lets_nobody_wait_for_the_states_of_one() {
    let state = state();
    let (client, _) = client(&state, "a");
    let states = client.states.lock();
    std::thread::scope(|scope| {
        let summaries = scope.spawn(|| state.clients(at(0)));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!summaries.is_finished());
        let table = state.clients.try_lock_for(Duration::from_secs(10));
        assert!(table.is_some(), "the table of clients is locked");
        drop((table, states));
        assert_eq!(summaries.join().unwrap().len(), 1);
    });
}
