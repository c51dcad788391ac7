//! READ, WRITE, COMMIT.

use curt_proto::nfs3::{
    CommitArguments, CommitOk, CreateArguments, CreateHow, CreateOk, Fattr, NfsFh3, NfsProcedure, NfsResult,
    NfsStat3, ReadArguments, ReadFail, ReadOk, Sattr, SetattrArguments, StableHow, WccData, WriteArguments,
    WriteOk, WriteVerf3,
};
use curt_vfs::{Error, FaultPoint};
use curt_xdr::{Opaque, decode_all};
use rustix::io::Errno;

use super::fixture::{Fixture, bytes_of, place, rules};
use crate::ExportRules;

fn write(
    fixture: &Fixture,
    file: NfsFh3,
    offset: u64,
    data: &[u8],
    stability: StableHow,
) -> NfsResult<WriteOk, WccData> {
    let count = u32::try_from(data.len()).unwrap();
    let data = Opaque::new(data).unwrap();
    fixture.call(NfsProcedure::Write, &WriteArguments { file, offset, count, stable: stability, data })
}

/// The result of READ: the data, whether they reach the end of the file, and the attributes.
fn read(fixture: &Fixture, file: NfsFh3, offset: u64, count: u32) -> Result<(Vec<u8>, bool), NfsStat3> {
    let results = fixture.raw(6, &bytes_of(&ReadArguments { file, offset, count })).unwrap();
    match decode_all::<NfsResult<ReadOk<'_>, ReadFail>>(&results).unwrap() {
        NfsResult::Ok(ok) => {
            assert_eq!(usize::try_from(ok.count).unwrap(), ok.data.len());
            assert_eq!(ok.attributes, Some(fixture.attributes(file)));
            Ok((ok.data.to_vec(), ok.eof))
        }
        NfsResult::Failed(status, failed) => {
            assert_eq!(failed.attributes, Some(fixture.attributes(file)));
            Err(status)
        }
    }
}

fn commit(fixture: &Fixture, file: NfsFh3) -> NfsResult<CommitOk, WccData> {
    fixture.call(NfsProcedure::Commit, &CommitArguments { file, offset: 0, count: 0 })
}

fn verifier_of(outcome: &NfsResult<WriteOk, WccData>) -> WriteVerf3 {
    match outcome {
        NfsResult::Ok(ok) => ok.verifier,
        NfsResult::Failed(status, _) => panic!("{status}"),
    }
}

#[test]
fn what_was_written_is_read_at_every_length() {
    let fixture = Fixture::new();
    let file = fixture.make_file(fixture.root(), b"file", 0o644);
    let data: Vec<u8> = (0..=255).cycle().take(1000).collect();
    let NfsResult::Ok(ok) = write(&fixture, file, 0, &data, StableHow::FileSync) else { panic!("refused") };
    assert_eq!((ok.count, ok.committed), (1000, StableHow::FileSync));
    assert_eq!(ok.wcc.before.unwrap().size, 0);
    assert_eq!(ok.wcc.after.unwrap(), fixture.attributes(file));
    for (offset, count) in
        [(0u64, 0u32), (0, 1), (0, 2), (0, 3), (1, 5), (0, 999), (0, 1000), (0, 2000), (998, 9)]
    {
        let start = usize::try_from(offset).unwrap();
        let end = (start + usize::try_from(count).unwrap()).min(1000);
        let expected = (data[start..end].to_vec(), end == 1000);
        assert_eq!(read(&fixture, file, offset, count), Ok(expected), "{count} at {offset}");
    }
    for offset in [1000, 1001, 1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, u64::MAX] {
        assert_eq!(read(&fixture, file, offset, 4096), Ok((vec![], true)), "at {offset}");
    }
    assert_eq!(read(&fixture, file, 0, u32::MAX), Ok((data, true)));
}

#[test]
fn a_read_is_never_more_than_a_mebibyte() {
    let fixture = Fixture::new();
    let file = fixture.make_file(fixture.root(), b"file", 0o644);
    for offset in [0u64, 1 << 20] {
        assert_eq!(write(&fixture, file, offset, &[7; 1 << 20], StableHow::Unstable).status(), NfsStat3::Ok);
    }
    let (data, eof) = read(&fixture, file, 0, u32::MAX).unwrap();
    assert_eq!((data.len(), eof), (1 << 20, false));
}

#[test]
fn what_is_no_regular_file_has_no_data() {
    let fixture = Fixture::new();
    assert_eq!(read(&fixture, fixture.root(), 0, 10), Err(NfsStat3::Inval));
    assert_eq!(read(&fixture, fixture.root(), u64::MAX, 10), Err(NfsStat3::Inval));
    assert_eq!(write(&fixture, fixture.root(), 0, b"x", StableHow::Unstable).status(), NfsStat3::Inval);
}

