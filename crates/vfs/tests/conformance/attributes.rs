//! Reading and setting attributes.

use curt_types::{Access, FileKind, SetAttributes, SetTime, Stability, Timestamp};
use curt_vfs::{Error, FsCred, HandleChoice, NewNode, SpecialFile};
use rustix::io::Errno;

use crate::trees::{OTHER, OWNER, ROOT, ReadBytes as _, disk, errno, everywhere, is_root, local};

#[test]
fn a_guard_that_does_not_match_changes_nothing() {
    everywhere(|tree| {
        let file = tree.file(&tree.root(), "file", 0o644);
        let set = SetAttributes::with_mode(0o600);
        let ctime = file.attributes.ctime;
        let wrong = Timestamp::new(ctime.seconds() - 1, ctime.nanoseconds());
        let refused = tree.vfs.set_attributes(&OWNER, &file.handle, &set, Some(wrong));
        assert_eq!((refused.value, refused.after.unwrap().mode), (Err(Error::NotSync), 0o644));
        let done = tree.vfs.set_attributes(&OWNER, &file.handle, &set, Some(ctime));
        assert_eq!((done.value, done.after.unwrap().mode), (Ok(()), 0o600));
        assert_eq!(done.before.unwrap().stamp().changed_at(), Some(ctime));
    });
}

#[test]
fn times_have_nanoseconds_or_come_from_the_server() {
    everywhere(|tree| {
        let file = tree.file(&tree.root(), "file", 0o644).handle;
        let atime = Timestamp::new(1_000_000_001, 123_456_789);
        let mtime = Timestamp::new(1_000_000_002, 987_654_321);
        let set = SetAttributes {
            atime: SetTime::Time(atime),
            mtime: SetTime::Time(mtime),
            ..SetAttributes::default()
        };
        let after = tree.set(&OWNER, &file, &set).after.unwrap();
        assert_eq!((after.atime, after.mtime), (atime, mtime));
        let set = SetAttributes { mtime: SetTime::ServerTime, ..SetAttributes::default() };
        let after = tree.set(&OWNER, &file, &set).after.unwrap();
        assert_eq!(after.atime, atime);
        assert!(after.mtime.seconds() > 1_700_000_000, "{:?}", after.mtime);
    });
}

#[test]
fn who_may_write_sets_times_to_now_and_only_the_owner_to_anything_else() {
    everywhere(|tree| {
        let file = tree.file(&tree.root(), "file", 0o646).handle;
        let now = SetAttributes { mtime: SetTime::ServerTime, ..SetAttributes::default() };
        let both = SetAttributes { atime: SetTime::ServerTime, ..now };
        let exact = SetAttributes { atime: SetTime::Time(Timestamp::default()), ..SetAttributes::default() };
        assert_eq!(errno(tree.set(&OTHER, &file, &now).value), None);
        assert_eq!(errno(tree.set(&OTHER, &file, &both).value), None);
        assert_eq!(errno(tree.set(&OTHER, &file, &exact).value), Some(Errno::PERM));
        tree.set(&OWNER, &file, &SetAttributes::with_mode(0o444)).value.unwrap();
        assert_eq!(errno(tree.set(&OTHER, &file, &now).value), Some(Errno::ACCESS));
        assert_eq!(errno(tree.set(&OWNER, &file, &now).value), None);
    });
}

#[test]
fn suid_and_sgid_bits_do_not_survive_a_write_a_truncation_or_a_new_owner() {
    everywhere(|tree| {
        let size = SetAttributes { size: Some(0), ..SetAttributes::default() };
        let owner = SetAttributes { uid: Some(3000), ..SetAttributes::default() };
        let owner_and_mode = SetAttributes { mode: Some(0o6777), ..owner };
        for (number, caller) in [ROOT, OWNER, OTHER].iter().enumerate() {
            let file = tree.file(&tree.root(), &format!("write{number}"), 0o6777).handle;
            let changed = tree.vfs.write(caller, &file, 0, b"x", Stability::Unstable);
            assert_eq!(changed.after.unwrap().mode, 0o777, "write by {caller:?}");
            let file = tree.file(&tree.root(), &format!("size{number}"), 0o6777).handle;
            assert_eq!(tree.set(caller, &file, &size).after.unwrap().mode, 0o777, "size by {caller:?}");
        }
        let file = tree.file(&tree.root(), "chown", 0o6777).handle;
        assert_eq!(tree.set(&ROOT, &file, &owner).after.unwrap().mode, 0o777);
        assert_eq!(tree.set(&ROOT, &file, &owner_and_mode).after.unwrap().mode, 0o777);
        let directory = tree.directory(&tree.root(), "directory", 0o2777).handle;
        assert_eq!(tree.set(&ROOT, &directory, &owner).after.unwrap().mode, 0o2777);
    });
}

