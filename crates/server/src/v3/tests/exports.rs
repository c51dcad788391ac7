//! The effect of options of exports on requests: crossing mounts, `subtree_check`, `async`,
//! `nordirplus`, flavours, and reloads.

use std::sync::Arc;

use curt_proto::nfs3::{
    CommitArguments, CommitOk, Cookie, CookieVerf3, CreateArguments, CreateHow, CreateOk, Fattr, LookupOk,
    NfsFh3, NfsProcedure, NfsResult, NfsStat3, ReaddirPlusArguments, RenameArguments, RenameWcc, Sattr,
    StableHow, WccData, WriteArguments, WriteOk,
};
use curt_rpc::auth::AuthStatus;
use curt_rpc::server::CallFailure;
use curt_types::SetAttributes;
use curt_vfs::{FsCred, MemoryVfs, NewNode, Vfs};
use curt_xdr::Opaque;

use super::fixture::{Fixture, bytes_of, memory, place, rules};
use crate::{CredentialFlavor, ExportClient, ExportDefinition, ExportRules, Fsid, RulesByFlavor};

pub(super) fn export(path: &str, vfs: &Arc<MemoryVfs>, rules: ExportRules) -> ExportDefinition {
    ExportDefinition::for_everyone(path.as_bytes().to_vec(), Arc::<MemoryVfs>::clone(vfs), rules)
}

/// `/one` with a directory `disk`, on which `/one/disk` is mounted: the fixture's own and another
/// tree.
fn mounted(above: ExportRules, below: Option<ExportRules>) -> Fixture {
    let fixture = Fixture::new();
    let set = SetAttributes::with_mode(0o755);
    let disk = memory(3);
    let made = fixture.vfs.make(&FsCred::ROOT, &fixture.vfs.root(), b"disk", NewNode::Directory(&set));
    made.value.unwrap();
    let inside = disk.make(&FsCred::ROOT, &disk.root(), b"inside", NewNode::Directory(&set));
    inside.value.unwrap();
    let mut exports = vec![export("/one", &fixture.vfs, above)];
    exports.extend(below.map(|rules| export("/one/disk", &disk, rules)));
    fixture.service.replace_exports(exports).unwrap();
    fixture
}

fn found(outcome: NfsResult<LookupOk, Option<Fattr>>) -> LookupOk {
    match outcome {
        NfsResult::Ok(found) => found,
        NfsResult::Failed(status, _) => panic!("{status}"),
    }
}

fn crossing(rules: ExportRules) -> ExportRules {
    ExportRules { crossmnt: true, ..rules }
}

// SEMANTICS: export-4.
#[test]
fn a_mount_is_entered_with_crossmnt_above_or_nohide_below_and_else_hidden() {
    let nohide = ExportRules { nohide: true, ..rules() };
    for (above, below, entered) in [
        (rules(), Some(rules()), false),
        (crossing(rules()), Some(rules()), true),
        (rules(), Some(nohide), true),
        (crossing(rules()), None, false),
    ] {
        let fixture = mounted(above, below);
        let disk = found(fixture.lookup(fixture.root(), b"disk"));
        let inside = fixture.lookup(disk.object, b"inside").status();
        assert_eq!(inside == NfsStat3::Ok, entered, "{above:?} {below:?}");
        let (root, attributes) = (fixture.attributes(fixture.root()), disk.attributes.unwrap());
        assert_eq!(root.fsid != attributes.fsid, entered);
        assert_eq!(attributes, fixture.attributes(disk.object));
        let up = found(fixture.lookup(disk.object, b".."));
        assert_eq!(up.object, fixture.root(), "back where it came from");
        assert_eq!(up.attributes, Some(root));
    }
}

// SEMANTICS: export-4.
#[test]
fn a_mount_that_is_closed_to_the_caller_shows_what_it_covers() {
    let mut fixture = mounted(rules(), None);
    let disk = memory(3);
    let mut below = export("/one/disk", &disk, rules());
    below.clients = vec![ExportClient {
        client: crate::ClientSpec::parse("10.9.9.9").unwrap(),
        ..ExportClient::everyone(rules())
    }];
    let exports = vec![export("/one", &fixture.vfs, crossing(rules())), below];
    fixture.service.replace_exports(exports).unwrap();
    let covered = found(fixture.lookup(fixture.root(), b"disk"));
    assert_eq!(covered.attributes.unwrap().fsid, fixture.attributes(fixture.root()).fsid);
    fixture.move_to_port(1001);
    assert_eq!(fixture.attributes(covered.object).fsid, covered.attributes.unwrap().fsid);
}

#[test]
fn the_root_of_a_hidden_mount_is_its_own_parent() {
    let fixture = mounted(rules(), Some(rules()));
    let root = fixture.root_of(3);
    assert_eq!(found(fixture.lookup(root, b"..")).object, root);
}

