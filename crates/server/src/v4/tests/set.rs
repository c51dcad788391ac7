//! SETATTR, and the attributes of CREATE.

use curt_proto::nfs4::NfsStat4::{Attrnotsupp, BadStateid, Badowner, Badxdr, Inval, Ok, Perm};
use curt_proto::nfs4::*;
use curt_types::Timestamp;
use curt_xdr::Opaque;

use super::fixture::{Fixture, bytes_of, fattr, go, name};

fn set_on(fixture: &Fixture, path: &[&str], values: &AttributeValues<'_>) -> NfsStat4 {
    fattr(values, |attributes| fixture.on(path, &SetattrArgs4 { stateid: Stateid::ANONYMOUS, attributes }))
}

fn set(fixture: &Fixture, values: &AttributeValues<'_>) -> NfsStat4 {
    set_on(fixture, &["one", "file"], values)
}

#[test]
fn all_settable_attributes_are_set_and_reported() {
    Fixture::with_each_tree(|fixture| {
        let values = AttributeValues {
            size: Some(12_345),
            mode: Some(0o7123),
            owner: Some(Opaque::new(b"77").unwrap()),
            owner_group: Some(Opaque::new(b"88").unwrap()),
            time_access_set: Some(SetTime4::ClientTime(NfsTime4 { seconds: -5, nanoseconds: 6 })),
            time_modify_set: Some(SetTime4::ServerTime),
            ..AttributeValues::default()
        };
        let mask = values.present();
        assert_eq!(mask, Attribute::supported(1).common(Attribute::SETTABLE));
        let reply = fattr(&values, |attributes| {
            fixture.run(|compound| {
                go(compound, &["one", "file"]);
                compound.push(&SetattrArgs4 { stateid: Stateid::ANONYMOUS, attributes });
            })
        });
        assert_eq!(reply.after(2).next::<Bitmap4>(Nfs4Operation::Setattr), Result::Ok(mask));
        let own = fixture.attributes("file");
        assert_eq!((own.size, own.uid, own.gid, own.atime), (12_345, 77, 88, Timestamp::new(-5, 6)));
        assert_eq!(own.mode & 0o777, 0o123);
    });
}

#[test]
fn a_setattr_that_fails_sets_nothing_and_says_so() {
    Fixture::with_each_tree(|fixture| {
        let default = AttributeValues::default;
        let text = |text: &'static str| Some(Opaque::new(text.as_bytes()).unwrap());
        let time = |nanoseconds| Some(SetTime4::ClientTime(NfsTime4 { seconds: 1, nanoseconds }));
        let rows = [
            (AttributeValues { change: Some(1), ..default() }, Inval),
            (AttributeValues { kind: Some(Ftype4::Regular), ..default() }, Inval),
            (AttributeValues { fileid: Some(1), ..default() }, Inval),
            (AttributeValues { lease_time: Some(1), ..default() }, Inval),
            (AttributeValues { supported_attrs: Some(Bitmap4::EMPTY), ..default() }, Inval),
            (AttributeValues { time_modify: Some(NfsTime4::default()), ..default() }, Inval),
            (AttributeValues { hidden: Some(true), ..default() }, Attrnotsupp),
            (AttributeValues { time_backup: Some(NfsTime4::default()), ..default() }, Attrnotsupp),
            (AttributeValues { mode_umask: Some(ModeUmask { mode: 0, umask: 0 }), ..default() }, Attrnotsupp),
            (AttributeValues { mode: Some(0o10_000), ..default() }, Inval),
            (AttributeValues { owner: text("root@example.org"), ..default() }, Badowner),
            (AttributeValues { owner: text(""), ..default() }, Badowner),
            (AttributeValues { owner_group: text("-1"), ..default() }, Badowner),
            (AttributeValues { owner: text("4294967296"), ..default() }, Badowner),
            (AttributeValues { time_access_set: time(1_000_000_000), ..default() }, Inval),
            (AttributeValues { time_modify_set: time(u32::MAX), ..default() }, Inval),
            (AttributeValues { size: Some(u64::MAX), ..default() }, Inval),
        ];
        let before = fixture.attributes("file");
        for (values, expected) in rows {
            // A good attribute beside it is not set either.
            let values = AttributeValues { mode: values.mode.or(Some(0o700)), ..values };
            let reply = fattr(&values, |attributes| {
                fixture.run(|compound| {
                    go(compound, &["one", "file"]);
                    compound.push(&SetattrArgs4 { stateid: Stateid::ANONYMOUS, attributes });
                })
            });
            assert_eq!(reply.status(), expected, "{values:?}");
            let mut results = reply.after(2);
            assert_eq!(results.status(Nfs4Operation::Setattr), Result::Ok(expected));
            assert_eq!(results.decoder().get::<Bitmap4>(), Result::Ok(Bitmap4::EMPTY));
            assert_eq!(fixture.attributes("file"), before);
        }
    });
}

