//! The limit of a client's state, as the client sees it.

use std::sync::Arc;
use std::time::Duration;

use curt_observe::ServerCounters;
use curt_proto::nfs4::*;
use curt_rpc::clock::ScriptedTime;

use super::lock_callbacks::{accepted_as, bind, call};
use super::locks::{BOTH, Failure, lock, locking, new_owner};
use super::test_client::{Server, creating, export, opening, rules};
use crate::{NfsService, NfsServiceConfig, PersistentState, SystemNames};

/// A server for so many states, and so many delegations among them, whose clock is the test's.
fn server(states: usize, delegations: usize) -> (Server, Arc<ScriptedTime>) {
    let time = ScriptedTime::new();
    let setup = NfsServiceConfig {
        state: PersistentState::with_key([9; 16]),
        exports: vec![export("/srv/files", 1, rules())],
        counters: Arc::new(ServerCounters::default()),
    };
    let mut service = NfsService::with_environment(setup, Box::new(SystemNames), time.clock()).unwrap();
    service.held.set_states_max(states);
    service.held.set_delegations_max(delegations);
    (Server::over(Arc::new(service)).calling_back(), time)
}

/// Of 24 states, a client gets 12. With the ninth it has three quarters of what it may have.
// SEMANTICS: stateful-15.
#[test]
fn a_client_with_much_state_is_asked_to_return_some_and_then_refused() {
    let (server, time) = server(24, 24);
    let one = server.client("one");
    server.call_from([10, 0, 0, 2]);
    let two = server.client("two");
    let calls = bind(&one, |asked| Ok(accepted_as(CallbackOperation::RecallAny, asked)));
    let root = one.files();
    let first = one.open(&root, &creating("file", "first", BOTH, 0)).unwrap();
    let open = |client: &super::test_client::TestClient<'_>, owner: &str| {
        client.open(&root, &opening("file", owner, BOTH, 0)).map(|opened| opened.stateid)
    };
    for number in 2..=8 {
        open(&one, &format!("owner {number}")).unwrap();
    }
    assert!(calls.try_recv().is_err());
    // Locks count as opens do.
    let asked = locking(LockType4::Read, 0, 8, new_owner(first.stateid, b"a"));
    lock(&one, &first.handle, &asked).unwrap();
    assert_eq!(call(&calls), (1, b"keep 0".to_vec()));
    // Once in five seconds.
    open(&one, "owner 10").unwrap();
    time.advance(Duration::from_millis(4_999));
    open(&one, "owner 11").unwrap();
    assert!(calls.try_recv().is_err());
    time.advance(Duration::from_millis(1));
    let last = open(&one, "owner 12").unwrap();
    assert_eq!(call(&calls), (2, b"keep 0".to_vec()));
    assert_eq!(open(&one, "owner 13").err(), Some(NfsStat4::Nospc));
    let asked = locking(LockType4::Read, 0, 8, new_owner(last, b"b"));
    assert_eq!(lock(&one, &first.handle, &asked), Err(Failure::Status(NfsStat4::Serverfault)));
    // The state that it has can be used, and others have room.
    open(&one, "first").unwrap();
    open(&two, "owner").unwrap();
    let close = CloseArgs4 { seqid: 0, stateid: last };
    assert_eq!(one.at(&first.handle, &|compound| compound.push(&close)), NfsStat4::Ok);
    open(&one, "owner 13").unwrap();
    assert_eq!(open(&one, "owner 14").err(), Some(NfsStat4::Nospc));
}

/// A client repeats what was delayed or refused for lack of room, which must find no file of the
/// first attempt.
// SEMANTICS: stateful-15.
#[test]
fn an_open_without_room_for_its_state_creates_no_file() {
    let (server, _) = server(2, 2);
    let client = server.client("one");
    let root = client.files();
    let first = client.open(&root, &creating("file", "owner", BOTH, 0)).unwrap();
    let with = |name, owner, how| OpenArgs4 { how: OpenHow::Create(how), ..opening(name, owner, BOTH, 0) };
    let new = [
        CreateHow4::Unchecked(Fattr4::default()),
        CreateHow4::Guarded(Fattr4::default()),
        CreateHow4::Exclusive(Verifier4([1; 8])),
    ];
    for how in new {
        assert_eq!(client.open(&root, &with("new", "owner", how)).unwrap_err(), NfsStat4::Nospc);
        assert_eq!(client.walk(&["srv", "files", "new"]), Err(NfsStat4::Noent));
    }
    // What needs no file or no state has the outcome that it has with room.
    let guarded = CreateHow4::Guarded(Fattr4::default());
    assert_eq!(client.open(&root, &with("file", "owner", guarded)).unwrap_err(), NfsStat4::Exist);
    let again = client.open(&root, &creating("file", "owner", BOTH, 0)).unwrap();
    assert_eq!((again.stateid.other, again.stateid.seqid), (first.stateid.other, 2));
    let close = CloseArgs4 { seqid: 0, stateid: again.stateid };
    assert_eq!(client.at(&first.handle, &|compound| compound.push(&close)), NfsStat4::Ok);
    client.open(&root, &with("new", "owner", guarded)).unwrap();
}

/// Of 8 delegations, a client gets 4. With the third it has three quarters of what it may have.
// SEMANTICS: stateful-15.
#[test]
fn a_client_with_many_delegations_is_asked_to_return_some_and_gets_no_more() {
    let (server, _) = server(1000, 8);
    let one = server.client("one");
    server.call_from([10, 0, 0, 2]);
    let two = server.client("two");
    let answer = |asked: &CbSequenceArgs4| Ok(accepted_as(CallbackOperation::RecallAny, asked));
    let (calls, _calls_of_two) = (bind(&one, answer), bind(&two, answer));
    let root = one.files();
    for number in 1..=5 {
        let name = format!("file {number}");
        let made = one.open(&root, &creating(&name, "maker", BOTH, 0)).unwrap();
        let close = CloseArgs4 { seqid: 0, stateid: made.stateid };
        assert_eq!(one.at(&made.handle, &|compound| compound.push(&close)), NfsStat4::Ok);
    }
    let delegated = |client: &super::test_client::TestClient<'_>, number: u32| {
        let opened =
            client.open(&root, &opening(&format!("file {number}"), "reader", ShareAccess4::READ, 0)).unwrap();
        match opened.result.delegation {
            OpenDelegation::Read { stateid, .. } => Some((opened.handle, stateid)),
            _ => None,
        }
    };
    assert!(delegated(&one, 1).is_some() && delegated(&one, 2).is_some());
    assert!(calls.try_recv().is_err());
    let third = delegated(&one, 3).unwrap();
    assert_eq!(call(&calls), (1, b"keep 1".to_vec()));
    assert!(delegated(&one, 4).is_some() && delegated(&one, 5).is_none());
    assert!(delegated(&two, 1).is_some(), "others have room");
    let give_back = DelegreturnArgs4 { stateid: third.1 };
    assert_eq!(one.at(&third.0, &|compound| compound.push(&give_back)), NfsStat4::Ok);
    assert!(delegated(&one, 5).is_some());
}
