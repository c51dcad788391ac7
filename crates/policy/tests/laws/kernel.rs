//! Laws of the lifetimes granted to the kernel.

use core::time::Duration;

use curt_policy::{
    AttributeReport, AttributeState, CacheOptions, CachingAttributes, Epoch, MonotonicTime, MountUsers,
    NameLabel, ServerClock, TimeoutRange,
    access::is_world_searchable,
    kernel_cache::{
        DirectoryView, EXPIRY_DELAY, NameLifetimes, WITHHELD_AFTER_LISTING, attribute_lifetime,
        everybody_may_search, may_keep_name_of, name_lifetime, wait_for,
    },
    names::{DentryState, remaining},
};
use curt_types::FileKind;

use crate::cases::{MINUTE, directory, file, for_each_case};

const MILLISECOND: Duration = Duration::from_millis(1);

fn at(milliseconds: u32) -> MonotonicTime {
    MonotonicTime::from_start(MILLISECOND * milliseconds)
}

fn state(attributes: CachingAttributes, options: &CacheOptions) -> AttributeState {
    let mut state = AttributeState::unknown();
    let _ = state.absorb(AttributeReport { attributes, sent_at: at(5000), received_at: at(5001) }, options);
    state
}

// SEMANTICS: name-16.
// SEMANTICS: perm-10.
#[test]
fn a_name_is_granted_a_lifetime_only_where_every_user_may_search() {
    let mut kept = 0;
    for_each_case(|case| {
        let kernel_names = case.pick(&[Duration::ZERO, MILLISECOND * 1000, MINUTE * 2]);
        let names = case.name_options();
        let users = case.pick(&[MountUsers::One(1000), MountUsers::Many, MountUsers::WithRoot]);
        let directories = TimeoutRange { min: MINUTE / 2, max: MINUTE };
        let options = CacheOptions { kernel_names, users, directories, ..names };
        let mode = case.pick(&[0o755, 0o750, 0o705, 0o700, 0o711, 0o644, 0o055]);
        let uid = case.pick(&[0, 1000, 1001]);
        let attributes = CachingAttributes { mode, uid, ..directory(1) };
        let state = state(attributes, &options);
        let mut clock = ServerClock::new(Duration::ZERO);
        clock.learn(attributes.stamp.changed_at().unwrap(), at(0));
        let (entry, label) = (
            case.pick(&[DentryState::Positive, DentryState::Negative]),
            NameLabel { epoch: state.contents().unwrap(), sent_at: at(5000) },
        );
        let now = at(case.pick(&[5001, 5010, 20_000]));
        let is_disputed = case.bool();
        let view = DirectoryView { attributes: &state, is_disputed, clock: &clock };
        let lifetime = name_lifetime(entry, label, &view, now, &options);
        assert!(lifetime <= remaining(entry, label, &state, &clock, now, &options));
        assert!(lifetime <= state.remaining(now, &options));
        assert!(lifetime <= options.kernel_names);
        if !lifetime.is_zero() {
            kept += 1;
            let by_uid = match (options.users, uid) {
                (MountUsers::One(user), owner) if user == owner => mode & 0o100 != 0,
                (MountUsers::One(_), _) => mode & 0o011 == 0o011,
                (MountUsers::Many | MountUsers::WithRoot, _) => false,
            };
            assert!(!is_disputed && options.attribute_cache && options.users != MountUsers::WithRoot);
            assert!(is_world_searchable(&attributes) || by_uid, "{mode:o} {uid} {:?}", options.users);
        }
    });
    assert!(kept > 0, "some are");
}

#[test]
fn groups_and_root_never_make_a_directory_everybodys() {
    let may = |mode, uid, users| {
        everybody_may_search(Some(CachingAttributes { mode, uid, gid: 1000, ..directory(1) }), false, users)
    };
    for users in [MountUsers::Many, MountUsers::One(1000), MountUsers::One(0)] {
        assert!(may(0o711, 0, users) && !may(0o644, 0, users) && !may(0o710, 0, users));
    }
    assert!(may(0o700, 1000, MountUsers::One(1000)) && !may(0o600, 1000, MountUsers::One(1000)));
    assert!(!may(0o700, 0, MountUsers::One(0)) && !may(0o700, 1001, MountUsers::One(1000)));
    assert!(!everybody_may_search(None, false, MountUsers::One(1000)));
    let file = CachingAttributes { mode: 0o755, ..file(1) };
    assert!(!everybody_may_search(Some(file), false, MountUsers::One(1000)));
}

#[test]
fn what_the_kernel_opens_without_asking_is_not_kept() {
    use FileKind::{BlockDevice, CharacterDevice, Directory, Fifo, Regular, Socket, Symlink};
    assert!([Regular, Directory, Symlink].into_iter().all(may_keep_name_of));
    assert!(![Fifo, Socket, CharacterDevice, BlockDevice].into_iter().any(may_keep_name_of));
}

// SEMANTICS: list-9.
#[test]
fn a_listing_waits_for_names_that_were_missing_in_another_state_of_the_directory() {
    let (old, new) = (Epoch::default(), Epoch::default().next());
    let mut names = NameLifetimes::default();
    assert_eq!((names.expiry(), names.expiry_of_listed(None)), (None, None));
    names.grant(DentryState::Positive, old, at(9000));
    assert_eq!(names.expiry(), Some(at(9000).plus(EXPIRY_DELAY)));
    assert_eq!(names.expiry_of_listed(None), None, "a name that is there contradicts no listing");
    names.grant(DentryState::Negative, old, at(7000));
    names.grant(DentryState::Negative, old, at(6000));
    assert_eq!(names.expiry_of_listed(Some(old)), None, "what was missing then is not listed");
    for listed in [None, Some(new)] {
        assert_eq!(names.expiry_of_listed(listed), Some(at(7000).plus(EXPIRY_DELAY)));
    }
    names.grant(DentryState::Negative, new, at(6500));
    assert_eq!(names.expiry_of_listed(Some(new)), Some(at(7000).plus(EXPIRY_DELAY)));
    assert_eq!(names.present_end(), Some(at(9000)));
    assert_eq!(wait_for(names.expiry(), at(8000)), MILLISECOND * 1000 + EXPIRY_DELAY);
    assert_eq!(wait_for(names.expiry(), at(10_000)), Duration::ZERO);
    assert_eq!(wait_for(None, at(0)), Duration::ZERO);
}

// SEMANTICS: list-9.
#[test]
fn after_a_listing_has_waited_no_missing_name_has_a_lifetime_for_a_while() {
    let mut names = NameLifetimes::default();
    names.withhold_missing(at(1000));
    let end = at(1000).plus(WITHHELD_AFTER_LISTING);
    assert!(!names.may_grant(DentryState::Negative, at(2000)) && names.may_grant(DentryState::Negative, end));
    assert!(names.may_grant(DentryState::Positive, at(2000)), "a present name contradicts no listing");
    names.withhold(at(1000));
    assert!(!names.may_grant(DentryState::Positive, at(2000)));
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
