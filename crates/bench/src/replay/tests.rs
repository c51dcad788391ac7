//! A correct tree replays without a wrong result, and each difference is counted.

#![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

use std::fs;

use indicatif::ProgressBar;

use super::*;
use crate::make::make;

const TREE: &str = "f 100 a/one\nf 5000 a/two\nd a/sub\nl one a/link\n";
const TRACE: &str = "page\nstat a/one ok\nlstat a/link ok\nstat a/link ok\nreadlink a/link ok\nreadlink a EINVAL\nstat a/no ENOENT\n\
                     access a/one ok\nstat a/one/x ENOTDIR\npage\nopen 0 a/two r ok\nread 0 4096\nread 0 4096\nread 0 0\nclose 0\n\
                     open 1 a dir ok\nlist 1\nclose 1\nopen 2 a/link r ok\nread 2 7\n";

fn outcome(pages_max: usize, spoil: impl FnOnce(&Path)) -> ReplayOutcome {
    let top = tempfile::tempdir().unwrap();
    let tree = WorkloadTree::parse(TREE.as_bytes()).unwrap();
    let trace = WorkloadTrace::parse(TRACE.as_bytes()).unwrap();
    make(&tree, top.path(), 1, &ProgressBar::hidden()).unwrap();
    spoil(top.path());
    Replay::new(&trace, &tree, top.path()).unwrap().pages(pages_max).run(Duration::ZERO, |_| ())
}

#[test]
fn a_right_tree_gives_no_wrong_result() {
    let outcome = outcome(usize::MAX, |_| ());
    assert_eq!((outcome.wrong, outcome.operations, outcome.bytes), (0, 19, 5007), "{:?}", outcome.described);
    assert_eq!(outcome.pages.iter().map(|page| page.operations).collect::<Vec<_>>(), [8, 11]);
}

#[test]
fn a_replay_of_one_page_ends_with_it() {
    let outcome = outcome(1, |_| ());
    assert_eq!((outcome.wrong, outcome.operations, outcome.pages.len()), (0, 8, 1));
}

/// Each damaged tree has to be detected.
#[test]
fn every_difference_is_counted() {
    type Spoil = fn(&Path);
    let spoils: [(&str, u64, Spoil); 7] = [
        ("a byte", 1, |top| {
            let mut bytes = fs::read(top.join("a/two")).unwrap();
            bytes[4500] ^= 1;
            fs::write(top.join("a/two"), bytes).unwrap();
        }),
        ("a size", 1, |top| {
            fs::write(top.join("a/two"), &fs::read(top.join("a/two")).unwrap()[..4999]).unwrap()
        }),
        ("a missing file", 5, |top| fs::remove_file(top.join("a/two")).unwrap()),
        ("a name too many", 1, |top| fs::write(top.join("a/stranger"), "").unwrap()),
        ("a file that should not be", 2, |top| fs::write(top.join("a/no"), "").unwrap()),
        ("a link elsewhere", 4, |top| {
            fs::remove_file(top.join("a/link")).unwrap();
            std::os::unix::fs::symlink("two", top.join("a/link")).unwrap();
        }),
        ("a directory for a file", 6, |top| {
            fs::remove_file(top.join("a/one")).unwrap();
            fs::create_dir(top.join("a/one")).unwrap();
        }),
    ];
    for (what, at_least, spoil) in spoils {
        let outcome = outcome(usize::MAX, spoil);
        assert!(outcome.wrong >= at_least.min(3), "{what}: {} {:?}", outcome.wrong, outcome.described);
    }
}