#[test]
fn a_listing_leaves_mounts_to_lookup() {
    let fixture = mounted(crossing(rules()), Some(rules()));
    let names = list(&fixture, fixture.root());
    let with_handle = |name: &[u8]| {
        let needle = bytes_of(&Opaque::<255>::new(name).unwrap());
        names.windows(needle.len()).any(|window| window == needle)
    };
    assert!(with_handle(b"disk"));
    let covered = fixture.vfs.lookup(&FsCred::ROOT, &fixture.vfs.root(), b"disk");
    let covered = covered.value.unwrap().handle;
    let bytes = covered.bytes();
    assert!(
        !names.windows(bytes.len()).any(|window| window == bytes),
        "the handle of the covered directory is given out"
    );
}

fn list(fixture: &Fixture, directory: NfsFh3) -> Vec<u8> {
    let arguments = ReaddirPlusArguments {
        directory,
        cookie: Cookie(0),
        verifier: CookieVerf3::default(),
        directory_count: 4096,
        max_count: 8192,
    };
    fixture.raw(NfsProcedure::ReaddirPlus.number(), &bytes_of(&arguments)).unwrap()
}

#[test]
fn nordirplus_refuses_readdirplus_alone() {
    let fixture = Fixture::with_rules(ExportRules { readdirplus: false, ..rules() });
    let reply = list(&fixture, fixture.root());
    assert_eq!(reply[..4], 10_004_u32.to_be_bytes(), "NFS3ERR_NOTSUPP");
    let plain = Fixture::new();
    assert_eq!(list(&plain, plain.root())[..4], [0; 4]);
}

fn write(fixture: &Fixture, file: NfsFh3, stability: StableHow) -> WriteOk {
    let arguments =
        WriteArguments { file, offset: 0, count: 4, stable: stability, data: Opaque::new(b"data").unwrap() };
    match fixture.call::<WriteOk, WccData>(NfsProcedure::Write, &arguments) {
        NfsResult::Ok(written) => written,
        NfsResult::Failed(status, _) => panic!("{status}"),
    }
}

// SEMANTICS: export-8.
#[test]
fn async_answers_before_anything_is_stable_and_says_that_it_is() {
    for asynchronous in [false, true] {
        let fixture = Fixture::with_rules(ExportRules { asynchronous, ..rules() });
        let file = fixture.make_file(fixture.root(), b"file", 0o644);
        let commit = || {
            let arguments = CommitArguments { file, offset: 0, count: 0 };
            fixture.call::<CommitOk, WccData>(NfsProcedure::Commit, &arguments).status()
        };
        let before = || {
            fixture.vfs.lose_unstable_data();
            fixture.attributes(file).size
        };
        for stability in [StableHow::FileSync, StableHow::DataSync, StableHow::Unstable] {
            assert_eq!(write(&fixture, file, stability).committed, stability, "{asynchronous}");
        }
        assert_eq!(commit(), NfsStat3::Ok);
        let expected = if asynchronous { 0 } else { 4 };
        assert_eq!(before(), expected, "async={asynchronous}: what is left after a crash");
    }
}

// SEMANTICS: export-5.
#[test]
fn with_subtree_check_a_handle_is_good_where_the_file_was_found() {
    let mut fixture = Fixture::with_rules(ExportRules { subtree_check: true, ..rules() });
    let root = fixture.root();
    let closed = fixture.make_directory(root, b"closed", 0o700);
    let open = fixture.make_directory(root, b"open", 0o777);
    let hidden = fixture.make_file(closed, b"file", 0o666);
    let seen = fixture.make_file(open, b"file", 0o666);
    let status = |fixture: &Fixture, handle: NfsFh3| {
        fixture.call::<Fattr, ()>(NfsProcedure::Getattr, &handle).status()
    };
    fixture.become_user(5, 5);
    assert_eq!(status(&fixture, seen), NfsStat3::Ok);
    assert_eq!(status(&fixture, hidden), NfsStat3::Stale, "nobody else may search the way to it");
    fixture.become_user(0, 0);
    assert_eq!(status(&fixture, hidden), NfsStat3::Ok);
    assert_eq!(found(fixture.lookup(open, b"file")).object, seen, "the same handle again");
    let rename = RenameArguments { from: place(open, b"file"), to: place(closed, b"moved") };
    let renamed = fixture.call::<RenameWcc, RenameWcc>(NfsProcedure::Rename, &rename);
    assert_eq!(renamed.status(), NfsStat3::Ok);
    assert_eq!(status(&fixture, seen), NfsStat3::Stale);
    let moved = found(fixture.lookup(closed, b"moved")).object;
    assert_eq!(status(&fixture, moved), NfsStat3::Ok);
    // A handle from before the option was set does not contain the directory of its file.
    let without = Fixture::new();
    let file = without.make_file(without.root(), b"file", 0o666);
    let checked = ExportRules { subtree_check: true, ..rules() };
    without.service.replace_exports(vec![export("/one", &without.vfs, checked)]).unwrap();
    assert_eq!(status(&without, file), NfsStat3::Stale);
}

