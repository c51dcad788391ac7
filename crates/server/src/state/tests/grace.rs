//! The grace period.

use curt_proto::nfs4::SequenceStatusFlags;

use super::super::{IoDirection, RecordedClient, RecordedState};
use super::*;

fn recorded(owner: &str) -> RecordedClient {
    let held = RecordedState::default();
    RecordedClient { owner: owner.as_bytes().into(), principal: Principal::Uid(0), held }
}

/// A client that has not completed its reclaims.
fn reclaimer(state: &ServerState, owner: &str) -> Arc<Client> {
    let created = session_of(state, exchange(state, owner));
    Arc::clone(&state.session(&created.session).unwrap().client)
}

fn reclaim(state: &ServerState, client: &Client, mode: ShareMode) -> Result<Stateid, StateFault> {
    let asked =
        OpenRequest { owner: b"o", file: file(1), mode, is_reclaim: true, is_admitted: false, pin: None };
    state.open(client, &asked).map(|granted| granted.stateid)
}

#[test]
fn without_recorded_clients_there_is_no_grace_period() {
    let state = state();
    state.grace.begin(Vec::new(), at(90), at(90));
    assert!(!state.grace.is_on());
    let client = reclaimer(&state, "a");
    assert_eq!(reclaim(&state, &client, mode(1, 0)), Err(StateFault::NoGrace));
}

#[test]
fn recorded_clients_reclaim_and_all_others_wait() {
    let state = state();
    state.grace.begin(vec![recorded("a"), recorded("b")], at(90), at(90));
    let (known, unknown) = (reclaimer(&state, "a"), reclaimer(&state, "c"));
    let stateid = reclaim(&state, &known, mode(3, 1)).unwrap();
    assert_eq!(state.check_io(&known, &stateid, &file(1), IoDirection::Write), Ok(()));
    assert_eq!(reclaim(&state, &unknown, mode(1, 0)), Err(StateFault::ReclaimBad));
    state.reclaim_complete(&unknown).unwrap();
    assert_eq!(open(&state, &unknown, "o", file(2), mode(1, 0)), Err(StateFault::Grace));
    assert_eq!(reclaim(&state, &unknown, mode(1, 0)), Err(StateFault::NoGrace));
    let anonymous = state.check_io(&unknown, &Stateid::ANONYMOUS, &file(2), IoDirection::Write);
    assert_eq!(anonymous, Err(StateFault::Grace));
    let other = reclaimer(&state, "b");
    assert_eq!(reclaim(&state, &other, mode(1, 0)), Err(StateFault::ReclaimConflict));
    state.reclaim_complete(&known).unwrap();
    assert_eq!(reclaim(&state, &known, mode(1, 0)), Err(StateFault::NoGrace));
    assert!(!state.grace.is_over(at(89)));
    state.reclaim_complete(&other).unwrap();
    assert!(state.grace.is_over(at(0)));
    state.grace.end();
    assert!(!state.grace.is_on() && !state.grace.is_over(at(100)));
    open(&state, &unknown, "o", file(2), mode(1, 0)).unwrap();
}

/// RFC 8881 section 18.46.3.
#[test]
fn a_client_that_may_reclaim_is_told_so_until_it_has_completed_that() {
    let state = state();
    state.grace.begin(vec![recorded("a")], at(90), at(90));
    let flags = |session, sequence| {
        let slot = executed(state.sequence(&request(session, 0, sequence), at(0)));
        slot.grant().status_flags & SequenceStatusFlags::RESTART_RECLAIM_NEEDED
    };
    let [known, unknown] = ["a", "b"].map(|owner| session_of(&state, exchange(&state, owner)).session);
    assert_eq!(flags(unknown, 1), 0);
    for sequence in [1, 2] {
        assert_eq!(flags(known, sequence), SequenceStatusFlags::RESTART_RECLAIM_NEEDED);
    }
    state.grace.end();
    assert_ne!(flags(known, 3), 0, "it cannot open before RECLAIM_COMPLETE");
    let client = Arc::clone(&state.session(&known).unwrap().client);
    state.reclaim_complete(&client).unwrap();
    assert_eq!(flags(known, 4), 0);
}

#[test]
fn another_principal_does_not_reclaim() {
    let state = state();
    let principal = Principal::Uid(5);
    state.grace.begin(vec![RecordedClient { principal, ..recorded("a") }], at(90), at(90));
    assert_eq!(reclaim(&state, &reclaimer(&state, "a"), mode(1, 0)), Err(StateFault::ReclaimBad));
}

#[test]
fn the_period_ends_after_its_time_if_clients_do_not_return_or_do_not_tell() {
    let state = state();
    state.grace.begin(vec![recorded("a")], at(90), at(90));
    assert!(!state.grace.is_over(at(89)) && state.grace.is_over(at(90)));
    state.grace.begin_for_others(at(100));
    state.reclaim_complete(&reclaimer(&state, "a")).unwrap();
    assert!(!state.grace.is_over(at(99)) && state.grace.is_over(at(100)));
}

#[test]
fn denials_and_delegations_are_waited_for_until_their_clients_have_completed_or_the_period_ends() {
    let both = RecordedState { denies: true, has_delegations: true };
    for ends_early in [false, true] {
        let state = state();
        let recorded = [
            ("denies", RecordedState { has_delegations: false, ..both }),
            ("has delegations", RecordedState { denies: false, ..both }),
            ("both", both),
            ("neither", RecordedState::default()),
        ]
        .map(|(owner, held)| RecordedClient { held, ..recorded(owner) });
        state.grace.begin(recorded.to_vec(), at(90), at(90));
        let waits = || (state.grace.may_deny(), state.grace.may_be_delegated());
        let clients = ["neither", "both", "has delegations", "denies"].map(|owner| reclaimer(&state, owner));
        let expected = [(true, true), (true, true), (true, false), (false, false)];
        for (client, expected) in clients.iter().zip(expected) {
            state.reclaim_complete(client).unwrap();
            assert_eq!(waits(), expected);
            if ends_early {
                state.grace.end();
                assert_eq!(waits(), (false, false));
                break;
            }
        }
    }
}

#[test]
fn a_reclaim_shortly_before_the_end_prolongs_the_period() {
    let state = state();
    state.grace.begin(vec![recorded("a")], at(90), at(95));
    let client = reclaimer(&state, "a");
    reclaim(&state, &client, mode(1, 0)).unwrap();
    assert!(!state.grace.is_over(at(50)));
    assert!(state.grace.is_over(at(90)), "that reclaim was long before");
    for second in [90, 91, 92, 93, 94] {
        reclaim(&state, &client, mode(1, 0)).unwrap();
        assert!(!state.grace.is_over(at(second)));
    }
    assert!(state.grace.is_over(at(95)), "this is the latest end");
}

#[test]
fn changes_wait_until_the_time_of_nfsv4_has_passed_though_the_period_goes_on() {
    let state = state();
    let held = RecordedState { denies: false, has_delegations: true };
    state.grace.begin(vec![RecordedClient { held, ..recorded("a") }], at(90), at(90));
    state.grace.begin_for_others(at(600));
    assert!(!state.grace.is_over(at(89)) && state.grace.may_be_delegated());
    assert!(!state.grace.is_over(at(90)) && !state.grace.may_be_delegated());
    state.reclaim_complete(&reclaimer(&state, "a")).unwrap();
    assert!(!state.grace.may_be_delegated() && state.grace.is_on());
}
