//! What the model sends for single operations, each by the rule of the kernel that it follows. Whole workloads are held to a
//! kernel's counts in curt-bench.

use core::time::Duration;

use super::ranges::RANGES_MAX;
use super::{Intent, Linux, ObjectId, OpenId, Options, Request, Seen, Told, Who};
use crate::{CacheOptions, Interval, LookupCache, Moment, ObjectKind, PlusMode};

const ROOT: ObjectId = ObjectId(1);
const WHO: Who = Who(7);

fn seconds(seconds: u64) -> Moment {
    Moment::from_start(Duration::from_secs(seconds))
}

fn seen(id: u64, kind: ObjectKind, size: u64) -> Seen {
    Seen {
        id: ObjectId(id),
        kind,
        size,
        stamp: 0,
    }
}

fn file(size: u64) -> Seen {
    seen(2, ObjectKind::Regular, size)
}

fn linux(cache: CacheOptions) -> Linux {
    let options = Options {
        cache,
        read_size: 1 << 20,
        write_size: 64 << 10,
        list_size: 1 << 20,
    };
    Linux::new(options, seen(1, ObjectKind::Directory, 4096), Moment::default())
}

/// A client that has looked `f` up, and may do everything.
fn with_file(cache: CacheOptions, size: u64) -> Linux {
    let mut linux = linux(cache);
    linux.look_up(WHO, (ROOT, b"f"), Some(&file(size)), Intent::Use, seconds(0));
    linux.permit(WHO, ObjectId(2), seconds(0));
    assert_eq!(
        sent(&mut linux),
        [Request::Access, Request::FirstUse, Request::Access]
    );
    linux
}

fn sent(linux: &mut Linux) -> Vec<Request> {
    linux.take_sent().into_iter().map(|sent| sent.request).collect()
}

fn nothing() -> [Request; 0] {
    []
}

#[test]
fn every_request_is_a_procedure_of_its_own_list() {
    for request in Request::ALL {
        assert!(request.procedure() < 22, "{request:?}");
    }
    let mut all = Request::ALL.to_vec();
    all.dedup();
    assert_eq!(all.len(), Request::ALL.len());
}

#[test]
fn attributes_expire_after_the_least_time_and_then_after_twice_that() {
    let mut linux = with_file(CacheOptions::default(), 10);
    let mut asked = Vec::new();
    for second in 0..200 {
        linux.stat(&file(10), seconds(second));
        if !sent(&mut linux).is_empty() {
            asked.push(second);
        }
    }
    // 3, then 6, 12, 24, 48, 60 and 60 seconds.
    assert_eq!(asked, [3, 9, 21, 45, 93, 153]);
}

#[test]
fn a_change_throws_the_time_back() {
    let mut linux = with_file(CacheOptions::default(), 10);
    for second in 0..12 {
        linux.stat(&file(10), seconds(second));
    }
    sent(&mut linux);
    let changed = Seen { stamp: 1, ..file(11) };
    let mut asked = Vec::new();
    for second in 21..40 {
        linux.stat(&changed, seconds(second));
        if !sent(&mut linux).is_empty() {
            asked.push(second);
        }
    }
    assert_eq!(asked, [21, 24, 30]);
}

#[test]
fn an_open_asks_each_time_unless_the_name_was_looked_up_for_it_or_nocto() {
    let mut fresh = linux(CacheOptions::default());
    fresh.look_up(WHO, (ROOT, b"f"), Some(&file(10)), Intent::Open, seconds(0));
    assert_eq!(sent(&mut fresh), [Request::Access, Request::FirstUse]);
    fresh.look_up(WHO, (ROOT, b"f"), Some(&file(10)), Intent::Open, seconds(0));
    assert_eq!(sent(&mut fresh), [Request::OpenCheck]);
    let mut nocto = with_file(
        CacheOptions {
            close_to_open: false,
            ..CacheOptions::default()
        },
        10,
    );
    nocto.look_up(WHO, (ROOT, b"f"), Some(&file(10)), Intent::Open, seconds(1));
    assert_eq!(sent(&mut nocto), nothing());
}

