//! Each operation on each type of object, on directories of the pseudo file system, and without a
//! filehandle.

use std::sync::Arc;

use curt_proto::nfs4::NfsStat4::{
    Attrnotsupp, Exist, Inval, Isdir, Nofilehandle, Notdir, Ok, Rofs, Symlink, WrongType, Xdev,
};
use curt_proto::nfs4::*;
use curt_vfs::{Error, FaultPoint, MemoryOptions, MemoryVfs};
use rustix::io::Errno;

use super::fixture::{Fixture, OBJECTS, fattr, go, name};
use super::test_client::rules;
use crate::ExportRules;

/// The statuses for a file, directory, block device, character device, link, socket and FIFO.
fn on_each(fixture: &Fixture, arguments: &impl OperationArguments) -> [NfsStat4; 7] {
    OBJECTS.map(|(object, _)| fixture.on(&["one", object], arguments))
}

/// For operations that need a directory, and find nothing wrong with that.
const DIRECTORY_ONLY: [NfsStat4; 7] = [Notdir, Ok, Notdir, Notdir, Notdir, Notdir, Notdir];
/// For LOOKUP and LOOKUPP, which tell links from other objects.
const LOOKUP_IN: [NfsStat4; 7] = [Notdir, Ok, Notdir, Notdir, Symlink, Notdir, Notdir];
/// For operations on data.
const FILE_ONLY: [NfsStat4; 7] = [Ok, Isdir, WrongType, WrongType, Symlink, WrongType, WrongType];
const ANY: [NfsStat4; 7] = [Ok; 7];

/// LOOKUP without a name of its own.
struct Bare(Nfs4Operation);

fn bare_on_each(fixture: &Fixture, Bare(operation): Bare) -> [NfsStat4; 7] {
    OBJECTS.map(|(object, _)| {
        fixture
            .run(|compound| {
                go(compound, &["one", object]);
                compound.bare(operation);
            })
            .status()
    })
}

#[test]
fn operations_that_need_a_directory_refuse_other_objects() {
    Fixture::with_each_tree(|fixture| {
        let attributes = Fattr4::default();
        let statuses = OBJECTS.map(|(object, _)| {
            let made = |kind, new| CreateArgs4 { kind, name: new, attributes };
            let fifo = fixture.on(&["one", object], &made(CreateType4::Fifo, name("new")));
            let other = fixture.on(&["one", object], &made(CreateType4::Directory, name("other")));
            assert_eq!(fifo, other);
            fifo
        });
        assert_eq!(statuses, DIRECTORY_ONLY);
        assert_eq!(on_each(fixture, &LookupArgs4 { name: name("new") }), LOOKUP_IN);
        assert_eq!(bare_on_each(fixture, Bare(Nfs4Operation::Lookupp)), LOOKUP_IN);
        assert_eq!(on_each(fixture, &SecinfoArgs4 { name: name("new") }), DIRECTORY_ONLY);
        assert_eq!(on_each(fixture, &SecinfoNoNameArgs4::Parent), DIRECTORY_ONLY);
        let listing = ReaddirArgs4 {
            cookie: 0,
            verifier: Verifier4::default(),
            directory_count: 4096,
            max_count: 4096,
            attributes: Bitmap4::EMPTY,
        };
        assert_eq!(on_each(fixture, &listing), DIRECTORY_ONLY);
        assert_eq!(on_each(fixture, &RemoveArgs4 { name: name("new") }), DIRECTORY_ONLY);
        let rename = RenameArgs4 { from: name("other"), to: name("other") };
        for (at, (object, _)) in OBJECTS.into_iter().enumerate() {
            let path = ["one", object];
            let directory = ["one", "directory"];
            assert_eq!(fixture.on_both(&path, &directory, &rename), DIRECTORY_ONLY[at], "{object}");
            assert_eq!(fixture.on_both(&directory, &path, &rename), DIRECTORY_ONLY[at], "{object}");
            let link = LinkArgs4 { name: name("linked") };
            assert_eq!(fixture.on_both(&["one", "file"], &path, &link), DIRECTORY_ONLY[at], "{object}");
        }
    });
}

#[test]
fn operations_on_data_refuse_other_objects_with_their_type() {
    Fixture::with_each_tree(|fixture| {
        assert_eq!(on_each(fixture, &CommitArgs4 { offset: 0, count: 0 }), FILE_ONLY);
        let read = ReadArgs4 { stateid: Stateid::ANONYMOUS, offset: 0, count: 10 };
        assert_eq!(on_each(fixture, &read), FILE_ONLY);
        let resize = AttributeValues { size: Some(3), ..AttributeValues::default() };
        fattr(&resize, |attributes| {
            let set = SetattrArgs4 { stateid: Stateid::ANONYMOUS, attributes };
            let files = [Ok, WrongType, WrongType, WrongType, WrongType, WrongType, WrongType];
            assert_eq!(on_each(fixture, &set), files);
        });
        let links = [WrongType, WrongType, WrongType, WrongType, Ok, WrongType, WrongType];
        assert_eq!(bare_on_each(fixture, Bare(Nfs4Operation::Readlink)), links);
    });
}

