//! Concurrent events: duplicate calls, exports that are removed and added during use, connections
//! that end in the middle, and thousands of calls before one reply is read.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

use curt_proto::nfs3::{NfsProcedure, NfsStat3, PROGRAM, VERSION};

use crate::calls::{World, arguments, call, status};
use crate::wire::{Served, memory};

#[test]
fn exports_that_change_while_they_are_used_are_there_or_stale() {
    let both = || vec![memory("/one", 1), memory("/two", 2)];
    let served = Served::new(both());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                served.service.replace_exports(vec![memory("/two", 2)]).unwrap();
                served.service.replace_exports(both()).unwrap();
            }
        });
        let clients: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let mut wire = served.connect();
                    let two = wire.mount("/two");
                    let mut seen = [0; 2];
                    for _ in 0..2000 {
                        let at = arguments(NfsProcedure::Getattr, two, b"", two);
                        let answer = call(&mut wire, NfsProcedure::Getattr, &at).unwrap();
                        assert!(matches!(answer, NfsStat3::Ok | NfsStat3::Stale), "{answer}");
                        seen[usize::from(answer == NfsStat3::Ok)] += 1;
                    }
                    seen
                })
            })
            .collect();
        let seen: Vec<[i32; 2]> = clients.into_iter().map(|client| client.join().unwrap()).collect();
        stop.store(true, Ordering::Relaxed);
        assert!(seen.iter().all(|[stale, ok]| stale + ok == 2000), "{seen:?}");
    });
}

#[test]
fn connections_that_end_in_the_middle_of_anything_leave_nothing_behind() {
    let mut world = World::new();
    let (directory, root) = (world.object("directory"), world.root);
    for procedure in NfsProcedure::ALL {
        let arguments = arguments(procedure, directory, b"name", root);
        for cut in [1, 3, 4, 8, 24, 40] {
            let mut wire = world.served.connect();
            let mut whole = Vec::new();
            let body = curt_rpc::record::begin_record(&mut whole);
            curt_rpc::message::encode_call_header(
                &mut whole,
                1,
                PROGRAM,
                VERSION,
                procedure.number(),
                &wire.who,
            );
            whole.extend(&arguments);
            curt_rpc::record::finish_record(&mut whole, body, 0);
            wire.stream.write_all(&whole[..cut.min(whole.len() - 1)]).unwrap();
        }
    }
    world.is_unharmed();
    let end = std::time::Instant::now() + crate::wire::PATIENCE;
    while world.served.handle.connections() > 2 {
        assert!(std::time::Instant::now() < end, "{} are left", world.served.handle.connections());
        std::thread::yield_now();
    }
}

/// One call twice with equal bytes, over the same connection and another: one effect, one reply, of
/// any length.
#[test]
fn a_call_that_comes_twice_has_one_effect_and_the_same_reply_however_long() {
    let mut world = World::new();
    let mut other = world.served.connect();
    let (directory, root) = (world.object("directory"), world.root);
    for procedure in [
        NfsProcedure::Create,
        NfsProcedure::Mkdir,
        NfsProcedure::Symlink,
        NfsProcedure::Mknod,
        NfsProcedure::Rename,
    ] {
        let arguments = match procedure {
            NfsProcedure::Rename => arguments(procedure, root, b"fifo", directory),
            _ => arguments(procedure, directory, &[b'n'; 255], root),
        };
        let program = (PROGRAM, VERSION, procedure.number());
        let first = world.wire.raw(program, &arguments).unwrap();
        assert_eq!(status(&first), NfsStat3::Ok, "{procedure}");
        other.xid = world.wire.xid - 1;
        assert_eq!(other.raw(program, &arguments).unwrap(), first, "{procedure} again");
        if procedure != NfsProcedure::Rename {
            let removal =
                if procedure == NfsProcedure::Mkdir { NfsProcedure::Rmdir } else { NfsProcedure::Remove };
            let gone = crate::calls::arguments(removal, directory, &[b'n'; 255], root);
            assert_eq!(call(&mut world.wire, removal, &gone), Ok(NfsStat3::Ok), "{removal}");
        }
    }
}

#[test]
fn thousands_of_calls_before_a_reply_is_read_are_all_answered_in_the_end() {
    let mut world = World::new();
    let file = world.object("file");
    let arguments = arguments(NfsProcedure::Getattr, file, b"", file);
    let mut wire = world.served.connect();
    let mut reading = wire.stream.try_clone().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for _ in 0..20_000 {
                wire.send((PROGRAM, VERSION, 1), &arguments);
            }
        });
        world.is_unharmed();
        let (mut bytes, mut buffer) = (0, vec![0; 1 << 16]);
        let one = 4 + 24 + 4 + 84;
        while bytes < 20_000 * one {
            let count = std::io::Read::read(&mut reading, &mut buffer).unwrap();
            assert!(count > 0, "the connection ended after {bytes} bytes");
            bytes += count;
        }
    });
    world.is_unharmed();
}