#[test]
fn names_are_believed_while_their_directory_is_and_is_as_it_was() {
    let mut linux = with_file(CacheOptions::default(), 10);
    linux.look_up(WHO, (ROOT, b"no"), None, Intent::Use, seconds(0));
    assert_eq!(sent(&mut linux), [Request::FirstUse]);
    for second in [1, 29] {
        linux.look_up(WHO, (ROOT, b"no"), None, Intent::Use, seconds(second));
        linux.look_up(WHO, (ROOT, b"f"), Some(&file(10)), Intent::Use, seconds(second));
        assert_eq!(sent(&mut linux), nothing(), "{second}");
    }
    // The directory's 30 seconds are over; one request serves its rights and both names.
    linux.look_up(WHO, (ROOT, b"no"), None, Intent::Use, seconds(30));
    linux.look_up(WHO, (ROOT, b"f"), Some(&file(10)), Intent::Use, seconds(30));
    assert_eq!(sent(&mut linux), [Request::AttributesExpired]);
    // Somebody changes it: rights and names are asked for anew once that is seen.
    linux.changed_elsewhere(ROOT);
    linux.look_up(WHO, (ROOT, b"f"), Some(&file(10)), Intent::Use, seconds(200));
    linux.look_up(WHO, (ROOT, b"no"), None, Intent::Use, seconds(200));
    assert_eq!(
        sent(&mut linux),
        [
            Request::AttributesExpired,
            Request::Access,
            Request::NameAgain,
            Request::NameAgain
        ]
    );
}

#[test]
fn lookupcache_decides_which_names_are_believed() {
    for (names, missing, present) in [
        (LookupCache::All, 0, 0),
        (LookupCache::Positive, 1, 0),
        (LookupCache::None, 1, 1),
    ] {
        let mut linux = with_file(
            CacheOptions {
                names,
                ..CacheOptions::default()
            },
            10,
        );
        linux.look_up(WHO, (ROOT, b"no"), None, Intent::Use, seconds(0));
        sent(&mut linux);
        linux.look_up(WHO, (ROOT, b"no"), None, Intent::Use, seconds(0));
        assert_eq!(sent(&mut linux).len(), missing, "{names:?}");
        linux.look_up(WHO, (ROOT, b"f"), Some(&file(10)), Intent::Use, seconds(0));
        assert_eq!(sent(&mut linux).len(), present, "{names:?}");
    }
}

#[test]
fn noac_asks_each_time() {
    let mut linux = with_file(
        CacheOptions {
            attribute_cache: false,
            ..CacheOptions::default()
        },
        10,
    );
    linux.stat(&file(10), seconds(0));
    linux.stat(&file(10), seconds(0));
    assert_eq!(sent(&mut linux), [Request::AttributesExpired; 2]);
}

#[test]
fn a_small_file_is_one_read_and_then_none() {
    let mut linux = with_file(CacheOptions::default(), 10_000);
    for _ in 0..3 {
        linux.read(OpenId(1), &file(10_000), (0, 65_536), seconds(0));
    }
    assert_eq!(sent(&mut linux), [Request::DataRead]);
}

#[test]
fn a_sequential_reader_has_windows_up_to_128_kib() {
    let size = 1 << 20;
    let mut linux = with_file(CacheOptions::default(), size);
    for block in 0..256 {
        linux.read(OpenId(1), &file(size), (block * 4096, 4096), seconds(0));
    }
    let requests = sent(&mut linux);
    let ahead = requests
        .iter()
        .filter(|request| **request == Request::ReadAhead)
        .count();
    // 16 KiB, then 32 and 64, then 128 KiB each.
    assert_eq!((requests.len(), ahead), (11, 10), "{requests:?}");
    // Who asks for much at once is given it at once.
    let mut linux = with_file(CacheOptions::default(), size);
    linux.read(OpenId(1), &file(size), (0, size), seconds(0));
    assert_eq!(sent(&mut linux), [Request::DataRead]);
}

#[test]
fn any_reads_bring_each_page_once() {
    for step in [1, 3, 7, 13, 64] {
        for count in [1, 5, 40] {
            let size = 200 * 4096;
            let mut linux = with_file(CacheOptions::default(), size);
            for block in (0..200).map(|block| block * step % 200) {
                linux.read(OpenId(1), &file(size), (block * 4096, count * 4096), seconds(0));
            }
            sent(&mut linux);
            linux.read(OpenId(2), &file(size), (0, size), seconds(0));
            let again = sent(&mut linux);
            assert!(
                step % 2 == 0 || again.is_empty(),
                "step {step}, count {count}: {again:?}"
            );
        }
    }
}

#[test]
fn what_is_written_goes_at_close_and_is_committed_if_it_takes_more_than_one_write() {
    let mut linux = linux(CacheOptions::default());
    linux.look_up(WHO, (ROOT, b"new"), None, Intent::OpenOrMake, seconds(0));
    linux.make(Request::CreateFile, (ROOT, b"new"), &file(0), false, seconds(0));
    linux.write(ObjectId(2), (0, 100), false, seconds(0));
    linux.write(ObjectId(2), (100, 5000), false, seconds(0));
    linux.make_durable(ObjectId(2), seconds(0));
    linux.make_durable(ObjectId(2), seconds(0));
    assert_eq!(
        sent(&mut linux),
        [
            Request::Access,
            Request::FirstUse,
            Request::CreateFile,
            Request::Write
        ]
    );
    linux.write(ObjectId(2), (0, 200_000), false, seconds(0));
    linux.make_durable(ObjectId(2), seconds(0));
    assert_eq!(
        sent(&mut linux),
        [
            Request::Write,
            Request::Write,
            Request::Write,
            Request::Write,
            Request::Commit
        ]
    );
    // Our own changes leave everything believed.
    linux.stat(&file(200_000), seconds(1));
    assert_eq!(sent(&mut linux), nothing());
}

