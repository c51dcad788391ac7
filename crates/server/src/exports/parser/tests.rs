//! How lines of exports(5) are parsed, errors, warnings, and that printed entries can be parsed
//! again.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
use proptest::prelude::*;

use super::*;
use crate::exports::options::MountPoint;
use crate::exports::{CredentialFlavor, Fsid};

fn parse(text: &str) -> ParsedExports {
    let mut parsed = ParsedExports::default();
    parsed.read(Path::new("exports"), text.as_bytes());
    parsed
}

/// Each entry as its path, its client, and whether it is read-only; then each problem.
fn shown(text: &str) -> Vec<String> {
    let parsed = parse(text);
    let entry = |entry: &ExportsEntry| {
        let access =
            if entry.options.rules().of(CredentialFlavor::Sys).unwrap().read_only { "ro" } else { "rw" };
        let path = entry.path.escape_ascii();
        format!("{} {path} {} {access}", entry.place.line, entry.client)
    };
    let entries = parsed.entries.iter().map(entry);
    entries.chain(parsed.problems.iter().map(ToString::to_string)).collect()
}

#[test]
fn lines_are_read_as_exportfs_reads_them() {
    let rows: [(&str, &[&str]); 16] = [
        ("", &[]),
        ("# all of it\n \t\n   # more", &[]),
        ("/srv host(rw)\n/home *(ro)\n", &["1 /srv host rw", "2 /home * ro"]),
        ("/srv a(rw) b(ro) c", &["1 /srv a rw", "1 /srv b ro", "1 /srv c ro"]),
        ("/srv a(rw)b(ro)", &["1 /srv a rw", "1 /srv b ro"]),
        ("/srv (rw)", &["1 /srv * rw"]),
        ("/srv a(rw) # comment b(rw)", &["1 /srv a rw"]),
        ("/srv -rw a b(ro) -ro c", &["1 /srv a rw", "1 /srv b ro", "1 /srv c ro"]),
        ("/srv \\\n  a(rw) \\\n  b\n/x c", &["2 /srv a rw", "3 /srv b ro", "4 /x c ro"]),
        ("\"/with space\" a(rw)", &["1 /with space a rw"]),
        ("/with\\040space a(rw)", &["1 /with space a rw"]),
        ("/a\\134b \"a\"(rw)", &["1 /a\\\\b a rw"]),
        ("/a\\9 a(rw)", &["1 /a\\\\9 a rw"]),
        ("//srv/./x/ a( rw , sync )", &["1 /srv/x a rw"]),
        ("/srv a(rw)\r\n/x b\r\n", &["1 /srv a rw", "2 /x b ro"]),
        ("/srv fd00::/64(rw) [fd00::1](ro)", &["1 /srv fd00::/64 rw", "1 /srv fd00::1 ro"]),
    ];
    for (text, expected) in rows {
        assert_eq!(shown(text), expected, "{text:?}");
    }
}

// SEMANTICS: export-2.
#[test]
fn what_is_not_understood_is_an_error_with_file_line_and_word() {
    let rows = [
        ("srv a(rw)", "exports:1: error: srv: expected an absolute path"),
        ("/a/../b a(rw)", "exports:1: error: /a/../b: write the path without .."),
        ("/srv a(rw,fast)", "exports:1: error: fast: no such option"),
        ("/srv a(rw,pnfs)", "exports:1: error: pnfs: this server does not support pNFS"),
        ("/ok a\n\n/srv \\\n b(sec=krb5p)", "exports:4: error: sec=krb5p: Kerberos"),
        ("/srv -fast a", "exports:1: error: fast: no such option"),
        ("/srv a(rw", "exports:1: error: (: the ( has no )"),
        ("/srv a(rw\n/x b(rw)", "exports:1: error: (: the ( has no )"),
        ("\"/srv a(rw)", "exports:1: error: \": the quote does not end"),
        ("/srv a(\"rw)", "exports:1: error: (: the ( has no )"),
        ("/srv 10.0.0.0/33(rw)", "exports:1: error: 10.0.0.0/33: not a network"),
        ("/srv 10.0.0.*(rw)", "exports:1: error: 10.0.0.*: * and ? match names"),
        ("/nul\\000 a", "exports:1: error: /nul\\000: a path cannot contain NUL"),
        ("/srv \"-ro\" b", "exports:1: error: -ro: a host name cannot begin with -"),
        ("/srv a\\012b", "exports:1: error: a\\012b: not a host name"),
        ("/srv a(r\\033w\\302\\205ü)", "exports:1: error: r\\033w\\302\\205ü: no such option"),
    ];
    for (text, expected) in rows {
        let parsed = parse(&format!("{text}\n/last z(rw)"));
        let error = parsed.problems.first().unwrap().to_string();
        assert!(error.starts_with(expected), "{text:?}: {error}");
        assert!(parsed.has_errors());
        let paths: Vec<_> = parsed.entries.iter().map(|entry| entry.path.as_slice()).collect();
        assert!(!paths.contains(&b"/srv".as_slice()), "half a line is served: {text:?}");
        assert!(paths.contains(&b"/last".as_slice()), "the next line is lost: {text:?}");
    }
    let bytes = b"/srv \xff(rw)\n/x a(\xff)\n";
    let mut parsed = ParsedExports::default();
    parsed.read(Path::new("exports"), bytes);
    assert_eq!((parsed.entries.len(), parsed.problems.len()), (0, 2));
}

