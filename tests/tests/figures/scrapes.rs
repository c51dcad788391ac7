//! Prometheus: scrapes, and addresses without metrics.

use anyhow::{Result, ensure};
use curt_tests::curt::program;
use curt_tests::network::ADDRESS;
use curt_tests::process;

use super::world::{BLOCK, KNOWN, LIMIT, WRITES, World};

#[test]
fn a_server_is_scraped_under_its_filter_of_system_calls() -> Result<()> {
    let mut world = World::new("metrics=unix:/run/metrics.socket")?;
    world.work("file")?;
    let pid = world.serve.process().pid().to_string();
    // The server runs with --seccomp kill. The measurement of a request is recorded after its reply
    // was sent.
    let metrics = process::until("all of the work is measured", LIMIT, || {
        let metrics = world.metrics(9050)?;
        let measured = KNOWN.iter().all(|(name, count)| {
            let measured = metrics.value("curt_server_request_seconds_count", &[("procedure", name)]);
            measured >= Some(*count as f64)
        });
        Ok(measured.then_some(metrics))
    })?;
    let report = world.json(&["stat", "--server", &pid, "--json"])?;
    for (name, count) in KNOWN {
        let told = metrics.value("curt_server_calls_total", &[("procedure", name)]);
        ensure!(told == Some(count as f64), "{name}: {told:?}");
        ensure!(report["counters"]["requests"][name] == count, "{report}");
        let measured = metrics.value("curt_server_request_seconds_count", &[("procedure", name)]);
        ensure!(measured == Some(count as f64), "{name}: {measured:?}");
    }
    let labels = [("procedure", "WRITE"), ("stage", "file_system")];
    let stage = metrics.value("curt_server_stage_seconds_sum", &labels);
    ensure!(stage.is_some_and(|seconds| seconds > 0.0), "{stage:?}");
    let written = metrics.value("curt_server_write_bytes_total", &[]);
    ensure!(written == Some((WRITES * BLOCK) as f64), "{written:?}");
    for (request, status) in
        [("GET / HTTP/1.1", "404"), ("POST /metrics HTTP/1.1", "405"), ("nonsense", "400")]
    {
        let answer = world.scrape(9050, request)?;
        ensure!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {answer}");
    }
    // After forty silent peers it still replies, and still serves NFS.
    let silent = "for i in $(seq 40); do exec {fd}<>/dev/tcp/127.0.0.1/9050; done; \
                  exec 3<>/dev/tcp/127.0.0.1/9050; printf 'GET /metrics HTTP/1.1\\r\\n\\r\\n' >&3; head -1 <&3";
    let answer = world.network.shell(silent, LIMIT)?;
    ensure!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let text = world.run(&["stat", "--server", &pid])?;
    ensure!(
        text.contains("Server rpc stats:\ncalls      badcalls") && text.contains("Server nfs v3:\n"),
        "{text}"
    );
    // The mount's metrics, on a socket that only its owner may use.
    let with_python = "import socket\ns = socket.socket(socket.AF_UNIX); s.connect('/run/metrics.socket')\n\
                       s.sendall(b'GET /metrics HTTP/1.0\\r\\n\\r\\n')\nt = b''\n\
                       while True:\n    b = s.recv(65536)\n    if not b: break\n    t += b\nprint(t.count(b'curt_mount_info{'))";
    let mode = world.network.shell("stat -c %a /run/metrics.socket", LIMIT)?;
    ensure!(mode.trim() == "600", "{mode}");
    let told = process::run(world.network.command("python3").args(["-c", with_python]), LIMIT)?;
    ensure!(told.trim() == "1", "{told}");
    ensure!(world.serve.process().is_running()?, "the filter ended the server");
    world.mount.unmount()
}

#[test]
fn a_server_with_metrics_samples_requests_by_default() -> Result<()> {
    let world = World::with(&[], "")?;
    let before = world.metrics(9050)?;
    ensure!(before.value("curt_server_stages_every", &[]) == Some(16.0), "{before:?}");
    // Each of its threads measures one in sixteen of its own requests, and the distribution of
    // requests is unknown.
    let mut number = 0;
    process::until("a WRITE is measured", LIMIT, || {
        number += 1;
        world.work(&format!("file{number}"))?;
        let metrics = world.metrics(9050)?;
        let write = [("procedure", "WRITE")];
        let calls = metrics.value("curt_server_calls_total", &write);
        let measured = metrics.value("curt_server_request_seconds_count", &write);
        ensure!(measured < calls, "{measured:?} of {calls:?} are measured");
        let in_stages = metrics
            .value("curt_server_stage_seconds_count", &[("procedure", "WRITE"), ("stage", "file_system")]);
        Ok((measured > Some(0.0) && in_stages > Some(0.0)).then_some(()))
    })?;
    world.mount.unmount()
}

#[test]
fn an_address_in_use_or_reachable_by_others_is_refused_before_mounting() -> Result<()> {
    let world = World::new("metrics=9049")?;
    let target = world.network.make_directory("another")?;
    let (source, target) = (world.serve.source(), target.display().to_string());
    for (option, says, status) in [
        ("metrics=9049", "metrics=127.0.0.1:9049", 2),
        ("metrics=0.0.0.0:9051", "public:0.0.0.0:9051", 1),
        ("metrics=unix:relative", "absolute path", 1),
    ] {
        let options = format!("{},{option}", world.serve.ports());
        let mut command = world.curt(&["mount", &source, &target, "-o", &options])?;
        let (ended, _, errors) = process::finish(&mut command, LIMIT)?;
        ensure!(ended.code() == Some(status) && errors.contains(says), "{option}: {ended} {errors}");
    }
    let export = world.network.make_directory("export")?;
    let export = export.display().to_string();
    let state = world.network.make_directory("state2")?.display().to_string();
    for (place, says) in [("9050", "--metrics 127.0.0.1:9050"), ("10.77.0.1:9051", "public:")] {
        let bind = format!("{ADDRESS}:3049");
        let arguments =
            ["serve", &export, "--bind", &bind, "--state", &state, "--no-rpcbind", "--metrics", place];
        let (ended, _, errors) = process::finish(&mut world.curt(&arguments)?, LIMIT)?;
        ensure!(!ended.success() && errors.contains(says), "{place}: {ended} {errors}");
    }
    // A user without permission gets the message that there are no mounts.
    let mut other = world.network.command("setpriv");
    other.args(["--reuid", "65534", "--clear-groups", "--"]).arg(program("curt")?);
    let (ended, out, _) = process::finish(other.args(["stat", &world.place().display().to_string()]), LIMIT)?;
    ensure!(!ended.success() && out.is_empty(), "{ended} {out}");
    Ok(())
}
