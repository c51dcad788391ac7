//! LOOKUP, ACCESS, READLINK, CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, RENAME, LINK.

use curt_proto::nfs3::{
    CreateArguments, CreateHow, CreateVerifier, Created, Device, Fattr, FileHandle, FileKind, LinkArguments,
    LinkWcc, LookupOk, MknodArguments, MknodData, Outcome, Path, Procedure, ReadlinkOk, RenameArguments,
    RenameWcc, Sattr, Status, SymlinkArguments, WccData,
};
use curt_xdr::decode_all;

use super::fixture::{Fixture, bytes_of, place, rules, status_of};
use crate::ExportRules;

fn remove(
    fixture: &Fixture,
    procedure: Procedure,
    directory: FileHandle,
    name: &[u8],
) -> Outcome<WccData, WccData> {
    fixture.call(procedure, &place(directory, name))
}

fn create(
    fixture: &Fixture,
    directory: FileHandle,
    name: &[u8],
    how: CreateHow,
) -> Outcome<Created, WccData> {
    fixture.call(
        Procedure::Create,
        &CreateArguments {
            place: place(directory, name),
            how,
        },
    )
}

fn rename(
    fixture: &Fixture,
    from: (FileHandle, &[u8]),
    to: (FileHandle, &[u8]),
) -> Outcome<RenameWcc, RenameWcc> {
    let arguments = RenameArguments {
        from: place(from.0, from.1),
        to: place(to.0, to.1),
    };
    fixture.call(Procedure::Rename, &arguments)
}

fn link(
    fixture: &Fixture,
    file: FileHandle,
    directory: FileHandle,
    name: &[u8],
) -> Outcome<LinkWcc, LinkWcc> {
    fixture.call(
        Procedure::Link,
        &LinkArguments {
            file,
            place: place(directory, name),
        },
    )
}

#[test]
fn lookup_finds_what_create_made() {
    let fixture = Fixture::new();
    let root = fixture.root();
    let before = fixture.attributes(root);
    let how = CreateHow::Guarded(Sattr {
        mode: Some(0o640),
        ..Sattr::default()
    });
    let Outcome::Ok(created) = create(&fixture, root, b"file", how) else {
        panic!("refused")
    };
    let object = created.object.unwrap();
    assert_eq!(created.attributes, Some(fixture.attributes(object)));
    assert_eq!(created.attributes.unwrap().mode, 0o640);
    assert_eq!(created.directory.before.unwrap().ctime, before.ctime);
    assert_eq!(created.directory.after, Some(fixture.attributes(root)));
    let attributes = Some(fixture.attributes(object));
    let expected = LookupOk {
        object,
        attributes,
        directory: Some(fixture.attributes(root)),
    };
    assert_eq!(fixture.lookup(root, b"file"), Outcome::Ok(expected));
    assert_eq!(
        fixture.lookup(root, b"other"),
        Outcome::Failed(Status::Noent, Some(fixture.attributes(root)))
    );
    assert_eq!(
        fixture.lookup(object, b"x"),
        Outcome::Failed(Status::Notdir, attributes)
    );
}

#[test]
fn dot_and_dot_dot_are_found_and_nothing_lies_above_the_root() {
    let fixture = Fixture::new();
    let root = fixture.root();
    let below = fixture.make_directory(root, b"below", 0o755);
    let find = |directory, name: &[u8]| match fixture.lookup(directory, name) {
        Outcome::Ok(ok) => ok.object,
        Outcome::Failed(status, _) => panic!("{status}"),
    };
    assert_eq!(find(below, b"."), below);
    assert_eq!(find(below, b".."), root);
    assert_eq!(find(root, b".."), root);
    assert_eq!(find(root, b"."), root);
}

