//! USDT probes: in the program file, and of a running mount and server with bpftrace.

use std::collections::BTreeSet;
use std::process::Command;

use curt_observe::events::{Event, FieldKind};
use curt_tests::curt::program;
use curt_tests::process::{self, RunningProcess};
use rustix::process::Signal;

use super::{LIMIT, World};

#[test]
fn every_event_is_a_probe_with_a_semaphore_and_its_arguments() {
    let notes = process::run(Command::new("readelf").arg("-n").arg(program("curt").unwrap()), LIMIT).unwrap();
    let mut seen = BTreeSet::new();
    for note in notes.split("Provider: curt").skip(1) {
        let field = |name: &str| {
            let rest = note.split(name).nth(1).unwrap_or_else(|| panic!("{name} is not in {note}"));
            rest.split(['\n', ',']).next().unwrap().trim().to_owned()
        };
        let event = Event::ALL.iter().find(|event| event.name() == field("Name: "));
        let event = event.unwrap_or_else(|| panic!("no such event: {note}"));
        assert_ne!(field("Semaphore: "), "0x0000000000000000", "{note}");
        let arguments = note.split("Arguments: ").nth(1).unwrap().lines().next().unwrap();
        let sizes = arguments.split_whitespace().filter_map(|word| word.split_once('@'));
        let sizes: Vec<_> = sizes.map(|(size, _)| size).collect();
        let fields = event.description().fields.iter();
        let expected: Vec<_> =
            fields.map(|field| if field.kind == FieldKind::Errno { "-8" } else { "8" }).collect();
        assert_eq!(sizes, expected, "{note}");
        assert!(seen.insert(event.name()), "{} is twice in the file", event.name());
    }
    let all: BTreeSet<_> = Event::ALL.iter().map(|event| event.name()).collect();
    assert_eq!(seen, all);
}

/// bpftrace attached to one process, printing a line for each event of `clauses`.
fn attach(world: &World, pid: u32, clauses: &[(&str, &str)]) -> RunningProcess {
    let binary = program("curt").unwrap();
    let clauses = clauses
        .iter()
        .map(|(event, action)| format!("usdt:{}:curt:{event} {{ printf({action}); }}", binary.display()));
    let script: Vec<_> = clauses.collect();
    let mut command = world.network.command("bpftrace");
    command.args(["-B", "line", "-p", &pid.to_string(), "-e", &script.join(" ")]);
    RunningProcess::start("bpftrace", &mut command).unwrap()
}

/// Causes events until bpftrace shows one.
fn wait_until_attached(world: &World, tracers: [&RunningProcess; 2]) {
    let mut number = 0;
    process::until("bpftrace is attached to both", LIMIT, || {
        number += 1;
        world.on_mount(&format!("mkdir marker-{number}"));
        let seen = tracers.iter().all(|tracer| tracer.output().contains("MKDIR"));
        Ok(seen.then_some(()))
    })
    .unwrap()
}

