//! The table against its documentation, and each option's effect.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

use std::collections::BTreeSet;

use super::{
    OptionDiagnostic, OptionError, OptionTreatment, ParsedOptions, Settings, TABLE, format_utab_options, own,
    parse, parse_onto, remounted, split,
};

const DOCUMENTATION: &str = include_str!("../../../../docs/options.md");

/// The documented options: (option, support).
fn as_documented() -> Vec<(&'static str, &'static str)> {
    let mut rows = Vec::new();
    for line in DOCUMENTATION.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let options = cells[1].split('`').filter(|text| !text.trim().is_empty());
        rows.extend(options.map(|option| (option, cells[2])));
    }
    assert!(rows.len() > 120, "the documentation has lost its rows");
    rows
}

/// The documented options with placeholders filled in.
fn documented() -> Vec<(String, String)> {
    let filled = |(option, support): (&str, &str)| {
        let (name, placeholder) = option.split_once('=').unwrap_or((option, ""));
        let option = match placeholder {
            "N" => format!("{name}={}", if name == "names_max" { 5000 } else { 7 }),
            "SIZE" => format!("{name}=7M"),
            "ADDRESS" => format!("{name}=192.0.2.7"),
            "PLACE" => format!("{name}=9049"),
            "NAME" | "TEXT" => format!("{name}=seven"),
            _ => option.to_owned(),
        };
        (option, support.to_owned())
    };
    as_documented().into_iter().map(filled).collect()
}

/// Settings other than the default, so that each option's effect is visible.
fn opposite(option: &str) -> &'static str {
    match option.split('=').next().unwrap() {
        "ac" => "noac",
        "cto" => "nocto",
        "vers" | "nfsvers" | "v3" if option.ends_with('3') => "vers=4",
        "hard" => "soft",
        "fg" => "bg",
        "nosoftreval" => "softreval",
        "accesscheck" => "noaccesscheck",
        "lock" => "nolock",
        "local_lock" if option.ends_with("none") => "nolock",
        "lookupcache" if option.ends_with("all") => "lookupcache=none",
        "rdirplus" if option == "rdirplus" => "nordirplus",
        "proto" | "tcp" => {
            if option.ends_with('6') {
                "tcp"
            } else {
                "proto=tcp6"
            }
        }
        "mountproto" => {
            if option.ends_with('6') {
                "mountproto=tcp"
            } else {
                "mountproto=tcp6"
            }
        }
        "sec" => {
            if option.ends_with("none") {
                "sec=sys"
            } else {
                "sec=none"
            }
        }
        "neg_racy_guard" if option.ends_with("auto") => "neg_racy_guard=on",
        "ring" if option.ends_with("request") => "ring=off",
        "locks" if option.ends_with("local-first") => "locks=server-first",
        "readdir" if option.ends_with("auto") => "readdir=restart",
        "delegations" => "nodelegations",
        "dirfill" if option.ends_with("auto") => "dirfill=off",
        "rw" => "ro",
        "exec" => "noexec",
        "suid" => "nosuid",
        "nodev" => "dev",
        "atime" | "relatime" => "noatime",
        "nostrictatime" => "strictatime",
        "diratime" => "nodiratime",
        "async" => "sync",
        "defaults" => "ro,noexec",
        _ => "defaults",
    }
}

#[test]
fn every_documented_option_has_its_documented_support() {
    for (option, support) in documented() {
        let outcome = parse(&option);
        match support.as_str() {
            "honoured" => {
                let parsed = outcome.unwrap_or_else(|error| panic!("{option}: {error}"));
                assert!(parsed.remarks.is_empty(), "{option}: {:?}", parsed.remarks);
                assert_eq!(parsed.honoured.len(), 1, "{option}");
            }
            "ignored" => {
                let remarks = outcome.unwrap_or_else(|error| panic!("{option}: {error}")).remarks;
                assert!(
                    matches!(remarks.as_slice(), [OptionDiagnostic::Ignored { .. }]),
                    "{option}: {remarks:?}"
                );
            }
            "refused" => match outcome {
                Err(OptionError::Refused { option: named, instead }) => {
                    assert_eq!(named, option);
                    assert!(!instead.is_empty());
                }
                other => panic!("{option}: {other:?}"),
            },
            // Options that mount(8) reads from utab are stored as written, and change nothing else.
            "passed" => {
                let mut parsed = outcome.unwrap_or_else(|error| panic!("{option}: {error}"));
                parsed.settings.passed_through.clear();
                assert_eq!(parsed, ParsedOptions::default(), "{option}");
            }
            other => panic!("{option}: the documentation says {other:?}"),
        }
    }
}

#[test]
fn every_honoured_option_has_an_effect() {
    // Only this requests the only possible value.
    const ONLY_ONE: &[&str] = &["mountvers=3"];
    for (option, support) in documented() {
        if support != "honoured" || ONLY_ONE.contains(&option.as_str()) {
            continue;
        }
        let before = parse(opposite(&option)).unwrap().settings;
        let after = parse_onto(before.clone(), &option).unwrap().settings;
        assert_ne!(before, after, "{option} changed nothing");
    }
}

