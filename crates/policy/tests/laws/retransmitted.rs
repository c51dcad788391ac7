//! Laws of errors for retransmitted calls.

use core::time::Duration;

use curt_policy::{
    CachingAttributes, MonotonicTime,
    retransmitted::{
        ClockOffset, CurrentObject, ExecutionInterval, LinksChange, NewObject, RemainingLinks, is_own_link,
        is_own_object, is_own_removal, is_own_rename,
    },
};
use curt_types::{ChangeStamp, FileKind, Timestamp};

use crate::cases::for_each_case;

const SLACK: Duration = Duration::from_millis(20);

fn at(milliseconds: u64) -> MonotonicTime {
    MonotonicTime::from_start(Duration::from_millis(milliseconds))
}

/// The server's clock is ahead of ours by `ahead`, in ticks of `step`.
fn server_time(milliseconds: u64, ahead: u64, step: u64) -> Timestamp {
    let shown = (milliseconds + ahead) / step * step;
    Timestamp::new(i64::try_from(shown / 1000).unwrap(), u32::try_from(shown % 1000 * 1_000_000).unwrap())
}

/// The execution of a call that was sent at 10 s and lost at 11 s of our clock, with a server's
/// clock equal to ours.
fn execution() -> ExecutionInterval {
    let mut offset = ClockOffset::default();
    offset.learn(server_time(5_000, 0, 1), at(5_000), at(5_001), Duration::ZERO);
    offset.execution(at(10_000), at(11_000), SLACK).unwrap()
}

#[test]
fn without_our_own_change_the_clock_offset_is_unknown() {
    assert_eq!(ClockOffset::default().execution(at(1), at(2), SLACK), None);
}

// SEMANTICS: rpc-12.
#[test]
fn only_changes_of_the_first_transmission_are_within_its_execution() {
    for_each_case(|case| {
        let ahead = case.pick(&[0, 5_000_000]);
        let step = case.pick(&[1, 4, 10]);
        let mut offset = ClockOffset::default();
        // Two answered changes of this client, the second with a shorter or longer delay.
        for (sent, way, back) in [(1_000, 3, 4), (2_000, case.pick(&[1, 3, 50]), case.pick(&[1, 900]))] {
            let ctime = server_time(sent + way, ahead, step);
            offset.learn(ctime, at(sent), at(sent + way + back), Duration::from_millis(step));
        }
        let (sent, lost) = (10_000, 10_000 + case.pick(&[5, 3_000]));
        let execution = offset.execution(at(sent), at(lost), SLACK).unwrap();
        let done = case.pick(&[sent + 1, sent + 3, lost]);
        assert!(execution.includes(server_time(done, ahead, step)));
        // The bounds differ by the shortest round trip and a tick.
        for before in [sent - 21 - step, sent - 500, 0] {
            assert!(!execution.is_followed_by(server_time(before, ahead, step)), "{before}");
        }
        for after in [lost + 4 + 2 * step, lost + 500] {
            let time = server_time(after, ahead, step);
            assert!(execution.is_followed_by(time) && !execution.includes(time), "{after}");
        }
    });
}

#[test]
fn a_clock_that_was_set_gets_a_new_offset() {
    for ahead in [0, 20_000] {
        let mut offset = ClockOffset::default();
        offset.learn(server_time(1_000, 10_000, 1), at(1_000), at(1_001), Duration::ZERO);
        offset.learn(server_time(2_000, ahead, 1), at(2_000), at(2_001), Duration::ZERO);
        let execution = offset.execution(at(10_000), at(11_000), SLACK).unwrap();
        assert!(execution.includes(server_time(10_500, ahead, 1)));
        assert!(!execution.includes(server_time(10_500, 10_000, 1)));
    }
}

fn attributes(kind: FileKind) -> CachingAttributes {
    let time = server_time(10_500, 0, 1);
    CachingAttributes {
        kind,
        mode: 0o640,
        uid: 500,
        gid: 600,
        size: 0,
        stamp: ChangeStamp::Times { mtime: time, ctime: time },
    }
}

