//! Opens, share reservations and stateids.

use std::sync::atomic::{AtomicUsize, Ordering};

use curt_proto::nfs4::SequenceStatusFlags;

use super::super::IoDirection::{Read, Write};
use super::super::{RecordedClient, RecordedState};
use super::*;

// SEMANTICS: stateful-3.
#[test]
fn every_pair_of_share_modes_is_allowed_or_denied_as_the_bits_say() {
    for one in 0..16 {
        for two in 0..16 {
            let (first, second) = (mode(one & 3, one >> 2), mode(two & 3, two >> 2));
            if one & 3 == 0 || two & 3 == 0 {
                continue;
            }
            let state = state();
            let (client, _) = client(&state, "a");
            open(&state, &client, "first", file(1), first).unwrap();
            let is_denied = (two & 3) & (one >> 2) != 0 || (one & 3) & (two >> 2) != 0;
            let expected = if is_denied { Some(StateFault::ShareDenied) } else { None };
            assert_eq!(
                open(&state, &client, "second", file(1), second).err(),
                expected,
                "{first:?} {second:?}"
            );
            // RFC 8881 section 9.7: an owner's own open is no exception.
            open(&state, &client, "first", file(3), first).unwrap();
            assert_eq!(
                open(&state, &client, "first", file(3), second).err(),
                expected,
                "{first:?} {second:?}"
            );
            // Other files are free.
            open(&state, &client, "second", file(2), second).unwrap();
        }
    }
}

#[test]
fn an_owner_that_opens_again_gets_the_union_and_the_next_seqid() {
    let state = state();
    let (client, _) = client(&state, "a");
    let first = open(&state, &client, "o", file(1), mode(1, 0)).unwrap();
    let second = open(&state, &client, "o", file(1), mode(2, 2)).unwrap();
    assert_eq!((first.seqid, second.seqid, first.other), (1, 2, second.other));
    assert_eq!(state.shares.opens(&file(1)), 1);
    assert_eq!(open(&state, &client, "p", file(1), mode(2, 0)), Err(StateFault::ShareDenied));
    assert_eq!(open(&state, &client, "p", file(1), mode(1, 1)), Err(StateFault::ShareDenied));
    open(&state, &client, "p", file(1), mode(1, 0)).unwrap();
    // The upgrade conflicts with the other owner, or with its own open, and changes nothing.
    assert_eq!(open(&state, &client, "o", file(1), mode(1, 1)), Err(StateFault::ShareDenied));
    assert_eq!(open(&state, &client, "o", file(1), mode(3, 0)), Err(StateFault::ShareDenied));
    state.close(&client, &second, &file(1)).unwrap();
    assert_eq!(state.shares.opens(&file(1)), 1);
    assert_eq!(open(&state, &client, "o", file(1), mode(0, 0)), Err(StateFault::Invalid));
}

#[test]
fn a_downgrade_needs_the_union_of_modes_that_were_opened() {
    let state = state();
    let (client, _) = client(&state, "a");
    let down = |stateid: &Stateid, access, deny| {
        state.open_downgrade(&client, stateid, &file(1), mode(access, deny))
    };
    let both = open(&state, &client, "o", file(1), mode(3, 2)).unwrap();
    assert_eq!(down(&both, 1, 0), Err(StateFault::Invalid));
    let read = open(&state, &client, "o", file(1), mode(1, 0)).unwrap();
    assert_eq!(down(&both, 1, 0), Err(StateFault::OldStateid));
    for (access, deny) in [(0, 0), (2, 0), (1, 2), (3, 0), (3, 1), (1, 3)] {
        assert_eq!(down(&read, access, deny), Err(StateFault::Invalid), "{access} {deny}");
    }
    let same = down(&read, 3, 2).unwrap();
    assert_eq!(open(&state, &client, "p", file(1), mode(2, 0)), Err(StateFault::ShareDenied));
    let less = down(&same, 1, 0).unwrap();
    assert_eq!((same.seqid, less.seqid), (3, 4));
    assert_eq!(down(&less, 3, 2), Err(StateFault::Invalid));
    assert_eq!(state.check_io(&client, &less, &file(1), Write), Err(StateFault::OpenMode));
    assert_eq!(open(&state, &client, "p", file(1), mode(2, 1)), Err(StateFault::ShareDenied));
    open(&state, &client, "p", file(1), mode(2, 0)).unwrap();
}

