//! Numbers at the edges of what 31, 32, 63 and 64 bits say, in every size, offset, count and cookie (CVE-2021-47107: READDIR
//! with count 0; CVE-2022-48828: a negative size; CVE-2022-43945: a reply at exactly the limit).

use curt_proto::nfs3::{
    CommitArguments, CommitOk, Cookie, CookieVerifier, CreateArguments, CreateHow, DATA_MAX, DirectoryName,
    Filename, MkdirArguments, MknodArguments, MknodData, NfsTime, Outcome, Path, Procedure, ReadArguments,
    ReaddirArguments, ReaddirPlusArguments, Sattr, SetTime, SetattrArguments, Stability, Status,
    SymlinkArguments, WccData, WriteArguments, WriteOk,
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
            let results = world
                .wire
                .nfs(Procedure::Read, &ReadArguments { file, offset, count });
            assert_eq!(status(&results), Status::Ok, "{count} at {offset}");
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
                stability: Stability::Unstable,
                data: Opaque::new(&[1; 4][..data]).unwrap(),
            };
            let outcome: Outcome<WriteOk, WccData> = world.wire.ask(Procedure::Write, &arguments);
            let equal = usize::try_from(count) == Ok(data);
            let beyond = offset > (1 << 63) - 1 - u64::from(count.min(4));
            match outcome {
                Outcome::Ok(written) => assert!(equal && written.count == count, "{count} at {offset}"),
                Outcome::Failed(Status::Inval, _) => assert!(!equal),
                Outcome::Failed(Status::Fbig | Status::Nospc, _) => assert!(beyond || offset > 1 << 30),
                Outcome::Failed(status, _) => panic!("{count} of {data} at {offset}: {status}"),
            }
        }
        let attributes = Sattr {
            size: Some(offset),
            ..Sattr::default()
        };
        let set = SetattrArguments {
            object: file,
            attributes,
            guard: None,
        };
        let outcome: Outcome<WccData, WccData> = world.wire.ask(Procedure::Setattr, &set);
        match outcome {
            Outcome::Ok(wcc) => assert_eq!(wcc.after.unwrap().size, offset),
            Outcome::Failed(Status::Inval, _) => assert!(offset > i64::MAX as u64),
            Outcome::Failed(Status::Fbig | Status::Nospc, _) => assert!(offset > 1 << 30),
            Outcome::Failed(status, _) => panic!("size {offset}: {status}"),
        }
        for count in COUNTS {
            let outcome: Outcome<CommitOk, WccData> = world
                .wire
                .ask(Procedure::Commit, &CommitArguments { file, offset, count });
            assert!(
                matches!(outcome, Outcome::Ok(_)),
                "{count} at {offset}: {outcome:?}"
            );
        }
    }
    world.is_unharmed();
}

/// A time of a second or more of nanoseconds would be stored as another time.
#[test]
fn a_time_with_a_second_of_nanoseconds_is_refused_wherever_attributes_are_set() {
    let mut world = World::new();
    let place = DirectoryName {
        directory: world.root,
        name: Filename::new(b"new").unwrap(),
    };
    let target = Path::new(b"target").unwrap();
    for (seconds, nanoseconds) in [
        (0, 1_000_000_000),
        (1, 0x3fff_fffe),
        (1, 0x3fff_ffff),
        (u32::MAX, 1_000_000_000),
        (u32::MAX, u32::MAX),
    ] {
        let time = SetTime::ClientTime(NfsTime { seconds, nanoseconds });
        for (atime, mtime) in [(time, SetTime::Keep), (SetTime::Keep, time), (time, time)] {
            let attributes = Sattr {
                atime,
                mtime,
                ..Sattr::default()
            };
            let mut calls: Vec<_> = world
                .objects
                .iter()
                .map(|(_, object)| SetattrArguments {
                    object: *object,
                    attributes,
                    guard: None,
                })
                .map(|arguments| (Procedure::Setattr, bytes(&arguments)))
                .collect();
            for how in [CreateHow::Unchecked(attributes), CreateHow::Guarded(attributes)] {
                calls.push((Procedure::Create, bytes(&CreateArguments { place, how })));
            }
            calls.push((Procedure::Mkdir, bytes(&MkdirArguments { place, attributes })));
            calls.push((
                Procedure::Symlink,
                bytes(&SymlinkArguments {
                    place,
                    attributes,
                    target,
                }),
            ));
            let what = MknodData::Fifo(attributes);
            calls.push((Procedure::Mknod, bytes(&MknodArguments { place, what })));
            for (procedure, arguments) in calls {
                let status = call(&mut world.wire, procedure, &arguments);
                assert_eq!(status, Ok(Status::Inval), "{procedure}: {time:?}");
            }
        }
    }
    let made = world.wire.lookup(world.root, b"new");
    assert_eq!(made.status(), Status::Noent);
    world.is_unharmed();
}

#[test]
fn listings_of_any_count_and_cookie_fit_their_count_or_are_refused() {
    let mut world = World::new();
    let directory = world.root;
    let verifier = CookieVerifier::default();
    for cookie in EDGES.map(Cookie) {
        for count in COUNTS {
            let plain = ReaddirArguments {
                directory,
                cookie,
                verifier,
                count,
            };
            let results = [
                world.wire.nfs(Procedure::Readdir, &plain),
                world.wire.nfs(
                    Procedure::ReaddirPlus,
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
                    Status::Ok => assert!(results.len() <= most, "{} of {count}", results.len()),
                    Status::Toosmall => assert!(count < 48, "{count}"),
                    Status::BadCookie => assert_ne!(cookie, Cookie(0)),
                    status => panic!("cookie {cookie:?}, count {count}: {status}"),
                }
            }
        }
    }
    world.is_unharmed();
}

/// A reply of the largest READ, one beyond it, and the record of the largest WRITE, and one beyond that.
#[test]
fn the_largest_transfers_pass_and_larger_ones_do_not() {
    let mut world = World::new();
    let file = world.object("file");
    let data = vec![7; DATA_MAX];
    let arguments = WriteArguments {
        file,
        offset: 1,
        count: u32::try_from(DATA_MAX).unwrap(),
        stability: Stability::Unstable,
        data: Opaque::new(&data).unwrap(),
    };
    let mut arguments = bytes(&arguments);
    assert_eq!(
        call(&mut world.wire, Procedure::Write, &arguments),
        Ok(Status::Ok)
    );
    for count in [1 << 20, (1 << 20) + 1, u32::MAX] {
        let read = ReadArguments {
            file,
            offset: 0,
            count,
        };
        let results = world.wire.nfs(Procedure::Read, &read);
        assert_eq!(status(&results), Status::Ok);
        let tail = &results[results.len() - DATA_MAX..];
        assert!(tail[0] == 0 && tail[1..].iter().all(|byte| *byte == 7));
    }
    // Data of one word more than may be: count and length say so, and it is there.
    let length_at = arguments.len() - DATA_MAX - 4;
    let longer = u32::try_from(DATA_MAX + 4).unwrap().to_be_bytes();
    arguments.splice(length_at..length_at + 4, longer);
    arguments.extend([7; 4]);
    let answer = call(&mut world.wire, Procedure::Write, &arguments);
    assert_eq!(answer, Err(Refused::Not(AcceptStatus::GarbageArguments)));
    world.is_unharmed();
}