#[test]
fn a_created_object_is_recognised_only_if_all_attributes_match() {
    let (earlier, during) = (server_time(9_000, 0, 1), server_time(10_500, 0, 1));
    for_each_case(|case| {
        let kind = case.pick(&[FileKind::Regular, FileKind::Directory, FileKind::Symlink, FileKind::Fifo]);
        let wanted = NewObject { kind, mode: 0o640, uid: 500, gid: 600 };
        let usual = if kind == FileKind::Directory { 2 } else { 1 };
        let found = CurrentObject {
            attributes: CachingAttributes {
                kind: case.pick(&[kind, FileKind::Fifo]),
                mode: case.pick(&[0o640, 0o600, 0o2640]),
                uid: case.pick(&[500, 0]),
                gid: case.pick(&[600, 700, 0]),
                size: case.pick(&[0, 1]),
                stamp: case
                    .pick(&[ChangeStamp::Times { mtime: during, ctime: during }, ChangeStamp::Change(7)]),
            },
            links: usual + case.pick(&[0, 1]),
            mtime: case.pick(&[earlier, during]),
            ctime: case.pick(&[earlier, during]),
            is_same: case.pick(&[true, false]),
        };
        let mode_counts = kind != FileKind::Symlink;
        let inherits = kind == FileKind::Directory && found.attributes.mode == 0o2640;
        let size_counts = kind == FileKind::Regular;
        let expected = found.attributes.kind == kind
            && (!mode_counts || found.attributes.mode == 0o640 || inherits)
            && found.attributes.uid == 500
            && found.attributes.gid != 0
            && (!size_counts || found.attributes.size == 0)
            && (found.mtime, found.ctime) == (during, during)
            && found.links == usual
            && found.is_same;
        assert_eq!(is_own_object(&wanted, &found, 700, &execution()), expected, "{wanted:?} {found:?}");
    });
    let directory = CurrentObject {
        attributes: attributes(FileKind::Directory),
        // As Btrfs returns it.
        links: 1,
        mtime: during,
        ctime: during,
        is_same: true,
    };
    let wanted = NewObject { kind: FileKind::Directory, mode: 0o640, uid: 500, gid: 600 };
    assert!(is_own_object(&wanted, &directory, 0, &execution()));
}

#[test]
fn a_link_is_ours_only_if_the_file_has_one_more_since_then() {
    for_each_case(|case| {
        let is_same = case.pick(&[true, false]);
        let links = LinksChange {
            before: case.pick(&[None, Some(1), Some(2), Some(u32::MAX)]),
            now: case.pick(&[1, 2, 3]),
            ctime: server_time(case.pick(&[9_000, 10_500, 12_000]), 0, 1),
        };
        let is_one_more = matches!((links.before, links.now), (Some(1), 2) | (Some(2), 3));
        let expected = is_same && is_one_more && links.ctime == server_time(10_500, 0, 1);
        assert_eq!(is_own_link(is_same, &links, &execution()), expected, "{links:?}");
    });
}

#[test]
fn a_removal_is_ours_only_if_directory_and_object_changed_since_then() {
    for_each_case(|case| {
        let links = LinksChange {
            before: case.pick(&[None, Some(0), Some(1), Some(2)]),
            now: case.pick(&[0, 1, 2]),
            ctime: server_time(case.pick(&[9_000, 10_500, 12_000]), 0, 1),
        };
        let is_one_less = matches!((links.before, links.now), (Some(1), 0) | (Some(2), 1));
        let is_removed = is_one_less && links.ctime == server_time(10_500, 0, 1);
        let (remains, is_gone) = case.pick(&[
            (RemainingLinks::Nothing, true),
            (RemainingLinks::Unknown, false),
            (RemainingLinks::Links(links), is_removed),
        ]);
        let changed = case.pick(&[9_000, 10_500, 12_000]);
        let expected = is_gone && changed > 10_000;
        let directory = server_time(changed, 0, 1);
        assert_eq!(is_own_removal(&remains, directory, &execution()), expected, "{remains:?} {changed}");
    });
}

#[test]
fn a_rename_is_ours_only_if_the_object_came_to_its_new_name_since_then() {
    for_each_case(|case| {
        let (is_there, was_there) = (case.pick(&[true, false]), case.pick(&[true, false]));
        let changed = case.pick(&[9_000, 10_500, 12_000]);
        let moved = case.pick(&[9_000, 10_500, 12_000]);
        let expected = is_there && !was_there && changed > 10_000 && moved == 10_500;
        let [ctime, directory] = [moved, changed].map(|at| server_time(at, 0, 1));
        assert_eq!(is_own_rename(is_there, was_there, ctime, directory, &execution()), expected);
    });
}
