//! For each fault of a server, a listing returns an error or the correct names. It never returns a
//! name twice, loses a name silently, or fails to end.

use curt_client::{ClientOptions, DirEmit, Errno, LookupResult, ops};
use curt_observe::ClientCounter;

use crate::server::{Asked, Cookies, FIRST_FILE, Lie, Script, Scripted, list, me, mount, name, read_from};

const COUNT: u64 = 3000;

/// Lists a directory of [`COUNT`] names: the result, the number of names returned, the number
/// returned twice, and the requests.
fn told(script: Script) -> (Result<(), Errno>, usize, usize, Vec<Asked>) {
    let server = Scripted::new(Script { count: COUNT, ..script });
    let client = mount(&server, &ClientOptions::default());
    let (result, names, twice) = list(&client);
    (result, names, twice, server.asked())
}

fn lying(lie: Lie) -> Script {
    Script { lie, ..Script::default() }
}

#[test]
fn cookies_of_any_order_and_size_lead_to_each_name_once() {
    for cookies in [Cookies::Small, Cookies::Scattered, Cookies::Huge] {
        let (result, names, twice, asked) = told(Script { cookies, ..Script::default() });
        assert_eq!((result, names, twice), (Ok(()), 3000, 0), "{cookies:?}");
        assert_eq!(asked.iter().filter(|asked| asked.cookie == 0).count(), 1);
    }
}

// SEMANTICS: list-5.
#[test]
fn a_listing_continues_from_any_earlier_cookie() {
    for cookies in [Cookies::Small, Cookies::Scattered, Cookies::Huge] {
        let server = Scripted::new(Script { count: COUNT, cookies, ..Script::default() });
        let client = mount(&server, &ClientOptions::default());
        let open = ops::opendir(&client.op(&me()), client.root()).unwrap();
        let mut given = Vec::new();
        read_from(&client, &open, 0, 77, &mut |entry| given.push(entry.cookie)).unwrap();
        server.asked();
        for at in [2999, 0, 1500, 47, 48, 49, 2998] {
            let mut next = at as u64 + 1;
            read_from(&client, &open, given[at], 500, &mut |entry| {
                assert_eq!(entry.name, name(next).as_bytes());
                next += 1;
            })
            .unwrap();
            assert_eq!(next, COUNT);
        }
        assert_eq!(server.asked(), [], "all of it from memory");
        // An open directory that was never at this cookie.
        let other = ops::opendir(&client.op(&me()), client.root()).unwrap();
        let mut first = Vec::new();
        ops::readdir(&client.op(&me()), &other, given[1234], false, &mut |entry| {
            first.push(entry.name.to_vec());
            DirEmit::Full
        })
        .unwrap();
        assert_eq!(first, [name(1235).into_bytes()]);
        assert!(server.asked().iter().all(|asked| asked.cookie != 0));
    }
}

// SEMANTICS: list-6.
#[test]
fn a_cookie_that_comes_twice_in_a_reply_is_an_error() {
    let (result, _, twice, asked) = told(lying(Lie::DuplicateCookie { at: 1000 }));
    assert_eq!((result, twice), (Err(Errno::IO), 0));
    assert!(asked.len() < 20, "{}", asked.len());
}

// SEMANTICS: list-6.
#[test]
fn a_server_that_lists_in_a_loop_is_detected() {
    let (result, names, _, asked) = told(lying(Lie::Circle { at: 1000 }));
    assert_eq!(result, Err(Errno::IO));
    assert!(names <= 1000 && asked.len() < 20, "{names} names, {} requests", asked.len());
}

// SEMANTICS: list-6.
#[test]
fn a_server_that_makes_no_progress_gets_two_requests() {
    let (result, names, twice, asked) = told(lying(Lie::Silence { at: 500 }));
    assert_eq!((result, twice), (Err(Errno::IO), 0));
    assert!(names >= 300, "{names}");
    let last = asked[asked.len() - 1];
    let stuck: Vec<_> = asked.iter().filter(|asked| asked.cookie == last.cookie).collect();
    // Once as read-ahead, once for the reader, once in more bytes.
    assert!((2..=3).contains(&stuck.len()), "{stuck:?}");
    assert!(stuck[stuck.len() - 1].count > stuck[0].count);
}

