//! Listings.

use super::*;

#[test]
fn a_listing_is_read_once_and_primes_its_names() {
    let mut linux = linux(CacheOptions::default());
    let names: Vec<Vec<u8>> = (0..100).map(|number| format!("name{number}").into_bytes()).collect();
    let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    let list = |linux: &mut Linux, at| {
        for (from_start, names) in [(true, &names[..]), (false, &[])] {
            linux.list(OpenId(1), ROOT, from_start, names, at);
        }
        linux.closed(OpenId(1), ROOT, at);
        sent(linux)
    };
    assert_eq!(list(&mut linux, seconds(0)), [LinuxRequest::ListPlus]);
    assert_eq!(list(&mut linux, seconds(1)), nothing());
    linux.look_up(CREDENTIAL, ROOT, b"name5", Some(&file(10)), LookupIntent::Use, seconds(1));
    assert_eq!(sent(&mut linux), [LinuxRequest::Access], "the name is known");
    // An own change invalidates the listing, but not its names.
    linux.unlink(ROOT, b"name7", seconds(1));
    sent(&mut linux);
    assert_eq!(list(&mut linux, seconds(1)), [LinuxRequest::ListPlus]);
}

/// Names of 12 bytes.
fn many(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|number| format!("{number:012}").into_bytes()).collect()
}

/// A program lists these names, in parts of `part` names, and stats each if `looks`; returns the
/// numbers of READDIRPLUSes and READDIRs.
fn listed(linux: &mut Linux, names: &[Vec<u8>], part: usize, looks: bool) -> (usize, usize) {
    let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    let mut of_object = 10;
    for names in names.chunks(part) {
        let from_start = of_object == 10;
        linux.list(OpenId(1), ROOT, from_start, names, seconds(0));
        for name in names {
            of_object += 1;
            if looks {
                let object = seen(of_object, FileKind::Regular, 1);
                linux.look_up(CREDENTIAL, ROOT, name, Some(&object), LookupIntent::Use, seconds(0));
                linux.stat(&object, seconds(0));
            }
        }
    }
    linux.list(OpenId(1), ROOT, false, &[], seconds(0));
    linux.closed(OpenId(1), ROOT, seconds(0));
    let requests = sent(linux);
    let count = |request| requests.iter().filter(|sent| **sent == request).count();
    (count(LinuxRequest::ListPlus), count(LinuxRequest::ListPlain))
}

#[test]
fn a_large_directory_is_listed_in_as_many_requests_as_a_kernel_sends_however_it_is_reported() {
    // Counts of ls -f, find and ls -l on Linux 6.1 with a server that prefers 1 MiB.
    for (count, plus, plain) in [(50, 1, 0), (2000, 3, 0), (20_000, 7, 0), (100_000, 9, 3)] {
        let names = many(count);
        for part in [count, 819, 26_214] {
            let mut linux = linux(CacheOptions::default());
            assert_eq!(listed(&mut linux, &names, part, false), (plus, plain), "{count}");
            // The listing is cached then.
            assert_eq!(listed(&mut linux, &names, part, false), (0, 0), "{count}");
        }
    }
}

#[test]
fn rdirplus_decides_how_a_large_directory_is_listed() {
    let names = many(100_000);
    for (plus, looks, with, without) in [
        (ReaddirplusMode::Always, false, true, false),
        (ReaddirplusMode::Never, true, false, true),
        (ReaddirplusMode::Auto, false, true, true),
        (ReaddirplusMode::Auto, true, true, false),
    ] {
        let mut linux = linux(CacheOptions { plus, ..CacheOptions::default() });
        let (plus, plain) = listed(&mut linux, &names, 819, looks);
        assert_eq!((plus > 0, plain > 0), (with, without), "{plus} and {plain}");
    }
}

#[test]
fn no_reply_is_larger_than_the_server_prefers() {
    let names: Vec<Vec<u8>> = (0..10_000).map(|number| format!("name{number:08}").into_bytes()).collect();
    let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    // An entry has 36 bytes: 1,817 fit the first reply and twice that the next, 452 fit 16 KiB, and
    // 110 fit the minimum used instead of 7 bytes.
    for (list_size, requests) in [(1 << 20, 3), (16 << 10, 23), (7, 91)] {
        let mut linux = linux(CacheOptions { plus: ReaddirplusMode::Never, ..CacheOptions::default() });
        linux.options.list_size = list_size;
        linux.list(OpenId(1), ROOT, true, &names, seconds(0));
        assert_eq!(sent(&mut linux), vec![LinuxRequest::ListPlain; requests], "{list_size}");
    }
}