#[test]
fn stateids_of_others_and_of_other_times_are_refused() {
    let state = state();
    let (one, _) = client(&state, "a");
    let (two, _) = client(&state, "b");
    let stateid = open(&state, &one, "o", file(1), mode(3, 0)).unwrap();
    let check = |stateid: Stateid| state.check_io(&one, &stateid, &file(1), Write);
    assert_eq!(check(stateid), Ok(()));
    assert_eq!(check(Stateid { seqid: 0, ..stateid }), Ok(()));
    assert_eq!(check(Stateid { seqid: 2, ..stateid }), Err(StateFault::BadStateid));
    assert_eq!(check(Stateid { seqid: u32::MAX, ..stateid }), Err(StateFault::OldStateid));
    assert_eq!(state.check_io(&one, &stateid, &file(2), Write), Err(StateFault::BadStateid));
    assert_eq!(state.check_io(&two, &stateid, &file(1), Write), Err(StateFault::BadStateid));
    for bit in 0..96 {
        let mut forged = stateid;
        forged.other[bit / 8] ^= 1 << (bit % 8);
        let expected = StateFault::BadStateid;
        assert_eq!(check(forged), Err(expected), "bit {bit}");
        assert_eq!(state.close(&one, &forged, &file(1)), Err(expected));
        assert_eq!(state.test_stateid(&one, &forged), Err(expected));
        assert_eq!(state.free_stateid(&one, &forged), Err(expected));
    }
    let upgraded = open(&state, &one, "o", file(1), mode(1, 0)).unwrap();
    assert_eq!(check(stateid), Err(StateFault::OldStateid));
    state.close(&one, &upgraded, &file(1)).unwrap();
    assert_eq!(check(upgraded), Err(StateFault::BadStateid));
    assert_eq!(state.close(&one, &upgraded, &file(1)), Err(StateFault::BadStateid));
    let restarted = ServerState::new(StateLimits::default(), 8, &[1; 16], Arc::default(), None);
    let (after, _) = client(&restarted, "a");
    assert_eq!(restarted.check_io(&after, &upgraded, &file(1), Read), Err(StateFault::BadStateid));
}

#[test]
fn seqids_wrap_around_without_zero() {
    let state = state();
    let (client, _) = client(&state, "a");
    let stateid = open(&state, &client, "o", file(1), mode(1, 0)).unwrap();
    client.states.lock().set_seqids(u32::MAX);
    let next = open(&state, &client, "o", file(1), mode(1, 0)).unwrap();
    assert_eq!(next, Stateid { seqid: 1, ..stateid });
    let old = Stateid { seqid: u32::MAX, ..stateid };
    assert_eq!(state.test_stateid(&client, &old), Err(StateFault::OldStateid));
}

// SEMANTICS: stateful-3.
#[test]
fn special_stateids_respect_denials_but_for_reads_that_bypass_them() {
    let state = state();
    let (client, _) = client(&state, "a");
    let check = |stateid, io| state.check_io(&client, &stateid, &file(1), io);
    let (anonymous, bypass) = (Stateid::ANONYMOUS, Stateid::READ_BYPASS);
    let stateid = open(&state, &client, "o", file(1), mode(3, 3)).unwrap();
    assert_eq!(check(anonymous, Read), Err(StateFault::Locked));
    assert_eq!(check(anonymous, Write), Err(StateFault::Locked));
    assert_eq!(check(bypass, Read), Ok(()));
    assert_eq!(check(bypass, Write), Err(StateFault::Locked));
    assert_eq!(check(stateid, Write), Ok(()));
    // NFSv3.
    assert!(state.shares.denies_io(&file(1), None, Write));
    assert!(!state.shares.denies_io(&file(2), None, Write));
    state.close(&client, &stateid, &file(1)).unwrap();
    assert_eq!((check(anonymous, Write), check(bypass, Write)), (Ok(()), Ok(())));
    assert!(!state.shares.denies_io(&file(1), None, Write));
    let recorded = RecordedClient {
        owner: b"recorded".as_slice().into(),
        principal: Principal::Uid(0),
        held: RecordedState { denies: true, ..RecordedState::default() },
    };
    state.grace.begin(vec![recorded], at(90), at(90));
    assert_eq!(check(anonymous, Read), Err(StateFault::Grace));
    assert_eq!(check(bypass, Write), Err(StateFault::Grace));
    assert_eq!(check(bypass, Read), Ok(()));
    state.grace.end();
    for wrong in [
        Stateid::CURRENT,
        Stateid::INVALID,
        Stateid { seqid: 2, ..anonymous },
        Stateid { seqid: 0, ..bypass },
    ] {
        assert_eq!(check(wrong, Read), Err(StateFault::BadStateid));
    }
    for special in [anonymous, bypass, Stateid::CURRENT, Stateid::INVALID] {
        assert_eq!(state.test_stateid(&client, &special), Err(StateFault::BadStateid));
        assert_eq!(state.free_stateid(&client, &special), Err(StateFault::BadStateid));
        assert_eq!(state.close(&client, &special, &file(1)), Err(StateFault::BadStateid));
        assert_eq!(
            state.open_downgrade(&client, &special, &file(1), mode(1, 0)),
            Err(StateFault::BadStateid)
        );
    }
}

