//! Half a million names: requests, memory, and changes during a listing.

use std::collections::HashSet;

use curt_client::{ClientOptions, DirEmit, Errno, Limits, ops, threads::BackgroundThreads};
use curt_observe::ClientCounter;
use curt_policy::{CacheOptions, ListingMode, RacyGuard, ReaddirplusMode};
use std::sync::Arc;

use crate::server::{Cookies, Lie, Script, Scripted, list, me, mount, mount_in, name, read_from};

const COUNT: u64 = 500_000;
const LISTING_BYTES: u64 = 64 << 20;

fn with_listing_bytes(listing_bytes: u64) -> ClientOptions {
    ClientOptions { limits: Limits { listing_bytes, ..Limits::default() }, ..ClientOptions::default() }
}

fn script(count: u64) -> Script {
    Script { count, ..Script::default() }
}

// SEMANTICS: list-8.
#[test]
fn half_a_million_names_take_at_most_40_requests_and_64_mebibytes() {
    let server = Scripted::new(script(COUNT));
    let client = mount(&server, &ClientOptions::default());
    let open = ops::opendir(&client.op(&me()), client.root()).unwrap();
    ops::readdir(&client.op(&me()), &open, 0, false, &mut |_| DirEmit::Full).unwrap();
    let mut asked = server.asked();
    assert_eq!(asked.len(), 1, "the first name takes one request");
    let mut next = 0;
    read_from(&client, &open, 0, 100, &mut |entry| {
        assert_eq!(entry.name, name(next).as_bytes());
        next += 1;
    })
    .unwrap();
    assert_eq!(next, COUNT);
    asked.extend(server.asked());
    println!("{} requests, {} MiB", asked.len(), client.listing_bytes() >> 20);
    assert!(asked.len() <= 40, "{}", asked.len());
    assert_eq!(asked.iter().filter(|asked| asked.cookie == 0).count(), 1);
    assert_eq!(asked[0].count, 8 * 1024);
    assert_eq!(asked.iter().map(|asked| asked.count).max(), Some(1 << 20));
    assert!(client.listing_bytes() <= LISTING_BYTES);
    // No attributes were used: about a thousand names came with attributes.
    let plus: Vec<_> = asked.iter().map(|asked| asked.plus).collect();
    assert!(plus[0] && plus.is_sorted_by(|a, b| a >= b) && !plus[7], "{plus:?}");
}

// SEMANTICS: list-1.
#[test]
fn a_directory_that_changes_all_the_time_takes_as_many_requests_as_one_that_does_not() {
    let mut numbers = Vec::new();
    for is_changing in [false, true] {
        let server = Scripted::new(Script { is_changing, ..script(100_000) });
        let client = mount(&server, &ClientOptions::default());
        assert_eq!(list(&client), (Ok(()), 100_000, 0));
        let asked = server.asked();
        assert_eq!(asked.iter().filter(|asked| asked.cookie == 0).count(), 1);
        let torn = client.counters().events.value(ClientCounter::ListingTorn);
        assert_eq!(torn, u64::from(is_changing));
        numbers.push(asked.len());
    }
    assert_eq!(numbers[0], numbers[1]);
}

// SEMANTICS: list-4.
#[test]
fn readdir_restart_begins_again_whenever_the_directory_changed() {
    let restart = |is_changing| {
        let server = Scripted::new(Script { is_changing, ..script(20_000) });
        let behaviour = ClientOptions {
            cache: CacheOptions { listing: ListingMode::Restart, ..CacheOptions::default() },
            ..ClientOptions::default()
        };
        let client = mount(&server, &behaviour);
        assert_eq!(list(&client), (Ok(()), 20_000, 0));
        let asked = server.asked();
        (asked.iter().filter(|asked| asked.cookie == 0).count(), asked.len())
    };
    let (idle, changing) = (restart(false), restart(true));
    assert_eq!(idle.0, 1);

    assert!(changing.0 > 10 && changing.1 > 10 * idle.1, "{changing:?}");
}

