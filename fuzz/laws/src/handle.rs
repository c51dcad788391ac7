//! Handles: the server rejects handles that it did not create, however similar.

use curt_proto::nfs3::{Fattr, NfsFh3, NfsProcedure, NfsResult, NfsStat3};
use curt_xdr::decode_all;

use crate::world::{World, bytes};

/// The bytes are used as a handle, and as changes of a valid one: pairs of a position and bits to
/// flip.
///
/// # Panics
/// If a handle is accepted that the server did not create.
pub fn handle(input: &[u8]) {
    let world = World::new();
    if let Ok(forged) = NfsFh3::new(input) {
        refused_unless_given(&world, &forged);
    }
    let mut changed = world.handles[0].as_bytes().to_vec();
    for pair in input.chunks_exact(2) {
        match usize::from(pair[0]) {
            // Also another length.
            255 => changed.truncate(usize::from(pair[1])),
            254 => changed.push(pair[1]),
            at => {
                let length = changed.len().max(1);
                if let Some(byte) = changed.get_mut(at % length) {
                    *byte ^= pair[1];
                }
            }
        }
    }
    if let Ok(forged) = NfsFh3::new(&changed) {
        refused_unless_given(&world, &forged);
    }
}

fn refused_unless_given(world: &World, forged: &NfsFh3) {
    let given = world.handles.contains(forged);
    let results = match world.nfs(NfsProcedure::Getattr, 0, &bytes(forged)) {
        Ok(results) => results,
        Err(failure) => panic!("{forged:?}: {failure:?}"),
    };
    let outcome: NfsResult<Fattr> = decode_all(&results).expect("GETATTR's reply");
    let refused = matches!(outcome.status(), NfsStat3::Badhandle | NfsStat3::Stale);
    assert!(given != refused, "{forged:?}: {:?}, given out: {given}", outcome.status());
}