#[test]
fn an_open_for_writing_reads_unless_another_denies_it() {
    let state = state();
    let (client, _) = client(&state, "a");
    let write = open(&state, &client, "o", file(1), mode(2, 1)).unwrap();
    assert_eq!(state.check_io(&client, &write, &file(1), Read), Ok(()));
    open(&state, &client, "p", file(1), mode(2, 1)).unwrap();
    assert_eq!(state.check_io(&client, &write, &file(1), Read), Err(StateFault::Locked));
    let read = open(&state, &client, "q", file(2), mode(1, 0)).unwrap();
    assert_eq!(state.check_io(&client, &read, &file(2), Write), Err(StateFault::OpenMode));
}

#[test]
fn an_open_that_is_withdrawn_leaves_no_trace() {
    let state = state();
    let (client, _) = client(&state, "a");
    let asked = |mode| OpenRequest {
        owner: b"o",
        file: file(1),
        mode,
        is_reclaim: false,
        is_admitted: false,
        pin: None,
    };
    let granted = state.open(&client, &asked(mode(1, 3))).unwrap();
    state.withdraw_open(&client, &granted);
    assert_eq!((state.shares.files(), state.clients(at(0))[0].owners), (0, 0));
    assert!(!state.shares.denies_io(&file(1), None, Read));
    let first = state.open(&client, &asked(mode(1, 0))).unwrap();
    let upgrade = state.open(&client, &asked(mode(2, 2))).unwrap();
    state.withdraw_open(&client, &upgrade);
    assert_eq!(state.test_stateid(&client, &first.stateid), Ok(()));
    assert!(!state.shares.denies_io(&file(1), None, Write));
    assert_eq!(state.open_downgrade(&client, &first.stateid, &file(1), mode(3, 2)), Err(StateFault::Invalid));
    state.close(&client, &first.stateid, &file(1)).unwrap();
}

#[test]
fn a_pin_is_kept_until_the_last_open_ends() {
    let state = state();
    let (client, _) = client(&state, "a");
    let pin: Arc<()> = Arc::default();
    let asked = |owner| OpenRequest {
        owner,
        file: file(1),
        mode: mode(1, 0),
        is_reclaim: false,
        is_admitted: false,
        pin: Some(Arc::clone(&pin) as _),
    };
    let one = state.open(&client, &asked(b"one")).unwrap().stateid;
    let two = state.open(&client, &asked(b"two")).unwrap().stateid;
    assert_eq!(Arc::strong_count(&pin), 2);
    state.close(&client, &one, &file(1)).unwrap();
    assert_eq!(Arc::strong_count(&pin), 2);
    state.close(&client, &two, &file(1)).unwrap();
    assert_eq!(Arc::strong_count(&pin), 1);
}

