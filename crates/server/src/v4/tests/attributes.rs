//! GETATTR, VERIFY and NVERIFY.

use curt_proto::nfs4::NfsStat4::{Attrnotsupp, Badxdr, Inval, NotSame, Ok, Same};
use curt_proto::nfs4::*;
use curt_xdr::Opaque;

use super::fixture::{Fixture, OBJECTS, fattr, go};
use super::test_client::rules;
use crate::ExportRules;

fn readable(minor_version: u32) -> Bitmap4 {
    Attribute::supported(minor_version).common(Attribute::READABLE)
}

#[test]
fn all_readable_attributes_are_returned_in_each_minor_version() {
    for minor_version in [1, 2] {
        let fixture = Fixture::with_minor(minor_version);
        let mandatory = [
            Attribute::SupportedAttrs,
            Attribute::Type,
            Attribute::FhExpireType,
            Attribute::Change,
            Attribute::Size,
            Attribute::LinkSupport,
            Attribute::SymlinkSupport,
            Attribute::NamedAttr,
            Attribute::Fsid,
            Attribute::UniqueHandles,
            Attribute::LeaseTime,
            Attribute::RdattrError,
            Attribute::Filehandle,
            Attribute::SuppattrExclcreat,
        ];
        for path in [&["one", "file"][..], &["one"], &["deep"], &[]] {
            fixture.getattr(path, readable(minor_version), |values, mask| {
                assert_eq!(mask, readable(minor_version));
                assert_eq!(values.supported_attrs, Some(Attribute::supported(minor_version)));
                assert!(Attribute::set(&mandatory).without(mask).is_empty());
            });
        }
    }
}

#[test]
fn values_are_those_of_the_object() {
    let fixture = Fixture::new();
    for (object, kind) in OBJECTS {
        let own = fixture.attributes(object);
        fixture.getattr(&["one", object], readable(1), |values, _| {
            assert_eq!(values.kind, Some(kind));
            assert_eq!((values.size, values.fileid), (Some(own.size), Some(own.fileid)));
            assert_eq!(values.mounted_on_fileid, Some(own.fileid));
            assert_eq!((values.mode, values.numlinks), (Some(own.mode), Some(own.nlink)));
            assert_eq!(values.owner.unwrap().bytes(), own.uid.to_string().as_bytes());
            assert_eq!(values.owner_group.unwrap().bytes(), own.gid.to_string().as_bytes());
            assert_eq!(values.rawdev, Some(own.rdev.into()));
            assert_eq!(values.space_used, Some(own.used));
            let times = [values.time_access, values.time_modify, values.time_metadata];
            assert_eq!(times, [own.atime, own.mtime, own.ctime].map(|time| Some(NfsTime4::from(time))));
            assert_eq!(values.change, Some(own.ctime.as_nanoseconds().cast_unsigned()));
            // Nothing has changed it since.
            assert_eq!(values.time_create, Some(own.ctime.into()));
            assert_eq!(values.lease_time, Some(90));
            assert!(values.maxname.is_some_and(|most| most == 255));
            assert!(values.space_total.is_some_and(|total| total > 0));
        });
    }
}

#[test]
fn handles_under_subtree_check_are_neither_unique_nor_valid_after_a_rename() {
    let of = Attribute::set(&[Attribute::FhExpireType, Attribute::UniqueHandles]);
    let values = |fixture: &Fixture, path: &[&str]| {
        fixture
            .getattr(path, of, |values, _| (values.fh_expire_type.unwrap(), values.unique_handles.unwrap()))
    };
    for (subtree_check, expected) in [(true, (8, false)), (false, (0, true))] {
        let fixture = Fixture::with_rules(ExportRules { subtree_check, ..rules() });
        assert_eq!(values(&fixture, &["one", "file"]), expected);
        // READDIR reports the same.
        let listing = ReaddirArgs4 {
            cookie: 0,
            verifier: Verifier4::default(),
            directory_count: 8192,
            max_count: 8192,
            attributes: of,
        };
        let reply = fixture.run(|compound| {
            go(compound, &["one"]);
            compound.push(&listing);
        });
        let mut results = reply.after(1);
        assert_eq!(results.status(Nfs4Operation::Readdir), Result::Ok(Ok));
        let decoder = results.decoder();
        assert_eq!(decoder.get::<Verifier4>().unwrap(), Verifier4::default());
        let ListingItem4::Entry(entry) = decoder.get().unwrap() else { panic!("it is not empty") };
        let listed = AttributeValues::decode(&entry.attributes).unwrap();
        assert_eq!((listed.fh_expire_type, listed.unique_handles), (Some(expected.0), Some(expected.1)));
        // The pseudo file system has no such handles.
        assert_eq!(values(&fixture, &[]), (0, true));
    }
}

