//! LOOKUP, ACCESS, READLINK, CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, RENAME, LINK.

use curt_proto::nfs3::{
    CreateArguments, CreateHow, CreateOk, CreateVerf3, DirOpArgs, Fattr, Ftype, LinkArguments, LinkWcc,
    LookupOk, MkdirArguments, MknodArguments, MknodData, NfsFh3, NfsPath, NfsProcedure, NfsResult, NfsStat3,
    NfsTime, ReadlinkOk, RenameArguments, RenameWcc, Sattr, SpecData, SymlinkArguments, TimeHow, WccData,
};
use curt_xdr::decode_all;

use super::fixture::{Fixture, bytes_of, place, rules, status_of};
use crate::ExportRules;

fn remove(
    fixture: &Fixture,
    procedure: NfsProcedure,
    directory: NfsFh3,
    name: &[u8],
) -> NfsResult<WccData, WccData> {
    fixture.call(procedure, &place(directory, name))
}

fn create(fixture: &Fixture, directory: NfsFh3, name: &[u8], how: CreateHow) -> NfsResult<CreateOk, WccData> {
    fixture.call(NfsProcedure::Create, &CreateArguments { place: place(directory, name), how })
}

fn rename(fixture: &Fixture, from: (NfsFh3, &[u8]), to: (NfsFh3, &[u8])) -> NfsResult<RenameWcc, RenameWcc> {
    let arguments = RenameArguments { from: place(from.0, from.1), to: place(to.0, to.1) };
    fixture.call(NfsProcedure::Rename, &arguments)
}

fn link(fixture: &Fixture, file: NfsFh3, directory: NfsFh3, name: &[u8]) -> NfsResult<LinkWcc, LinkWcc> {
    fixture.call(NfsProcedure::Link, &LinkArguments { file, place: place(directory, name) })
}

#[test]
fn lookup_finds_what_create_made() {
    let fixture = Fixture::new();
    let root = fixture.root();
    let before = fixture.attributes(root);
    let how = CreateHow::Guarded(Sattr { mode: Some(0o640), ..Sattr::default() });
    let NfsResult::Ok(created) = create(&fixture, root, b"file", how) else { panic!("refused") };
    let object = created.object.unwrap();
    assert_eq!(created.attributes, Some(fixture.attributes(object)));
    assert_eq!(created.attributes.unwrap().mode, 0o640);
    assert_eq!(created.directory.before.unwrap().ctime, before.ctime);
    assert_eq!(created.directory.after, Some(fixture.attributes(root)));
    let attributes = Some(fixture.attributes(object));
    let expected = LookupOk { object, attributes, directory: Some(fixture.attributes(root)) };
    assert_eq!(fixture.lookup(root, b"file"), NfsResult::Ok(expected));
    assert_eq!(
        fixture.lookup(root, b"other"),
        NfsResult::Failed(NfsStat3::Noent, Some(fixture.attributes(root)))
    );
    assert_eq!(fixture.lookup(object, b"x"), NfsResult::Failed(NfsStat3::Notdir, attributes));
}

