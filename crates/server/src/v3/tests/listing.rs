//! READDIR and READDIRPLUS.

use curt_proto::nfs3::{
    Cookie, CookieVerf3, DirectoryEntry, DirectoryEntryPlus, Fattr, NfsFh3, NfsProcedure, NfsResult,
    NfsStat3, ReaddirArguments, ReaddirOk, ReaddirPlusArguments,
};
use curt_xdr::decode_all;

use super::fixture::{Fixture, bytes_of};

/// A name and the cookie after it.
type Named = (Vec<u8>, u64);

/// One READDIR: names with cookies, and whether the end was reached.
fn readdir(
    fixture: &Fixture,
    directory: NfsFh3,
    cookie: u64,
    count: u32,
) -> Result<(Vec<Named>, bool), NfsStat3> {
    let verifier = CookieVerf3::default();
    let arguments = ReaddirArguments { directory, cookie: Cookie(cookie), verifier, count };
    let results = fixture.raw(16, &bytes_of(&arguments)).unwrap();
    match decode_all::<NfsResult<ReaddirOk<'_, DirectoryEntry<'_>>, Option<Fattr>>>(&results).unwrap() {
        NfsResult::Ok(mut ok) => {
            let most = usize::try_from(count).unwrap();
            assert!(results.len() <= most, "{} bytes of {count}", results.len());
            // Attributes are omitted only if they would leave no room for an entry, or for the end.
            let is_told = ok.attributes == Some(fixture.attributes(directory));
            assert!(is_told || ok.attributes.is_none() && results.len() + 84 > most);
            let entry = |entry: DirectoryEntry<'_>| (entry.name.bytes().to_vec(), entry.cookie.0);
            let entries = ok.entries.by_ref().map(|result| entry(result.unwrap())).collect();
            Ok((entries, ok.entries.eof().unwrap()))
        }
        NfsResult::Failed(status, attributes) => {
            assert_eq!(attributes, Some(fixture.attributes(directory)));
            Err(status)
        }
    }
}

fn plus(fixture: &Fixture, arguments: &ReaddirPlusArguments) -> Result<(usize, usize, bool), NfsStat3> {
    let results = fixture.raw(17, &bytes_of(arguments)).unwrap();
    match decode_all::<NfsResult<ReaddirOk<'_, DirectoryEntryPlus<'_>>, Option<Fattr>>>(&results).unwrap() {
        NfsResult::Ok(mut ok) => {
            let mut entries = 0;
            for entry in ok.entries.by_ref() {
                let entry = entry.unwrap();
                let handle = entry.handle.unwrap();
                assert_eq!(entry.attributes, Some(fixture.attributes(handle)));
                assert_eq!(entry.attributes.unwrap().fileid, entry.fileid);
                entries += 1;
            }
            Ok((entries, results.len() - 4, ok.entries.eof().unwrap()))
        }
        NfsResult::Failed(status, _) => Err(status),
    }
}

fn with_files(count: u32) -> (Fixture, NfsFh3) {
    let fixture = Fixture::new();
    let directory = fixture.make_directory(fixture.root(), b"directory", 0o755);
    for number in 0..count {
        fixture.make_file(directory, format!("file-{number:04}").as_bytes(), 0o644);
    }
    (fixture, directory)
}

#[test]
fn every_name_is_listed_once_whatever_the_count() {
    let (fixture, directory) = with_files(100);
    for count in [150, 200, 512, 4096, 1 << 20, u32::MAX] {
        let (mut names, mut cookie, mut replies) = (Vec::new(), 0, 0);
        loop {
            let (entries, eof) = readdir(&fixture, directory, cookie, count).unwrap();
            assert!(!entries.is_empty() || eof);
            cookie = entries.last().map_or(cookie, |(_, cookie)| *cookie);
            names.extend(entries.into_iter().map(|(name, _)| name));
            replies += 1;
            if eof {
                break;
            }
        }
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 102, "count {count}, {replies} replies");
        assert!(names.contains(&b".".to_vec()) && names.contains(&b"..".to_vec()));
        assert!(count < 4096 || replies == 1, "all fits into one reply of {count}");
    }
}