#[test]
fn create_exists_as_its_mode_says() {
    let fixture = Fixture::new();
    let root = fixture.root();
    let first = fixture.make_file(root, b"file", 0o644);
    let unchecked = CreateHow::Unchecked(Sattr {
        mode: Some(0o600),
        ..Sattr::default()
    });
    let Outcome::Ok(again) = create(&fixture, root, b"file", unchecked) else {
        panic!("refused")
    };
    assert_eq!(
        (again.object, again.attributes.unwrap().mode),
        (Some(first), 0o644)
    );
    let guarded = create(&fixture, root, b"file", CreateHow::Guarded(Sattr::default()));
    let Outcome::Failed(Status::Exist, wcc) = guarded else {
        panic!("{guarded:?}")
    };
    assert_eq!(wcc.after, Some(fixture.attributes(root)));
}

#[test]
fn an_exclusive_create_sent_twice_makes_one_file() {
    let fixture = Fixture::new();
    let root = fixture.root();
    let how = |last| CreateHow::Exclusive(CreateVerifier([1, 2, 3, 4, 5, 6, 7, last]));
    let Outcome::Ok(first) = create(&fixture, root, b"file", how(8)) else {
        panic!("refused")
    };
    let Outcome::Ok(retry) = create(&fixture, root, b"file", how(8)) else {
        panic!("a retry is no error")
    };
    assert_eq!(first.object, retry.object);
    assert_eq!(status_of(&create(&fixture, root, b"file", how(9))), Status::Exist);
}

#[test]
fn every_kind_of_object_can_be_made_and_told() {
    let fixture = Fixture::new();
    let root = fixture.root();
    let set = Sattr {
        mode: Some(0o600),
        ..Sattr::default()
    };
    let device = Device { major: 1, minor: 3 };
    let rows = [
        (
            &b"block"[..],
            MknodData::BlockDevice(set, device),
            FileKind::BlockDevice,
        ),
        (
            b"character",
            MknodData::CharacterDevice(set, device),
            FileKind::CharacterDevice,
        ),
        (b"socket", MknodData::Socket(set), FileKind::Socket),
        (b"fifo", MknodData::Fifo(set), FileKind::Fifo),
    ];
    for (name, what, kind) in rows {
        let arguments = MknodArguments {
            place: place(root, name),
            what,
        };
        let Outcome::Ok(made) = fixture.call::<Created, WccData>(Procedure::Mknod, &arguments) else {
            panic!("{kind:?}");
        };
        let attributes = made.attributes.unwrap();
        assert_eq!((attributes.kind, attributes.mode), (kind, 0o600));
        let is_device = matches!(kind, FileKind::BlockDevice | FileKind::CharacterDevice);
        assert_eq!(
            attributes.rdev,
            if is_device { device } else { Device::default() }
        );
    }
    for other in [0, 1, 2, 5, 8, u32::MAX] {
        let arguments = MknodArguments {
            place: place(root, b"new"),
            what: MknodData::Other(other),
        };
        let refused: Outcome<Created, WccData> = fixture.call(Procedure::Mknod, &arguments);
        assert_eq!(refused.status(), Status::Badtype, "type {other}");
    }
}

#[test]
fn no_device_is_made_for_numbers_that_do_not_fit() {
    let fixture = Fixture::new();
    let root = fixture.root();
    let set = Sattr::default();
    let rows = [
        (0xfff, 0xf_ffff, Status::Ok),
        (0x1000, 0, Status::Inval),
        (0, 0x10_0000, Status::Inval),
        (u32::MAX, u32::MAX, Status::Inval),
    ];
    for (major, minor, expected) in rows {
        let device = Device { major, minor };
        for what in [
            MknodData::CharacterDevice(set, device),
            MknodData::BlockDevice(set, device),
        ] {
            let name = format!("{major}-{minor}-{}", matches!(what, MknodData::BlockDevice(..)));
            let arguments = MknodArguments {
                place: place(root, name.as_bytes()),
                what,
            };
            let made: Outcome<Created, WccData> = fixture.call(Procedure::Mknod, &arguments);
            assert_eq!(made.status(), expected, "{device:?}");
        }
    }
}