#[test]
fn root_sets_the_setgid_bit_for_groups_that_it_is_not_in_and_others_do_not() {
    everywhere(|tree| {
        let file = tree.file(&tree.root(), "file", 0o755).handle;
        let group = SetAttributes { gid: Some(4000), ..SetAttributes::default() };
        tree.set(&ROOT, &file, &group).value.unwrap();
        let setgid = SetAttributes::with_mode(0o2755);
        assert_eq!(tree.set(&ROOT, &file, &setgid).after.unwrap().mode, 0o2755);
        assert_eq!(tree.set(&OWNER, &file, &setgid).after.unwrap().mode, 0o755);
        let member = FsCred { groups: &[4000], ..OWNER };
        assert_eq!(tree.set(&member, &file, &setgid).after.unwrap().mode, 0o2755);
    });
}

#[test]
fn a_setgid_directory_gives_its_group_and_its_bit() {
    everywhere(|tree| {
        let directory = tree.directory(&tree.root(), "directory", 0o2777).handle;
        let file = tree.guarded(&OTHER, &directory, "file", 0o2755).unwrap().node.attributes;
        assert_eq!((file.uid, file.gid, file.mode), (OTHER.uid, OWNER.gid, 0o755));
        let set = SetAttributes::with_mode(0o755);
        let below = tree
            .vfs
            .make(&OTHER, &directory, b"below", NewNode::Directory(&set))
            .value
            .unwrap()
            .node
            .attributes;
        assert_eq!((below.uid, below.gid, below.mode), (OTHER.uid, OWNER.gid, 0o2755));
        let stored = tree.guarded(&ROOT, &directory, "kept", 0o2755).unwrap().node.attributes;
        assert_eq!((stored.gid, stored.mode), (OWNER.gid, 0o2755));
    });
}

#[test]
fn access_answers_what_makes_sense_for_the_kind() {
    everywhere(|tree| {
        let root = tree.root();
        let everything = Access::from_bits(u32::MAX);
        let directory = tree.directory(&root, "directory", 0o755).handle;
        let file = tree.file(&root, "file", 0o640).handle;
        let granted = |caller, node| tree.vfs.access(caller, node, everything).value.unwrap().bits();
        assert_eq!(granted(&OWNER, &directory), 0x1f);
        assert_eq!(granted(&OTHER, &directory), 0x03);
        assert_eq!(granted(&OWNER, &file), 0x0d);
        assert_eq!(granted(&OTHER, &file), 0);
        assert_eq!(granted(&ROOT, &file), 0x0d);
        assert_eq!(tree.vfs.access(&OWNER, &file, Access::EXTEND).value, Ok(Access::EXTEND));
    });
}

#[test]
fn each_kind_of_object_reports_its_type() {
    everywhere(|tree| {
        let root = tree.root();
        let set = SetAttributes::with_mode(0o640);
        let number = curt_types::Device { major: 250, minor: 70_000 };
        let rows = [
            (SpecialFile::Fifo, FileKind::Fifo),
            (SpecialFile::Socket, FileKind::Socket),
            (SpecialFile::CharacterDevice(number), FileKind::CharacterDevice),
            (SpecialFile::BlockDevice(number), FileKind::BlockDevice),
        ];
        for (at, (special, kind)) in rows.into_iter().enumerate() {
            let name = format!("special{at}");
            let made =
                tree.vfs.make(&ROOT, &root, name.as_bytes(), NewNode::Special(special, &set)).value.unwrap();
            let found = tree.lookup(&root, &name).unwrap();
            assert_eq!((found.handle, found.attributes.kind), (made.node.handle, kind));
            assert_eq!(found.attributes.mode, 0o640);
            if at >= 2 {
                assert_eq!(found.attributes.rdev, number);
                let refused = tree.vfs.make(&OWNER, &root, b"refused", NewNode::Special(special, &set)).value;
                assert!(matches!(errno(refused), Some(Errno::PERM | Errno::ACCESS)));
            }
        }
    });
}