#[test]
fn a_directory_cannot_be_linked_and_everything_else_can() {
    Fixture::with_each_tree(|fixture| {
        for (object, kind) in OBJECTS {
            let new = format!("{object}-again");
            let link = LinkArgs4 { name: name(&new) };
            let expected = if kind == Ftype4::Directory { Isdir } else { Ok };
            assert_eq!(fixture.on_both(&["one", object], &["one"], &link), expected, "{object}");
        }
    });
}

#[test]
fn queries_take_any_object() {
    Fixture::with_each_tree(|fixture| {
        assert_eq!(on_each(fixture, &AccessArgs4 { access: 0x3f }), ANY);
        assert_eq!(
            on_each(
                fixture,
                &GetattrArgs4 { attributes: Attribute::supported(1).common(Attribute::READABLE) }
            ),
            ANY
        );
        assert_eq!(on_each(fixture, &SecinfoNoNameArgs4::Current), ANY);
        assert_eq!(on_each(fixture, &VerifyArgs4 { attributes: Fattr4::default() }), ANY);
    });
}

#[test]
fn access_grants_what_has_a_meaning_for_the_type() {
    let fixture = Fixture::new();
    for user in [0, 7] {
        fixture.become_user(user);
        for (object, kind) in OBJECTS {
            let all = if kind == Ftype4::Directory { 0x1f } else { 0x2d };
            for asked in 0..=0x3f {
                let reply = fixture.run(|compound| {
                    go(compound, &["one", object]);
                    compound.push(&AccessArgs4 { access: asked });
                });
                let ok: AccessOk4 = reply.after(2).next(Nfs4Operation::Access).unwrap();
                assert_eq!(ok.supported, asked & all, "{object} {asked:#x}");
                assert_eq!(ok.access & !ok.supported, 0, "{object} {asked:#x}");
                if user == 0 && kind == Ftype4::Directory {
                    assert_eq!(ok.access, ok.supported, "the superuser may do anything");
                }
            }
        }
    }
    for asked in [0x40, 0x80, 0x100, 0x200, 1 << 31] {
        assert_eq!(fixture.on(&["one"], &AccessArgs4 { access: asked }), Inval);
    }
    let newer = Fixture::with_minor(2);
    assert_eq!(newer.on(&["one"], &AccessArgs4 { access: 0x1ff }), Ok);
    assert_eq!(newer.on(&["one"], &AccessArgs4 { access: 0x200 }), Inval);
}

#[test]
fn the_pseudo_file_system_cannot_be_changed() {
    let fixture = Fixture::new();
    let create =
        CreateArgs4 { kind: CreateType4::Directory, name: name("new"), attributes: Fattr4::default() };
    assert_eq!(fixture.on(&[], &create), Rofs);
    assert_eq!(fixture.on(&["deep"], &create), Rofs);
    assert_eq!(fixture.on(&[], &RemoveArgs4 { name: name("one") }), Rofs);
    let unknown = Fattr4 { mask: Bitmap4::EMPTY.with(12), ..Fattr4::default() };
    for (how, existing, new) in [
        (CreateHow4::Unchecked(Fattr4::default()), Isdir, Rofs),
        (CreateHow4::Unchecked(unknown), Attrnotsupp, Rofs),
        (CreateHow4::Guarded(Fattr4::default()), Exist, Rofs),
        (CreateHow4::Exclusive(Verifier4([1; 8])), Exist, Rofs),
    ] {
        let make =
            |new| OpenArgs4 { how: OpenHow::Create(how), ..super::test_client::opening(new, "o", 3, 0) };
        let statuses = (fixture.on(&[], &make("deep")), fixture.on(&[], &make("new")));
        assert_eq!(statuses, (existing, new), "{how:?}");
    }
    let rename = RenameArgs4 { from: name("one"), to: name("two") };
    assert_eq!(fixture.on_both(&[], &["deep"], &rename), Rofs);
    assert_eq!(fixture.on_both(&[], &["one"], &rename), Xdev);
    assert_eq!(fixture.on_both(&["one"], &[], &rename), Xdev);
    assert_eq!(fixture.on_both(&["one"], &["deep", "two"], &rename), Xdev);
    assert_eq!(fixture.on_both(&["one", "file"], &["deep"], &LinkArgs4 { name: name("x") }), Xdev);
    let set = AttributeValues { mode: Some(0o777), ..AttributeValues::default() };
    fattr(&set, |attributes| {
        let set = SetattrArgs4 { stateid: Stateid::ANONYMOUS, attributes };
        assert_eq!(fixture.on(&[], &set), Rofs);
    });
    let readlink = fixture.run(|compound| {
        go(compound, &[]);
        compound.bare(Nfs4Operation::Readlink);
    });
    assert_eq!(readlink.status(), WrongType);
    assert_eq!(fixture.on(&[], &CommitArgs4 { offset: 0, count: 0 }), Isdir);
}

