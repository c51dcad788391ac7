//! `curt trace` of a running mount and server.

use std::fs;

use curt_observe::events::Event;
use curt_tests::process::{self, RunningProcess};
use rustix::process::Signal;
use serde_json::Value;

use super::{LIMIT, World};

#[path = "../../../crates/observe/src/events/chrome/check.rs"]
mod check;

/// Starts `curt trace` and waits until it shows an event.
fn trace(world: &World, arguments: &[&str], sees: &str) -> RunningProcess {
    let arguments = [&["trace"], arguments].concat();
    let tracer = RunningProcess::start("curt trace", &mut world.curt(&arguments)).unwrap();
    let mut number = 0;
    process::until("the trace has begun", LIMIT, || {
        number += 1;
        world.on_mount(&format!("mkdir begin-{number}-$$"));
        Ok(tracer.output().contains(sees).then_some(()))
    })
    .unwrap();
    tracer
}

/// Ends it by Ctrl-C; returns its output.
fn interrupt(mut tracer: RunningProcess) -> String {
    tracer.signal(Signal::INT).unwrap();
    let status = tracer.wait(LIMIT).unwrap();
    let output = tracer.output();
    assert!(status.success(), "{output}");
    output
}

#[test]
fn text_json_and_filters_report_each_operation_once() {
    let world = World::new("", &[]);
    let text =
        trace(&world, &["--event", "nfs_mkdir_*", "--event", "rpc_*", world.directory()], "nfs_mkdir_exit");
    let json = trace(&world, &["--json", "--uid", "0", world.directory()], "begin-");
    let server = trace(&world, &["--server", "--event", "nfsd_reply"], "nfsd_reply");
    world.on_mount(
        "for i in $(seq 10); do mkdir dir-$i; done; mkdir 'with space' dir-1/x; ! rmdir dir-1 2>/dev/null",
    );
    check_text(&interrupt(text));
    check_json(&interrupt(json));
    let server = interrupt(server);
    assert!(server.contains("procedure=MKDIR status=0"), "{server}");
}

fn check_text(text: &str) {
    // For an operation that was in progress at the start only the end is shown.
    let (_, text) = text.split_once(" nfs_mkdir_exit: ").unwrap();
    let told = |word: &str| text.lines().filter(|line| line.contains(word)).count();
    assert_eq!(told(" nfs_mkdir_exit: dir="), told(" nfs_mkdir_enter: pid="), "{text}");
    assert_eq!(
        text.lines().filter(|line| line.contains("nfs_mkdir_exit") && line.contains(" name=dir-")).count(),
        10,
        "{text}"
    );
    assert_eq!(told("procedure=MKDIR sent="), told("nfs_mkdir_exit"), "a request each: {text}");
    assert!(text.contains("name=\"with space\"") && text.contains("cause=create"), "{text}");
    // The summary is on standard error, which another thread reads.
    assert!(text.lines().any(|line| line.ends_with(" events, 0 lost")), "{text}");
    // Ordered by time.
    let times: Vec<f64> =
        text.lines().filter_map(|line| line.split_once(": ")?.0.rsplit(' ').next()?.parse().ok()).collect();
    assert!(times.len() > 40 && times.is_sorted(), "{text}");
}

fn check_json(lines: &str) {
    let events: Vec<Value> = lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let named = |name: &str| events.iter().filter(|event| event["fields"]["name"] == name).count();
    assert_eq!(named("with space"), 4, "look-up and mkdir, enter and exit: {lines}");
    let refused: Vec<_> = events.iter().filter(|event| event["event"] == "nfs_rmdir_exit").collect();
    assert!(refused.len() == 1 && refused[0]["fields"]["error"] == -39, "{lines}");
}

