//! NULL, GETATTR, SETATTR, FSSTAT, FSINFO, PATHCONF.

use curt_proto::nfs3::{
    Fattr, Fileid, FsProperties, FsinfoOk, FsstatOk, Ftype, NfsProcedure, NfsResult, NfsStat3, NfsTime,
    PathconfOk, Sattr, SetattrArguments, SpecData, TimeHow, WccAttr, WccData,
};

use super::fixture::{Fixture, NOW};

const THEN: NfsTime = NfsTime { seconds: 1_000_000, nanoseconds: 7 };

#[test]
fn null_answers_nothing() {
    let fixture = Fixture::new();
    assert_eq!(fixture.raw(0, &[]).unwrap(), b"");
}

#[test]
fn getattr_tells_everything_in_84_bytes() {
    let fixture = Fixture::new();
    let root = fixture.attributes(fixture.root());
    let expected = Fattr {
        kind: Ftype::Directory,
        mode: 0o755,
        nlink: 2,
        uid: 0,
        gid: 0,
        size: root.size,
        used: root.used,
        rdev: SpecData::default(),
        fsid: (1 << 32) + 1,
        fileid: Fileid(root.fileid.0),
        atime: THEN,
        mtime: THEN,
        ctime: THEN,
    };
    assert_eq!(root, expected);
    assert_eq!(
        fixture.attributes(fixture.root_of(2)).fsid,
        (1 << 32) + 2,
        "file systems are told apart by fsid"
    );
    assert_eq!(NOW.seconds(), 1_000_000);
}

fn set(fixture: &Fixture, arguments: &SetattrArguments) -> NfsResult<WccData, WccData> {
    fixture.call(NfsProcedure::Setattr, arguments)
}

#[test]
fn setattr_sets_what_is_given_and_tells_before_and_after() {
    let fixture = Fixture::new();
    let object = fixture.make_file(fixture.root(), b"file", 0o644);
    let before = fixture.attributes(object);
    let client = NfsTime { seconds: 5, nanoseconds: 6 };
    let attributes = Sattr {
        mode: Some(0o600),
        uid: Some(7),
        gid: Some(8),
        size: Some(10_000),
        atime: TimeHow::SetToClientTime(client),
        mtime: TimeHow::SetToClientTime(client),
    };
    let NfsResult::Ok(wcc) = set(&fixture, &SetattrArguments { object, attributes, guard: None }) else {
        panic!("refused");
    };
    let expected = WccAttr { size: 0, mtime: before.mtime, ctime: before.ctime };
    assert_eq!(wcc.before, Some(expected));
    let after = wcc.after.unwrap();
    assert_eq!((after.mode, after.uid, after.gid, after.size), (0o600, 7, 8, 10_000));
    assert_eq!((after.atime, after.mtime), (client, client));
    assert!(after.ctime > before.ctime, "no change can hide");
    assert_eq!(fixture.attributes(object), after);
}

#[test]
fn setattr_with_a_guard_that_does_not_match_changes_nothing() {
    let fixture = Fixture::new();
    let object = fixture.make_file(fixture.root(), b"file", 0o644);
    let before = fixture.attributes(object);
    let attributes = Sattr { mode: Some(0o600), ..Sattr::default() };
    let wrong = NfsTime { seconds: 1, nanoseconds: 0 };
    let refused = set(&fixture, &SetattrArguments { object, attributes, guard: Some(wrong) });
    let NfsResult::Failed(NfsStat3::NotSync, wcc) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(wcc.after, Some(before));
    let done = set(&fixture, &SetattrArguments { object, attributes, guard: Some(before.ctime) });
    assert_eq!(done.status(), NfsStat3::Ok);
}

#[test]
fn setattr_of_what_cannot_be_is_refused_with_attributes() {
    let fixture = Fixture::new();
    let file = fixture.make_file(fixture.root(), b"file", 0o644);
    let keep = Sattr::default();
    let late = NfsTime { seconds: 1, nanoseconds: 1_000_000_000 };
    let rows = [
        (fixture.root(), Sattr { size: Some(0), ..keep }, NfsStat3::Inval),
        (file, Sattr { size: Some(1 << 63), ..keep }, NfsStat3::Inval),
        (file, Sattr { size: Some(u64::MAX), ..keep }, NfsStat3::Inval),
        (file, Sattr { uid: Some(u32::MAX), ..keep }, NfsStat3::Inval),
        (file, Sattr { mtime: TimeHow::SetToClientTime(late), ..keep }, NfsStat3::Inval),
    ];
    for (object, attributes, expected) in rows {
        let before = fixture.attributes(object);
        let refused = set(&fixture, &SetattrArguments { object, attributes, guard: None });
        let NfsResult::Failed(status, wcc) = refused else { panic!("{attributes:?}") };
        assert_eq!((status, wcc.after), (expected, Some(before)), "{attributes:?}");
    }
}

#[test]
fn fsinfo_tells_limits_that_are_true() {
    let fixture = Fixture::new();
    let NfsResult::Ok(info) = fixture.call::<FsinfoOk, Option<Fattr>>(NfsProcedure::Fsinfo, &fixture.root())
    else {
        panic!("refused");
    };
    assert_eq!((info.rtmax, info.wtmax), (1 << 20, 1 << 20));
    assert_eq!((info.rtpref, info.wtpref), (1 << 20, 1 << 20));
    assert_eq!(info.time_delta, NfsTime { seconds: 0, nanoseconds: 1 });
    assert_eq!(info.attributes, Some(fixture.attributes(fixture.root())));
    let all = FsProperties::LINK
        .or(FsProperties::SYMLINK)
        .or(FsProperties::HOMOGENEOUS)
        .or(FsProperties::CANSETTIME);
    assert!(info.properties.contains(all));
}

#[test]
fn fsstat_and_pathconf_answer_with_attributes() {
    let fixture = Fixture::new();
    let attributes = Some(fixture.attributes(fixture.root()));
    let NfsResult::Ok(stat) = fixture.call::<FsstatOk, Option<Fattr>>(NfsProcedure::Fsstat, &fixture.root())
    else {
        panic!("refused");
    };
    assert!(stat.total_bytes >= stat.free_bytes && stat.free_bytes >= stat.available_bytes);
    assert_eq!((stat.attributes, stat.invariant_seconds), (attributes, 0));
    let conf = fixture.call::<PathconfOk, Option<Fattr>>(NfsProcedure::Pathconf, &fixture.root());
    let NfsResult::Ok(conf) = conf else { panic!("refused") };
    assert_eq!((conf.name_max, conf.attributes), (255, attributes));
    assert!(conf.no_truncation && conf.chown_restricted && conf.case_preserving && !conf.case_insensitive);
}