#[test]
fn the_root_of_an_export_has_a_file_system_of_its_own_and_covers_a_directory() {
    let fixture = Fixture::new();
    let mask = Attribute::set(&[Attribute::Fsid, Attribute::Fileid, Attribute::MountedOnFileid]);
    let of = |path: &[&str]| {
        fixture.getattr(path, mask, |values, _| {
            (values.fsid.unwrap(), values.fileid.unwrap(), values.mounted_on_fileid.unwrap())
        })
    };
    let (root, one, two) = (of(&[]), of(&["one"]), of(&["deep", "two"]));
    assert_eq!(root.0, of(&["deep"]).0);
    assert!(root.0 != one.0 && root.0 != two.0 && one.0 != two.0);
    assert_eq!(root.1, root.2);
    assert_ne!(one.1, one.2);
}

#[test]
fn attributes_that_are_unknown_are_left_out_and_those_that_can_only_be_set_are_refused() {
    let fixture = Fixture::new();
    let others = Attribute::set(&[Attribute::Acl, Attribute::TimeBackup, Attribute::XattrSupport]).with(95);
    fixture.getattr(&["one"], others, |_, mask| assert!(mask.is_empty()));
    let newer = Fixture::with_minor(2);
    newer.getattr(&["one"], others, |values, mask| {
        assert_eq!(mask, Attribute::set(&[Attribute::XattrSupport]));
        assert_eq!(values.xattr_support, Some(false));
    });
    for attribute in Attribute::ALL.iter().filter(|one| !one.allows().readable()) {
        let attributes = Attribute::set(&[*attribute, Attribute::Type]);
        assert_eq!(fixture.on(&["one"], &GetattrArgs4 { attributes }), Inval);
    }
    // More words than there are attributes.
    let reply = fixture.run(|compound| {
        go(compound, &["one"]);
        compound.push(&ManyWords);
    });
    assert_eq!(reply.status(), Ok);
}

/// GETATTR with a bitmap of eight words.
struct ManyWords;

impl curt_xdr::Encode for ManyWords {
    fn encode(&self, out: &mut Vec<u8>) {
        for word in [8_u32, 2, 0, 0, 0, 0, 0, 0, 1 << 31] {
            word.encode(out);
        }
    }
}

impl OperationArguments for ManyWords {
    const OPERATION: Nfs4Operation = Nfs4Operation::Getattr;
}

fn both(fixture: &Fixture, values: &AttributeValues<'_>) -> [NfsStat4; 2] {
    fattr(values, |attributes| {
        [
            fixture.on(&["one", "file"], &VerifyArgs4 { attributes }),
            fixture.on(&["one", "file"], &NverifyArgs4 { attributes }),
        ]
    })
}

#[test]
fn verify_and_nverify_compare_all_attributes_given() {
    let fixture = Fixture::new();
    let mask = readable(1).without(Attribute::set(&[Attribute::RdattrError]));
    let reply = fixture.run(|compound| {
        go(compound, &["one", "file"]);
        compound.push(&GetattrArgs4 { attributes: mask });
    });
    let got: GetattrOk4<'_> = reply.after(2).next(Nfs4Operation::Getattr).unwrap();
    let mut values = AttributeValues::decode(&got.attributes).unwrap();
    assert_eq!(both(&fixture, &values), [Ok, Same]);
    values.size = Some(1);
    assert_eq!(both(&fixture, &values), [NotSame, Ok]);
    let one = AttributeValues { kind: Some(Ftype4::Regular), ..AttributeValues::default() };
    assert_eq!(both(&fixture, &one), [Ok, Same]);
    let other = AttributeValues { kind: Some(Ftype4::Directory), ..AttributeValues::default() };
    assert_eq!(both(&fixture, &other), [NotSame, Ok]);
}

#[test]
fn verify_refuses_what_cannot_be_compared() {
    let fixture = Fixture::new();
    let default = AttributeValues::default;
    let set = Some(SetTime4::ServerTime);
    let rows = [
        (AttributeValues { time_access_set: set, ..default() }, Inval),
        (AttributeValues { time_modify_set: set, ..default() }, Inval),
        (AttributeValues { rdattr_error: Some(Ok), ..default() }, Inval),
        (AttributeValues { mode: Some(0o10_000), ..default() }, Inval),
        (AttributeValues { archive: Some(true), ..default() }, Attrnotsupp),
        (AttributeValues { time_backup: Some(NfsTime4::default()), ..default() }, Attrnotsupp),
        (AttributeValues { xattr_support: Some(false), ..default() }, Attrnotsupp),
    ];
    for (values, expected) in rows {
        assert_eq!(both(&fixture, &values), [expected; 2], "{values:?}");
    }
    let acl = Fattr4 { mask: Attribute::set(&[Attribute::Acl]), values: Opaque::default() };
    assert_eq!(fixture.on(&["one"], &VerifyArgs4 { attributes: acl }), Attrnotsupp);
    let mask = Attribute::set(&[Attribute::Size]);
    for values in [&[0; 4][..], &[0; 12]] {
        let attributes = Fattr4 { mask, values: Opaque::new(values).unwrap() };
        assert_eq!(fixture.on(&["one"], &VerifyArgs4 { attributes }), Badxdr);
    }
}
