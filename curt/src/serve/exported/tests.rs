//! A server with exports(5) files and handle tables.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

use std::{collections::BTreeMap, fs};

use clap::Parser;

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    arguments: ServeArguments,
}

/// A server of the directories `a` and `b`, with handle tables.
struct Fixture {
    exported: OpenedExports,
    top: tempfile::TempDir,
}

impl Fixture {
    fn new(names: &[&str]) -> Self {
        let top = tempfile::tempdir().unwrap();
        for name in ["a", "b"] {
            fs::create_dir(top.path().join(name)).unwrap();
        }
        say(&top, names);
        let exported = open(&arguments(&top), Arc::default()).unwrap();
        Self { exported, top }
    }

    /// The files of the state directory and their contents.
    fn state(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let files = fs::read_dir(self.top.path().join("state")).unwrap();
        let paths = files.map(|file| file.unwrap().path());
        paths.map(|path| (path.clone(), fs::read(path).unwrap())).collect()
    }

    /// The summary of a reload with these exports, and the served names.
    fn reload_to(&mut self, names: &[&str]) -> (String, Vec<String>) {
        say(&self.top, names);
        let message = (self.exported.reload)();
        let beginning = format!("{}/", self.top.path().display());
        let paths = self.exported.service.export_paths();
        (message, paths.iter().map(|path| path.replace(&beginning, "")).collect())
    }
}

/// Arguments to serve the file below `top`, with the state there.
fn arguments(top: &tempfile::TempDir) -> ServeArguments {
    let (file, state) = (top.path().join("exports"), top.path().join("state"));
    let [file, state] = [file, state].map(|path| path.display().to_string());
    let words = ["serve", "-c", &file, "--state", &state, "--handles", "table"];
    Line::try_parse_from(words).unwrap().arguments
}

fn say(top: &tempfile::TempDir, names: &[&str]) {
    let line = |name: &&str| format!("{} *(ro)\n", top.path().join(name).display());
    let lines: String = names.iter().map(line).collect();
    fs::write(top.path().join("exports"), lines).unwrap();
}

#[test]
fn a_reload_that_fails_leaves_what_is_served_as_it_was() {
    let mut fixture = Fixture::new(&["a"]);
    // No persistent number can be assigned to another export.
    let numbers = fixture.top.path().join("state/numbers");
    let aside = fixture.top.path().join("state/aside");
    fs::rename(&numbers, &aside).unwrap();
    fs::create_dir(&numbers).unwrap();
    let (message, served) = fixture.reload_to(&["b"]);
    assert!(message.starts_with("the exports are unchanged"), "{message}");
    assert_eq!(served, ["a"]);
    fs::remove_dir(&numbers).unwrap();
    fs::rename(&aside, &numbers).unwrap();
    assert_eq!(fixture.reload_to(&["a"]).1, ["a"], "it stayed open");
    assert_eq!(fixture.reload_to(&["b"]).1, ["b"]);
}

#[test]
fn a_check_opens_what_a_server_would_open() {
    let top = tempfile::tempdir().unwrap();
    let file = top.path().join("exports").display().to_string();
    let state = top.path().join("state").display().to_string();
    let errors = |handles: &str| {
        let words = ["serve", "--check", "-c", &file, "--state", &state, "--handles", handles];
        let arguments = Line::try_parse_from(words).unwrap().arguments;
        let (_, problems) = check::problems(&arguments).unwrap();
        problems.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    // The kernel has no handles for /proc.
    fs::write(&file, "# one\n/proc *(ro)\n").unwrap();
    let message = errors("kernel");
    assert!(
        matches!(&message[..], [one] if one.contains("exports:2: error: /proc: cannot be exported")),
        "{message:?}"
    );
    say(&top, &["."]);
    assert_eq!(errors("table"), [""; 0]);
    assert!(!top.path().join("state").exists(), "a check leaves nothing behind");
}

#[test]
fn another_directory_in_the_place_of_one_that_is_served_is_served_instead() {
    let mut fixture = Fixture::new(&["a", "b"]);
    let path = |name: &str| fixture.top.path().join(name);
    fs::rename(path("b"), path("moved")).unwrap();
    fs::create_dir(path("b")).unwrap();
    assert_eq!(fixture.reload_to(&["a", "b"]).1, ["a", "b"]);
}

#[test]
fn a_check_beside_a_server_opens_no_table_of_its_and_takes_no_place_that_can_be_guessed() {
    let fixture = Fixture::new(&["a", "b"]);
    let guessed = std::env::temp_dir().join(format!("curt-check-{}", std::process::id()));
    fs::create_dir(&guessed).unwrap();
    let before = fixture.state();
    let checked = check::problems(&arguments(&fixture.top));
    let left = fs::read_dir(&guessed).unwrap().count();
    fs::remove_dir(&guessed).unwrap();
    let (_, problems) = checked.unwrap();
    assert!(problems.is_empty(), "{problems:?}");
    assert_eq!(left, 0);
    assert!(fixture.state() == before, "{:?}", fixture.state().keys());
}

#[test]
fn a_server_whose_state_is_in_use_opens_no_table_in_it() {
    let fixture = Fixture::new(&["a"]);
    let before = fixture.state();
    say(&fixture.top, &["b"]);
    let refused = open(&arguments(&fixture.top), Arc::default());
    let refused = format!("{:#}", refused.map(drop).unwrap_err());
    assert!(refused.contains("in use by another server"), "{refused}");
    assert!(fixture.state() == before, "{:?}", fixture.state().keys());
}
