//! Permissions: ACCESS and squashing, as seen through the procedures.

use curt_proto::nfs3::{AccessArguments, AccessOk, Fattr, NfsFh3, NfsProcedure, NfsResult, NfsStat3};
use curt_types::{Access, SetAttributes};

use curt_vfs::{CreateMode, FsCred, Vfs as _};

use super::fixture::{Fixture, rules};
use crate::{ExportRules, Squash};

fn access(fixture: &Fixture, object: NfsFh3) -> u32 {
    let arguments = AccessArguments { object, access: Access::ALL.bits() };
    match fixture.call::<AccessOk, Option<Fattr>>(NfsProcedure::Access, &arguments) {
        NfsResult::Ok(ok) => {
            assert_eq!(ok.attributes, Some(fixture.attributes(object)));
            ok.access
        }
        NfsResult::Failed(status, _) => panic!("{status}"),
    }
}

#[test]
fn access_follows_owner_group_and_others() {
    let mut fixture = Fixture::new();
    let file = fixture.make_file(fixture.root(), b"file", 0o754);
    let all = Access::READ.with(Access::MODIFY).with(Access::EXTEND).with(Access::EXECUTE);
    assert_eq!(access(&fixture, file), all.bits());
    fixture.become_user(5, 0);
    assert_eq!(access(&fixture, file), Access::READ.with(Access::EXECUTE).bits());
    fixture.become_user(5, 5);
    assert_eq!(access(&fixture, file), Access::READ.bits());
}

#[test]
fn a_read_only_export_grants_no_change() {
    let fixture = Fixture::with_rules(ExportRules { read_only: true, ..rules() });
    assert_eq!(access(&fixture, fixture.root()), Access::READ.with(Access::LOOKUP).bits());
}

#[test]
fn a_squashed_root_is_the_anonymous_user() {
    let mut fixture = Fixture::with_rules(ExportRules { squash: Squash::Root, ..rules() });
    let root = fixture.root();
    assert_eq!(access(&fixture, root), Access::READ.with(Access::LOOKUP).bits(), "mode 755 of uid 0");
    let refused = fixture.lookup(root, b"none").status();
    assert_eq!(refused, NfsStat3::Noent);
    let kept = Fixture::with_rules(ExportRules { squash: Squash::None, ..rules() });
    assert!(Access::from_bits(access(&kept, kept.root())).contains(Access::MODIFY));
    fixture.become_user(0, 0);
    let how = curt_proto::nfs3::CreateHow::Guarded(curt_proto::nfs3::Sattr::default());
    let arguments = curt_proto::nfs3::CreateArguments { place: super::fixture::place(root, b"new"), how };
    let made: NfsResult<curt_proto::nfs3::CreateOk, curt_proto::nfs3::WccData> =
        fixture.call(NfsProcedure::Create, &arguments);
    assert_eq!(made.status(), NfsStat3::Acces);
}

#[test]
fn files_belong_to_whom_the_caller_is_taken_for() {
    let mut fixture = Fixture::with_rules(ExportRules { squash: Squash::None, ..rules() });
    let open = fixture.make_directory(fixture.root(), b"open", 0o777);
    fixture.become_user(12, 34);
    let file = fixture.make_file(open, b"file", 0o600);
    let attributes = fixture.attributes(file);
    assert_eq!((attributes.uid, attributes.gid), (12, 34));
    fixture.become_user(13, 34);
    assert_eq!(access(&fixture, file), 0);
}

// SEMANTICS: export-7.
#[test]
fn with_manage_gids_a_squashed_caller_has_no_groups_of_its_credential() {
    let mut fixture = Fixture::with_rules(ExportRules { squash: Squash::Root, ..rules() });
    let set = SetAttributes { gid: Some(42), ..SetAttributes::with_mode(0o640) };
    let made = fixture.vfs.create(&FsCred::ROOT, &fixture.vfs.root(), b"file", CreateMode::Guarded(&set));
    assert_eq!(made.value.unwrap().node.attributes.gid, 42);
    let file = match fixture.lookup(fixture.root(), b"file") {
        NfsResult::Ok(found) => found.object,
        NfsResult::Failed(status, _) => panic!("{status}"),
    };
    fixture.send_groups(&[42]);
    for uid in [0, u32::MAX] {
        fixture.become_user(uid, 0);
        assert_eq!(access(&fixture, file), Access::READ.bits(), "{uid}: as sent");
    }
    fixture.service.manage_groups().unwrap();
    for uid in [0, u32::MAX] {
        fixture.become_user(uid, 0);
        assert_eq!(access(&fixture, file), 0, "{uid}: as this machine knows");
    }
}
