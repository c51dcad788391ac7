//! The authorisation cache of a connection grants no caller the rights of another, and no revoked
//! rights.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../wire/mod.rs"]
#[allow(unreachable_pub, dead_code, reason = "shared by the tests of this folder")]
mod wire;

use std::sync::Arc;

use curt_observe::ServerCounter;
use curt_proto::nfs3::{
    CreateArguments, CreateHow, CreateOk, DirOpArgs, Fattr, Filename, NfsFh3, NfsProcedure, NfsResult,
    NfsStat3, ReadArguments, Sattr, SetattrArguments, WccData,
};
use curt_rpc::auth::RpcCredential;
use curt_server::{ExportRules, Squash};
use curt_vfs::{MemoryOptions, MemoryVfs, Vfs};

use wire::{Served, Wire, export, memory, open_rules, user};

/// A file that only its owner may read.
fn make(wire: &mut Wire, directory: NfsFh3, name: &str) -> NfsFh3 {
    let arguments = CreateArguments {
        place: DirOpArgs { directory, name: Filename::new(name.as_bytes()).unwrap() },
        how: CreateHow::Guarded(Sattr { mode: Some(0o600), uid: Some(1000), ..Sattr::default() }),
    };
    match wire.ask::<CreateOk, WccData>(NfsProcedure::Create, &arguments) {
        NfsResult::Ok(made) => made.object.unwrap(),
        NfsResult::Failed(status, _) => panic!("{status}"),
    }
}

fn getattr(wire: &mut Wire, file: NfsFh3) -> Result<Fattr, NfsStat3> {
    match wire.ask::<Fattr, ()>(NfsProcedure::Getattr, &file) {
        NfsResult::Ok(attributes) => Ok(attributes),
        NfsResult::Failed(status, ()) => Err(status),
    }
}

/// The status of a READ.
fn read(wire: &mut Wire, file: NfsFh3) -> NfsStat3 {
    let results = wire.nfs(NfsProcedure::Read, &ReadArguments { file, offset: 0, count: 10 });
    NfsStat3::from_number(u32::from_be_bytes(*results.first_chunk().unwrap())).unwrap()
}

#[test]
fn callers_on_one_connection_keep_their_own_rights() {
    let served = Served::new(vec![memory("/one", 1)]);
    let mut wire = served.connect();
    let root = wire.mount("/one");
    let file = make(&mut wire, root, "secret");
    // More callers than the cache holds, repeatedly, the owner and root among them; stamp and
    // machine name do not matter.
    for _ in 0..3 {
        for uid in 990..1030 {
            wire.who = user(uid, uid, &[uid]);
            let expected = if uid == 1000 { NfsStat3::Ok } else { NfsStat3::Acces };
            assert_eq!(read(&mut wire, file), expected, "uid {uid}");
            assert_eq!(read(&mut wire, file), expected, "uid {uid} again");
        }
        wire.who = user(0, 0, &[]);
        assert_eq!(read(&mut wire, file), NfsStat3::Ok);
        wire.who = RpcCredential::None;
        assert_eq!(read(&mut wire, file), NfsStat3::Acces);
    }
    // The same ids with other groups are another caller.
    wire.who = user(1001, 1001, &[]);
    assert_eq!(read(&mut wire, file), NfsStat3::Acces);
    wire.who = user(0, 0, &[]);
    let set = SetattrArguments {
        object: file,
        attributes: Sattr { mode: Some(0o640), gid: Some(77), ..Sattr::default() },
        guard: None,
    };
    let set = wire.ask::<WccData, WccData>(NfsProcedure::Setattr, &set);
    assert!(matches!(set, NfsResult::Ok(_)));
    wire.who = user(1001, 1001, &[77]);
    assert_eq!(read(&mut wire, file), NfsStat3::Ok);
    wire.who = user(1001, 1001, &[78]);
    assert_eq!(read(&mut wire, file), NfsStat3::Acces);
}