#[test]
fn a_symlink_returns_its_target_and_its_mode_stays() {
    everywhere(|tree| {
        let root = tree.root();
        let set = SetAttributes::with_mode(0o640);
        let long = vec![b't'; 1000];
        let link = tree.vfs.make(
            &OWNER,
            &tree.directory(&root, "d", 0o777).handle,
            b"l",
            NewNode::Symlink(&long, &set),
        );
        let link = link.value.unwrap().node;
        assert_eq!(
            (link.attributes.kind, link.attributes.size, link.attributes.mode),
            (FileKind::Symlink, 1000, 0o777)
        );
        let mut target = Vec::new();
        assert_eq!(tree.vfs.read_link(&OTHER, &link.handle, &mut target).value, Ok(()));
        assert_eq!(target, long);
        assert_eq!(errno(tree.vfs.read_link(&OTHER, &root, &mut target).value), Some(Errno::INVAL));
        tree.set(&OWNER, &link.handle, &SetAttributes::with_mode(0o600)).value.unwrap();
        assert_eq!(tree.attributes(&link.handle).mode, 0o777);
    });
}

#[test]
fn limits_and_space_are_reported() {
    everywhere(|tree| {
        let limits = tree.vfs.limits(&tree.root()).value.unwrap();
        assert_eq!(limits.name_max, 255);
        assert!(limits.links && limits.symlinks && !limits.case_insensitive);
        assert!(limits.link_max >= 65_000 && limits.file_size_max >= 1 << 40);
        let space = tree.vfs.space(&tree.root()).value.unwrap();
        assert!(space.bytes_total >= space.bytes_free && space.bytes_free >= space.bytes_available);
        assert!(space.bytes_available > 0);
    });
}

/// An access control list (acl(5)) in the kernel's format: version 2, then tag, permissions and id
/// of each entry.
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        bytes.extend([tag.to_le_bytes(), rights.to_le_bytes()].concat());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

#[test]
fn access_control_lists_count_as_the_kernel_counts_them() {
    const NOBODY: u32 = u32::MAX;
    if !is_root() {
        return;
    }
    for choice in [HandleChoice::Kernel, HandleChoice::Table] {
        let tree = local("disk", disk(), choice);
        let root = tree.root();
        let shared = tree.file(&root, "shared", 0o640).handle;
        let path = tree.place.as_ref().unwrap().served.join("shared");
        // The owner rw, user 2000 rw, the group nothing, the mask rw, others r.
        let list =
            acl(&[(1, 6, NOBODY), (2, 6, OTHER.uid), (4, 0, NOBODY), (16, 6, NOBODY), (32, 4, NOBODY)]);
        rustix::fs::setxattr(&path, "system.posix_acl_access", &list, rustix::fs::XattrFlags::empty())
            .unwrap();
        let member = FsCred { uid: 5000, gid: OWNER.gid, groups: &[], privileged: false };
        let stranger = FsCred::new(6000, 6000, &[]);
        let rows =
            [(OTHER, 0x0d, None), (member, 0, Some(Errno::ACCESS)), (stranger, 0x01, Some(Errno::ACCESS))];
        for (caller, granted, refused) in rows {
            let access = tree.vfs.access(&caller, &shared, Access::from_bits(0x3f)).value.unwrap();
            assert_eq!(access.bits(), granted, "{caller:?}");
            assert_eq!(errno(tree.write(&caller, &shared, 0, b"x")), refused, "{caller:?}");
            let read = tree.vfs.read(&caller, &shared, 0, 1, &mut Vec::new()).value;
            assert_eq!(read.is_ok(), granted & 1 != 0, "{caller:?}");
        }
    }
}