#[test]
fn what_is_made_exclusively_has_its_times_set() {
    let mut linux = linux(CacheOptions::default());
    linux.look_up(WHO, (ROOT, b"new"), None, Intent::Make, seconds(0));
    linux.make(Request::CreateFile, (ROOT, b"new"), &file(0), true, seconds(0));
    assert_eq!(
        sent(&mut linux),
        [Request::Access, Request::CreateFile, Request::SetAttributes]
    );
}

#[test]
fn a_removed_file_that_is_open_is_moved_aside_until_its_last_close() {
    let mut linux = with_file(CacheOptions::default(), 10);
    linux.opened(ObjectId(2), seconds(0));
    linux.unlink((ROOT, b"f"), seconds(0));
    assert_eq!(sent(&mut linux), [Request::FirstUse, Request::Rename]);
    linux.closed(OpenId(1), ObjectId(2), seconds(0));
    assert_eq!(sent(&mut linux), [Request::Remove]);
    linux.look_up(WHO, (ROOT, b"f"), None, Intent::Use, seconds(0));
    assert_eq!(sent(&mut linux), nothing(), "the name is known to be missing");
}

#[test]
fn a_moved_file_is_looked_at_again() {
    let mut linux = with_file(CacheOptions::default(), 10);
    linux.rename((ROOT, b"f"), (ROOT, b"g"), seconds(0));
    assert_eq!(sent(&mut linux), [Request::Rename]);
    linux.look_up(WHO, (ROOT, b"g"), Some(&file(10)), Intent::Use, seconds(0));
    linux.stat(&file(10), seconds(0));
    linux.look_up(WHO, (ROOT, b"f"), None, Intent::Use, seconds(0));
    assert_eq!(sent(&mut linux), [Request::AttributesExpired]);
}

#[test]
fn changed_rights_are_asked_for_again() {
    let mut linux = with_file(CacheOptions::default(), 10);
    linux.set_attributes(&file(10), true, seconds(0));
    linux.permit(WHO, ObjectId(2), seconds(0));
    assert_eq!(sent(&mut linux), [Request::SetAttributes, Request::Access]);
    linux.set_attributes(&file(10), false, seconds(0));
    linux.permit(WHO, ObjectId(2), seconds(0));
    assert_eq!(sent(&mut linux), [Request::SetAttributes]);
}

#[test]
fn a_listing_is_asked_for_once_and_teaches_its_names() {
    let mut linux = linux(CacheOptions::default());
    let names: Vec<Vec<u8>> = (0..100)
        .map(|number| format!("name{number}").into_bytes())
        .collect();
    let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    let list = |linux: &mut Linux, at| {
        for (from_start, names) in [(true, &names[..]), (false, &[])] {
            linux.list(OpenId(1), ROOT, Told { from_start, names }, at);
        }
        linux.listed(OpenId(1));
        sent(linux)
    };
    assert_eq!(list(&mut linux, seconds(0)), [Request::ListPlus]);
    assert_eq!(list(&mut linux, seconds(1)), nothing());
    linux.look_up(WHO, (ROOT, b"name5"), Some(&file(10)), Intent::Use, seconds(1));
    assert_eq!(sent(&mut linux), [Request::Access], "the name is known");
    // Our own change voids the listing, but not its names.
    linux.unlink((ROOT, b"name7"), seconds(1));
    sent(&mut linux);
    assert_eq!(list(&mut linux, seconds(1)), [Request::ListPlus]);
}

#[test]
fn rdirplus_decides_how_a_large_directory_is_listed() {
    let names: Vec<Vec<u8>> = (0..10_000)
        .map(|number| format!("name{number:08}").into_bytes())
        .collect();
    let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    for (plus, with, without) in [
        (PlusMode::Always, true, false),
        (PlusMode::Never, false, true),
        (PlusMode::Auto, true, true),
    ] {
        let mut linux = linux(CacheOptions {
            plus,
            ..CacheOptions::default()
        });
        for chunk in names.chunks(1000) {
            let from_start = chunk[0] == names[0];
            linux.list(
                OpenId(1),
                ROOT,
                Told {
                    from_start,
                    names: chunk,
                },
                seconds(0),
            );
        }
        let requests = sent(&mut linux);
        assert_eq!(requests.contains(&Request::ListPlus), with, "{plus:?}");
        assert_eq!(requests.contains(&Request::ListPlain), without, "{plus:?}");
    }
}

