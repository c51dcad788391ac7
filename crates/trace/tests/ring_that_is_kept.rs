//! A ring that stays although nobody was killed. A process has one ring, so this test is one.

use curt_trace::events::{self, Event, EventRing, RecordedProcess, ring};
use curt_trace::probe;

#[test]
fn a_ring_stays_where_the_end_was_not_asked_for() {
    let directory = std::env::temp_dir().join(format!("curt-ring-kept-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let origin = RecordedProcess {
        pid: 5,
        ..RecordedProcess::default()
    };
    let kept = EventRing::create(&directory, origin).expect("a ring");
    let path = kept.path().to_owned();
    events::keep_in_ring(&[Event::NfsUmount]);
    probe!(NfsUmount {
        server: "nas",
        name: "/mnt"
    });
    kept.keep();
    assert!(!Event::NfsUmount.is_wanted());
    let left = ring::read(std::fs::File::open(path).expect("it is there")).expect("a ring");
    assert_eq!(left.records.len(), 1);
    let files = std::fs::read_dir(&directory).expect("the directory").count();
    assert_eq!(files, 1, "and nothing beside it");
    std::fs::remove_dir_all(directory).expect("the directory");
}