#[test]
fn what_was_hardly_meant_is_a_warning() {
    let warned = |text: &str| {
        let parsed = parse(text);
        assert!(!parsed.has_errors());
        parsed.problems.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert!(warned("/home bob (rw)")[0].starts_with("exports:1: warning: bob: the blank before ("));
    assert_eq!(warned("/home bob(ro) (rw)"), Vec::<String>::new());
    assert!(warned("/home\n")[0].contains("/home: no client is given"));
    assert!(warned("/home a(rw,async)")[0].contains("async: changes are answered before"));
}

#[test]
fn no_path_is_taken_that_no_client_could_mount() {
    let line = |length: usize| format!("/{} *\n", "d".repeat(length - 1));
    assert!(!parse(&line(PATH_MAX)).has_errors());
    let parsed = parse(&line(PATH_MAX + 1));
    assert!(parsed.has_errors() && parsed.entries.is_empty());
}

#[test]
fn no_more_entries_are_taken_than_the_limit() {
    let text: String = (0..=EXPORTS_MAX).map(|at| format!("/e{at} *\n")).collect();
    let parsed = parse(&text);
    assert_eq!(parsed.entries.len(), EXPORTS_MAX);
    assert!(parsed.problems[0].message.contains("more than 16384"));
    let text: String = (0..EXPORTS_MAX).map(|at| format!("/e{at} *\n")).collect();
    assert!(!parse(&text).has_errors());
}

fn options() -> impl Strategy<Value = String> {
    let word = prop::sample::select(vec![
        "ro",
        "rw",
        "async",
        "insecure",
        "no_root_squash",
        "all_squash",
        "nohide",
        "crossmnt",
        "subtree_check",
        "anonuid=7",
        "anongid=-2",
        "fsid=root",
        "fsid=12",
        "fsid=0d5a8b04:6c3c4b8e:9d7c2f3f:1f0d4e11",
        "mountpoint",
        "mp=/a\\040b\\054\\051",
        "nordirplus",
        "sec=sys",
        "sec=none:sys",
        "sec=none",
    ]);
    prop::collection::vec(word, 0..12).prop_map(|words| words.join(","))
}

proptest! {
    #[test]
    fn what_is_printed_is_read_back(
        path in prop::collection::vec(any::<u8>(), 0..12),
        client in prop::sample::select(vec!["*", "host", "10.0.0.0/8", "fd00::1", "*.lab", "@group"]),
        options in options(),
    ) {
        let path = [b"/".as_slice(), &path].concat();
        let text = format!("{} {client}({options})", escape(&path));
        let parsed = parse(&text);
        let usable = !path.contains(&0) && !crate::exports::table::components(&path).any(|part| part == b"..");
        prop_assert_eq!(parsed.entries.len(), usize::from(usable), "{:?} {:?}", text, parsed.problems);
        for entry in parsed.entries {
            let again = parse(&entry.to_string());
            prop_assert_eq!(again.entries, vec![entry]);
        }
    }

    #[test]
    fn no_text_is_too_much(text in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut parsed = ParsedExports::default();
        parsed.read(Path::new("exports"), &text);
        let lines = text.iter().filter(|byte| **byte == b'\n').count() + 2;
        prop_assert!(parsed.problems.iter().all(|problem| problem.place.line <= lines));
    }

    #[test]
    fn no_line_of_almost_words_is_too_much(text in "[/a-z(), \\\\\"#\n*@0-9.:-]{0,80}") {
        for entry in parse(&text).entries {
            prop_assert!(entry.path.starts_with(b"/"));
        }
    }
}

#[test]
fn an_option_may_be_a_path_with_anything_in_it() {
    let parsed = parse("/srv a(mp=\"/a b,c)\",fsid=0)");
    assert_eq!(parsed.problems, []);
    let options = &parsed.entries[0].options;
    assert_eq!(options.mount_point(), Some(&MountPoint::At(b"/a b,c)".to_vec())));
    assert_eq!(options.fsid(), Some(Fsid::Number(0)));
}
