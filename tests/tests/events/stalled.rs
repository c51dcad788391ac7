//! Whoever does not read, and whoever is not to read.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use curt_tests::process;
use curt_trace::events::{Item, Recording};

use super::{LIMIT, World};

/// Asks a mount's control socket, from inside the test's network.
fn socket(world: &mut World) -> std::path::PathBuf {
    let pid = world.mount.process().pid();
    format!("/proc/{pid}/root/run/curt/{pid}.socket").into()
}

/// Each stat asks the server.
const STATS: &str = "/usr/bin/python3 -c 'import os\nfor i in range(16000): os.stat(\"file\")'";

#[test]
fn who_does_not_read_loses_events_and_nobody_waits_for_him() {
    let mut world = World::new("noac", &[]);
    world.on_mount("echo text > file");
    let path = socket(&mut world);
    let mut stalled = UnixStream::connect(path).unwrap();
    stalled
        .write_all(b"{\"ask\":\"events\",\"patterns\":\"*\"}\n")
        .unwrap();
    let mut stalled = BufReader::new(stalled);
    let mut answer = String::new();
    stalled.read_line(&mut answer).unwrap();
    assert_eq!(answer, "\"events\"\n");
    let started = Instant::now();
    world.on_mount(STATS);
    let took = started.elapsed();
    // Far below the time after which he is cut off: nobody waited for that.
    assert!(took.as_secs() < 25, "{took:?}");
    stalled.get_ref().shutdown(std::net::Shutdown::Write).unwrap();
    let mut recording = Recording::open(stalled).unwrap();
    let (mut events, mut end) = (0, None);
    while let Some(item) = recording.next_item().unwrap() {
        match item {
            Item::Event(_) => events += 1,
            Item::End { told, lost } => end = Some((told, lost)),
            Item::Told(_) | Item::Thread(..) => {}
        }
    }
    let (told, lost) = end.unwrap();
    assert_eq!(told, events);
    // Of each stat: enter and exit of it and of its question, call and reply.
    assert!(lost > 0 && told + lost >= 6 * 16_000, "{told} told, {lost} lost");
    // His place is free again, and the next one who looks sees all.
    let mut trace = world.curt(&[
        "trace",
        "--events",
        "nfs_getattr_exit",
        "--count",
        "50",
        world.directory(),
    ]);
    let seen = std::thread::scope(|scope| {
        let tracer = scope.spawn(|| process::finish(&mut trace, LIMIT).unwrap());
        while !tracer.is_finished() {
            world.on_mount("/usr/bin/python3 -c 'import os\nfor i in range(200): os.stat(\"file\")'");
        }
        tracer.join().unwrap()
    });
    assert!(
        seen.0.success() && seen.1.lines().count() == 50 && seen.2.contains(" 0 lost"),
        "{}",
        seen.2
    );
}

#[test]
fn a_control_socket_is_its_owners_alone() {
    let mut world = World::new("", &[]);
    let pids = [world.mount.process().pid(), world.serve.process().pid()];
    let sockets = [
        format!("/run/curt/{}.socket", pids[0]),
        format!("/run/curt/{}.server", pids[1]),
    ];
    for socket in &sockets {
        let mode = world
            .network
            .shell(&format!("stat -c %a:%U {socket}"), LIMIT)
            .unwrap();
        assert_eq!(mode.trim(), "600:root");
        let script = format!(
            "setpriv --reuid=65534 --regid=65534 --clear-groups /usr/bin/python3 -c 'import socket, sys\ns = socket.socket(socket.AF_UNIX)\n\
             try:\n s.connect(\"{socket}\")\nexcept PermissionError: sys.exit(0)\nsys.exit(1)'"
        );
        world.network.shell(&script, LIMIT).unwrap();
        // Were it open to all, the process would still look who it is.
        let script = format!(
            "chmod 666 {socket}; setpriv --reuid=65534 --regid=65534 --clear-groups /usr/bin/python3 -c 'import socket\n\
             s = socket.socket(socket.AF_UNIX)\ns.connect(\"{socket}\")\n\
             try:\n s.send(b\"{{\\\"ask\\\":\\\"report\\\"}}\\n\")\n got = s.recv(100)\n\
             except (BrokenPipeError, ConnectionResetError): got = b\"\"\nassert got == b\"\", got'; chmod 600 {socket}"
        );
        world.network.shell(&script, LIMIT).unwrap();
    }
    // Its own user goes on to be answered.
    process::run(&mut world.curt(&["stat", world.directory()]), LIMIT).unwrap();
}
