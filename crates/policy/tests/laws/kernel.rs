//! Laws of the lifetimes granted to the kernel.

use core::time::Duration;

use curt_policy::{
    AccessMode, AttributeReport, AttributeState, CacheOptions, Facts, Moment, MountUsers, NameLabel,
    ServerClock,
    access::is_world_searchable,
    kernel_cache::{attribute_lifetime, name_lifetime},
    names::{DentryState, remaining},
};

use crate::cases::{directory, for_each_case};

const MILLISECOND: Duration = Duration::from_millis(1);

fn at(milliseconds: u32) -> Moment {
    Moment::from_start(MILLISECOND * milliseconds)
}

fn state(facts: Facts, options: &CacheOptions) -> AttributeState {
    let mut state = AttributeState::unknown();
    let _ = state.absorb(AttributeReport { facts, sent_at: at(5000), received_at: at(5001) }, options);
    state
}

#[test]
fn a_name_is_granted_a_lifetime_only_where_every_user_may_search() {
    for_each_case(|case| {
        let options = case.options();
        let mode = case.pick(&[0o755, 0o750, 0o705, 0o700, 0o711, 0o644, 0o055]);
        let facts = Facts { mode, ..directory(1) };
        let state = state(facts, &options);
        let mut clock = ServerClock::new(Duration::ZERO);
        clock.learn(facts.stamp.changed_at().unwrap(), at(0));
        let (entry, label) = (
            case.pick(&[DentryState::Positive, DentryState::Negative]),
            NameLabel { epoch: state.contents().unwrap(), sent_at: at(5000) },
        );
        let now = at(case.pick(&[5001, 5010, 20_000]));
        let promised = name_lifetime(entry, label, &state, &clock, now, &options);
        assert!(promised <= remaining(entry, label, &state, &clock, now, &options));
        assert!(promised <= state.remaining(now, &options));
        if !promised.is_zero() {
            match (options.users, options.access) {
                (MountUsers::Many, AccessMode::Server) => panic!("promised {promised:?}"),
                (MountUsers::Many | MountUsers::One, AccessMode::ModeBits) => {
                    assert!(is_world_searchable(&facts))
                }
                (MountUsers::One, AccessMode::Server) => {}
            }
        }
        if !options.attribute_cache {
            assert!(promised.is_zero());
        }
    });
}

/// 6.3.
// SEMANTICS: attr-4.
#[test]
fn attributes_are_granted_our_own_lifetime_and_none_while_we_change_them() {
    for_each_case(|case| {
        let options = case.options();
        let mut state = state(directory(1), &options);
        let now = at(case.pick(&[5001, 5010, 34_999, 35_001]));
        let promised = attribute_lifetime(&state, now, &options);
        assert_eq!(promised, state.remaining(now, &options));
        if !options.attribute_cache {
            assert!(promised.is_zero());
        }
        state.begin_mutation();
        assert!(attribute_lifetime(&state, now, &options).is_zero());
    });
}