#[test]
fn a_symlink_says_its_target_byte_for_byte() {
    let fixture = Fixture::new();
    let root = fixture.root();
    let target = Path::new(b"../not there/\xff").unwrap();
    let arguments = SymlinkArguments {
        place: place(root, b"link"),
        attributes: Sattr::default(),
        target,
    };
    let Outcome::Ok(made) = fixture.call::<Created, WccData>(Procedure::Symlink, &arguments) else {
        panic!()
    };
    let link = made.object.unwrap();
    let results = fixture.raw(5, &bytes_of(&link)).unwrap();
    let said: Outcome<ReadlinkOk<'_>, Option<Fattr>> = decode_all(&results).unwrap();
    assert_eq!(
        said,
        Outcome::Ok(ReadlinkOk {
            attributes: Some(fixture.attributes(link)),
            target
        })
    );
    let results = fixture.raw(5, &bytes_of(&root)).unwrap();
    let said: Outcome<ReadlinkOk<'_>, Option<Fattr>> = decode_all(&results).unwrap();
    assert_eq!(
        said,
        Outcome::Failed(Status::Inval, Some(fixture.attributes(root)))
    );
}

#[test]
fn removing_fits_the_kind_of_the_object() {
    let fixture = Fixture::new();
    let root = fixture.root();
    let directory = fixture.make_directory(root, b"directory", 0o755);
    fixture.make_file(directory, b"inside", 0o644);
    let file = fixture.make_file(root, b"file", 0o644);
    let of = |procedure, name: &[u8]| {
        let before = fixture.attributes(root);
        let outcome = remove(&fixture, procedure, root, name);
        let (Outcome::Ok(wcc) | Outcome::Failed(_, wcc)) = outcome;
        assert_eq!(
            wcc.after,
            Some(fixture.attributes(root)),
            "attributes come either way"
        );
        assert!(wcc.before.is_none_or(|told| told.ctime == before.ctime));
        outcome.status()
    };
    assert_eq!(of(Procedure::Remove, b"directory"), Status::Isdir);
    assert_eq!(of(Procedure::Rmdir, b"file"), Status::Notdir);
    assert_eq!(of(Procedure::Rmdir, b"directory"), Status::Notempty);
    assert_eq!(of(Procedure::Remove, b"none"), Status::Noent);
    assert_eq!(of(Procedure::Rmdir, b"."), Status::Inval);
    assert_eq!(of(Procedure::Rmdir, b".."), Status::Exist);
    assert_eq!(of(Procedure::Remove, b"file"), Status::Ok);
    let gone: Outcome<Fattr> = fixture.call(Procedure::Getattr, &file);
    assert_eq!(gone, Outcome::Failed(Status::Stale, ()));
    assert_eq!(
        remove(&fixture, Procedure::Remove, directory, b"inside").status(),
        Status::Ok
    );
    assert_eq!(of(Procedure::Rmdir, b"directory"), Status::Ok);
}

