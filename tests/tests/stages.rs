//! Measurements of a running server: `curt serve --stages`, `curt stat --server` and `curt trace
//! --graph`.
#![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

use std::process::Command;
use std::time::Duration;

use curt_tests::curt::{CurtServe, program};
use curt_tests::network::{ADDRESS, Network};
use curt_tests::process::{self, RunningProcess};
use serde_json::Value;

/// Timeout of a command that waits for a client.
const LIMIT: Duration = Duration::from_secs(120);

/// The stages of each WRITE of an open file.
const STAGES: [&str; 7] = ["receive", "decode", "handle", "open", "file_system", "encode", "send"];

fn curt(network: &Network, arguments: &[&str]) -> Command {
    let mut command = network.command(program("curt").unwrap());
    command.args(arguments);
    command
}

fn json(network: &Network, arguments: &[&str]) -> Value {
    serde_json::from_str(&process::run(&mut curt(network, arguments), LIMIT).unwrap()).unwrap()
}

/// Writes and reads files through libnfs, which does not overwrite files.
fn copy(network: &Network, export: &std::path::Path, rounds: usize) {
    let script = format!(
        "for i in $(seq {rounds}); do url=\"nfs://{ADDRESS}{}/copy-$$-$i?version=3&nfsport=2049&mountport=2049\"; \
         nfs-cp /etc/services \"$url\"; nfs-cat \"$url\" >/dev/null; done",
        export.display()
    );
    network.shell(&script, LIMIT).unwrap();
}

#[test]
fn a_server_reports_the_times_of_its_stages() {
    let network = Network::new().unwrap();
    let export = network.make_directory("export").unwrap();
    let mut serve = CurtServe::start(&network, &export, &["--stages=1"]).unwrap();
    let pid = serve.process().pid().to_string();
    copy(&network, &export, 5);
    // The measurement of a request is recorded after its reply was sent.
    let report = process::until("five WRITEs are measured", LIMIT, || {
        let report = json(&network, &["stat", "--server", &pid, "--json"]);
        let count = report["stages"]["procedures"]["WRITE"]["count"].as_u64();
        Ok((count >= Some(5)).then_some(report))
    })
    .unwrap();
    assert_eq!(report["pid"].to_string(), pid);
    assert_eq!(report["stages"]["every"], 1);
    let write = &report["stages"]["procedures"]["WRITE"];
    let total = write["total"]["p50_us"].as_f64().unwrap();
    for stage in STAGES {
        let median = write["stages"][stage]["p50_us"].as_f64();
        assert!(median.is_some_and(|median| median > 0.0 && median <= total), "{stage} of {write}");
    }
    let file_cache = report["file_cache"].as_object().unwrap();
    assert_eq!(file_cache.len(), 9, "{report}");
    assert!(file_cache["acquisitions"].as_u64().unwrap() >= 10, "{report}");
    assert!(report["counters"]["events"]["token_hits"].as_u64().unwrap() > 0, "{report}");
    // By its state directory, as text; after it is turned off, nothing more is measured.
    let state = network.directory().join("state");
    let state = state.to_str().unwrap();
    let text = process::run(&mut curt(&network, &["stat", "--server", state]), LIMIT).unwrap();
    assert!(text.contains("one request of 1 measured") && text.contains("mean age (ms):"), "{text}");
    process::run(&mut curt(&network, &["stat", "--server", &pid, "--stages", "0"]), LIMIT).unwrap();
    copy(&network, &export, 1);
    let report = json(&network, &["stat", "--server", &pid, "--json"]);
    assert_eq!(report["stages"]["procedures"].as_object().unwrap().len(), 0, "{report}");
}

#[test]
fn one_request_is_shown_as_a_call_graph() {
    let network = Network::new().unwrap();
    let export = network.make_directory("export").unwrap();
    let _serve = CurtServe::start(&network, &export, &[]).unwrap();
    // Measuring is off, but the next WRITE is shown on request.
    let mut trace = curt(&network, &["trace", "--graph", "write"]);
    let shown = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| process::finish(&mut trace, LIMIT).unwrap());
        while !waiting.is_finished() {
            copy(&network, &export, 1);
        }
        waiting.join().unwrap()
    });
    let (status, text, errors) = shown;
    assert!(status.success(), "{errors}");
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    assert!(lines[0].ends_with("| WRITE() {") && lines.last().unwrap().ends_with("| }"), "{text}");
    for called in ["  receive();", "    handle()", "open_file()", "pwrite();", "fstat();", "  send();"] {
        assert!(text.contains(called), "{called} is not in\n{text}");
    }
    let (status, _, errors) =
        process::finish(&mut curt(&network, &["trace", "--graph", "WRIT"]), LIMIT).unwrap();
    assert!(!status.success() && errors.contains("not a procedure of NFSv3"), "{errors}");
}

#[test]
fn a_server_reports_which_limits_were_reached() {
    let network = Network::new().unwrap();
    let export = network.make_directory("export").unwrap();
    let mut serve = CurtServe::start(&network, &export, &["--max-connections-per-client=2"]).unwrap();
    let pid = serve.process().pid().to_string();
    let place = format!("/dev/tcp/{ADDRESS}/{}", CurtServe::PORT);
    // Four at once: the last ones replace the first.
    let script = format!("exec 3<>{place} 4<>{place} 5<>{place} 6<>{place}; echo open; exec cat");
    let open = RunningProcess::start("a client", network.command("bash").args(["-c", &script])).unwrap();
    open.wait_for("open", LIMIT).unwrap();
    let report = process::until("the limit is met twice", LIMIT, || {
        let report = json(&network, &["stat", "--server", &pid, "--json"]);
        let times = report["limits"]["max-connections-per-client"].as_u64();
        Ok((times >= Some(2)).then_some(report))
    })
    .unwrap();
    drop(open);
    assert_eq!(report["limits"]["max-connections"], 0, "{report}");
    let text = process::run(&mut curt(&network, &["stat", "--server", &pid]), LIMIT).unwrap();
    assert!(text.contains(" max-connections-per-client\n"), "{text}");
}
