//! Servers that do not reply, and unmount.

use curt_rpc::client::{CallError, Interrupt};

use super::{
    Rig, pattern,
    server::{Misbehaviour, WRITE},
    small,
};
use crate::data::{errors::DataError, options::DataOptions, write::WritePosition};

const INTERRUPTED: DataError = DataError::Call(CallError::Interrupted);

/// A rig whose server does not reply to WRITE, and a channel that makes it reply again.
fn silent(options: DataOptions) -> (Rig, std::sync::mpsc::Receiver<()>, std::sync::mpsc::Sender<()>) {
    let rig = Rig::threaded(&[], options);
    let (entered, inside) = std::sync::mpsc::channel();
    let (go, held) = std::sync::mpsc::channel::<()>();
    rig.server.script(move |seen| {
        if seen.procedure == WRITE {
            let _ = entered.send(());
            let _ = held.recv();
        }
        None
    });
    (rig, inside, go)
}

#[test]
fn an_interrupted_flush_returns_and_its_bytes_are_written_behind() {
    let (rig, inside, go) = silent(small());
    let open = rig.open();
    let interrupt = Interrupt::new();
    rig.write(&open, 0, &pattern(1000)).unwrap();
    std::thread::scope(|scope| {
        let flush = scope.spawn(|| rig.plane.flush(&rig.owner, &open, &interrupt));
        inside.recv().unwrap();
        interrupt.raise();
        assert_eq!(flush.join().unwrap(), Err(INTERRUPTED));
    });
    drop(go);
    rig.flush(&open).unwrap();
    assert_eq!(rig.server.state().disk, pattern(1000));
    assert_eq!(rig.server.take_seen().len(), 1, "it was sent once");
}

// SEMANTICS: write-8.
#[test]
fn a_writer_that_waits_for_room_can_be_interrupted() {
    let (rig, inside, go) = silent(DataOptions { unwritten_bytes: 8192, ..small() });
    let open = rig.open();
    rig.write(&open, 0, &pattern(8192)).unwrap();
    inside.recv().unwrap();
    let interrupt = Interrupt::new();
    let write = |position: u64, length: usize| {
        rig.plane.write(&rig.owner, &open, WritePosition::At(position), &pattern(length), &interrupt)
    };
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write(8192, 100));
        interrupt.raise();
        assert_eq!(writer.join().unwrap(), Err(INTERRUPTED));
    });
    drop(go);
    rig.flush(&open).unwrap();
    assert_eq!(rig.server.state().disk, pattern(8192));
}

// SEMANTICS: write-8.
#[test]
fn a_writer_waits_for_room_and_goes_on() {
    let rig = Rig::threaded(&[], DataOptions { unwritten_bytes: 16 << 10, ..small() });
    let open = rig.open();
    for number in 0..100 {
        rig.write(&open, number * 4096, &pattern(4096)).unwrap();
        assert!(rig.plane.unwritten_bytes() <= 16 << 10);
    }
    rig.flush(&open).unwrap();
    assert_eq!(rig.server.state().disk.len(), 100 * 4096);
}

#[test]
fn several_writes_are_in_flight_and_none_overlap() {
    let rig = Rig::threaded(&[], small());
    let open = rig.open();
    rig.server.let_meet(4);
    let contents = pattern(64 << 10);
    for round in 0..20 {
        for (number, part) in contents.chunks(4096).enumerate() {
            let bytes: Vec<u8> = part.iter().map(|byte| byte ^ round).collect();
            rig.write(&open, number as u64 * 4096, &bytes).unwrap();
        }
    }
    rig.flush(&open).unwrap();
    let expected: Vec<u8> = contents.iter().map(|byte| byte ^ 19).collect();
    assert_eq!(rig.server.state().disk, expected);
}

// SEMANTICS: exit-1.
#[test]
fn the_end_of_a_mount_names_what_was_never_sent() {
    let rig = Rig::threaded(&[], small());
    let open = rig.open();
    rig.server.script(|seen| (seen.procedure == WRITE).then_some(Misbehaviour::Silence));
    rig.write(&open, 0, &pattern(1000)).unwrap();
    let deadline = Interrupt::new();
    deadline.raise();
    let given_up = rig.plane.sync_until(&deadline);
    assert_eq!(given_up.len(), 1);
    assert_eq!(
        (given_up[0].label.as_str(), given_up[0].unsent, given_up[0].uncommitted),
        ("the file", 1000, 0)
    );
    assert_eq!(rig.flush(&open), Err(DataError::Call(CallError::Closed)), "who still waits is let go");
}

// SEMANTICS: exit-1.
#[test]
fn the_end_of_a_mount_writes_what_it_can() {
    let rig = Rig::threaded(&[], small());
    let open = rig.open();
    rig.write(&open, 0, &pattern(10_000)).unwrap();
    assert_eq!(rig.plane.sync_until(&Interrupt::never()), []);
    assert_eq!(rig.server.state().disk, pattern(10_000));
}