#[test]
fn a_recording_is_shown_as_text_and_as_a_trace_for_perfetto() {
    let world = World::new("", &[]);
    let file = world.network.directory().join("last.events");
    let file = file.to_str().unwrap();
    let shown = world.network.directory().join("trace.json");
    let shown = shown.to_str().unwrap();
    let mut live = world.curt(&["trace", "--perfetto", shown, "--count", "400", world.directory()]);
    let mut live = RunningProcess::start("curt trace --perfetto", &mut live).unwrap();
    let mut recorder = world.curt(&["trace", "--record", file, "--count", "300", world.directory()]);
    let mut recorder = RunningProcess::start("curt trace --record", &mut recorder).unwrap();
    let mut number = 0;
    process::until("both have ended", LIMIT, || {
        number += 1;
        world.on_mount(&format!("mkdir d{number}; echo text > d{number}/f; cat d{number}/f; ls -l d{number} & stat d{number} & wait"));
        Ok((!live.is_running()? && !recorder.is_running()?).then_some(()))
    })
    .unwrap();
    for tracer in [&mut live, &mut recorder] {
        assert!(tracer.wait(LIMIT).unwrap().success(), "{}", tracer.output());
        assert!(tracer.output().contains(", 0 lost"), "{}", tracer.output());
    }
    process::run(&mut world.curt(&["trace", "--seconds", "1", world.directory()]), LIMIT).unwrap();
    let events = check::check(&fs::read_to_string(shown).unwrap()).unwrap();
    assert!(events > 300, "{events}");
    let text = process::run(&mut world.curt(&["trace", "report", file]), LIMIT).unwrap();
    assert_eq!(text.lines().count(), 300);
    flags_choose_from_a_recording(&world, file, &text);
    process::run(&mut world.curt(&["trace", "report", file, "--perfetto", shown]), LIMIT).unwrap();
    let trace = fs::read_to_string(shown).unwrap();
    check::check(&trace).unwrap_or_else(|error| panic!("{error}"));
    for phase in ["\"ph\":\"B\"", "\"ph\":\"E\"", "\"ph\":\"b\"", "\"ph\":\"e\"", "thread_name"] {
        assert!(trace.contains(phase), "{phase}");
    }
    is_shown_as_far_as_it_goes(&world, file);
}

/// Checks that each flag selects the right events of those in `all`.
fn flags_choose_from_a_recording(world: &World, file: &str, all: &str) {
    let report = |flags: &[&str]| {
        let arguments = [&["trace", "report", file], flags].concat();
        process::run(&mut world.curt(&arguments), LIMIT).unwrap()
    };
    let of = |text: &str, word: &str| text.lines().filter(|line| line.contains(word)).count();
    let replies = report(&["--event", "rpc_reply", "--json"]);
    assert_eq!(replies.lines().count(), of(all, " rpc_reply: "));
    // The first directory whose start event was recorded.
    let (_, first) = all.split_once(" nfs_mkdir_enter: ").unwrap();
    let (_, first) = first.split_once("name=").unwrap();
    let first = first.split_whitespace().next().unwrap();
    let file = report(&["--path", &format!("/{first}/f")]);
    assert!(of(&file, " name=f") > 0 && of(&file, "procedure=WRITE") > 0, "{file}");
    assert_eq!(of(&file, "nfs_mkdir"), 0, "{file}");
    let mkdir = report(&["--uid", "0", "--event", "nfs_mkdir_enter"]);
    assert_eq!(mkdir.lines().count(), of(all, " nfs_mkdir_enter: "));
    assert_eq!(report(&["--uid", "77"]), "");
    assert_eq!(report(&["--slower", "3600000"]), "");
}

/// A file that is not a recording is rejected, and a truncated one is shown as far as possible.
fn is_shown_as_far_as_it_goes(world: &World, file: &str) {
    let whole = fs::read(file).unwrap();
    fs::write(file, &whole[..whole.len() - 1001]).unwrap();
    let (status, cut, errors) = process::finish(&mut world.curt(&["trace", "report", file]), LIMIT).unwrap();
    assert!(status.success() && cut.lines().count() > 200 && errors.contains("is incomplete"), "{errors}");
    fs::write(file, "no recording at all").unwrap();
    let (status, _, errors) = process::finish(&mut world.curt(&["trace", "report", file]), LIMIT).unwrap();
    assert!(!status.success() && errors.contains("not a recording"), "{errors}");
}

#[test]
fn mounts_that_cannot_be_traced_are_reported() {
    let world = World::new("", &[]);
    for (arguments, expected) in [
        (&["trace", "--event", "nfs_nothing", world.directory()][..], "unknown event nfs_nothing"),
        (&["trace", "--path", "src", world.directory()], "begins with /"),
        (&["trace", "/nowhere"], "not a Curt mount"),
        (&["trace", "--server", "1"], "no such server"),
    ] {
        let (status, _, errors) = process::finish(&mut world.curt(arguments), LIMIT).unwrap();
        assert!(!status.success() && errors.contains(expected), "{arguments:?}: {errors}");
    }
    let list = process::run(&mut world.curt(&["trace", "--list"]), LIMIT).unwrap();
    assert_eq!(list.lines().count(), 2 * Event::COUNT);
}
