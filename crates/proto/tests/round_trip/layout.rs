//! Exact layouts, limits, and tables of numbers.

use curt_proto::mount3::{self, DirPath};
use curt_proto::nfs3::*;
use curt_xdr::{Decode as _, DecodeError, decode_all};

use crate::survival::bytes_of;

#[test]
fn attributes_are_laid_out_as_fattr3() {
    let fattr = Fattr {
        kind: Ftype::Directory,
        mode: 0o755,
        nlink: 3,
        uid: 4,
        gid: 5,
        size: 6,
        used: 7,
        rdev: SpecData { major: 8, minor: 9 },
        fsid: 10,
        fileid: Fileid(11),
        atime: NfsTime { seconds: 12, nanoseconds: 13 },
        mtime: NfsTime { seconds: 14, nanoseconds: 15 },
        ctime: NfsTime { seconds: 16, nanoseconds: 17 },
    };
    let words: Vec<u32> =
        bytes_of(&fattr).as_chunks::<4>().0.iter().map(|w| u32::from_be_bytes(*w)).collect();
    assert_eq!(words, [2, 0o755, 3, 4, 5, 0, 6, 0, 7, 8, 9, 0, 10, 0, 11, 12, 13, 14, 15, 16, 17]);
}

#[test]
fn limits_of_the_protocol_hold_at_the_bound_and_not_beyond() {
    assert!(NfsFh3::new(&[0; 64]).is_ok());
    assert!(NfsFh3::new(&[0; 65]).is_err());
    let long = |length: usize| {
        let mut bytes = u32::try_from(length).unwrap().to_be_bytes().to_vec();
        bytes.resize(4 + length.next_multiple_of(4), 0);
        bytes
    };
    assert!(decode_all::<NfsFh3>(&long(64)).is_ok());
    assert!(matches!(decode_all::<NfsFh3>(&long(65)), Err(DecodeError::TooLong { .. })));
    assert!(decode_all::<Filename<'_>>(&long(FILENAME_MAX)).is_ok());
    assert!(matches!(decode_all::<Filename<'_>>(&long(FILENAME_MAX + 1)), Err(DecodeError::TooLong { .. })));
    assert!(decode_all::<DirPath<'_>>(&long(1024)).is_ok());
    assert!(matches!(decode_all::<DirPath<'_>>(&long(1025)), Err(DecodeError::TooLong { .. })));
    let head =
        WriteHead { file: NfsFh3::new(b"f").unwrap(), offset: 1, count: 3, stable: StableHow::Unstable };
    let mut whole = bytes_of(&head);
    whole.extend_from_slice(b"abc\0");
    let arguments: WriteArguments<'_> = decode_all(&whole).unwrap();
    assert_eq!((arguments.count, arguments.data.bytes()), (3, &b"abc"[..]));
}

#[test]
fn tables_of_numbers_are_complete_and_invertible() {
    for (index, procedure) in NfsProcedure::ALL.iter().enumerate() {
        assert_eq!(usize::try_from(procedure.number()).unwrap(), index);
        assert_eq!(NfsProcedure::from_number(procedure.number()), Some(*procedure));
    }
    assert_eq!(NfsProcedure::from_number(22), None);
    for status in NfsStat3::ALL {
        assert_eq!(NfsStat3::from_number(status.number()), Some(*status));
        assert_eq!(decode_all::<NfsStat3>(&bytes_of(status)), Ok(*status));
    }
    assert_eq!(NfsStat3::from_number(3), None);
    assert!(matches!(decode_all::<NfsStat3>(&[0, 0, 0, 3]), Err(DecodeError::BadValue { value: 3, .. })));
    for status in mount3::MountStat3::ALL {
        assert_eq!(mount3::MountStat3::from_number(status.number()), Some(*status));
    }
    for procedure in mount3::MountProcedure::ALL {
        assert_eq!(mount3::MountProcedure::from_number(procedure.number()), Some(procedure));
    }
}

#[test]
fn equal_handles_hash_alike_whatever_was_behind_them() {
    use std::hash::{BuildHasher, RandomState};
    let state = RandomState::new();
    let bytes = bytes_of(&NfsFh3::new(b"same").unwrap());
    let decoded = NfsFh3::decode(&mut curt_xdr::Decoder::new(&bytes)).unwrap();
    let made = NfsFh3::new(b"same").unwrap();
    assert_eq!(decoded, made);
    assert_eq!(state.hash_one(decoded), state.hash_one(made));
    assert_eq!(format!("{made:?}"), "NfsFh3(73616d65)");
}