#[test]
fn dot_and_dot_dot_are_found_and_nothing_lies_above_the_root() {
    let fixture = Fixture::new();
    let root = fixture.root();
    let below = fixture.make_directory(root, b"below", 0o755);
    let find = |directory, name: &[u8]| match fixture.lookup(directory, name) {
        NfsResult::Ok(ok) => ok.object,
        NfsResult::Failed(status, _) => panic!("{status}"),
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
    let unchecked = CreateHow::Unchecked(Sattr { mode: Some(0o600), ..Sattr::default() });
    let NfsResult::Ok(again) = create(&fixture, root, b"file", unchecked) else { panic!("refused") };
    assert_eq!((again.object, again.attributes.unwrap().mode), (Some(first), 0o644));
    let guarded = create(&fixture, root, b"file", CreateHow::Guarded(Sattr::default()));
    let NfsResult::Failed(NfsStat3::Exist, wcc) = guarded else { panic!("{guarded:?}") };
    assert_eq!(wcc.after, Some(fixture.attributes(root)));
}

#[test]
fn an_exclusive_create_sent_twice_makes_one_file() {
    let fixture = Fixture::new();
    let root = fixture.root();
    let how = |last| CreateHow::Exclusive(CreateVerf3([1, 2, 3, 4, 5, 6, 7, last]));
    let NfsResult::Ok(first) = create(&fixture, root, b"file", how(8)) else { panic!("refused") };
    let NfsResult::Ok(retry) = create(&fixture, root, b"file", how(8)) else { panic!("a retry is no error") };
    assert_eq!(first.object, retry.object);
    assert_eq!(status_of(&create(&fixture, root, b"file", how(9))), NfsStat3::Exist);
}

#[test]
fn every_kind_of_object_can_be_created_and_is_reported_as_that_kind() {
    let fixture = Fixture::new();
    let root = fixture.root();
    let set = Sattr { mode: Some(0o600), ..Sattr::default() };
    let device = SpecData { major: 1, minor: 3 };
    let rows = [
        (&b"block"[..], MknodData::BlockDevice(set, device), Ftype::BlockDevice),
        (b"character", MknodData::CharacterDevice(set, device), Ftype::CharacterDevice),
        (b"socket", MknodData::Socket(set), Ftype::Socket),
        (b"fifo", MknodData::Fifo(set), Ftype::Fifo),
    ];
    for (name, what, kind) in rows {
        let arguments = MknodArguments { place: place(root, name), what };
        let NfsResult::Ok(made) = fixture.call::<CreateOk, WccData>(NfsProcedure::Mknod, &arguments) else {
            panic!("{kind:?}");
        };
        let attributes = made.attributes.unwrap();
        assert_eq!((attributes.kind, attributes.mode), (kind, 0o600));
        let is_device = matches!(kind, Ftype::BlockDevice | Ftype::CharacterDevice);
        assert_eq!(attributes.rdev, if is_device { device } else { SpecData::default() });
    }
    for other in [0, 1, 2, 5, 8, u32::MAX] {
        let arguments = MknodArguments { place: place(root, b"new"), what: MknodData::Other(other) };
        let refused: NfsResult<CreateOk, WccData> = fixture.call(NfsProcedure::Mknod, &arguments);
        assert_eq!(refused.status(), NfsStat3::Badtype, "type {other}");
    }
}

/// CREATE, MKDIR, SYMLINK and MKNOD with these attributes; the status of each.
fn make_all(fixture: &Fixture, place: DirOpArgs<'_>, attributes: Sattr) -> [NfsStat3; 4] {
    let made = |made: NfsResult<CreateOk, WccData>| made.status();
    let (target, how) = (NfsPath::new(b"target").unwrap(), CreateHow::Guarded(attributes));
    [
        made(fixture.call(NfsProcedure::Create, &CreateArguments { place, how })),
        made(fixture.call(NfsProcedure::Mkdir, &MkdirArguments { place, attributes })),
        made(fixture.call(NfsProcedure::Symlink, &SymlinkArguments { place, attributes, target })),
        made(fixture.call(NfsProcedure::Mknod, &MknodArguments { place, what: MknodData::Fifo(attributes) })),
    ]
}

#[test]
fn the_first_error_of_a_creation_is_that_of_its_first_argument() {
    let mut fixture = Fixture::new();
    let root = fixture.root();
    let file = fixture.make_file(root, b"file", 0o644);
    let closed = fixture.make_directory(root, b"closed", 0o555);
    let bad_handle = NfsFh3::new(b"bad").unwrap();
    fixture.become_user(1000, 1000);
    let late = NfsTime { seconds: 0, nanoseconds: 1_000_000_000 };
    let valid = Sattr { mode: Some(0o600), ..Sattr::default() };
    let invalid = Sattr { mtime: TimeHow::SetToClientTime(late), ..valid };
    let long = [b'n'; 256];
    // Each row lacks one of the faults of the row above it.
    let rows = [
        (bad_handle, &b"a/b"[..], invalid, NfsStat3::Badhandle),
        (file, b"a/b", invalid, NfsStat3::Acces),
        (file, b"..", invalid, NfsStat3::Exist),
        (file, &long, invalid, NfsStat3::Nametoolong),
        (file, b"new", invalid, NfsStat3::Inval),
        (closed, b"new", invalid, NfsStat3::Inval),
        (root, b"file", invalid, NfsStat3::Inval),
        (file, b"new", valid, NfsStat3::Notdir),
        (closed, b"new", valid, NfsStat3::Acces),
        (root, b"file", valid, NfsStat3::Exist),
    ];
    for (directory, name, attributes, status) in rows {
        let place = place(directory, name);
        assert_eq!(make_all(&fixture, place, attributes), [status; 4], "{name:?}, {attributes:?}");
        // MKNOD refuses a type and device numbers where it refuses attributes.
        let mknod = |what| {
            let made: NfsResult<CreateOk, WccData> =
                fixture.call(NfsProcedure::Mknod, &MknodArguments { place, what });
            made.status()
        };
        if attributes == invalid {
            let is_type = |status| if status == NfsStat3::Inval { NfsStat3::Badtype } else { status };
            assert_eq!(mknod(MknodData::Other(1)), is_type(status), "{name:?}");
            let device = SpecData { major: u32::MAX, minor: 0 };
            assert_eq!(mknod(MknodData::BlockDevice(valid, device)), status, "{name:?}");
        }
    }
}

#[test]
fn no_device_is_made_for_numbers_that_do_not_fit() {
    let fixture = Fixture::new();
    let root = fixture.root();
    let set = Sattr::default();
    let rows = [
        (0xfff, 0xf_ffff, NfsStat3::Ok),
        (0x1000, 0, NfsStat3::Inval),
        (0, 0x10_0000, NfsStat3::Inval),
        (u32::MAX, u32::MAX, NfsStat3::Inval),
    ];
    for (major, minor, expected) in rows {
        let device = SpecData { major, minor };
        for what in [MknodData::CharacterDevice(set, device), MknodData::BlockDevice(set, device)] {
            let name = format!("{major}-{minor}-{}", matches!(what, MknodData::BlockDevice(..)));
            let arguments = MknodArguments { place: place(root, name.as_bytes()), what };
            let made: NfsResult<CreateOk, WccData> = fixture.call(NfsProcedure::Mknod, &arguments);
            assert_eq!(made.status(), expected, "{device:?}");
        }
    }
}

#[test]
fn a_symlink_says_its_target_byte_for_byte() {
    let fixture = Fixture::new();
    let root = fixture.root();
    let target = NfsPath::new(b"../not there/\xff").unwrap();
    let arguments = SymlinkArguments { place: place(root, b"link"), attributes: Sattr::default(), target };
    let NfsResult::Ok(made) = fixture.call::<CreateOk, WccData>(NfsProcedure::Symlink, &arguments) else {
        panic!()
    };
    let link = made.object.unwrap();
    let results = fixture.raw(5, &bytes_of(&link)).unwrap();
    let said: NfsResult<ReadlinkOk<'_>, Option<Fattr>> = decode_all(&results).unwrap();
    assert_eq!(said, NfsResult::Ok(ReadlinkOk { attributes: Some(fixture.attributes(link)), target }));
    let results = fixture.raw(5, &bytes_of(&root)).unwrap();
    let said: NfsResult<ReadlinkOk<'_>, Option<Fattr>> = decode_all(&results).unwrap();
    assert_eq!(said, NfsResult::Failed(NfsStat3::Inval, Some(fixture.attributes(root))));
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
        let (NfsResult::Ok(wcc) | NfsResult::Failed(_, wcc)) = outcome;
        assert_eq!(wcc.after, Some(fixture.attributes(root)), "attributes come either way");
        assert!(wcc.before.is_none_or(|told| told.ctime == before.ctime));
        outcome.status()
    };
    assert_eq!(of(NfsProcedure::Remove, b"directory"), NfsStat3::Isdir);
    assert_eq!(of(NfsProcedure::Rmdir, b"file"), NfsStat3::Notdir);
    assert_eq!(of(NfsProcedure::Rmdir, b"directory"), NfsStat3::Notempty);
    assert_eq!(of(NfsProcedure::Remove, b"none"), NfsStat3::Noent);
    assert_eq!(of(NfsProcedure::Rmdir, b"."), NfsStat3::Inval);
    assert_eq!(of(NfsProcedure::Rmdir, b".."), NfsStat3::Exist);
    assert_eq!(of(NfsProcedure::Remove, b"file"), NfsStat3::Ok);
    let gone: NfsResult<Fattr> = fixture.call(NfsProcedure::Getattr, &file);
    assert_eq!(gone, NfsResult::Failed(NfsStat3::Stale, ()));
    assert_eq!(remove(&fixture, NfsProcedure::Remove, directory, b"inside").status(), NfsStat3::Ok);
    assert_eq!(of(NfsProcedure::Rmdir, b"directory"), NfsStat3::Ok);
}

