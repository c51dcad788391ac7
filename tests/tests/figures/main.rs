//! The statistics of mounts and servers in all formats: they agree with each other and with the
//! work.

mod scrapes;
mod top;
mod world;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use curt_tests::curt::CurtMount;
use curt_tests::mountstats::{self, ParsedMountstats};
use curt_tests::process::{self, RunningProcess};
use serde_json::Value;

use world::{BLOCK, KNOWN, LIMIT, MISSES, WRITES, World, procedure};

#[test]
fn every_layout_shows_the_same_counts_and_they_are_right() -> Result<()> {
    // No attributes are requested while the layouts are compared.
    let world = World::new("metrics=9049,actimeo=600")?;
    world.work("file")?;
    let place = world.place().to_str().context("text")?.to_owned();
    let report = world.json(&["stat", "--json", &place])?[0].clone();
    is_the_known_work(&report)?;
    let file = world.raw("now")?;
    let text = std::fs::read_to_string(&file)?;
    let mounts = mountstats::parse(&text).context(text)?;
    ensure!(mounts.len() == 1, "it lists the daemon's mounts alone");
    let mount = &mounts[0];
    ensure!(mount.mount_point == place.replace(' ', "\\040"), "{}", mount.mount_point);
    ensure!(mount.options.contains_key("sync") && mount.options["vers"] == "3", "{mount:?}");
    ensure!(mount.bytes[5] == WRITES * BLOCK && mount.bytes[7] == WRITES, "{mount:?}");
    ensure!(mount.transport[5] == mount.transport[6], "all are answered: {mount:?}");
    prometheus_and_text_agree(&world, &report, mount)?;
    layouts_agree(&world, &report, &file)
}

/// Checks counts, bytes and times of the work.
fn is_the_known_work(report: &Value) -> Result<()> {
    for (name, count) in KNOWN {
        ensure!(procedure(report, name, "operations") == count, "{name}: {report}");
    }
    // The file's own name, and the missing ones.
    ensure!(procedure(report, "LOOKUP", "operations") == 1 + MISSES, "{report}");
    ensure!(procedure(report, "LOOKUP", "errors") == 1 + MISSES, "{report}");
    let sent = procedure(report, "WRITE", "bytes_sent");
    ensure!(sent > WRITES * BLOCK && sent < WRITES * (BLOCK + 400), "headers are counted: {sent}");
    let times = ["queue_ns", "rtt_ns", "execute_ns"].map(|figure| procedure(report, "WRITE", figure));
    ensure!(times[0] > 0 && times[0] + times[1] == times[2], "{times:?}");
    Ok(())
}

/// Checks each procedure in all formats for programs.
fn prometheus_and_text_agree(world: &World, report: &Value, mount: &ParsedMountstats) -> Result<()> {
    let place = world.place().to_str().context("text")?;
    let metrics = world.metrics(9049)?;
    let requests = report["counters"]["requests"].as_object().context("requests")?;
    ensure!(requests.len() == 22);
    for (name, count) in requests {
        let count = count.as_u64().context("a number")?;
        ensure!(procedure(report, name, "operations") == count, "{name}");
        ensure!(mount.operations[name][..2] == [count, count], "{name}: {mount:?}");
        let labels = [("mount_point", place), ("procedure", name)];
        let told = metrics.value("curt_mount_rpc_operations_total", &labels);
        ensure!(told == Some(count as f64), "{name}: {told:?}");
        let told = metrics.value("curt_mount_round_trip_seconds_count", &labels);
        ensure!(told.unwrap_or(0.0).to_bits() == (count as f64).to_bits(), "{name}: {told:?}");
    }
    let total: u64 = requests.values().filter_map(Value::as_u64).sum();
    // The requests of mounting (FSINFO and others) are on the same connection.
    ensure!(mount.transport[5] >= total, "{total}: {mount:?}");
    Ok(())
}

/// Checks each procedure in all formats for users.
fn layouts_agree(world: &World, report: &Value, file: &Path) -> Result<()> {
    let place = world.place().to_str().context("text")?;
    let requests = report["counters"]["requests"].as_object().context("requests")?;
    let total: u64 = requests.values().filter_map(Value::as_u64).sum();
    let nfsstat = world.run(&["stat", place])?;
    ensure!(nfsstat.contains(&format!("calls      retrans    authrefrsh \n{total:<11}0")), "{nfsstat}");
    let ours = world.run(&["stat", "--layout", "mountstats", place])?;
    let theirs = world.mountstats(file, "")?;
    for (name, count) in requests {
        let count = count.as_u64().filter(|count| *count > 0);
        let Some(count) = count else { continue };
        for text in [&ours, &theirs] {
            let line = text.lines().skip_while(|line| *line != format!("{name}:")).nth(1);
            let is_told = line.is_some_and(|line| line.starts_with(&format!("\t{count} ops (")));
            ensure!(is_told, "{count} {name} are not in\n{text}");
        }
    }
    Ok(())
}

