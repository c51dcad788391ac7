//! Numbers at the limits of 31, 32, 63 and 64 bits, in every size, offset, count and cookie
//! (CVE-2021-47107: READDIR with count 0; CVE-2022-48828: a negative size; CVE-2022-43945: a reply
//! at exactly the limit).

use curt_proto::nfs3::{
    CommitArguments, CommitOk, Cookie, CookieVerf3, CreateArguments, CreateHow, DATA_MAX, DirOpArgs,
    Filename, MkdirArguments, MknodArguments, MknodData, NfsPath, NfsProcedure, NfsResult, NfsStat3, NfsTime,
    ReadArguments, ReaddirArguments, ReaddirPlusArguments, Sattr, SetattrArguments, StableHow,
    SymlinkArguments, TimeHow, WccData, WriteArguments, WriteOk,
};
use curt_rpc::message::AcceptStatus;
use curt_xdr::Opaque;

use crate::calls::{World, bytes, call, status};
use crate::wire::Refused;

const EDGES: [u64; 14] = [
    0,
    1,
    4095,
    4096,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 32,
    (1 << 63) - 1,
    1 << 63,
    (1 << 63) + 1,
    u64::MAX - 1,
    u64::MAX - (1 << 20),
    u64::MAX,
];
const COUNTS: [u32; 8] = [0, 1, 3, 4096, (1 << 20) + 1, i32::MAX as u32, 1 << 31, u32::MAX];

#[test]
fn reads_at_any_offset_give_what_is_there_or_nothing() {
    let mut world = World::new();
    let file = world.object("file");
    for offset in EDGES {
        for count in COUNTS {
            let results = world.wire.nfs(NfsProcedure::Read, &ReadArguments { file, offset, count });
            assert_eq!(status(&results), NfsStat3::Ok, "{count} at {offset}");
            assert!(results.len() <= 120, "an empty file gave {} bytes", results.len());
        }
    }
    world.is_unharmed();
}

#[test]
fn writes_and_sizes_beyond_what_a_file_can_have_are_refused_and_none_wraps() {
    let mut world = World::new();
    let file = world.object("file");
    for offset in EDGES {
        for (count, data) in [(4_u32, 4), (0, 0), (4, 3), (3, 4), (u32::MAX, 4)] {
            let arguments = WriteArguments {
                file,
                offset,
                count,
                stable: StableHow::Unstable,
                data: Opaque::new(&[1; 4][..data]).unwrap(),
            };
            let outcome: NfsResult<WriteOk, WccData> = world.wire.ask(NfsProcedure::Write, &arguments);
            let equal = usize::try_from(count) == Ok(data);
            let beyond = offset > (1 << 63) - 1 - u64::from(count.min(4));
            match outcome {
                NfsResult::Ok(written) => assert!(equal && written.count == count, "{count} at {offset}"),
                NfsResult::Failed(NfsStat3::Inval, _) => assert!(!equal),
                NfsResult::Failed(NfsStat3::Fbig | NfsStat3::Nospc, _) => assert!(beyond || offset > 1 << 30),
                NfsResult::Failed(status, _) => panic!("{count} of {data} at {offset}: {status}"),
            }
        }
        let attributes = Sattr { size: Some(offset), ..Sattr::default() };
        let set = SetattrArguments { object: file, attributes, guard: None };
        let outcome: NfsResult<WccData, WccData> = world.wire.ask(NfsProcedure::Setattr, &set);
        match outcome {
            NfsResult::Ok(wcc) => assert_eq!(wcc.after.unwrap().size, offset),
            NfsResult::Failed(NfsStat3::Inval, _) => assert!(offset > i64::MAX as u64),
            NfsResult::Failed(NfsStat3::Fbig | NfsStat3::Nospc, _) => assert!(offset > 1 << 30),
            NfsResult::Failed(status, _) => panic!("size {offset}: {status}"),
        }
        for count in COUNTS {
            let outcome: NfsResult<CommitOk, WccData> =
                world.wire.ask(NfsProcedure::Commit, &CommitArguments { file, offset, count });
            assert!(matches!(outcome, NfsResult::Ok(_)), "{count} at {offset}: {outcome:?}");
        }
    }
    world.is_unharmed();
}

