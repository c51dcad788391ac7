//! MOUNT, which needs no authentication (MON_NAME exploits, rpcbomb): its list of mounts is
//! bounded, and the calls of one client do not affect another. This server is only a client of
//! portmap; the system's rpcbind serves it.

use curt_proto::mount3::{self, DirPath, MountProcedure, PATH_MAX};
use curt_rpc::auth::RpcCredential;
use curt_xdr::Opaque;

use crate::calls::{World, bytes};
use crate::wire::Wire;

fn ask(wire: &mut Wire, version: u32, procedure: MountProcedure, path: &[u8]) -> Vec<u8> {
    let takes_path = matches!(procedure, MountProcedure::Mount | MountProcedure::Unmount);
    let arguments = if takes_path { bytes(&DirPath(Opaque::new(path).unwrap())) } else { Vec::new() };
    wire.raw((mount3::PROGRAM, version, procedure.number()), &arguments).unwrap()
}

#[test]
fn paths_of_any_length_and_bytes_mount_what_is_exported_and_nothing_else() {
    let mut world = World::new();
    world.wire.who = RpcCredential::None;
    let longest = vec![b'a'; PATH_MAX];
    let deep = b"/x".repeat(PATH_MAX / 2);
    let paths: [&[u8]; 12] = [
        b"",
        b"/",
        b"..",
        b"/..",
        b"/one/..",
        b"/one/../two",
        b"/onex",
        b"/one\0",
        b"/one/link",
        b"/one/file",
        &longest,
        &deep,
    ];
    for version in [1, 3] {
        for path in paths {
            let reply = ask(&mut world.wire, version, MountProcedure::Mount, path);
            let status = u32::from_be_bytes(*reply.first_chunk().unwrap());
            let shown = path[..path.len().min(20)].escape_ascii();
            assert_ne!(status, 0, "{shown} was mounted");
        }
    }
    world.is_unharmed();
}

#[test]
fn the_list_of_mounts_is_bounded_and_unmounting_affects_no_other_client() {
    let mut world = World::new();
    world.wire.who = RpcCredential::None;
    for turn in 0..3000_u32 {
        // Each spelling is another mount in the list.
        let slashes = (0..12).map(|bit| if turn >> bit & 1 == 0 { "/" } else { "/." });
        let path: String = std::iter::once("/one").chain(slashes).collect();
        ask(&mut world.wire, 3, MountProcedure::Mount, path.as_bytes());
    }
    let listed = ask(&mut world.wire, 3, MountProcedure::Dump, b"").len();
    assert!(listed < 64 * 64, "DUMP has {listed} bytes");
    let root = world.root;
    for _ in 0..100 {
        ask(&mut world.wire, 3, MountProcedure::Unmount, b"/one");
        ask(&mut world.wire, 3, MountProcedure::UnmountAll, b"");
    }
    assert_eq!(world.root, root);
    world.is_unharmed();
}