#[test]
fn operations_without_their_filehandles_say_so() {
    let fixture = Fixture::new();
    let alone = |build: &dyn Fn(&mut CompoundEncoder<'_>)| fixture.run(build).status();
    let name = name("x");
    let attributes = Fattr4::default();
    let calls: [&dyn Fn(&mut CompoundEncoder<'_>); 13] = [
        &|compound| compound.push(&AccessArgs4 { access: 1 }),
        &|compound| compound.push(&CommitArgs4 { offset: 0, count: 0 }),
        &|compound| compound.push(&CreateArgs4 { kind: CreateType4::Fifo, name, attributes }),
        &|compound| compound.push(&GetattrArgs4 { attributes: Bitmap4::EMPTY }),
        &|compound| compound.push(&LookupArgs4 { name }),
        &|compound| compound.bare(Nfs4Operation::Lookupp),
        &|compound| compound.bare(Nfs4Operation::Readlink),
        &|compound| compound.push(&VerifyArgs4 { attributes }),
        &|compound| compound.push(&NverifyArgs4 { attributes }),
        &|compound| compound.push(&RemoveArgs4 { name }),
        &|compound| compound.push(&SecinfoArgs4 { name }),
        &|compound| compound.push(&SecinfoNoNameArgs4::Current),
        &|compound| compound.push(&SetattrArgs4 { stateid: Stateid::ANONYMOUS, attributes }),
    ];
    for (at, call) in calls.into_iter().enumerate() {
        assert_eq!(alone(call), Nofilehandle, "{at}");
    }
    assert_eq!(fixture.on(&["one"], &RenameArgs4 { from: name, to: name }), Nofilehandle);
    assert_eq!(fixture.on(&["one"], &LinkArgs4 { name }), Nofilehandle);
}

#[test]
fn commit_refuses_what_is_no_file_and_nothing_else_whatever_the_export() {
    let plain = Fixture::new();
    let (read_only, asynchronous) =
        (ExportRules { read_only: true, ..rules() }, ExportRules { asynchronous: true, ..rules() });
    for rules in [read_only, asynchronous] {
        let fixture = Fixture::with_rules(rules);
        for (name, kind) in OBJECTS {
            let commit = CommitArgs4 { offset: 0, count: 0 };
            let status = fixture.on(&["one", name], &commit);
            assert_eq!(status, plain.on(&["one", name], &commit), "{name}");
            assert_eq!(status == Ok, kind == Ftype4::Regular);
        }
    }
}

/// No status of REMOVE and RENAME in RFC 8881 section 15.2 leads to EPERM at the client.
#[test]
fn a_name_that_the_sticky_bit_protects_is_refused_as_on_a_local_file_system() {
    Fixture::with_each_tree(|fixture| {
        let sticky = AttributeValues { mode: Some(0o1777), ..AttributeValues::default() };
        let set = fattr(&sticky, |attributes| {
            fixture.on(&["one"], &SetattrArgs4 { stateid: Stateid::ANONYMOUS, attributes })
        });
        assert_eq!(set, Ok);
        fixture.become_user(1000);
        assert_eq!(fixture.on(&["one"], &RemoveArgs4 { name: name("fifo") }), NfsStat4::Perm);
        let rename = RenameArgs4 { from: name("fifo"), to: name("other") };
        assert_eq!(fixture.on_both(&["one"], &["one"], &rename), NfsStat4::Perm);
    });
}

/// Data that were written before the export became read-only are made durable.
#[test]
fn commit_makes_data_of_a_read_only_export_durable() {
    let vfs = Arc::new(MemoryVfs::new(MemoryOptions::default()));
    let fixture = Fixture::over(Arc::<MemoryVfs>::clone(&vfs), 1, ExportRules { read_only: true, ..rules() });
    let commit = CommitArgs4 { offset: 0, count: 0 };
    for (errno, status) in [(Errno::IO, NfsStat4::Io), (Errno::ROFS, Ok)] {
        vfs.fail_next(FaultPoint::Commit, Error::Os(errno), 1);
        assert_eq!(fixture.on(&["one", "file"], &commit), status);
    }
}