#[test]
fn an_address_for_callbacks_changes_nothing_and_the_reason_is_the_session() {
    for version in ["vers=4.1", "vers=4.2", "vers=4"] {
        let parsed = parse(&format!("{version},clientaddr=192.0.2.1")).unwrap();
        assert_eq!(parsed.settings, parse(version).unwrap().settings);
        let [OptionDiagnostic::Ignored { option, why }] = parsed.remarks.as_slice() else {
            panic!("{:?}", parsed.remarks)
        };
        assert_eq!(option, "clientaddr=192.0.2.1");
        assert!(why.contains("the session's own connection"), "{why}");
    }
}

#[test]
fn every_row_is_documented() {
    let documented = documented();
    for row in TABLE.iter().flat_map(|group| group.iter()) {
        let found = documented.iter().any(|(option, _)| {
            let words = split(option);
            row.is_about(&words[0].name, words[0].value.as_deref())
        });
        assert!(found, "{} {:?} is not in docs/options.md", row.name, row.values);
        if let OptionTreatment::Refused(text) | OptionTreatment::Ignored(text) = row.treatment {
            assert!(!text.is_empty(), "{} says nothing", row.name);
        }
    }
}

#[test]
fn own_options_are_described_with_the_documented_values() {
    let options: Vec<_> = own().collect();
    for name in ["noaccesscheck", "sloppycto=N", "dirfill=auto|off", "metrics=PLACE"] {
        assert!(options.iter().any(|option| option == name), "{name}: {options:?}");
    }
    for option in &options {
        let (name, values) = option.split_once('=').unwrap_or((option, ""));
        let forms: BTreeSet<_> = match values {
            "" => [name.to_owned()].into(),
            _ => values.split('|').map(|value| format!("{name}={value}")).collect(),
        };
        let documented: BTreeSet<_> = as_documented()
            .into_iter()
            .filter(|(option, _)| option.split('=').next() == Some(name))
            .map(|(option, _)| option.to_owned())
            .collect();
        assert_eq!(forms, documented, "{option}");
    }
}

#[test]
fn defaults_are_those_of_nfs_5() {
    let settings = parse("").unwrap().settings;
    assert_eq!(settings, Settings::default());
    assert_eq!(timers(&settings), (3, 60, 30, 60));
    assert_eq!((settings.transport.timeo, settings.transport.retrans), (600, 2));
}

#[test]
fn unknown_and_malformed_options_are_named() {
    let error = parse("rw,noacess").unwrap_err();
    assert!(error.to_string().contains("an incorrect mount option was specified: noacess"), "{error}");
    for option in [
        "timeo=0",
        "timeo",
        "timeo=",
        "nocto=1",
        "nconnect=17",
        "acregmin=-1",
        "lookupcache=some",
        "port=70000",
    ] {
        let error = parse(option).unwrap_err();
        assert!(
            matches!(&error, OptionError::Value { option: named, .. } if named == option),
            "{option}: {error}"
        );
    }
}

fn timers(settings: &Settings) -> (u64, u64, u64, u64) {
    let (files, directories) = (settings.cache.files, settings.cache.directories);
    (files.min.as_secs(), files.max.as_secs(), directories.min.as_secs(), directories.max.as_secs())
}

#[test]
fn a_timer_takes_its_partner_along() {
    let timers = |options| timers(&parse(options).unwrap().settings);
    assert_eq!(timers("acregmin=70"), (70, 70, 30, 60));
    assert_eq!(timers("acdirmax=2"), (3, 60, 2, 2));
    assert_eq!(timers("acdirmin=1,acdirmax=2"), (3, 60, 1, 2));
    assert_eq!(timers("actimeo=5"), (5, 5, 5, 5));
}

#[test]
fn sloppy_turns_unknown_options_into_warnings_wherever_it_stands() {
    for options in ["frobnicate=1,sloppy", "sloppy,frobnicate=1"] {
        let parsed = parse(options).unwrap();
        assert!(
            matches!(&parsed.remarks[..], [OptionDiagnostic::Warning { option, .. }] if option == "frobnicate=1")
        );
    }
    assert!(parse("sloppy,vers=4.0").is_err(), "what is refused by name stays refused");
}

#[test]
fn the_last_option_wins_and_is_shown_once() {
    let parsed = parse("ro,timeo=10,rw,timeo=20").unwrap();
    assert!(!parsed.settings.generic.read_only);
    assert_eq!(parsed.settings.transport.timeo, 20);
    let shown: Vec<_> = parsed.honoured.iter().map(super::OptionWord::text).collect();
    assert_eq!(shown, ["ro", "rw", "timeo=20"]);
}

#[test]
fn options_for_others_stay_once_and_are_shown_beside_the_kernels() {
    let current = parse("x-gvfs-name=a,noauto,_netdev,comment=c,x-gvfs-name=b\\,c").unwrap().settings;
    let expected = ["_netdev", "x-gvfs-name=b\\,c"].map(str::to_owned);
    assert_eq!(current.passed_through, expected);
    assert!(format_utab_options(&current).ends_with(",_netdev,x-gvfs-name=b\\,c"));
    assert_eq!(parse(&super::format_options(&current)).unwrap().settings, current);
    let next = remounted(&current, "remount,ro,x-systemd.automount").unwrap();
    assert_eq!(next.passed_through.len(), 3);
}
