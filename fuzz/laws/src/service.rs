//! Complete calls, executed: whatever the arguments, the reply is valid for the procedure.

use curt_proto::mount3::{self, ExportList, MountList, MountReply};
use curt_proto::nfs3::NfsProcedure;
use curt_rpc::server::CallFailure;
use curt_xdr::decode_all;

use crate::round_trip;
use crate::world::{World, bytes};

/// Maximum number of calls of one input.
const CALLS_MAX: usize = 16;
/// A word of arguments with these first three bytes stands for a handle from the server, because
/// fuzzers cannot forge them.
const HANDLE_WORD: [u8; 3] = [0xff, 0xff, 0xff];

/// Successive calls to NFSv3: procedure, number of argument words, caller (even: root), an unused
/// byte, then the words.
///
/// # Panics
/// If a reply is not valid for the procedure.
pub fn service(bytes: &[u8]) {
    let world = World::new();
    let mut rest = bytes;
    for _ in 0..CALLS_MAX {
        let Some(([procedure, words, caller, _], after)) = rest.split_first_chunk::<4>() else {
            return;
        };
        let length = (usize::from(*words) * 4).min(after.len());
        let (arguments, after) = after.split_at(length);
        rest = after;
        let procedure = NfsProcedure::ALL[usize::from(*procedure) % NfsProcedure::ALL.len()];
        let uid = if caller % 2 == 0 { 0 } else { 1000 };
        match world.nfs(procedure, uid, &with_handles(&world, arguments)) {
            Ok(results) => assert!(round_trip::results(procedure, &results), "{procedure}: {results:02x?}"),
            Err(CallFailure::GarbageArguments) => {}
            Err(failure) => panic!("{procedure}: {failure:?}"),
        }
    }
}

/// The arguments with the placeholder words replaced by handles.
fn with_handles(world: &World, arguments: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for word in arguments.chunks(4) {
        match word {
            [a, b, c, number] if [*a, *b, *c] == HANDLE_WORD => {
                let handle = world.handles[usize::from(*number) % world.handles.len()];
                out.extend(bytes(&handle));
            }
            _ => out.extend_from_slice(word),
        }
    }
    out
}

/// A call to MOUNT: the first byte is the procedure, the second the version, the rest the
/// arguments.
///
/// # Panics
/// If a reply is not valid for the procedure.
pub fn mount_service(bytes: &[u8]) {
    let Some(([number, version], arguments)) = bytes.split_first_chunk::<2>() else {
        return;
    };
    let procedure = mount3::MountProcedure::ALL[usize::from(*number) % mount3::MountProcedure::ALL.len()];
    let version = if version % 2 == 0 { mount3::VERSION } else { mount3::VERSION_1 };
    let world = World::new();
    let outcome = world.mount(version, procedure, arguments);
    let results = match outcome {
        Ok(results) => results,
        Err(CallFailure::GarbageArguments) => return,
        Err(failure) => panic!("{procedure:?}: {failure:?}"),
    };
    let well = match procedure {
        mount3::MountProcedure::Null
        | mount3::MountProcedure::Unmount
        | mount3::MountProcedure::UnmountAll => results.is_empty(),
        mount3::MountProcedure::Mount => {
            decode_all::<MountReply>(&results).is_ok() || version == mount3::VERSION_1
        }
        mount3::MountProcedure::Dump => decode_all::<MountList<'_>>(&results).is_ok(),
        mount3::MountProcedure::Export => decode_all::<ExportList<'_>>(&results).is_ok(),
    };
    assert!(well, "{procedure:?}: {results:02x?}");
}