/// Events of a mount and their printed fields.
const MOUNTED: [(&str, &str); 5] = [
    ("nfs_mkdir_enter", r#""enter %s %d %d\n", str(arg3), arg1, arg4"#),
    ("nfs_mkdir_exit", r#""MKDIR %s %lu %d\n", str(arg1), arg2, arg3"#),
    ("nfs_rmdir_exit", r#""rmdir %s %d\n", str(arg1), arg2"#),
    ("nfs_rename_exit", r#""rename %s %s %d\n", str(arg1), str(arg3), arg4"#),
    ("rpc_call", r#""sent %s\n", str(arg1)"#),
];
/// Events of a server.
const SERVED: [(&str, &str); 3] = [
    ("nfsd_call", r#""call %s %d\n", str(arg1), arg2"#),
    ("nfsd_reply", r#""%s %d\n", str(arg1), arg2"#),
    ("nfsd_write", r#""write %d %d\n", arg1, arg2"#),
];
/// Procedures that are not called before counting begins: bpftrace may print the lines of two
/// processors in another order.
const COUNTED: [&str; 4] = ["RMDIR", "RENAME", "SYMLINK", "WRITE"];

/// Requests of each [`COUNTED`] procedure that the mount has counted.
fn requests(world: &World) -> [u64; COUNTED.len()] {
    let report = process::run(&mut world.curt(&["stat", "--json", world.directory()]), LIMIT).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    COUNTED.map(|procedure| report[0]["counters"]["requests"][procedure].as_u64().unwrap_or(0))
}

/// Calls of each [`COUNTED`] procedure that bpftrace has seen.
fn sent(tracer: &RunningProcess) -> [u64; COUNTED.len()] {
    let output = tracer.output();
    COUNTED.map(|procedure| {
        let told = format!("sent {procedure}");
        output.lines().filter(|line| *line == told).count() as u64
    })
}

#[test]
fn bpftrace_sees_what_programs_do_on_a_mount_and_what_a_server_executes() {
    let mut world = World::new("", &[]);
    world
        .network
        .shell("mountpoint -q /sys/kernel/tracing || mount -t tracefs tracefs /sys/kernel/tracing", LIMIT)
        .unwrap();
    let (mount, serve) = (world.mount.process().pid(), world.serve.process().pid());
    let mut on_mount = attach(&world, mount, &MOUNTED);
    let mut on_server = attach(&world, serve, &SERVED);
    wait_until_attached(&world, [&on_mount, &on_server]);
    assert_eq!((requests(&world), sent(&on_mount)), ([0; 4], [0; 4]));
    world.on_mount(
        "for i in $(seq 20); do mkdir -m 700 dir-$i; done; mkdir dir-1/inside; ! rmdir dir-1 2>/dev/null; \
         mv dir-2 moved; printf 12345678901 > file; for i in $(seq 15); do ln -s target link-$i; done; stat -c %i dir-3 > inode",
    );
    let inode = std::fs::read_to_string(world.export.join("inode")).unwrap();
    let counted = requests(&world);
    // Two files were written, and sent at their close.
    assert_eq!(counted, [1, 1, 15, 2]);
    let told = [(&on_mount, "rename dir-2 moved 0"), (&on_mount, "rmdir dir-1"), (&on_server, "write 0 11")];
    for (tracer, line) in told {
        tracer.wait_for(line, LIMIT).unwrap();
    }
    process::until("every request is seen", LIMIT, || {
        let (mounted, served) = (on_mount.output(), on_server.output());
        let directories = ["\nenter dir-", "\nMKDIR dir-"].map(|line| mounted.matches(line).count());
        let links = ["\ncall SYMLINK 0", "\nSYMLINK 0"].map(|line| served.matches(line).count() as u64);
        let others = ["\ncall RMDIR 0", "\nRMDIR 66"].map(|line| served.contains(line));
        let all = directories == [20; 2] && links == [counted[2]; 2] && others == [true; 2];
        Ok((all && mounted.contains("\nMKDIR inside") && sent(&on_mount) == counted).then_some(()))
    })
    .unwrap();
    for tracer in [&mut on_mount, &mut on_server] {
        tracer.signal(Signal::INT).unwrap();
        tracer.wait(LIMIT).unwrap();
    }
    let output = on_mount.output();
    let count = |line: &str| output.lines().filter(|other| other.starts_with(line)).count();
    assert_eq!(count("MKDIR dir-"), 20, "{output}");
    assert_eq!(count("enter dir-"), 20, "{output}");
    // The user and the mode.
    assert_eq!(count(&format!("enter dir-7 0 {}", 0o700)), 1, "{output}");
    assert_eq!(count(&format!("MKDIR dir-3 {} 0", inode.trim())), 1, "{output}");
    assert_eq!(count("MKDIR inside"), 1, "{output}");
    assert_eq!(count("rmdir dir-1 -39"), 1, "ENOTEMPTY: {output}");
    assert_eq!(count("rename dir-2 moved 0"), 1, "{output}");
    assert_eq!(sent(&on_mount), counted, "{output}");
    let output = on_server.output();
    let count = |line: &str| output.lines().filter(|other| *other == line).count();
    assert_eq!((count("call SYMLINK 0"), count("SYMLINK 0")), (15, 15), "{output}");
    assert_eq!(count("call RMDIR 0"), 1, "{output}");
    assert_eq!(count("RMDIR 66"), 1, "NFS3ERR_NOTEMPTY: {output}");
    assert_eq!(count("write 0 11"), 1, "{output}");
}
