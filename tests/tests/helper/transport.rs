//! Effects of transport and caching options on a real mount.

use anyhow::{Result, ensure};
use curt_tests::process;
use rustix::process::Signal;

use crate::host::{Host, SHORT};

/// The mount's connections to the server, by local `address:port`.
fn connections(host: &Host) -> Result<Vec<String>> {
    let text = host.shell("ss -Htn state established dst 10.77.0.1:2049")?;
    Ok(text.lines().filter_map(|line| Some(line.split_whitespace().nth(2)?.to_owned())).collect())
}

#[test]
fn nconnect_makes_as_many_connections_and_resvport_takes_low_ports() -> Result<()> {
    let host = Host::new()?;
    let _serve = host.serve(&[])?;
    host.shell(&format!("cd {}; for n in $(seq 40); do echo $n > f$n; done", host.export.display()))?;
    for (options, wanted, low) in [("", 1, true), ("nconnect=4", 4, true), ("noresvport", 1, false)] {
        host.mounted(options)?;
        // A connection is opened when the others are busy, which needs concurrent readers.
        let found = process::until("all connections are made", SHORT, || {
            host.shell(&format!("cd {}; for n in $(seq 40); do cat f$n & done; wait", host.target()))?;
            let found = connections(&host)?;
            ensure!(found.len() <= wanted, "{options:?}: {found:?}");
            Ok((found.len() == wanted).then_some(found))
        })?;
        let ports = found.iter().filter_map(|address| address.rsplit(':').next()?.parse::<u16>().ok());
        ensure!(
            ports.clone().count() == wanted && ports.clone().all(|port| (port < 1024) == low),
            "{found:?}"
        );
        host.unmount()?;
    }
    Ok(())
}

#[test]
fn soft_mounts_give_up_and_hard_ones_wait() -> Result<()> {
    let host = Host::new()?;
    let mut serve = host.serve(&[])?;
    let rows = [
        ("soft,timeo=20,retrans=0", "Input/output error"),
        ("softerr,timeo=20,retrans=0", "Connection timed out"),
    ];
    for (options, error) in rows {
        host.mounted(options)?;
        serve.process().signal(Signal::STOP)?;
        let done = host.run(&["cat", &host.inside("hello")])?;
        serve.process().signal(Signal::CONT)?;
        ensure!(done.text.contains(error), "{options}: {done:?}");
        host.unmount()?;
    }
    host.mounted("hard,timeo=5,retrans=1")?;
    serve.process().signal(Signal::STOP)?;
    let waiting = host.run(&["timeout", "-s", "KILL", "4", "cat", &host.inside("hello")])?;
    serve.process().signal(Signal::CONT)?;
    // It is killed by the same signal.
    ensure!(
        waiting.status.is_none() && waiting.text.is_empty(),
        "it should wait, and die of SIGKILL: {waiting:?}"
    );
    ensure!(host.shell(&format!("cat {}", host.inside("hello")))? == "hello\n");
    host.unmount()
}

#[test]
fn the_server_may_have_another_name_and_one_address_family_can_be_chosen() -> Result<()> {
    let host = Host::new()?;
    let _serve = host.serve(&[])?;
    let curt = curt_tests::curt::program("curt")?.display().to_string();
    let source = format!("nowhere.invalid:{}", host.export.display());
    let mount = |options: &str| {
        let options = format!("port=2049,mountport=2049,retry=0,{options}");
        host.run(&[&curt, "mount", &source, host.target(), "-o", &options])
    };
    let done = mount("addr=10.77.0.1,mounthost=10.77.0.1")?;
    ensure!(done.status == Some(0), "{done:?}");
    ensure!(host.shell(&format!("cat {}", host.inside("hello")))? == "hello\n");
    host.unmount()?;
    let done = mount("addr=10.77.0.1,mountaddr=10.77.0.1")?;
    ensure!(done.status == Some(0), "{done:?}");
    host.unmount()?;
    let done = host.mount("proto=tcp6,retry=0")?;
    ensure!(done.status == Some(32), "there is no such address of that family: {done:?}");
    host.mounted("proto=tcp")?;
    host.unmount()
}