#[test]
fn rename_and_link_tell_of_both_directories() {
    let fixture = Fixture::new();
    let root = fixture.root();
    let (a, b) = (
        fixture.make_directory(root, b"a", 0o755),
        fixture.make_directory(root, b"b", 0o755),
    );
    let file = fixture.make_file(a, b"file", 0o644);
    let before = fixture.attributes(b).ctime;
    let Outcome::Ok(wcc) = rename(&fixture, (a, b"file"), (b, b"moved")) else {
        panic!("refused")
    };
    assert_eq!(
        (wcc.from.after, wcc.to.after),
        (Some(fixture.attributes(a)), Some(fixture.attributes(b)))
    );
    assert_eq!(wcc.to.before.unwrap().ctime, before);
    let Outcome::Ok(wcc) = link(&fixture, file, a, b"again") else {
        panic!("refused")
    };
    assert_eq!(wcc.attributes, Some(fixture.attributes(file)));
    assert_eq!(
        (wcc.attributes.unwrap().nlink, wcc.directory.after),
        (2, Some(fixture.attributes(a)))
    );
    assert_eq!(link(&fixture, file, a, b"again").status(), Status::Exist);
    assert_eq!(rename(&fixture, (a, b"none"), (b, b"x")).status(), Status::Noent);
    assert_eq!(
        rename(&fixture, (root, b"a"), (a, b"inside")).status(),
        Status::Inval
    );
    assert_eq!(
        rename(&fixture, (root, b"a"), (root, b"..")).status(),
        Status::Inval
    );
    assert_eq!(
        rename(&fixture, (b, b"moved"), (root, b"a")).status(),
        Status::Isdir
    );
}

#[test]
fn nothing_leads_from_one_export_into_another() {
    let fixture = Fixture::new();
    let (one, two) = (fixture.root_of(1), fixture.root_of(2));
    let file = fixture.make_file(one, b"file", 0o644);
    let refused = rename(&fixture, (one, b"file"), (two, b"file"));
    let Outcome::Failed(Status::Xdev, wcc) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(
        (wcc.from.after, wcc.to.after),
        (Some(fixture.attributes(one)), Some(fixture.attributes(two)))
    );
    let refused = link(&fixture, file, two, b"file");
    let Outcome::Failed(Status::Xdev, wcc) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(wcc.attributes, Some(fixture.attributes(file)));
    assert_eq!(fixture.lookup(two, b"file").status(), Status::Noent);
}

#[test]
fn the_good_one_of_two_handles_is_told_of() {
    let fixture = Fixture::new();
    let root = fixture.root();
    let bad = FileHandle::new(b"bad").unwrap();
    let known = Some(fixture.attributes(root));
    for (from, to) in [(root, bad), (bad, root)] {
        let refused = rename(&fixture, (from, b"a"), (to, b"b"));
        let Outcome::Failed(Status::Badhandle, wcc) = refused else {
            panic!("{refused:?}")
        };
        let expected = if from == root {
            (known, None)
        } else {
            (None, known)
        };
        assert_eq!((wcc.from.after, wcc.to.after), expected);
    }
    let refused = link(&fixture, bad, root, b"b");
    let Outcome::Failed(Status::Badhandle, wcc) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!((wcc.attributes, wcc.directory.after), (None, known));
}

#[test]
fn a_read_only_export_changes_in_no_way() {
    let fixture = Fixture::with_rules(ExportRules {
        read_only: true,
        ..rules()
    });
    let root = fixture.root();
    let before = fixture.attributes(root);
    let set = Sattr::default();
    assert_eq!(
        create(&fixture, root, b"f", CreateHow::Unchecked(set)).status(),
        Status::Rofs
    );
    for procedure in [Procedure::Remove, Procedure::Rmdir] {
        assert_eq!(remove(&fixture, procedure, root, b"f").status(), Status::Rofs);
    }
    assert_eq!(
        rename(&fixture, (root, b"f"), (root, b"g")).status(),
        Status::Rofs
    );
    assert_eq!(link(&fixture, root, root, b"g").status(), Status::Rofs);
    let made = |outcome: Outcome<Created, WccData>| outcome.status();
    let target = Path::new(b"t").unwrap();
    let symlink = SymlinkArguments {
        place: place(root, b"f"),
        attributes: set,
        target,
    };
    assert_eq!(made(fixture.call(Procedure::Symlink, &symlink)), Status::Rofs);
    let mknod = MknodArguments {
        place: place(root, b"f"),
        what: MknodData::Fifo(set),
    };
    assert_eq!(made(fixture.call(Procedure::Mknod, &mknod)), Status::Rofs);
    assert_eq!(fixture.attributes(root), before);
}
