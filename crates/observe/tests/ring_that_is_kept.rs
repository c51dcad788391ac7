//! A ring that stays although no process was killed. A process has one ring, so this test is one.

use curt_observe::events::{self, Event, EventRing, RecordedProcess, RecordingItem, RecordingReader};
use curt_observe::probe;

#[test]
fn a_ring_file_stays_unless_its_removal_is_requested() {
    let directory = std::env::temp_dir().join(format!("curt-ring-kept-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let origin = RecordedProcess { pid: 5, ..RecordedProcess::default() };
    let kept = EventRing::create(&directory, origin).expect("a ring");
    let path = kept.path().to_owned();
    events::keep_in_ring(&[Event::NfsUmount]);
    probe!(NfsUmount { server: "nas", name: "/mnt" });
    kept.keep();
    assert!(!Event::NfsUmount.is_wanted());
    let left = std::fs::File::open(path).expect("it is there");
    let mut left = RecordingReader::open(left).expect("a ring");
    let item = left.next_item().expect("an event");
    assert!(matches!(item, Some(RecordingItem::Event(_))), "{item:?}");
    let item = left.next_item().expect("its end");
    assert_eq!(item, Some(RecordingItem::End { events: 1, lost: 0 }));
    let files = std::fs::read_dir(&directory).expect("the directory").count();
    assert_eq!(files, 1, "and nothing beside it");
    std::fs::remove_dir_all(directory).expect("the directory");
}