// SEMANTICS: list-2.
#[test]
fn a_cookie_refused_at_name_400000_leads_to_each_name_once() {
    let server = Scripted::new(Script { lie: Lie::BadCookie { from: 400_000, times: 1 }, ..script(COUNT) });
    let client = mount(&server, &ClientOptions::default());
    assert_eq!(list(&client), (Ok(()), 500_000, 0));
    let asked = server.asked();
    assert_eq!(asked.iter().filter(|asked| asked.cookie == 0).count(), 2);
    let counters = client.counters().events;
    assert_eq!(counters.value(ClientCounter::ListingRestart), 1);
    let left_out = counters.value(ClientCounter::ListingSuppressed);
    assert!((400_000..=430_000).contains(&left_out), "{left_out}");
    assert!(client.listing_bytes() <= LISTING_BYTES);
}

// SEMANTICS: list-3.
#[test]
fn a_refused_cookie_is_an_error_if_more_names_were_returned_than_fit_in_memory() {
    let server = Scripted::new(Script { lie: Lie::BadCookie { from: 400_000, times: 1 }, ..script(COUNT) });
    let client = mount(&server, &with_listing_bytes(4 << 20));
    let (result, told, twice) = list(&client);
    assert_eq!((result, twice), (Err(Errno::IO), 0));
    assert!(told > 400_000, "{told}");
    assert_eq!(client.counters().events.value(ClientCounter::ListingRestart), 0);
}

// SEMANTICS: list-8.
#[test]
fn listings_beyond_the_memory_are_complete_and_the_oldest_names_are_evicted() {
    let limit = 4 << 20;
    let server = Scripted::new(script(200_000));
    let client = mount(&server, &with_listing_bytes(limit));
    for _ in 0..2 {
        let open = ops::opendir(&client.op(&me()), client.root()).unwrap();
        let (mut seen, mut most) = (HashSet::new(), 0);
        read_from(&client, &open, 0, 1000, &mut |entry| {
            assert!(seen.insert(entry.cookie), "told twice");
            most = most.max(client.listing_bytes());
        })
        .unwrap();
        assert_eq!(seen.len(), 200_000);
        // One reply is being read while another arrives.
        assert!(most <= limit + limit / 8, "{most}");
        let asked = server.asked();
        assert_eq!(asked.iter().filter(|asked| asked.cookie == 0).count(), 1);
    }
    assert!(client.counters().events.value(ClientCounter::ListingEvicted) > 0);
}

#[test]
fn a_reader_whose_names_were_evicted_continues_from_its_cookie() {
    let server = Scripted::new(script(20_000));
    let client = mount(&server, &with_listing_bytes(1 << 20));
    // All names are cached; another reader begins, and then its names are evicted.
    assert_eq!(list(&client), (Ok(()), 20_000, 0));
    let reader = ops::opendir(&client.op(&me()), client.root()).unwrap();
    let (mut told, mut cookie) = (Vec::new(), 0);
    let some = |cookie: &mut u64, told: &mut Vec<u64>| {
        let room = told.len() + 500;
        ops::readdir(&client.op(&me()), &reader, *cookie, false, &mut |entry| {
            if told.len() == room {
                return DirEmit::Full;
            }
            *cookie = entry.cookie;
            told.push(entry.cookie);
            DirEmit::Taken
        })
        .unwrap();
    };
    some(&mut cookie, &mut told);
    let others: Vec<_> = (0..4).map(|_| ops::opendir(&client.op(&me()), client.root()).unwrap()).collect();
    for other in &others {
        // From an unknown cookie, so that nothing is shared.
        read_from(&client, other, Cookies::Small.cookie(5), 1000, &mut |_| {}).unwrap();
    }
    server.asked();
    loop {
        let before = told.len();
        some(&mut cookie, &mut told);
        if told.len() == before {
            break;
        }
    }
    assert_eq!(told, (0..20_000).map(|index| Cookies::Small.cookie(index)).collect::<Vec<_>>());
    assert!(server.asked().iter().all(|asked| asked.cookie != 0));
}

#[test]
fn read_ahead_is_used_and_cancelled_at_close() {
    let server = Scripted::new(script(100_000));
    let client = mount_in(&server, &ClientOptions::default(), Arc::new(BackgroundThreads::new(2)));
    assert_eq!(list(&client), (Ok(()), 100_000, 0));
    let used = client.counters().events.value(ClientCounter::ListingAheadUsed);
    assert!(used > 3, "{used}");
    let asked = server.asked();
    assert_eq!(asked.iter().filter(|asked| asked.cookie == 0).count(), 1);
    let cookies: HashSet<u64> = asked.iter().map(|asked| asked.cookie).collect();
    assert_eq!(cookies.len(), asked.len(), "no place is asked for twice");
}

