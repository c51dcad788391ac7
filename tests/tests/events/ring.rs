//! The ring of a killed process.

use curt_tests::process;
use rustix::process::Signal;

use super::{LIMIT, World};

#[test]
fn a_mount_that_is_killed_leaves_its_last_events() {
    let mut world = World::new("ring=operation", &["--ring", "operation"]);
    for number in 0..200 {
        world.on_mount(&format!("mkdir dir-{number}"));
        if number == 0 {
            // There are no rings of ended processes.
            let none = process::run(&mut world.curt(&["trace", "report"]), LIMIT).unwrap();
            assert!(none.contains("No process"), "{none}");
        }
    }
    let pid = world.mount.process().pid();
    world.mount.process().signal(Signal::KILL).unwrap();
    world.mount.process().wait(LIMIT).unwrap();
    let listed = process::run(&mut world.curt(&["trace", "report"]), LIMIT).unwrap();
    let ring = format!("/run/curt/{pid}.ring");
    assert_eq!(listed.lines().count(), 1, "{listed}");
    assert!(listed.starts_with(&ring) && listed.contains("curt mount 10.77.0.1:"), "{listed}");
    let mode = world.network.shell(&format!("stat -c %a {ring}"), LIMIT).unwrap();
    assert_eq!(mode.trim(), "600");
    let text = process::run(&mut world.curt(&["trace", "report", &ring]), LIMIT).unwrap();
    let last: Vec<_> = text.lines().rev().take(20).collect();
    assert!(
        last.iter().any(|line| line.contains("nfs_mkdir_exit") && line.contains("name=dir-199")),
        "{text}"
    );
    assert!(text.contains(" rpc_reply: "), "{text}");
    let (status, _, errors) =
        process::finish(&mut world.curt(&["trace", "report", &ring, "--path", "/dir-1"]), LIMIT).unwrap();
    assert!(!status.success() && errors.contains("has no paths"), "{errors}");
    // A server that ends in order leaves no ring; a killed one does.
    let server = world.serve.process().pid();
    world.serve.kill().unwrap();
    let ring = format!("/run/curt/{server}.ring");
    let found = ["trace", "report", &ring, "--event", "nfsd_reply", "--uid", "0"];
    let text = process::run(&mut world.curt(&found), LIMIT).unwrap();
    assert!(text.matches("procedure=MKDIR status=0").count() >= 100, "{text}");
    world.serve.restart(&world.network).unwrap();
    world.serve.process().stop().unwrap();
    let listed = process::run(&mut world.curt(&["trace", "report"]), LIMIT).unwrap();
    assert_eq!(listed.lines().count(), 2, "{listed}");
    let directory = world.mount.directory().display();
    world.network.shell(&format!("umount -l {directory}"), LIMIT).unwrap();
}

#[test]
fn a_requested_end_leaves_no_report_and_neither_does_a_failed_start() {
    let mut world = World::new("", &[]);
    world.on_mount("mkdir dir");
    let directory = world.mount.directory().display().to_string();
    // In a directory that is in use: the connection is aborted, and the mount ends.
    let script = format!(
        "cd {directory}; umount -f {directory} || true; cd /; umount -l {directory} 2>/dev/null || true"
    );
    world.network.shell(&script, LIMIT).unwrap();
    world.mount.process().wait(LIMIT).unwrap();
    let source = world.serve.source().replace("export", "nowhere");
    let options = format!("{},retry=0", world.serve.ports());
    let refused = ["mount", "--foreground", "-o", &options, &source, &directory];
    let (status, _, errors) = process::finish(&mut world.curt(&refused), LIMIT).unwrap();
    assert!(!status.success(), "{errors}");
    world.serve.process().stop().unwrap();
    let listed = process::run(&mut world.curt(&["trace", "report"]), LIMIT).unwrap();
    assert!(listed.contains("No process"), "{listed}");
    let files = world.network.shell("ls /run/curt | grep ring || true", LIMIT).unwrap();
    assert_eq!(files, "");
}

#[test]
fn without_a_word_the_ring_keeps_what_was_sent_and_off_keeps_nothing() {
    let mut world = World::new("", &["--ring", "off"]);
    world.on_mount("mkdir dir");
    let (mount, server) = (world.mount.process().pid(), world.serve.process().pid());
    let text = process::run(&mut world.curt(&["trace", "report", &format!("/run/curt/{mount}.ring")]), LIMIT)
        .unwrap();
    assert!(text.contains("nfs_mount: ") && text.contains("procedure=MKDIR"), "{text}");
    assert!(!text.contains("nfs_mkdir_exit"), "{text}");
    let gone = world.network.shell(&format!("ls /run/curt/{server}.ring 2>&1 || true"), LIMIT).unwrap();
    assert!(gone.contains("No such file"), "{gone}");
}
