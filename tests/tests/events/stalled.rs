//! Watchers that do not read, and users who may not watch.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use curt_observe::events::{RecordingItem, RecordingReader};
use curt_tests::process;

use super::{LIMIT, World};

/// A mount's control socket, from inside the test's network.
fn socket(world: &mut World) -> std::path::PathBuf {
    let pid = world.mount.process().pid();
    format!("/proc/{pid}/root/run/curt/{pid}.socket").into()
}

/// Maximum number of stats, each of which sends a request: more events than fit a watcher's buffer
/// and a socket. A fifth of them would do.
const STATS_MAX: u64 = 16_000;

/// Number of processes that share the stats, each with a file of its own: calls about one file at a
/// time may share a request.
const STATTING: u64 = 8;

/// Time after which a slow machine has made enough stats. A watcher is disconnected 30 s after it
/// has stopped reading.
const STATS_TIME: Duration = Duration::from_secs(15);

/// Number of events of one stat: enter and exit of the operation, of the revalidation and of the
/// attribute update; call and reply.
const EVENTS: u64 = 8;

/// The events of a watcher that did not read while the mount was used.
struct StalledWatch {
    /// Number of stats made meanwhile.
    stats: u64,
    received: u64,
    lost: u64,
}

/// Starts a watcher that does not read, works, and then reads.
fn stall(world: &mut World) -> StalledWatch {
    let mut stalled = UnixStream::connect(socket(world)).unwrap();
    stalled.write_all(b"{\"ask\":\"events\",\"patterns\":\"*\"}\n").unwrap();
    let mut stalled = BufReader::new(stalled);
    let mut answer = String::new();
    stalled.read_line(&mut answer).unwrap();
    assert_eq!(answer, "{\"done\":null}\n");
    let script = format!(
        "import os, time\nend = time.monotonic() + {}\nread, write = os.pipe()\n\
         for number in range({STATTING}):\n if os.fork() == 0:\n  done = 0\n  \
         while done < {STATS_MAX} // {STATTING} and time.monotonic() < end:\n   os.stat(f\"file{{number}}\")\n   \
         done += 1\n  os.write(write, b\"%d \" % done)\n  os._exit(0)\n\
         os.close(write)\nstatuses = [os.wait()[1] for number in range({STATTING})]\n\
         assert not any(statuses), statuses\nprint(sum(map(int, os.read(read, 1000).split())))",
        STATS_TIME.as_secs()
    );
    let stats = world.on_mount(&format!("/usr/bin/python3 -c '{script}'")).trim().parse().unwrap();
    stalled.get_ref().shutdown(std::net::Shutdown::Write).unwrap();
    let mut recording = RecordingReader::open(stalled).unwrap();
    let mut received = 0;
    loop {
        match recording.next_item().unwrap().expect("a watcher is not disconnected while others work") {
            RecordingItem::Event(_) => received += 1,
            RecordingItem::CompleteUntil(_) | RecordingItem::Thread(..) | RecordingItem::Object(..) => {}
            RecordingItem::End { events, lost } => {
                assert_eq!(events, received);
                return StalledWatch { stats, received, lost };
            }
        }
    }
}

#[test]
fn a_watcher_that_does_not_read_loses_events_and_delays_no_operation() {
    let mut world = World::new("noac", &[]);
    world.on_mount(&format!("for n in $(seq 0 {STATTING}); do echo text > file$n; done"));
    // If an operation had waited for the watcher, it would have been until the disconnection: there
    // would be no end to read.
    let StalledWatch { stats, received, lost } = stall(&mut world);
    assert!(lost > 0 && received + lost >= EVENTS * stats, "{stats} stats: {received} received, {lost} lost");
    // Its slot is free again, and the next watcher gets all events.
    let mut trace = world.curt(&["trace", "--event", "nfs_getattr_exit", "--count", "50", world.directory()]);
    let seen = std::thread::scope(|scope| {
        let tracer = scope.spawn(|| process::finish(&mut trace, LIMIT).unwrap());
        while !tracer.is_finished() {
            world.on_mount("/usr/bin/python3 -c 'import os\nfor i in range(200): os.stat(\"file0\")'");
        }
        tracer.join().unwrap()
    });
    assert!(seen.0.success() && seen.1.lines().count() == 50 && seen.2.contains(" 0 lost"), "{}", seen.2);
}

#[test]
fn a_control_socket_is_its_owners_alone() {
    let mut world = World::new("", &[]);
    let pids = [world.mount.process().pid(), world.serve.process().pid()];
    let sockets = [format!("/run/curt/{}.socket", pids[0]), format!("/run/curt/{}.server", pids[1])];
    for socket in &sockets {
        let mode = world.network.shell(&format!("stat -c %a:%U {socket}"), LIMIT).unwrap();
        assert_eq!(mode.trim(), "600:root");
        let script = format!(
            "setpriv --reuid=65534 --regid=65534 --clear-groups /usr/bin/python3 -c 'import socket, sys\ns = socket.socket(socket.AF_UNIX)\n\
             try:\n s.connect(\"{socket}\")\nexcept PermissionError: sys.exit(0)\nsys.exit(1)'"
        );
        world.network.shell(&script, LIMIT).unwrap();
        // Even if the socket were accessible to all, the process checks the peer's user.
        let script = format!(
            "chmod 666 {socket}; setpriv --reuid=65534 --regid=65534 --clear-groups /usr/bin/python3 -c 'import socket\n\
             s = socket.socket(socket.AF_UNIX)\ns.connect(\"{socket}\")\n\
             try:\n s.send(b\"{{\\\"ask\\\":\\\"report\\\"}}\\n\")\n got = s.recv(100)\n\
             except (BrokenPipeError, ConnectionResetError): got = b\"\"\nassert got == b\"\", got'; chmod 600 {socket}"
        );
        world.network.shell(&script, LIMIT).unwrap();
    }
    // Its own user still gets replies.
    process::run(&mut world.curt(&["stat", world.directory()]), LIMIT).unwrap();
}