// SEMANTICS: list-1.
#[test]
fn names_made_and_removed_meanwhile_disturb_no_others() {
    let (fixture, directory) = with_files(50);
    let (mut names, mut cookie) = (Vec::new(), 0);
    for round in 0.. {
        let (entries, eof) = readdir(&fixture, directory, cookie, 300).unwrap();
        cookie = entries.last().map_or(cookie, |(_, cookie)| *cookie);
        names.extend(entries.into_iter().map(|(name, _)| name));
        if eof {
            break;
        }
        fixture.make_file(directory, format!("new-{round}").as_bytes(), 0o644);
        let last = names.last().unwrap().clone();
        let gone: NfsResult<curt_proto::nfs3::WccData, curt_proto::nfs3::WccData> =
            fixture.call(NfsProcedure::Remove, &super::fixture::place(directory, &last));
        assert!(
            gone.status() == NfsStat3::Ok || last.starts_with(b"."),
            "the entry that the cookie names is gone"
        );
    }
    let mut listed: Vec<_> = names.iter().filter(|name| name.starts_with(b"file-")).collect();
    listed.sort();
    assert_eq!(listed.len(), 50);
    listed.dedup();
    assert_eq!(listed.len(), 50);
}

#[test]
fn a_reply_that_holds_no_entry_is_too_small() {
    let (fixture, directory) = with_files(1);
    // Status, no attributes, verifier, one entry of a name of one to four bytes, the end.
    let least = 4 + 4 + 8 + (4 + 8 + 8 + 8) + 8;
    for count in 0..least {
        assert_eq!(readdir(&fixture, directory, 0, count), Err(NfsStat3::Toosmall), "count {count}");
    }
    for count in [least, 103, 104, 120, 128, 132, 136] {
        let (entries, _) = readdir(&fixture, directory, 0, count).unwrap();
        assert!(!entries.is_empty(), "count {count}");
    }
    let (entries, _) = readdir(&fixture, directory, 0, 1 << 20).unwrap();
    let end = entries.last().unwrap().1;
    assert_eq!(
        readdir(&fixture, directory, end, 200),
        Ok((vec![], true)),
        "behind the last entry there is none"
    );
    assert_eq!(readdir(&fixture, directory, end, 24), Ok((vec![], true)));
}

/// RFC 1813 sections 3.3.16 and 3.3.17: count and maxcount bound the result with all its XDR
/// overhead. The status is counted, too, although it precedes READDIR3resok: a client may have room
/// for no more than it requested.
#[test]
fn no_listing_is_longer_than_the_requested_count() {
    let fixture = Fixture::new();
    let directory = fixture.make_directory(fixture.root(), b"directory", 0o755);
    for length in 1..=255 {
        fixture.make_file(directory, &vec![b'n'; length], 0o644);
    }
    let counts = (0..1200).chain((1..=9).flat_map(|power| {
        let boundary = 512_u32 << power;
        boundary - 9..boundary + 9
    }));
    for count in counts {
        let _ = readdir(&fixture, directory, 0, count);
        let arguments = ReaddirPlusArguments {
            directory,
            cookie: Cookie(0),
            verifier: CookieVerf3::default(),
            directory_count: count,
            max_count: count,
        };
        let results = fixture.raw(17, &bytes_of(&arguments)).unwrap();
        let is_ok = results[..4] == [0; 4];
        assert!(
            !is_ok || results.len() <= usize::try_from(count).unwrap(),
            "{} bytes of {count}",
            results.len()
        );
    }
}

proptest::proptest! {
    /// A listing in replies of any size reaches its end, with each name once.
    #[test]
    fn replies_of_any_size_lead_through_the_whole_directory(
        lengths in proptest::collection::btree_set(1_usize..=255, 0..12),
        count in 332_u32..4000,
    ) {
        let fixture = Fixture::new();
        let directory = fixture.make_directory(fixture.root(), b"directory", 0o755);
        for length in &lengths {
            fixture.make_file(directory, &vec![b'n'; *length], 0o644);
        }
        for procedure in [16, 17] {
            proptest::prop_assert_eq!(close_directory(&fixture, directory, procedure, count), lengths.len() + 2);
        }
    }
}