#[test]
fn a_server_that_returns_toosmall_gets_larger_requests() {
    for lie in [
        Lie::Toosmall { below: 100_000 },
        Lie::Toosmall { below: 1 << 20 },
        Lie::EmptyBelow { below: 16 * 1024 },
    ] {
        let (result, names, twice, _) = told(lying(lie));
        assert_eq!((result, names, twice), (Ok(()), 3000, 0), "{lie:?}");
    }
    let (result, names, ..) = told(lying(Lie::Toosmall { below: (1 << 20) + 1 }));
    assert!(result.is_err() && names == 0, "{result:?}");
    let (result, names, _, asked) = told(lying(Lie::EmptyBelow { below: 16 * 1024 + 1 }));
    assert_eq!((result, names, asked.len()), (Err(Errno::IO), 0, 2));
}

// SEMANTICS: list-3.
#[test]
fn a_second_refusal_of_a_cookie_is_an_error_and_no_loop() {
    for (times, expected) in [(1, Ok(())), (2, Err(Errno::IO)), (u64::MAX, Err(Errno::IO))] {
        let (result, names, twice, asked) = told(lying(Lie::BadCookie { from: 300, times }));
        assert_eq!((result, twice), (expected, 0), "{times}");
        assert!(names >= 300 && asked.len() < 30);
        assert_eq!(asked.iter().filter(|asked| asked.cookie == 0).count(), 2);
    }
}

#[test]
fn each_cookie_is_sent_with_the_verifier_that_came_with_it() {
    let (result, names, twice, asked) = told(Script { verifiers_differ: true, ..Script::default() });
    assert_eq!((result, names, twice), (Ok(()), 3000, 0));
    assert_eq!(asked.iter().filter(|asked| asked.cookie == 0).count(), 1);
}

// SEMANTICS: list-6.
#[test]
fn names_that_no_directory_can_hold_end_the_listing() {
    for bad in [&b"a/b"[..], b"/", b"", b"a\0b"] {
        let lie = Lie::Name { at: 1000, name: bad };
        let (result, names, twice, _) = told(lying(lie));
        assert_eq!((result, twice), (Err(Errno::IO), 0), "{bad:?}");
        assert!(names <= 1000, "nothing of that reply is told");
    }
}

#[test]
fn attributes_of_another_file_are_not_used() {
    let server = Scripted::new(Script { count: COUNT, lie: Lie::OthersAttributes, ..Script::default() });
    let client = mount(&server, &ClientOptions::default());
    assert_eq!(list(&client).1, 3000);
    assert_eq!(client.counters().events.value(ClientCounter::NamesPrimed), 0);
    let LookupResult::Positive(found) =
        ops::lookup(&client.op(&me()), client.root(), name(7).as_bytes()).unwrap()
    else {
        panic!("it is there");
    };
    assert_eq!(found.attributes.fileid, FIRST_FILE + 7);
    assert_eq!(server.lookups(), 1, "it was asked for");
}

#[test]
fn replies_may_be_four_kibibytes_longer_than_requested_and_no_more() {
    let (result, ..) = told(lying(Lie::Excess { bytes: 4096 }));
    assert_eq!(result, Ok(()));
    let (result, names, ..) = told(lying(Lie::Excess { bytes: 4100 }));
    assert_eq!((result, names), (Err(Errno::IO), 0));
}

#[test]
fn a_directory_removed_while_it_is_listed_is_stale() {
    let (result, names, twice, asked) = told(lying(Lie::Removed { at: 1500 }));
    assert_eq!((result, twice), (Err(Errno::STALE), 0));
    assert!(names >= 700 && asked.len() < 20, "{names} names, {} requests", asked.len());
}