#[test]
fn the_real_tools_read_the_file_that_a_mount_keeps() -> Result<()> {
    let mut world = World::new("mountstats=1")?;
    let before = world.raw("before")?;
    world.work("file")?;
    let kept = PathBuf::from(format!("/run/curt/{}.mountstats", world.mount.process().pid()));
    let script = format!("cat {}", kept.display());
    // It is written each second, and then includes all of the work.
    let text = process::until("the file is up to date", LIMIT, || {
        let text = world.network.shell(&script, LIMIT)?;
        let mounts = mountstats::parse(&text).with_context(|| text.clone())?;
        Ok((mounts[0].operations["WRITE"][0] == WRITES).then_some(text))
    })?;
    ensure!(mountstats::parse(&text)?.len() == 1);
    let mode = world.network.shell(&format!("stat -c %a {}", kept.display()), LIMIT)?;
    ensure!(mode.trim() == "644", "everybody may read it: {mode}");
    is_shown_by_mountstats(&world, &kept)?;
    let commands = [("nfsstat", format!("{WRITES} ")), ("iostat", "read:              ops/s".to_owned())];
    for (command, expected) in commands {
        let shown = world.network.shell(&format!("mountstats {command} -f {}", kept.display()), LIMIT)?;
        ensure!(shown.contains(&expected), "{expected} is not in mountstats {command}:\n{shown}");
    }
    let now = world.raw("now")?;
    let since = world.mountstats(&now, &format!("--rpc --since '{}'", before.display()))?;
    ensure!(since.contains(&format!("WRITE:\n\t{WRITES} ops (")), "{since}");
    let gone = world.network.shell("ls /run/curt", LIMIT)?;
    ensure!(gone.contains("mountstats"), "{gone}");
    world.mount.unmount()?;
    let left = world.network.shell("ls /run/curt", LIMIT)?;
    ensure!(!left.contains("mountstats") && !left.contains("socket"), "{left}");
    Ok(())
}

fn is_shown_by_mountstats(world: &World, kept: &Path) -> Result<()> {
    for (flags, expected) in [
        ("--nfs", format!("client wrote {} bytes via NFS WRITE", WRITES * BLOCK)),
        ("--rpc", format!("WRITE:\n\t{WRITES} ops (")),
        ("--raw", format!("       WRITE: {WRITES} {WRITES} 0 ")),
        ("--xprt", "Transport protocol: tcp".to_owned()),
    ] {
        let shown = world.mountstats(kept, flags)?;
        ensure!(shown.contains(&expected), "{expected} is not in mountstats {flags}:\n{shown}");
    }
    // The raw output equals the input, except for spaces.
    let raw = world.mountstats(kept, "--raw")?;
    ensure!(mountstats::parse(raw.trim_end_matches('\n')).is_err() && raw.contains("statvers=1.1"), "{raw}");
    Ok(())
}

#[test]
fn intervals_show_their_own_counts_and_mounts_that_came_or_went() -> Result<()> {
    let world = World::new("noac")?;
    let mut command = world.curt(&["stat", "--layout", "nfsiostat", "--interval", "1", "--json"])?;
    let reports = RunningProcess::start("curt stat", &mut command)?;
    reports.wait_for("since_mount", LIMIT)?;
    world.work("file")?;
    let lines = |reports: &RunningProcess| -> Result<Vec<Value>> {
        let text = reports.output();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
    };
    let writes = |reports: &RunningProcess| -> Result<u64> {
        let lines = lines(reports)?;
        let mounts = lines.iter().flat_map(|line| line["mounts"].as_array().cloned().unwrap_or_default());
        let between = mounts.filter(|mount| mount["state"] == "since_report");
        Ok(between.map(|mount| procedure(&mount, "WRITE", "operations")).sum())
    };
    process::until("the differences tell all writes", LIMIT, || {
        Ok((writes(&reports)? == WRITES).then_some(()))
    })?;
    let World { mount, serve, network } = world;
    mount.unmount()?;
    reports.wait_for("\"state\":\"gone\"", LIMIT)?;
    let options = serve.ports();
    let _again = CurtMount::start(&network, "mount point", &serve.source(), &options)?;
    reports.wait_for("\"state\":\"new\"", LIMIT)?;
    ensure!(writes(&reports)? == WRITES, "nothing is told twice: {}", reports.output());
    let last = lines(&reports)?.pop().context("there are lines")?;
    ensure!(last["mounts"][0]["rates"]["write"]["ops_per_second"] == 0.0, "{last}");
    Ok(())
}