#[test]
fn two_readers_of_one_directory_share_its_requests() {
    let server = Scripted::new(script(50_000));
    let client = mount_in(&server, &ClientOptions::default(), Arc::new(BackgroundThreads::new(2)));
    let first = ops::opendir(&client.op(&me()), client.root()).unwrap();
    ops::readdir(&client.op(&me()), &first, 0, false, &mut |_| DirEmit::Full).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| assert_eq!(list(&client), (Ok(()), 50_000, 0)));
        }
    });
    let asked = server.asked();
    let cookies: HashSet<u64> = asked.iter().map(|asked| asked.cookie).collect();
    assert_eq!(cookies.len(), asked.len(), "no place is asked for twice");
}

#[test]
fn a_program_that_looks_at_each_name_gets_attributes_with_all_of_them() {
    let server = Scripted::new(script(50_000));
    // The directory changed at the start of the server's clock.
    let cache = CacheOptions { racy_guard: RacyGuard::Off, ..CacheOptions::default() };
    let client = mount(&server, &ClientOptions { cache, ..ClientOptions::default() });
    let open = ops::opendir(&client.op(&me()), client.root()).unwrap();
    let mut cookie = 0;
    loop {
        // With a buffer that holds all names of a reply, as that of ls does.
        let mut names = Vec::new();
        ops::readdir(&client.op(&me()), &open, cookie, true, &mut |entry| {
            names.push(entry.name.to_vec());
            cookie = entry.cookie;
            entry.found.iter().for_each(|found| client.forget(found.id, 1));
            DirEmit::Taken
        })
        .unwrap();
        if names.is_empty() {
            break;
        }
        for name in names {
            ops::lookup(&client.op(&me()), client.root(), &name).unwrap();
        }
    }
    let asked = server.asked();
    assert!(asked.iter().all(|asked| asked.plus), "{asked:?}");
    assert_eq!(server.lookups(), 0);
    assert!(asked.len() < 60, "{}", asked.len());
}

#[test]
fn names_listed_without_attributes_get_them_together_once_many_are_looked_up() {
    let server = Scripted::new(script(20_000));
    let plain = CacheOptions { plus: ReaddirplusMode::Never, ..CacheOptions::default() };
    let client = mount(&server, &ClientOptions { cache: plain, ..ClientOptions::default() });
    assert_eq!(list(&client).1, 20_000);
    assert!(server.asked().iter().all(|asked| !asked.plus));
    client.set_options(CacheOptions::default());
    let open = ops::opendir(&client.op(&me()), client.root()).unwrap();
    let mut cookie = 0;
    loop {
        let mut names = Vec::new();
        ops::readdir(&client.op(&me()), &open, cookie, false, &mut |entry| {
            if names.len() == 100 {
                return DirEmit::Full;
            }
            names.push(entry.name.to_vec());
            cookie = entry.cookie;
            DirEmit::Taken
        })
        .unwrap();
        if names.is_empty() {
            break;
        }
        for name in names {
            ops::lookup(&client.op(&me()), client.root(), &name).unwrap();
        }
    }
    let asked = server.asked();
    assert!(!asked.is_empty() && asked.iter().all(|asked| asked.plus), "{asked:?}");
    let requests = server.lookups() + asked.len() as u64;
    assert!(requests < 800, "{requests} for 20,000 names");
}

// SEMANTICS: list-6.
#[test]
fn a_loop_that_is_larger_than_the_memory_is_detected_as_well() {
    const CIRCLE: usize = 60_000;
    let server = Scripted::new(Script {
        count: 4 * CIRCLE as u64,
        lie: Lie::Circle { at: CIRCLE as u64 },
        ..Script::default()
    });
    let client = mount(&server, &with_listing_bytes(1 << 20));
    let (result, names, _) = list(&client);
    assert_eq!(result, Err(Errno::IO));
    assert!((CIRCLE..=4 * CIRCLE).contains(&names), "{names}");
}
