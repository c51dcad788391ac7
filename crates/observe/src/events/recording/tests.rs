//! Written recordings can be read again, and invalid ones are rejected.

use super::head::HEAD_MAX;
use super::*;
use crate::events::Event;
use crate::events::fields::FieldValue;

fn origin() -> RecordedProcess {
    RecordedProcess {
        curt: "9.9".to_owned(),
        pid: 7,
        program: "mount".to_owned(),
        subject: "nas:/x on /mnt".to_owned(),
        time_of_day_offset: 1 << 60,
    }
}

fn records() -> Vec<u64> {
    let mut words = Vec::new();
    let header = RecordHeader { event: Event::NfsLookupExit as u16, thread: 42, time: 1000, object: 9 };
    let long = [b'x'; 300];
    for name in [&b"name"[..], b"", &long] {
        let values =
            [FieldValue::Number(2), FieldValue::Text(name), FieldValue::Number(9), FieldValue::Signed(-2)];
        record::encode(&header, &values, |word| words.push(word));
    }
    words
}

fn bytes() -> Vec<u8> {
    let mut writer = RecordingWriter::new(origin()).expect("a writer");
    writer.records(&records(), |subject| match subject {
        RecordSubject::Thread(thread) => Some(format!("thread {thread}").into()),
        RecordSubject::Object(_) => Some(b"/a".to_vec()),
    });
    writer.complete_until(2000);
    writer.end(5);
    writer.take()
}

fn items(bytes: &[u8]) -> Result<Vec<RecordingItem>, RecordingError> {
    let mut recording = RecordingReader::open(bytes)?;
    let mut items = Vec::new();
    while let Some(item) = recording.next_item()? {
        items.push(item);
    }
    Ok(items)
}

#[test]
fn what_is_written_is_read() {
    let bytes = bytes();
    assert_eq!(RecordingReader::open(&bytes[..]).expect("a recording").head(), &RecordingHead::new(origin()));
    let items = items(&bytes).expect("it is whole");
    assert_eq!(items.len(), 7);
    assert_eq!(items[0], RecordingItem::Object(9, b"/a".to_vec()));
    assert_eq!(items[1], RecordingItem::Thread(42, "thread 42".to_owned()));
    let RecordingItem::Event(first) = &items[2] else { panic!("{items:?}") };
    assert_eq!(
        (first.time, first.thread, first.object, first.event),
        (1000, 42, 9, Event::NfsLookupExit as usize)
    );
    assert_eq!(first.values[1], RecordedValue::Text(b"name".to_vec(), false));
    assert_eq!(first.values[3], RecordedValue::Signed(-2));
    let RecordingItem::Event(long) = &items[4] else { panic!("{items:?}") };
    assert_eq!(long.values[1], RecordedValue::Text(vec![b'x'; TEXT_MAX], true));
    assert_eq!(items[5], RecordingItem::CompleteUntil(2000));
    assert_eq!(items[6], RecordingItem::End { events: 3, lost: 5 });
}

#[test]
fn what_was_read_is_written_as_it_was() {
    let read = items(&bytes()).expect("it is whole");
    let events: Vec<_> = read.into_iter().filter(|item| matches!(item, RecordingItem::Event(_))).collect();
    let mut writer = RecordingWriter::of(&RecordingHead::new(origin())).expect("a writer");
    for item in &events {
        if let RecordingItem::Event(record) = item {
            writer.record(&record.words);
        }
    }
    assert_eq!(items(&writer.take()).expect("it is whole"), events);
}

#[test]
fn a_recording_that_ends_anywhere_is_cut_off_there() {
    let bytes = bytes();
    for end in 8..bytes.len() {
        match items(&bytes[..end]) {
            Ok(read) => assert!(read.len() < 7, "{end}"),
            Err(error) => assert!(matches!(error, RecordingError::CutOff), "{end}: {error}"),
        }
    }
    assert!(matches!(items(b"something"), Err(RecordingError::NoRecording)));
}

#[test]
fn any_byte_may_be_wrong() {
    let bytes = bytes();
    // Most of it is the description; offsets in its middle add no case.
    let steps = (0..bytes.len()).filter(|at| at % 97 == 0 || *at + 600 > bytes.len() || *at < 64);
    for at in steps {
        for value in [0, 1, 0x7f, 0xff] {
            let mut spoilt = bytes.clone();
            spoilt[at] = value;
            let _ = items(&spoilt);
        }
    }
}

#[test]
fn lengths_are_held_against_limits() {
    let mut words = vec![MAGIC, HEAD_MAX + 1];
    let raw = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    assert!(matches!(items(&raw(&words)), Err(RecordingError::Head(_))));
    words[1] = HEAD_MAX;
    assert!(matches!(items(&raw(&words)), Err(RecordingError::CutOff)));
    let mut writer = RecordingWriter::new(RecordedProcess::default()).expect("a writer");
    let head = writer.take();
    for length in [0, 1, 2, WORDS_MAX as u64 + 1, 0xffff] {
        let bytes = [head.clone(), raw(&[length, 0])].concat();
        assert!(matches!(items(&bytes), Err(RecordingError::Spoilt(1))), "{length}");
    }
}

#[test]
fn events_and_marks_of_another_version_are_read_or_passed_over() {
    let mut head = RecordingHead::new(origin());
    head.events = vec![RecordedEvent {
        name: "new".to_owned(),
        span: "spiral".to_owned(),
        fields: vec![RecordedField { name: "weight".to_owned(), kind: "grams".to_owned() }],
    }];
    let mut words = head.words().expect("words");
    let mark = RecordHeader { event: MARKS + 99, ..RecordHeader::default() };
    record::encode(&mark, &[], |word| words.push(word));
    let event = RecordHeader { event: 0, thread: 1, ..RecordHeader::default() };
    record::encode(&event, &[FieldValue::Number(12)], |word| words.push(word));
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let read = items(&bytes).expect("it can be read");
    assert!(
        matches!(&read[..], [RecordingItem::Event(record)] if record.values == [RecordedValue::Number(12)])
    );
}