#[test]
fn a_revoked_open_is_reported_until_it_is_freed() {
    let state = state();
    let (client, session) = client(&state, "a");
    let stateid = open(&state, &client, "o", file(1), mode(3, 3)).unwrap();
    assert_eq!(state.free_stateid(&client, &stateid), Err(StateFault::LocksHeld));
    let other = open(&state, &client, "o", file(2), mode(1, 0)).unwrap();
    let revoke = || state.revoke_opens(|revoked| *revoked == file(1));
    assert_eq!((revoke(), revoke()), (1, 0));
    state.close(&client, &other, &file(2)).unwrap();
    assert_eq!(state.shares.files(), 0);
    let flags = |sequence| {
        let slot = executed(state.sequence(&request(session, 0, sequence), at(0)));
        slot.grant().status_flags
    };
    assert_eq!(flags(1), SequenceStatusFlags::ADMIN_STATE_REVOKED);
    for fault in [
        state.check_io(&client, &stateid, &file(1), Read),
        state.close(&client, &stateid, &file(1)),
        state.test_stateid(&client, &stateid),
    ] {
        assert_eq!(fault, Err(StateFault::AdminRevoked));
    }
    let again = open(&state, &client, "o", file(1), mode(1, 0)).unwrap();
    assert_ne!(again.other, stateid.other);
    state.free_stateid(&client, &stateid).unwrap();
    assert_eq!(flags(2), 0);
    assert_eq!(state.free_stateid(&client, &stateid), Err(StateFault::BadStateid));
}

#[test]
fn a_client_may_have_as_many_opens_as_are_free_for_others() {
    let state = with_limits(StateLimits { states: 8, ..StateLimits::default() });
    let [one, two] =
        [("a", "10.0.0.1"), ("b", "10.0.0.2")].map(|(owner, peer)| client_at(&state, owner, peer));
    let fill = |client: &Client| {
        let opened = (0..9).map(|number| open(&state, client, "o", file(number), mode(1, 0)));
        let opened: Vec<_> = opened.take_while(Result::is_ok).collect();
        (opened.len(), open(&state, client, "o", file(99), mode(1, 0)).err())
    };
    assert_eq!(fill(&one), (4, Some(StateFault::NoSpace)));
    assert_eq!(fill(&two), (2, Some(StateFault::NoSpace)));
    for (owner, peer) in [("c", "10.0.0.3"), ("d", "10.0.0.4")] {
        assert_eq!(fill(&client_at(&state, owner, peer)), (1, Some(StateFault::NoSpace)));
    }
    // One that has nothing waits for others.
    let last = client_at(&state, "e", "10.0.0.5");
    assert_eq!(fill(&last), (0, Some(StateFault::Delay)));
    expire_client(&state, one.id);
    assert_eq!(open(&state, &two, "o", file(99), mode(1, 0)).err(), None);
}

/// Counts its end, which may take as long as closing a file does.
struct Pin {
    client: Arc<Client>,
    ended: Arc<AtomicUsize>,
}

impl Drop for Pin {
    fn drop(&mut self) {
        assert!(self.client.states.try_lock().is_some(), "the states are locked");
        self.ended.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn the_last_reference_to_a_file_ends_with_no_state_locked() {
    let state = state();
    let (client, _) = client(&state, "a");
    let ended = Arc::new(AtomicUsize::new(0));
    let opened = |number| {
        let pin = Pin { client: Arc::clone(&client), ended: Arc::clone(&ended) };
        let (file, mode) = (file(number), mode(1, 0));
        let pin: Option<super::super::shares::FilePin> = Some(Arc::new(pin));
        state
            .open(
                &client,
                &OpenRequest { owner: b"o", file, mode, is_reclaim: false, is_admitted: false, pin },
            )
            .unwrap()
    };
    let count = || ended.load(Ordering::Relaxed);
    let closed = opened(1);
    assert!(client.has_states());
    assert_eq!(count(), 0);
    state.close(&client, &closed.stateid, &file(1)).unwrap();
    assert_eq!(count(), 1);
    state.withdraw_open(&client, &opened(2));
    assert_eq!(count(), 2);
    assert!(!client.has_states());
    let revoked = opened(3);
    assert_eq!(state.revoke_opens(|_| true), 1);
    assert_eq!(count(), 3);
    // The client has to free it.
    assert!(client.has_states());
    state.free_stateid(&client, &revoked.stateid).unwrap();
    assert!(!client.has_states());
    let _ = opened(4);
    expire_client(&state, client.id);
    assert_eq!((count(), client.has_states()), (4, false));
}