#[test]
fn values_that_do_not_fill_their_bytes_are_not_decoded() {
    let fixture = Fixture::new();
    let mask = Attribute::set(&[Attribute::Mode]);
    for length in [0, 8] {
        let values = vec![0; length];
        let attributes = Fattr4 { mask, values: Opaque::new(&values).unwrap() };
        let set = SetattrArgs4 { stateid: Stateid::ANONYMOUS, attributes };
        assert_eq!(fixture.on(&["one", "file"], &set), Badxdr, "{length}");
    }
    let unknown = bytes_of(&[1_u8; 4]);
    let attributes = Fattr4 { mask: Bitmap4::EMPTY.with(95), values: Opaque::new(&unknown).unwrap() };
    let set = SetattrArgs4 { stateid: Stateid::ANONYMOUS, attributes };
    assert_eq!(fixture.on(&["one", "file"], &set), Attrnotsupp);
}

#[test]
fn the_stateid_counts_for_the_size_alone() {
    let fixture = Fixture::new();
    let bad = Stateid { seqid: 1, other: [7; 12] };
    let with = |values: &AttributeValues<'_>| {
        fattr(values, |attributes| fixture.on(&["one", "file"], &SetattrArgs4 { stateid: bad, attributes }))
    };
    let default = AttributeValues::default;
    assert_eq!(with(&AttributeValues { size: Some(1), ..default() }), BadStateid);
    assert_eq!(with(&AttributeValues { mode: Some(0o600), ..default() }), Ok);
    assert_eq!(set(&fixture, &AttributeValues { size: Some(1), ..default() }), Ok);
}

#[test]
fn the_mode_of_a_symbolic_link_is_not_reported_as_set() {
    Fixture::with_each_tree(|fixture| {
        let values = AttributeValues {
            mode: Some(0o600),
            owner: Some(Opaque::new(b"7").unwrap()),
            ..AttributeValues::default()
        };
        let owner = Attribute::set(&[Attribute::Owner]);
        let target = CreateType4::Symlink(Opaque::new(b"x").unwrap());
        fattr(&values, |attributes| {
            let reply = fixture.run(|compound| {
                go(compound, &["one"]);
                compound.push(&CreateArgs4 { kind: target, name: name("new"), attributes });
                compound.push(&SetattrArgs4 { stateid: Stateid::ANONYMOUS, attributes });
            });
            let mut results = reply.after(1);
            let made: CreateOk4 = results.next(Nfs4Operation::Create).unwrap();
            assert_eq!(made.attributes_set, owner);
            assert_eq!(results.next::<Bitmap4>(Nfs4Operation::Setattr), Result::Ok(owner));
        });
    });
}

#[test]
fn others_may_not_change_what_they_do_not_own() {
    let fixture = Fixture::new();
    fixture.become_user(5);
    let default = AttributeValues::default;
    assert_eq!(set(&fixture, &AttributeValues { mode: Some(0o777), ..default() }), Perm);
    assert_eq!(set(&fixture, &default()), Ok, "nothing is asked for");
}

#[test]
fn create_sets_the_attributes_of_the_new_object() {
    Fixture::with_each_tree(|fixture| {
        let values = AttributeValues {
            mode: Some(0o750),
            owner: Some(Opaque::new(b"7").unwrap()),
            ..AttributeValues::default()
        };
        let reply = fattr(&values, |attributes| {
            fixture.run(|compound| {
                go(compound, &["one"]);
                compound.push(&CreateArgs4 { kind: CreateType4::Directory, name: name("new"), attributes });
            })
        });
        let made: CreateOk4 = reply.after(1).next(Nfs4Operation::Create).unwrap();
        assert_eq!(made.attributes_set, values.present());
        let own = fixture.attributes("new");
        assert_eq!((own.mode, own.uid), (0o750, 7));
        let default = AttributeValues::default;
        let rows = [
            (AttributeValues { size: Some(0), ..default() }, Inval),
            (AttributeValues { numlinks: Some(2), ..default() }, Inval),
            (AttributeValues { archive: Some(true), ..default() }, Attrnotsupp),
            (AttributeValues { owner: Some(Opaque::new(b"x").unwrap()), ..default() }, Badowner),
        ];
        for (values, expected) in rows {
            let status = fattr(&values, |attributes| {
                fixture
                    .on(&["one"], &CreateArgs4 { kind: CreateType4::Fifo, name: name("other"), attributes })
            });
            assert_eq!(status, expected, "{values:?}");
        }
    });
}