#[test]
fn a_handle_that_was_good_for_one_export_is_good_for_no_other() {
    let served = Served::new(vec![memory("/one", 1), memory("/two", 2)]);
    let mut wire = served.connect();
    let (one, two) = (wire.mount("/one"), wire.mount("/two"));
    let mut files: Vec<NfsFh3> = (0..20).map(|n| make(&mut wire, one, &format!("f{n}"))).collect();
    files.extend([one, two]);
    let ids: Vec<u64> = files.iter().map(|file| getattr(&mut wire, *file).unwrap().fileid.0).collect();
    for _ in 0..3 {
        for (file, id) in files.iter().zip(&ids) {
            assert_eq!(getattr(&mut wire, *file).unwrap().fileid.0, *id);
            let mut forged = file.as_bytes().to_vec();
            *forged.last_mut().unwrap() ^= 1;
            let forged = NfsFh3::new(&forged).unwrap();
            assert_eq!(getattr(&mut wire, forged).err(), Some(NfsStat3::Stale));
        }
    }
}

#[test]
fn equal_requests_ask_no_lower_layer() {
    let served = Served::new(vec![memory("/one", 1)]);
    let mut wire = served.connect();
    let root = wire.mount("/one");
    let value = |counter| served.counters.events.value(counter);
    let counters = [
        ServerCounter::TokenMiss,
        ServerCounter::ExportHit,
        ServerCounter::ExportMiss,
        ServerCounter::IdentityHit,
        ServerCounter::IdentityMiss,
    ];
    let file = make(&mut wire, root, "file");
    for expected in [[2, 1, 1, 1, 1], [2, 1, 1, 1, 1]] {
        for _ in 0..50 {
            getattr(&mut wire, file).unwrap();
            getattr(&mut wire, root).unwrap();
        }
        assert_eq!(counters.map(value), expected);
    }
    assert_eq!(value(ServerCounter::TokenHit), 199);
    // Another caller: only its identity has to be determined.
    wire.who = user(5, 5, &[]);
    getattr(&mut wire, file).unwrap();
    assert_eq!(counters.map(value), [3, 2, 1, 1, 2]);
}

#[test]
fn other_rules_count_from_the_next_request_on() {
    let vfs: Arc<dyn Vfs> = Arc::new(MemoryVfs::new(MemoryOptions::default()));
    let with = |rules: ExportRules| vec![export("/one", Arc::clone(&vfs), rules)];
    let served = Served::new(with(open_rules()));
    let mut wire = served.connect();
    let root = wire.mount("/one");
    let file = make(&mut wire, root, "secret");
    assert_eq!(read(&mut wire, file), NfsStat3::Ok);
    let squashed = ExportRules { squash: Squash::All, ..open_rules() };
    served.service.replace_exports(with(squashed)).unwrap();
    assert_eq!(read(&mut wire, file), NfsStat3::Acces);
    let privileged_ports = ExportRules { secure_ports: true, ..open_rules() };
    served.service.replace_exports(with(privileged_ports)).unwrap();
    assert_eq!(getattr(&mut wire, file).err(), Some(NfsStat3::Perm));
    served.service.replace_exports(with(open_rules())).unwrap();
    assert_eq!(read(&mut wire, file), NfsStat3::Ok);
}

/// A file system in use cannot be unmounted.
#[test]
fn idle_connections_release_a_removed_export() {
    let vfs = Arc::new(MemoryVfs::new(MemoryOptions::default()));
    let served =
        Served::new(vec![export("/one", Arc::<MemoryVfs>::clone(&vfs), open_rules()), memory("/two", 2)]);
    let mut wires: Vec<Wire> = (0..20).map(|_| served.connect()).collect();
    let root = wires[0].mount("/one");
    for wire in &mut wires {
        getattr(wire, root).unwrap();
    }
    served.service.replace_exports(vec![memory("/two", 2)]).unwrap();
    // The last request may hold its reference for a moment after its reply.
    let end = std::time::Instant::now() + wire::PATIENCE;
    while Arc::strong_count(&vfs) > 1 {
        assert!(std::time::Instant::now() < end, "somebody holds it");
        std::thread::yield_now();
    }
    for wire in &mut wires {
        assert_eq!(getattr(wire, root).err(), Some(NfsStat3::Stale));
    }
}