#[test]
fn no_reply_is_larger_than_the_server_prefers() {
    let names: Vec<Vec<u8>> = (0..10_000)
        .map(|number| format!("name{number:08}").into_bytes())
        .collect();
    let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    // An entry takes 36 bytes: 1,817 fit into the first reply, 452 into 16 KiB, and 110 into what is asked for instead of 7 bytes.
    for (list_size, requests) in [(1 << 20, 6), (16 << 10, 23), (7, 91)] {
        let mut linux = linux(CacheOptions {
            plus: PlusMode::Never,
            ..CacheOptions::default()
        });
        linux.options.list_size = list_size;
        let told = Told {
            from_start: true,
            names: &names,
        };
        linux.list(OpenId(1), ROOT, told, seconds(0));
        assert_eq!(
            sent(&mut linux),
            vec![Request::ListPlain; requests],
            "{list_size}"
        );
    }
}

#[test]
fn a_link_is_read_once() {
    let mut linux = linux(CacheOptions::default());
    let link = seen(3, ObjectKind::Symlink, 4);
    linux.look_up(WHO, (ROOT, b"l"), Some(&link), Intent::Use, seconds(0));
    sent(&mut linux);
    linux.read_link(&link, seconds(0));
    linux.read_link(&link, seconds(1));
    assert_eq!(sent(&mut linux), [Request::LinkTarget]);
}

#[test]
fn actimeo_holds_for_files_and_directories() {
    let ten = Interval {
        min: Duration::from_secs(10),
        max: Duration::from_secs(10),
    };
    let mut linux = with_file(
        CacheOptions {
            files: ten,
            directories: ten,
            ..CacheOptions::default()
        },
        10,
    );
    for second in 0..10 {
        linux.look_up(WHO, (ROOT, b"f"), Some(&file(10)), Intent::Use, seconds(second));
        linux.stat(&file(10), seconds(second));
    }
    assert_eq!(sent(&mut linux), nothing());
    linux.look_up(WHO, (ROOT, b"f"), Some(&file(10)), Intent::Use, seconds(10));
    linux.stat(&file(10), seconds(10));
    assert_eq!(sent(&mut linux), [Request::AttributesExpired; 2]);
}

#[test]
fn pages_here_and_there_are_forgotten_beyond_the_limit() {
    const PAGE: u64 = 4096;
    const STRIDE: u64 = 1000;
    let limit = RANGES_MAX as u64;
    let size = (limit + 2) * STRIDE * PAGE;
    let mut linux = with_file(CacheOptions::default(), size);
    let read = |linux: &mut Linux, number: u64| {
        let range = (number * STRIDE * PAGE, PAGE);
        linux.read(OpenId(1), &file(size), range, seconds(0));
        linux.forgotten()
    };
    for number in 1..=limit {
        assert_eq!(read(&mut linux, number), 0, "{number}");
    }
    sent(&mut linux);
    assert_eq!((read(&mut linux, 1), sent(&mut linux)), (0, vec![]));
    assert_eq!(read(&mut linux, limit + 1), 1);
    // What was read last is kept, between two gaps.
    assert_eq!(linux.objects[&ObjectId(2)].pages.gaps(0, size / PAGE).len(), 2);
    for number in 0..=limit {
        linux.write(ObjectId(2), (number * STRIDE * PAGE, PAGE), false, seconds(0));
    }
    assert!(linux.objects[&ObjectId(2)].dirty.is_empty());
    let writes = sent(&mut linux)
        .iter()
        .filter(|one| **one == Request::Write)
        .count();
    assert_eq!(writes, RANGES_MAX + 1);
}

#[test]
fn memory_is_bounded_and_what_it_costs_is_told() {
    const ROOM: usize = 100;
    let mut linux = linux(CacheOptions::default());
    linux.room = ROOM;
    let look = |linux: &mut Linux, number: usize| {
        let object = seen(number as u64 + 10, ObjectKind::Regular, 1);
        let name = number.to_string();
        linux.look_up(
            WHO,
            (ROOT, name.as_bytes()),
            Some(&object),
            Intent::Use,
            seconds(0),
        );
    };
    // The root is one of the objects.
    (0..ROOM - 1).for_each(|number| look(&mut linux, number));
    assert_eq!((linux.objects.len(), linux.forgotten()), (ROOM, 0));
    look(&mut linux, ROOM);
    assert_eq!((linux.objects.len(), linux.forgotten()), (2, 1));
    for number in 0..10 * ROOM {
        linux.look_up(
            WHO,
            (ROOT, number.to_string().as_bytes()),
            None,
            Intent::Use,
            seconds(0),
        );
        assert!(linux.names.len() <= ROOM && linux.objects.len() <= ROOM);
    }
    (0..10 * ROOM).for_each(|number| look(&mut linux, number));
    assert!(linux.forgotten() > 5);
}
