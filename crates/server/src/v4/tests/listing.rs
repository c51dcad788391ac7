//! READDIR.

use std::collections::BTreeMap;

use curt_proto::nfs4::NfsStat4::{Access, BadCookie, Inval, NotSame, Ok, Toosmall};
use curt_proto::nfs4::*;

use super::fixture::{Fixture, OBJECTS, fattr, go, name};

const EVERYTHING: ReaddirArgs4 = ReaddirArgs4 {
    cookie: 0,
    verifier: Verifier4([0; 8]),
    directory_count: 0,
    max_count: 1 << 16,
    attributes: Bitmap4::EMPTY,
};

/// An entry that was listed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Listed {
    name: String,
    kind: Option<Ftype4>,
    fileid: Option<u64>,
    error: Option<NfsStat4>,
    handle: Option<Vec<u8>>,
}

/// One READDIR's entries, the cookie of the last, and whether the directory ends with it.
struct Page {
    entries: Vec<Listed>,
    cookie: u64,
    eof: bool,
}

fn page(fixture: &Fixture, path: &[&str], arguments: &ReaddirArgs4) -> Page {
    let reply = fixture.run(|compound| {
        go(compound, path);
        compound.push(arguments);
    });
    let mut results = reply.after(path.len());
    assert_eq!(results.status(Nfs4Operation::Readdir), Result::Ok(Ok));
    let decoder = results.decoder();
    let begin = decoder.remaining().len();
    assert_eq!(decoder.get::<Verifier4>().unwrap(), Verifier4::default());
    let mut page = Page { entries: Vec::new(), cookie: 0, eof: false };
    loop {
        match decoder.get().unwrap() {
            ListingItem4::Entry(entry) => {
                let values = AttributeValues::decode(&entry.attributes).unwrap();
                page.cookie = entry.cookie;
                page.entries.push(Listed {
                    name: String::from_utf8(entry.name.bytes().to_vec()).unwrap(),
                    kind: values.kind,
                    fileid: values.fileid.or(values.mounted_on_fileid),
                    error: values.rdattr_error,
                    handle: values.filehandle.map(|handle| handle.bytes().to_vec()),
                });
            }
            ListingItem4::End(eof) => {
                page.eof = eof;
                let size = begin - decoder.remaining().len();
                assert!(size <= usize::try_from(arguments.max_count).unwrap(), "the limit holds");
                return page;
            }
        }
    }
}

/// All entries, by as many READDIRs as are needed.
fn list(fixture: &Fixture, path: &[&str], arguments: ReaddirArgs4) -> Vec<Listed> {
    let (mut all, mut cookie) = (Vec::new(), 0);
    loop {
        let Page { entries, cookie: last, eof } = page(fixture, path, &ReaddirArgs4 { cookie, ..arguments });
        assert!(eof || !entries.is_empty());
        all.extend(entries);
        cookie = last;
        if eof {
            return all;
        }
    }
}

fn names(listed: &[Listed]) -> Vec<&str> {
    let mut names: Vec<_> = listed.iter().map(|entry| entry.name.as_str()).collect();
    names.sort_unstable();
    names
}

fn expected() -> Vec<&'static str> {
    let mut names = OBJECTS.map(|(name, _)| name);
    names.sort_unstable();
    names.to_vec()
}

#[test]
fn each_name_is_listed_once_whatever_the_limits() {
    Fixture::with_each_tree(|fixture| {
        let attributes = Attribute::set(&[Attribute::Type, Attribute::Fileid, Attribute::Filehandle]);
        for attributes in [Bitmap4::EMPTY, Attribute::set(&[Attribute::MountedOnFileid]), attributes] {
            for max_count in [200, 300, 512, 1 << 16, u32::MAX] {
                for directory_count in [0, 1, 50, 4096] {
                    let arguments = ReaddirArgs4 { max_count, directory_count, attributes, ..EVERYTHING };
                    assert_eq!(names(&list(fixture, &["one"], arguments)), expected());
                }
            }
        }
        let one = page(fixture, &["one"], &ReaddirArgs4 { directory_count: 1, ..EVERYTHING });
        assert_eq!(one.entries.len(), 1, "dircount limits a page to the first entry");
    });
}

