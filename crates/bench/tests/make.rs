//! Concurrent creation of trees.
#![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

use std::fmt::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Barrier;

use curt_bench::make::make_once;
use curt_bench::tree::WorkloadTree;
use indicatif::ProgressBar;

const MAKERS: usize = 8;

#[test]
fn a_tree_that_several_make_at_once_is_made_by_one_and_stays() {
    let mut text = String::new();
    for number in 0..200 {
        writeln!(text, "f {number} directory/file-{number}").unwrap();
    }
    let tree = WorkloadTree::parse(text.as_bytes()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let top = directory.path().join("trees/small");
    let all_are_there = Barrier::new(MAKERS);
    let made = || {
        all_are_there.wait();
        make_once(&tree, &top, 1, &ProgressBar::hidden()).unwrap();
        std::fs::metadata(&top).unwrap().ino()
    };
    let seen: Vec<u64> = std::thread::scope(|scope| {
        let makers: Vec<_> = (0..MAKERS).map(|_| scope.spawn(made)).collect();
        makers.into_iter().map(|maker| maker.join().unwrap()).collect()
    });
    assert!(seen.iter().all(|inode| *inode == seen[0]), "it was replaced: {seen:?}");
}