/// A time of a second or more of nanoseconds would be stored as another time.
#[test]
fn a_time_with_a_second_of_nanoseconds_is_refused_wherever_attributes_are_set() {
    let mut world = World::new();
    let place = DirOpArgs { directory: world.root, name: Filename::new(b"new").unwrap() };
    let target = NfsPath::new(b"target").unwrap();
    for (seconds, nanoseconds) in [
        (0, 1_000_000_000),
        (1, 0x3fff_fffe),
        (1, 0x3fff_ffff),
        (u32::MAX, 1_000_000_000),
        (u32::MAX, u32::MAX),
    ] {
        let time = TimeHow::SetToClientTime(NfsTime { seconds, nanoseconds });
        for (atime, mtime) in [(time, TimeHow::DontChange), (TimeHow::DontChange, time), (time, time)] {
            let attributes = Sattr { atime, mtime, ..Sattr::default() };
            let mut calls: Vec<_> = world
                .objects
                .iter()
                .map(|(_, object)| SetattrArguments { object: *object, attributes, guard: None })
                .map(|arguments| (NfsProcedure::Setattr, bytes(&arguments)))
                .collect();
            for how in [CreateHow::Unchecked(attributes), CreateHow::Guarded(attributes)] {
                calls.push((NfsProcedure::Create, bytes(&CreateArguments { place, how })));
            }
            calls.push((NfsProcedure::Mkdir, bytes(&MkdirArguments { place, attributes })));
            calls.push((NfsProcedure::Symlink, bytes(&SymlinkArguments { place, attributes, target })));
            let what = MknodData::Fifo(attributes);
            calls.push((NfsProcedure::Mknod, bytes(&MknodArguments { place, what })));
            for (procedure, arguments) in calls {
                let status = call(&mut world.wire, procedure, &arguments);
                assert_eq!(status, Ok(NfsStat3::Inval), "{procedure}: {time:?}");
            }
        }
    }
    let made = world.wire.lookup(world.root, b"new");
    assert_eq!(made.status(), NfsStat3::Noent);
    world.is_unharmed();
}

#[test]
fn listings_of_any_count_and_cookie_fit_their_count_or_are_refused() {
    let mut world = World::new();
    let directory = world.root;
    let verifier = CookieVerf3::default();
    for cookie in EDGES.map(Cookie) {
        for count in COUNTS {
            let plain = ReaddirArguments { directory, cookie, verifier, count };
            let results = [
                world.wire.nfs(NfsProcedure::Readdir, &plain),
                world.wire.nfs(
                    NfsProcedure::ReaddirPlus,
                    &ReaddirPlusArguments {
                        directory,
                        cookie,
                        verifier,
                        directory_count: count,
                        max_count: count,
                    },
                ),
            ];
            for results in results {
                let most = usize::try_from(count).unwrap().min(DATA_MAX + 1024);
                match status(&results) {
                    NfsStat3::Ok => assert!(results.len() <= most, "{} of {count}", results.len()),
                    NfsStat3::Toosmall => assert!(count < 48, "{count}"),
                    NfsStat3::BadCookie => assert_ne!(cookie, Cookie(0)),
                    status => panic!("cookie {cookie:?}, count {count}: {status}"),
                }
            }
        }
    }
    world.is_unharmed();
}

/// A reply to the largest READ, one byte more, and the record of the largest WRITE, and one beyond
/// that.
#[test]
fn the_largest_transfers_pass_and_larger_ones_do_not() {
    let mut world = World::new();
    let file = world.object("file");
    let data = vec![7; DATA_MAX];
    let arguments = WriteArguments {
        file,
        offset: 1,
        count: u32::try_from(DATA_MAX).unwrap(),
        stable: StableHow::Unstable,
        data: Opaque::new(&data).unwrap(),
    };
    let mut arguments = bytes(&arguments);
    assert_eq!(call(&mut world.wire, NfsProcedure::Write, &arguments), Ok(NfsStat3::Ok));
    for count in [1 << 20, (1 << 20) + 1, u32::MAX] {
        let read = ReadArguments { file, offset: 0, count };
        let results = world.wire.nfs(NfsProcedure::Read, &read);
        assert_eq!(status(&results), NfsStat3::Ok);
        let tail = &results[results.len() - DATA_MAX..];
        assert!(tail[0] == 0 && tail[1..].iter().all(|byte| *byte == 7));
    }
    // One word of data more than the maximum, announced by count and length, and sent.
    let length_at = arguments.len() - DATA_MAX - 4;
    let longer = u32::try_from(DATA_MAX + 4).unwrap().to_be_bytes();
    arguments.splice(length_at..length_at + 4, longer);
    arguments.extend([7; 4]);
    let answer = call(&mut world.wire, NfsProcedure::Write, &arguments);
    assert_eq!(answer, Err(Refused::Not(AcceptStatus::GarbageArguments)));
    world.is_unharmed();
}