/// The number of names in a listing with replies of up to `count` bytes.
fn close_directory(fixture: &Fixture, directory: NfsFh3, procedure: u32, count: u32) -> usize {
    let (mut names, mut cookie, verifier) = (0, Cookie(0), CookieVerf3::default());
    loop {
        let plain = ReaddirArguments { directory, cookie, verifier, count };
        let plus =
            ReaddirPlusArguments { directory, cookie, verifier, directory_count: count, max_count: count };
        let arguments = if procedure == 16 { bytes_of(&plain) } else { bytes_of(&plus) };
        let results = fixture.raw(procedure, &arguments).unwrap();
        assert!(results.len() <= usize::try_from(count).unwrap());
        let before = names;
        let eof = if procedure == 16 {
            let listed: NfsResult<ReaddirOk<'_, DirectoryEntry<'_>>, Option<Fattr>> =
                decode_all(&results).unwrap();
            let NfsResult::Ok(mut ok) = listed else { panic!("{count}: refused") };
            for entry in ok.entries.by_ref() {
                (names, cookie) = (names + 1, entry.unwrap().cookie);
            }
            ok.entries.eof().unwrap()
        } else {
            let listed: NfsResult<ReaddirOk<'_, DirectoryEntryPlus<'_>>, Option<Fattr>> =
                decode_all(&results).unwrap();
            let NfsResult::Ok(mut ok) = listed else { panic!("{count}: refused") };
            for entry in ok.entries.by_ref() {
                (names, cookie) = (names + 1, entry.unwrap().cookie);
            }
            ok.entries.eof().unwrap()
        };
        if eof {
            return names;
        }
        assert!(names > before, "no progress with {count}");
    }
}

#[test]
fn positions_that_never_were_are_refused() {
    let (fixture, directory) = with_files(3);
    assert_eq!(readdir(&fixture, directory, u64::MAX, 4096), Err(NfsStat3::BadCookie));
    let (entries, _) = readdir(&fixture, directory, 0, 4096).unwrap();
    let cookie = Cookie(entries[1].1);
    let verifier = CookieVerf3([1; 8]);
    let arguments = ReaddirArguments { directory, cookie, verifier, count: 4096 };
    let results = fixture.raw(16, &bytes_of(&arguments)).unwrap();
    assert_eq!(results[..4], NfsStat3::BadCookie.number().to_be_bytes());
    let file = fixture.make_file(directory, b"file", 0o644);
    assert_eq!(readdir(&fixture, file, 0, 4096), Err(NfsStat3::Notdir));
}

#[test]
fn plus_keeps_both_budgets_and_goes_on_where_it_stopped() {
    let (fixture, directory) = with_files(100);
    let whole = ReaddirPlusArguments {
        directory,
        cookie: Cookie(0),
        verifier: CookieVerf3::default(),
        directory_count: 1 << 20,
        max_count: 1 << 20,
    };
    let (entries, bytes, eof) = plus(&fixture, &whole).unwrap();
    assert_eq!((entries, eof), (102, true));
    assert!(bytes > 102 * 120);
    let (entries, bytes, eof) = plus(&fixture, &ReaddirPlusArguments { max_count: 2000, ..whole }).unwrap();
    assert!(bytes <= 2000 && (8..20).contains(&entries) && !eof, "{entries} entries, {bytes} bytes");
    let (entries, _, eof) = plus(&fixture, &ReaddirPlusArguments { directory_count: 320, ..whole }).unwrap();
    assert!((8..14).contains(&entries) && !eof, "{entries} entries");
    // A dircount too small for an entry must not end a listing.
    let (entries, _, _) = plus(&fixture, &ReaddirPlusArguments { directory_count: 0, ..whole }).unwrap();
    assert_eq!(entries, 1);
    for max_count in [0, 31, 55] {
        let refused = plus(&fixture, &ReaddirPlusArguments { max_count, ..whole });
        assert_eq!(refused, Err(NfsStat3::Toosmall));
    }
}

/// CVE-2021-3178: READDIRPLUS returned the parent of an export's root.
#[test]
fn dot_dot_of_the_root_is_the_root_itself() {
    let fixture = Fixture::new();
    let root = fixture.root();
    let arguments = ReaddirPlusArguments {
        directory: root,
        cookie: Cookie(0),
        verifier: CookieVerf3::default(),
        directory_count: 4096,
        max_count: 4096,
    };
    let results = fixture.raw(17, &bytes_of(&arguments)).unwrap();
    let listed: NfsResult<ReaddirOk<'_, DirectoryEntryPlus<'_>>, Option<Fattr>> =
        decode_all(&results).unwrap();
    let NfsResult::Ok(mut ok) = listed else { panic!("refused") };
    let above = ok.entries.by_ref().map(Result::unwrap).find(|entry| entry.name.bytes() == b"..").unwrap();
    assert_eq!(above.fileid, fixture.attributes(root).fileid);
    assert!(above.handle.is_none_or(|handle| handle == root));
}