#[test]
fn writes_that_cannot_be_are_refused_before_anything_changes() {
    let fixture = Fixture::new();
    let file = fixture.make_file(fixture.root(), b"file", 0o644);
    let before = fixture.attributes(file);
    for offset in [(1 << 63) - 1, 1 << 63, u64::MAX] {
        let refused = write(&fixture, file, offset, b"x", StableHow::Unstable);
        let NfsResult::Failed(NfsStat3::Fbig, wcc) = refused else { panic!("{refused:?}") };
        assert_eq!(wcc.after, Some(before));
    }
    let data = Opaque::new(b"abc").unwrap();
    for count in [0, 2, 4, u32::MAX] {
        let arguments = WriteArguments { file, offset: 0, count, stable: StableHow::Unstable, data };
        let refused: NfsResult<WriteOk, WccData> = fixture.call(NfsProcedure::Write, &arguments);
        assert_eq!(refused.status(), NfsStat3::Inval, "count {count}");
    }
    assert_eq!(fixture.attributes(file), before);
}

#[test]
fn the_verifier_is_the_same_until_data_may_be_lost() {
    let fixture = Fixture::new();
    let file = fixture.make_file(fixture.root(), b"file", 0o644);
    let first = verifier_of(&write(&fixture, file, 0, b"x", StableHow::Unstable));
    let NfsResult::Ok(ok) = commit(&fixture, file) else { panic!("refused") };
    assert_eq!(ok.verifier, first);
    assert_eq!(ok.wcc.after, Some(fixture.attributes(file)));
    fixture.vfs.fail_next(FaultPoint::Commit, Error::Lost(Errno::IO), 1);
    assert_eq!(commit(&fixture, file).status(), NfsStat3::Io);
    let second = verifier_of(&write(&fixture, file, 0, b"x", StableHow::Unstable));
    assert_ne!(second, first);
    let NfsResult::Ok(ok) = commit(&fixture, file) else { panic!("refused") };
    assert_eq!(ok.verifier, second);
}

/// fsync reports lost data once, perhaps to a caller that makes another change durable.
#[test]
fn a_change_that_hears_of_lost_data_changes_the_verifier() {
    let fixture = Fixture::new();
    let (root, file) = (fixture.root(), fixture.make_file(fixture.root(), b"file", 0o644));
    let verifier = || verifier_of(&write(&fixture, file, 0, b"x", StableHow::Unstable));
    let setattr = || {
        let arguments = SetattrArguments {
            object: file,
            attributes: Sattr { mode: Some(0o600), ..Sattr::default() },
            guard: None,
        };
        let outcome: NfsResult<WccData, WccData> = fixture.call(NfsProcedure::Setattr, &arguments);
        outcome.status()
    };
    let create = || {
        let arguments =
            CreateArguments { place: place(root, b"new"), how: CreateHow::Unchecked(Sattr::default()) };
        let outcome: NfsResult<CreateOk, WccData> = fixture.call(NfsProcedure::Create, &arguments);
        outcome.status()
    };
    let remove = || {
        let outcome: NfsResult<WccData, WccData> = fixture.call(NfsProcedure::Remove, &place(root, b"file"));
        outcome.status()
    };
    let changes: [&dyn Fn() -> NfsStat3; 3] = [&setattr, &create, &remove];
    for change in changes {
        let before = verifier();
        fixture.vfs.fail_next(FaultPoint::Change, Error::Lost(Errno::IO), 1);
        assert_eq!(change(), NfsStat3::Io);
        assert_ne!(verifier(), before);
    }
}

#[test]
fn another_life_of_the_server_has_another_verifier() {
    let verifier = || {
        let fixture = Fixture::new();
        let file = fixture.make_file(fixture.root(), b"file", 0o644);
        verifier_of(&write(&fixture, file, 0, b"x", StableHow::Unstable))
    };
    assert_ne!(verifier(), verifier());
}

#[test]
fn errors_of_the_disk_reach_the_client_by_name() {
    let fixture = Fixture::new();
    let file = fixture.make_file(fixture.root(), b"file", 0o644);
    let rows = [
        (Errno::NOSPC, NfsStat3::Nospc),
        (Errno::DQUOT, NfsStat3::Dquot),
        (Errno::ROFS, NfsStat3::Rofs),
        (Errno::IO, NfsStat3::Io),
        (Errno::FBIG, NfsStat3::Fbig),
    ];
    for (errno, status) in rows {
        fixture.vfs.fail_next(FaultPoint::Write, Error::Os(errno), 1);
        let refused = write(&fixture, file, 0, b"x", StableHow::Unstable);
        let NfsResult::Failed(got, wcc) = refused else { panic!("{refused:?}") };
        assert_eq!((got, wcc.after), (status, Some(fixture.attributes(file))));
    }
    fixture.vfs.fail_next(FaultPoint::Read, Error::Os(Errno::IO), 1);
    assert_eq!(read(&fixture, file, 0, 1), Err(NfsStat3::Io));
}

#[test]
fn a_read_only_export_takes_no_data() {
    let fixture = Fixture::with_rules(ExportRules { read_only: true, ..rules() });
    let root = fixture.root();
    let refused = write(&fixture, root, 0, b"x", StableHow::Unstable);
    let NfsResult::Failed(NfsStat3::Rofs, wcc) = refused else { panic!("{refused:?}") };
    let attributes: Option<Fattr> = Some(fixture.attributes(root));
    assert_eq!(wcc.after, attributes);
    assert_eq!(commit(&fixture, root).status(), NfsStat3::Rofs);
}