#[test]
fn entries_have_the_attributes_of_their_objects() {
    Fixture::with_each_tree(|fixture| {
        let wanted = [Attribute::Type, Attribute::Fileid, Attribute::Filehandle, Attribute::RdattrError];
        let listed =
            list(fixture, &["one"], ReaddirArgs4 { attributes: Attribute::set(&wanted), ..EVERYTHING });
        let listed: BTreeMap<_, _> = listed.into_iter().map(|entry| (entry.name.clone(), entry)).collect();
        for (object, kind) in OBJECTS {
            let entry = &listed[object];
            assert_eq!((entry.kind, entry.error), (Some(kind), Some(Ok)));
            assert_eq!(entry.fileid, Some(fixture.attributes(object).fileid));
            let handle = NfsFh4::new(entry.handle.as_ref().unwrap()).unwrap();
            let reply = fixture.run(|compound| {
                compound.push(&PutfhArgs4 { object: handle });
                compound.push(&GetattrArgs4 { attributes: Attribute::set(&[Attribute::Fileid]) });
            });
            assert_eq!(reply.status(), Ok, "the handle is usable");
        }
    });
}

#[test]
fn the_pseudo_file_system_lists_the_roots_of_exports() {
    let fixture = Fixture::new();
    let wanted = Attribute::set(&[Attribute::Fileid, Attribute::Filehandle, Attribute::Type]);
    let listed = list(&fixture, &[], ReaddirArgs4 { attributes: wanted, ..EVERYTHING });
    assert_eq!(names(&listed), ["deep", "one"]);
    for entry in &listed {
        let path = [entry.name.as_str()];
        fixture.getattr(&path, wanted, |values, _| {
            assert_eq!(values.fileid, entry.fileid);
            assert_eq!(values.filehandle.unwrap().bytes(), entry.handle.as_deref().unwrap());
        });
    }
    let small = ReaddirArgs4 { max_count: 150, attributes: wanted, ..EVERYTHING };
    assert_eq!(names(&list(&fixture, &[], small)), ["deep", "one"]);
}

#[test]
fn readdir_refuses_reserved_cookies_other_verifiers_and_limits_that_are_too_small() {
    let fixture = Fixture::new();
    let on = |arguments: ReaddirArgs4| fixture.on(&["one"], &arguments);
    for cookie in [1, 2] {
        assert_eq!(on(ReaddirArgs4 { cookie, ..EVERYTHING }), BadCookie);
    }
    let first = page(&fixture, &["one"], &ReaddirArgs4 { max_count: 200, ..EVERYTHING });
    let verifier = Verifier4([7; 8]);
    assert_eq!(on(ReaddirArgs4 { cookie: first.cookie, verifier, ..EVERYTHING }), NotSame);
    assert_eq!(on(ReaddirArgs4 { verifier, ..EVERYTHING }), BadCookie);
    for max_count in [0, 1, 15, 16, 40] {
        assert_eq!(on(ReaddirArgs4 { max_count, ..EVERYTHING }), Toosmall, "{max_count}");
    }
    let attributes = Attribute::set(&[Attribute::TimeAccessSet]);
    assert_eq!(on(ReaddirArgs4 { attributes, ..EVERYTHING }), Inval);
    let empty = page(&fixture, &["one", "directory"], &ReaddirArgs4 { max_count: 16, ..EVERYTHING });
    assert!(empty.eof && empty.entries.is_empty(), "an empty directory fits into sixteen bytes");
}

#[test]
fn a_directory_without_permission_is_not_listed_and_one_without_search_says_why() {
    let fixture = Fixture::new();
    let mode = |fixture: &Fixture, mode| {
        let values = AttributeValues { mode: Some(mode), ..AttributeValues::default() };
        fattr(&values, |attributes| {
            let set = SetattrArgs4 { stateid: Stateid::ANONYMOUS, attributes };
            assert_eq!(fixture.on(&["one", "directory"], &set), Ok);
        });
    };
    let inner = CreateArgs4 { kind: CreateType4::Fifo, name: name("inner"), attributes: Fattr4::default() };
    assert_eq!(fixture.on(&["one", "directory"], &inner), Ok);
    mode(&fixture, 0);
    fixture.become_user(7);
    assert_eq!(fixture.on(&["one", "directory"], &EVERYTHING), Access);
    fixture.become_user(0);
    mode(&fixture, 0o444);
    fixture.become_user(7);
    let path = ["one", "directory"];
    let attributes = Attribute::set(&[Attribute::Type, Attribute::MountedOnFileid]);
    assert_eq!(fixture.on(&path, &ReaddirArgs4 { attributes, ..EVERYTHING }), Access);
    let attributes = attributes.with(Attribute::RdattrError.number());
    let listed = list(&fixture, &path, ReaddirArgs4 { attributes, ..EVERYTHING });
    assert_eq!(names(&listed), ["inner"]);
    assert_eq!((listed[0].error, listed[0].kind), (Some(Access), None));
    assert!(listed[0].fileid.is_some());
}