#[test]
fn a_flavour_that_the_server_does_not_offer_is_refused() -> Result<()> {
    let host = Host::new()?;
    let _serve = host.serve(&[])?;
    let refused = host.mount("sec=none,retry=0")?;
    ensure!(refused.status == Some(32) && refused.text.contains("it offers sys"), "{refused:?}");
    host.mounted("sec=sys")?;
    host.shell(&format!("touch {}", host.inside("named")))?;
    let owner = host.shell(&format!("stat -c %u {}/named", host.export.display()))?;
    ensure!(owner.trim() == "0", "AUTH_SYS names the caller");
    host.unmount()
}

/// Number of requests of a procedure that a script sends with warm caches.
fn costs(host: &Host, options: &str, procedure: &str, script: &str) -> Result<u64> {
    host.mounted(options)?;
    let script = format!("cd {}; {script}", host.target());
    host.shell(&script)?;
    let before = host.sent(procedure)?;
    host.shell(&script)?;
    let cost = host.sent(procedure)? - before;
    host.unmount()?;
    Ok(cost)
}

#[test]
fn caching_options_decide_what_is_revalidated() -> Result<()> {
    let host = Host::new()?;
    let _serve = host.serve(&[])?;
    // Old enough that names in the directory can be cached.
    host.shell(&format!("touch -d '1 hour ago' {0}/hello {0}; sleep 1", host.export.display()))?;
    let open = "cat hello >/dev/null";
    let stat = "stat hello >/dev/null; stat hello >/dev/null";
    let missing = "stat missing 2>/dev/null || true";
    ensure!(costs(&host, "", "GETATTR", open)? >= 1, "close-to-open asks at each open");
    // Nothing may expire meanwhile, however slow the machine is.
    ensure!(costs(&host, "nocto,actimeo=600", "GETATTR", open)? == 0);
    ensure!(costs(&host, "sloppycto=600,actimeo=600", "GETATTR", open)? == 0);
    ensure!(costs(&host, "actimeo=600", "GETATTR", stat)? == 0);
    ensure!(costs(&host, "noac", "GETATTR", stat)? >= 2, "noac asks for each stat");
    ensure!(costs(&host, "actimeo=0", "GETATTR", stat)? >= 2);
    ensure!(costs(&host, "actimeo=600", "LOOKUP", missing)? == 0);
    ensure!(costs(&host, "nonegnamecache", "LOOKUP", missing)? >= 1);
    ensure!(costs(&host, "lookupcache=pos", "LOOKUP", missing)? >= 1);
    ensure!(costs(&host, "lookupcache=none", "LOOKUP", "stat hello >/dev/null")? >= 1);
    ensure!(costs(&host, "lookupcache=all,actimeo=600", "LOOKUP", "stat hello >/dev/null")? == 0);
    Ok(())
}

#[test]
fn rdirplus_decides_whether_listings_contain_attributes() -> Result<()> {
    let host = Host::new()?;
    let _serve = host.serve(&[])?;
    host.shell(&format!("cd {}; touch $(seq 1 300)", host.export.display()))?;
    for (options, plus) in [
        ("", true),
        ("rdirplus", true),
        ("rdirplus=force", true),
        ("nordirplus", false),
        ("rdirplus=none", false),
    ] {
        host.mounted(options)?;
        host.shell(&format!("ls {} | wc -l", host.target()))?;
        let (readdirplus, readdir) = (host.sent("READDIRPLUS")?, host.sent("READDIR")?);
        ensure!(
            (readdirplus > 0) == plus && (readdir == 0) == plus,
            "{options:?}: {readdirplus} plus, {readdir} plain"
        );
        host.unmount()?;
    }
    Ok(())
}

#[test]
fn softreval_serves_what_is_known_while_the_server_is_silent() -> Result<()> {
    let host = Host::new()?;
    let mut serve = host.serve(&[])?;
    let inside = host.inside("hello");
    for (options, served, patience) in [("softreval", true, "100"), ("nosoftreval", false, "10")] {
        let stat = ["timeout", patience, "stat", "-c", "%s", &inside];
        // Attributes expire at once, and a silent server is detected after a second.
        host.mounted(&format!("{options},actimeo=0,timeo=5,retrans=1"))?;
        ensure!(host.run(&stat)?.text.trim() == "6");
        serve.process().signal(Signal::STOP)?;
        let done = host.run(&stat);
        serve.process().signal(Signal::CONT)?;
        let done = done?;
        ensure!((done.text.trim() == "6") == served, "{options}: {done:?}");
        host.unmount()?;
    }
    Ok(())
}