#[test]
fn rename_and_link_tell_of_both_directories() {
    let fixture = Fixture::new();
    let root = fixture.root();
    let (a, b) = (fixture.make_directory(root, b"a", 0o755), fixture.make_directory(root, b"b", 0o755));
    let file = fixture.make_file(a, b"file", 0o644);
    let before = fixture.attributes(b).ctime;
    let NfsResult::Ok(wcc) = rename(&fixture, (a, b"file"), (b, b"moved")) else { panic!("refused") };
    assert_eq!((wcc.from.after, wcc.to.after), (Some(fixture.attributes(a)), Some(fixture.attributes(b))));
    assert_eq!(wcc.to.before.unwrap().ctime, before);
    let NfsResult::Ok(wcc) = link(&fixture, file, a, b"again") else { panic!("refused") };
    assert_eq!(wcc.attributes, Some(fixture.attributes(file)));
    assert_eq!((wcc.attributes.unwrap().nlink, wcc.directory.after), (2, Some(fixture.attributes(a))));
    assert_eq!(link(&fixture, file, a, b"again").status(), NfsStat3::Exist);
    assert_eq!(rename(&fixture, (a, b"none"), (b, b"x")).status(), NfsStat3::Noent);
    assert_eq!(rename(&fixture, (root, b"a"), (a, b"inside")).status(), NfsStat3::Inval);
    assert_eq!(rename(&fixture, (root, b"a"), (root, b"..")).status(), NfsStat3::Inval);
    assert_eq!(rename(&fixture, (b, b"moved"), (root, b"a")).status(), NfsStat3::Isdir);
}