#[test]
fn an_owner_that_a_creation_cannot_set_is_not_reported_as_set() {
    Fixture::with_each_tree(|fixture| {
        let everybody = AttributeValues { mode: Some(0o777), ..AttributeValues::default() };
        assert_eq!(set_on(fixture, &["one", "directory"], &everybody), Ok);
        fixture.become_user(1000);
        let text = |text: &'static str| Some(Opaque::new(text.as_bytes()).unwrap());
        let default = AttributeValues::default;
        let cases = [
            (AttributeValues { owner: text("0"), ..default() }, Bitmap4::EMPTY),
            (AttributeValues { owner_group: text("0"), ..default() }, Bitmap4::EMPTY),
            (AttributeValues { owner: text("1000"), ..default() }, Attribute::set(&[Attribute::Owner])),
            (
                AttributeValues { owner: text("7"), owner_group: text("1000"), ..default() },
                Attribute::set(&[Attribute::OwnerGroup]),
            ),
        ];
        for (number, (values, applied)) in cases.into_iter().enumerate() {
            let values = AttributeValues { mode: Some(0o640), ..values };
            let applied = applied.union(Attribute::set(&[Attribute::Mode]));
            let times = Attribute::set(&[Attribute::TimeAccess, Attribute::TimeModify]);
            fattr(&values, |attributes| {
                let text = format!("fifo {number}");
                let make = CreateArgs4 { kind: CreateType4::Fifo, name: name(&text), attributes };
                let reply = fixture.run(|compound| {
                    go(compound, &["one", "directory"]);
                    compound.push(&make);
                });
                let made: CreateOk4 = reply.after(2).next(Nfs4Operation::Create).unwrap();
                assert_eq!(made.attributes_set, applied, "{values:?}");
                let ways = [
                    (CreateHow4::Guarded(attributes), Bitmap4::EMPTY),
                    (CreateHow4::Unchecked(attributes), Bitmap4::EMPTY),
                    (CreateHow4::Exclusive41(Verifier4([1; 8]), attributes), times),
                ];
                for (way, (how, verifier)) in ways.into_iter().enumerate() {
                    let text = format!("file {number} {way}");
                    let open = OpenArgs4 {
                        how: OpenHow::Create(how),
                        ..super::test_client::opening(&text, "o", 3, 0)
                    };
                    let reply = fixture.run(|compound| {
                        go(compound, &["one", "directory"]);
                        compound.push(&open);
                    });
                    let opened: OpenOk4<'_> = reply.after(2).next(Nfs4Operation::Open).unwrap();
                    assert_eq!(opened.attributes_set, applied.union(verifier), "{values:?} {how:?}");
                    let owner = Attribute::set(&[Attribute::Owner, Attribute::Mode]);
                    fixture.getattr(&["one", "directory", &text], owner, |is, _| {
                        assert_eq!((is.owner, is.mode), (Some(Opaque::new(b"1000").unwrap()), Some(0o640)));
                    });
                }
            });
        }
    });
}

/// The size is beyond what file systems on disks can have.
#[test]
fn a_setattr_that_fails_reports_what_it_has_set() {
    Fixture::with_each_tree(|fixture| {
        let values = AttributeValues {
            size: Some(1 << 62),
            owner: Some(Opaque::new(b"5").unwrap()),
            mode: Some(0o700),
            time_modify_set: Some(SetTime4::ClientTime(NfsTime4::default())),
            ..AttributeValues::default()
        };
        let reply = fattr(&values, |attributes| {
            fixture.run(|compound| {
                go(compound, &["one", "file"]);
                compound.push(&SetattrArgs4 { stateid: Stateid::ANONYMOUS, attributes });
            })
        });
        if reply.status() == Ok {
            // A tree in memory has room for it.
            return;
        }
        assert_eq!(reply.status(), NfsStat4::Fbig);
        let mut results = reply.after(2);
        assert_eq!(results.status(Nfs4Operation::Setattr), Result::Ok(NfsStat4::Fbig));
        let own = fixture.attributes("file");
        assert_eq!((own.size, own.mode), (0, 0o755));
        let set = if own.uid == 5 { Attribute::set(&[Attribute::Owner]) } else { Bitmap4::EMPTY };
        assert_eq!(results.decoder().get::<Bitmap4>(), Result::Ok(set));
    });
}