#[test]
fn fsid_is_what_clients_see_and_handles_outlive_another_device_behind_it() {
    let fixture = Fixture::new();
    let with = |instance, fsid| {
        let everyone = export("/one", &memory(instance), rules());
        vec![ExportDefinition { fsid: Some(fsid), ..everyone }]
    };
    fixture.service.replace_exports(with(7, Fsid::Number(77))).unwrap();
    let current = fixture.service.exports.current();
    let file_system = current.iter().next().unwrap().file_system;
    let root = fixture.root();
    assert_eq!(fixture.attributes(root).fsid, 77);
    fixture.service.replace_exports(with(8, Fsid::Number(77))).unwrap();
    let again = fixture.service.exports.current();
    assert_eq!(again.iter().next().unwrap().file_system, file_system);
    let uuid = Fsid::Uuid(0x0d5a_8b04_6c3c_4b8e_9d7c_2f3f_1f0d_4e11_u128.to_be_bytes());
    fixture.service.replace_exports(with(8, uuid)).unwrap();
    let folded = 0x0d5a_8b04_6c3c_4b8e ^ 0x9d7c_2f3f_1f0d_4e11_u64;
    assert_eq!(fixture.attributes(fixture.root()).fsid, folded);
    assert_eq!(
        fixture.call::<Fattr, ()>(NfsProcedure::Getattr, &root).status(),
        NfsStat3::Stale,
        "another fsid is another file system"
    );
}

// SEMANTICS: export-6.
#[test]
fn no_fsid_of_exports_5_is_that_of_a_file_system_without_one() {
    let fixture = Fixture::new();
    let without: Vec<_> = (10..14).map(|instance| (instance, memory(instance))).collect();
    let without = without.iter().map(|(instance, vfs)| export(&format!("/without{instance}"), vfs, rules()));
    let with = (0..8).map(|number| ExportDefinition {
        fsid: Some(Fsid::Number(number)),
        ..export(&format!("/with{number}"), &memory(20 + u64::from(number)), rules())
    });
    fixture.service.replace_exports(without.chain(with).collect()).unwrap();
    let exports = fixture.service.exports.current();
    let fsids: std::collections::BTreeSet<u64> = exports.iter().map(|export| export.fsid).collect();
    assert_eq!(fsids.len(), 12, "{fsids:?}");
    assert!((0..8).all(|number| fsids.contains(&number)), "{fsids:?}");
}

// SEMANTICS: export-3.
#[test]
fn a_reload_says_what_changed_and_handles_of_what_is_gone_are_stale_at_once() {
    let fixture = Fixture::new();
    let (one, two) = (fixture.root(), fixture.root_of(2));
    let status = |handle| fixture.call::<Fattr, ()>(NfsProcedure::Getattr, &handle).status();
    assert_eq!((status(one), status(two)), (NfsStat3::Ok, NfsStat3::Ok));
    let replaced = fixture
        .service
        .replace_exports(vec![export("/one", &fixture.vfs, rules()), export("/three", &memory(3), rules())]);
    let difference = replaced.unwrap();
    assert_eq!(difference.to_string(), "added /three *()\nremoved /two *()");
    assert_eq!((status(one), status(two)), (NfsStat3::Ok, NfsStat3::Stale));
    assert!(!difference.is_empty());
    let same = fixture
        .service
        .replace_exports(vec![export("/one", &fixture.vfs, rules()), export("/three", &memory(3), rules())]);
    assert_eq!(same.unwrap().to_string(), "nothing changed");
    // An invalid reload leaves everything unchanged.
    let twice = vec![export("/one", &fixture.vfs, rules()), export("/one/", &memory(4), rules())];
    assert!(fixture.service.replace_exports(twice).is_err());
    assert_eq!(status(one), NfsStat3::Ok);
    let read_only = ExportRules { read_only: true, ..rules() };
    fixture.service.replace_exports(vec![export("/one", &fixture.vfs, read_only)]).unwrap();
    let arguments = CreateArguments { place: place(one, b"new"), how: CreateHow::Guarded(Sattr::default()) };
    let refused = fixture.call::<CreateOk, WccData>(NfsProcedure::Create, &arguments);
    assert_eq!(refused.status(), NfsStat3::Rofs);
}

#[test]
fn a_flavour_that_is_not_offered_is_too_weak_for_every_request() {
    let fixture = Fixture::new();
    let root = bytes_of(&fixture.root());
    let offering = |flavors: &[CredentialFlavor]| {
        let offered = flavors.iter().map(|flavor| (*flavor, rules())).collect();
        let definition = ExportDefinition {
            clients: vec![ExportClient {
                rules: RulesByFlavor::with_sec(offered),
                ..ExportClient::everyone(rules())
            }],
            ..export("/one", &fixture.vfs, rules())
        };
        fixture.service.replace_exports(vec![definition]).unwrap();
        fixture.raw(NfsProcedure::Getattr.number(), &root).map(drop)
    };
    let denied = Err(CallFailure::Denied(AuthStatus::TooWeak));
    assert_eq!(offering(&[CredentialFlavor::Sys]), Ok(()));
    assert_eq!(offering(&[CredentialFlavor::None]), denied, "the fixture comes with AUTH_SYS");
    assert_eq!(offering(&[CredentialFlavor::None, CredentialFlavor::Sys]), Ok(()));
}