#[test]
fn nothing_leads_from_one_export_into_another() {
    let fixture = Fixture::new();
    let (one, two) = (fixture.root_of(1), fixture.root_of(2));
    let file = fixture.make_file(one, b"file", 0o644);
    let refused = rename(&fixture, (one, b"file"), (two, b"file"));
    let NfsResult::Failed(NfsStat3::Xdev, wcc) = refused else { panic!("{refused:?}") };
    assert_eq!(
        (wcc.from.after, wcc.to.after),
        (Some(fixture.attributes(one)), Some(fixture.attributes(two)))
    );
    let refused = link(&fixture, file, two, b"file");
    let NfsResult::Failed(NfsStat3::Xdev, wcc) = refused else { panic!("{refused:?}") };
    assert_eq!(wcc.attributes, Some(fixture.attributes(file)));
    assert_eq!(fixture.lookup(two, b"file").status(), NfsStat3::Noent);
}

#[test]
fn if_one_of_two_handles_is_invalid_the_reply_has_the_attributes_of_the_other() {
    let fixture = Fixture::new();
    let root = fixture.root();
    let bad = NfsFh3::new(b"bad").unwrap();
    let known = Some(fixture.attributes(root));
    for (from, to) in [(root, bad), (bad, root)] {
        let refused = rename(&fixture, (from, b"a"), (to, b"b"));
        let NfsResult::Failed(NfsStat3::Badhandle, wcc) = refused else { panic!("{refused:?}") };
        let expected = if from == root { (known, None) } else { (None, known) };
        assert_eq!((wcc.from.after, wcc.to.after), expected);
    }
    let refused = link(&fixture, bad, root, b"b");
    let NfsResult::Failed(NfsStat3::Badhandle, wcc) = refused else { panic!("{refused:?}") };
    assert_eq!((wcc.attributes, wcc.directory.after), (None, known));
}

#[test]
fn a_read_only_export_changes_in_no_way() {
    let fixture = Fixture::with_rules(ExportRules { read_only: true, ..rules() });
    let root = fixture.root();
    let before = fixture.attributes(root);
    let set = Sattr::default();
    assert_eq!(create(&fixture, root, b"f", CreateHow::Unchecked(set)).status(), NfsStat3::Rofs);
    for procedure in [NfsProcedure::Remove, NfsProcedure::Rmdir] {
        assert_eq!(remove(&fixture, procedure, root, b"f").status(), NfsStat3::Rofs);
    }
    assert_eq!(rename(&fixture, (root, b"f"), (root, b"g")).status(), NfsStat3::Rofs);
    assert_eq!(link(&fixture, root, root, b"g").status(), NfsStat3::Rofs);
    let made = |outcome: NfsResult<CreateOk, WccData>| outcome.status();
    let target = NfsPath::new(b"t").unwrap();
    let symlink = SymlinkArguments { place: place(root, b"f"), attributes: set, target };
    assert_eq!(made(fixture.call(NfsProcedure::Symlink, &symlink)), NfsStat3::Rofs);
    let mknod = MknodArguments { place: place(root, b"f"), what: MknodData::Fifo(set) };
    assert_eq!(made(fixture.call(NfsProcedure::Mknod, &mknod)), NfsStat3::Rofs);
    assert_eq!(fixture.attributes(root), before);
}
