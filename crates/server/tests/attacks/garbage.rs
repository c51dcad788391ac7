//! Malformed arguments: truncated, with false lengths, with trailing bytes (CVE-2022-43945, -50235,
//! rpcbomb, CVE-2025-40324: decoders that continued after an error, or allocated what a length
//! announced).

use curt_proto::mount3;
use curt_proto::nfs3::{self, NfsProcedure};
use curt_rpc::message::AcceptStatus;

use crate::calls::{World, arguments, call};
use crate::wire::{Answer, Refused};

const GARBAGE: Refused = Refused::Not(AcceptStatus::GarbageArguments);

#[test]
fn arguments_cut_at_any_place_are_garbage_and_change_nothing() {
    let mut world = World::new();
    let (directory, other) = (world.object("directory"), world.root);
    for procedure in NfsProcedure::ALL {
        let good = arguments(procedure, directory, b"name", other);
        for cut in 0..good.len() {
            let answer = call(&mut world.wire, procedure, &good[..cut]);
            assert_eq!(answer, Err(GARBAGE), "{procedure} cut to {cut} bytes");
        }
    }
    world.is_unharmed();
}

#[test]
fn trailing_bytes_after_arguments_are_garbage() {
    let mut world = World::new();
    let (directory, other) = (world.object("directory"), world.root);
    for procedure in NfsProcedure::ALL {
        for tail in [4, 64, 70_000, 1 << 20] {
            let mut long = arguments(procedure, directory, b"name", other);
            long.resize(tail.max(long.len() + tail % (1 << 20)), 0x5a);
            let answer = call(&mut world.wire, procedure, &long);
            assert_eq!(answer, Err(GARBAGE), "{procedure} + {tail}");
        }
    }
    world.is_unharmed();
}

#[test]
fn lengths_that_are_lies_allocate_nothing_and_reach_nothing() {
    let mut world = World::new();
    let (directory, other) = (world.object("directory"), world.root);
    for procedure in NfsProcedure::ALL {
        let good = arguments(procedure, directory, b"name", other);
        for at in (0..good.len()).step_by(4) {
            for lie in [u32::MAX, 0x8000_0000, 0x7fff_ffff, 65, 1 << 20] {
                let mut bad = good.clone();
                bad.splice(at..at + 4, lie.to_be_bytes());
                // Whatever it means now, it has to get a reply.
                let _: Answer = world.wire.raw((nfs3::PROGRAM, nfs3::VERSION, procedure.number()), &bad);
            }
        }
    }
    drop(world.served.connect());
    assert!(matches!(
        world.wire.raw((nfs3::PROGRAM, nfs3::VERSION, 0), &[]),
        Ok(results) if results.is_empty()
    ));
}

#[test]
fn programs_versions_and_procedures_that_are_not_served_are_refused() {
    let mut world = World::new();
    let unavailable = [
        (100_000, 2, 5),
        (100_004, 1, 1),
        (100_021, 4, 1),
        (100_024, 1, 6),
        (100_227, 3, 1),
        (u32::MAX, 1, 1),
    ];
    for program in unavailable {
        let refused = Err(Refused::Not(AcceptStatus::ProgramUnavailable));
        assert_eq!(world.wire.raw(program, &[0; 100]), refused, "{program:?}");
    }
    for version in [0, 2, 5, u32::MAX] {
        let answer = world.wire.raw((nfs3::PROGRAM, version, 1), &[0; 100]);
        assert!(
            matches!(answer, Err(Refused::Not(AcceptStatus::ProgramMismatch(_)))),
            "NFS {version}: {answer:?}"
        );
    }
    let no_procedure = Err(Refused::Not(AcceptStatus::ProcedureUnavailable));
    for procedure in [22, 23, 1000, u32::MAX] {
        let answer = world.wire.raw((nfs3::PROGRAM, nfs3::VERSION, procedure), &[0; 100]);
        assert_eq!(answer, no_procedure);
        let answer = world.wire.raw((mount3::PROGRAM, mount3::VERSION, procedure), &[0; 100]);
        assert_eq!(answer, no_procedure);
    }
    world.is_unharmed();
}
