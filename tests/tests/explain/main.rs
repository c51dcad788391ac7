//! `curt explain` on a mount: each request of a command has its cause, and Linux's column equals a
//! kernel's counts.

#![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

mod world;

use std::process::Command;
use std::time::{Duration, Instant};

use curt_bench::workload::Workload;
use curt_tests::curt::program;
use curt_tests::kernel::{KernelNumber, linux_client, parse_ops};
use curt_tests::process::{self, RunningProcess};
use curt_tests::repeated_requests::create_probes;
use serde_json::Value;

use world::{Calls, Explained, RUN, World, calls, explain, sent, since};

/// In a run that is longer than this many seconds the attributes of page's files expire on Linux;
/// and once more after each further initial timeout.
const PAGE_SECONDS: u64 = 8;
const PAGE_LIFETIME: u64 = 3;
const PAGE_EXPIRED: u64 = 1150;
/// In a run that is longer than this build's attributes expire one after another, at most this many
/// in each second beyond.
const BUILD_SECONDS: u64 = 10;
const BUILD_EXPIRED: u64 = 25;

/// Linux's mount options when compared with a kernel: one of the two may take longer than the
/// other, and nothing may expire.
const LASTING: &str = "actimeo=600";

/// Within 5 % of a kernel's count, or above it by the number that a longer run explains.
#[track_caller]
fn near(explained: &Explained, counted: u64, late: u64) {
    let total = explained.total("linux");
    let bounds = counted * 95 / 100..=(counted + late) * 105 / 100;
    assert!(bounds.contains(&total), "{total} for {counted}: {}", explained.json["linux"]);
}

// SEMANTICS: explain-2.
#[test]
fn page_is_explained_to_the_last_request_and_linux_is_as_its_kernel_counted() {
    let world = World::new(Workload::Page);
    let (explained, seconds) = world.workload(Workload::Page, "sloppy", ("noaccesscheck,sloppycto=3", ""));
    let begun = Duration::from_secs_f64(seconds).as_secs() + 1;
    let expired = begun.saturating_sub(PAGE_SECONDS).div_ceil(PAGE_LIFETIME);
    near(&explained, 9_487, expired * PAGE_EXPIRED);
    assert_eq!(explained.row("access", "sent"), 0);
    assert!(explained.saved("sloppycto") > 4000 && explained.saved("noaccesscheck") > 5000);
    let (explained, _) = world.workload(Workload::Page, "defaults", ("", "nocto,ro,actimeo=600"));
    near(&explained, 3_930, 0);
    assert_eq!(explained.row("open-check", "linux"), 0);
}

#[test]
fn build_is_explained_to_the_last_request_and_linux_is_as_its_kernel_counted() {
    let world = World::new(Workload::Build);
    let options = "noaccesscheck,sloppycto=3";
    let (explained, seconds) = world.workload(Workload::Build, "defaults", (options, ""));
    let beyond = Duration::from_secs_f64(seconds).as_secs().saturating_sub(BUILD_SECONDS);
    near(&explained, 24_166, beyond * BUILD_EXPIRED);
    assert!(explained.saved("negative names") > 100_000);
    let (explained, _) = world.workload(Workload::Build, "nocto", (options, "nocto,ro,actimeo=600"));
    near(&explained, 4_387, 0);
}

// SEMANTICS: explain-1.
#[test]
fn being_explained_does_not_change_what_is_sent() {
    let world = World::new(Workload::Page);
    // Nothing expires in a run and nothing depends on the round-trip time, so the duration does not
    // matter.
    let options = "noaccesscheck,sloppycto=600,actimeo=600,nametimeo=600,negnametimeo=600,dirfill=off";
    let (explained, seconds) = world.workload(Workload::Page, "explained", (options, ""));
    let mount = world.mount("unexplained", options);
    let before = sent(&world.network, mount.directory());
    let mut bench = world.network.command(program("curt").unwrap());
    bench.args(["bench", "page", "--at"]).arg(mount.directory());
    let begun = Instant::now();
    process::run(&mut bench, RUN).unwrap();
    let again = [seconds, begun.elapsed().as_secs_f64()]
        .map(|seconds| u64::try_from(create_probes(seconds)).unwrap());
    let plain = since(&sent(&world.network, mount.directory()), &before);
    // The kernel's read-ahead depends on timing; the rest does not.
    let (mut counted, mut plain) = (calls(&explained.json["requests"]), plain);
    // So does the number of look-ups of names that may be about to be created: while explained,
    // their use is seen. And one of the two runs may have taken longer.
    let lookups = 30 + again[0].abs_diff(again[1]);
    for (name, apart) in [("READ", 10), ("LOOKUP", lookups)] {
        let both = (counted.remove(name).unwrap(), plain.remove(name).unwrap());
        assert!(both.0.abs_diff(both.1) <= apart, "{name}: {both:?}");
    }
    assert_eq!(counted, plain);
    mount.unmount().unwrap();
}

/// Another kind of program: it creates, writes, renames, lists and removes.
const SCRIPT: &str = r#"set -e; cd "$1"; mkdir work; cd work
for d in a b c d; do mkdir $d; for f in 1 2 3 4 5 6 7 8 9 10; do echo "$d$f" >$d/$f; done; done
for d in a b c d; do for f in 1 2 3; do cat $d/$f; chmod 600 $d/$f; mv $d/$f $d/moved$f; done; ln -s $d link$d; ls -l $d; done >/dev/null
dd if=/dev/zero of=large bs=64k count=64 2>/dev/null; cp large copy; cat copy >/dev/null
for f in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do test -e missing$f || test -e a/$f || test -e linka/$f || true; done
rm -r a b; find . -type f | wc -l; cd ..; rm -r work"#;

// SEMANTICS: explain-3.
#[test]
fn a_program_that_changes_things_is_explained_and_linux_is_as_its_kernel_counts() {
    let explained = beside_a_kernel(SCRIPT);
    assert_eq!((explained.status, explained.output.trim()), (0, "22"), "{}", explained.json);
    assert!(explained.json["processes"].as_array().unwrap().len() > 10, "{}", explained.json);
}

/// Explains a script that works in a given directory, and checks that a Linux client sends the
/// requests of its model.
fn beside_a_kernel(script: &str) -> Explained {
    let world = World::exporting(|_| ());
    let work = world.network.directory().join("work.sh");
    std::fs::write(&work, script).unwrap();
    let mount = world.mount("mount", "");
    let (work, at) = (work.display().to_string(), mount.directory().display().to_string());
    let explained = explain(&world.network, mount.directory(), LASTING, &["bash", &work, &at]);
    mount.unmount().unwrap();
    let left = world.export.join("work");
    if left.exists() {
        std::fs::remove_dir_all(left).unwrap();
    }
    let counted = counted(&world, &[format!("bash {work} /mnt/nfs")]);
    as_counted(&explained, &counted[0]);
    explained
}

/// The requests of a Linux client for each of these commands, each on a new mount.
fn counted(world: &World, commands: &[String]) -> Vec<Calls> {
    let (options, source) = (world.serve.ports(), world.serve.source());
    let steps = commands.iter().map(|command| {
        format!(
            "mount -t nfs -o vers=3,nolock,proto=tcp,{LASTING},{options} {source} /mnt/nfs || exit 1\nops\n\
             {command} >/dev/null 2>&1\nops\numount /mnt/nfs || exit 1\n"
        )
    });
    let output = linux_client(&world.network, KernelNumber(2), RUN, &steps.collect::<String>()).unwrap();
    let told: Vec<_> = output.lines().filter(|line| line.contains("TOTAL=")).collect();
    assert_eq!(told.len(), 2 * commands.len(), "{output}");
    let counted =
        told.chunks(2).map(|told| since(&parse_ops(told[1]).unwrap(), &parse_ops(told[0]).unwrap()));
    counted.collect()
}

/// Checks that the model of Linux is within 5 % of a kernel's counts.
#[track_caller]
fn as_counted(explained: &Explained, counted: &Calls) {
    let (linux, total) = (explained.total("linux"), counted["TOTAL"]);
    println!("the model: {linux}, the kernel: {total}");
    assert!(
        linux.abs_diff(total) * 20 <= total,
        "{linux} for {total}\n{:?}\n{counted:?}",
        calls(&explained.json["linux"])
    );
}

/// Durable writes, direct I/O, and operations that are refused to a user.
const REFUSED: &str = r#"cd "$1"; mkdir -m 777 work; cd work
dd if=/dev/zero of=durable bs=4k count=32 oflag=dsync; dd if=/dev/zero of=durable bs=8k count=16 oflag=sync conv=notrunc
dd if=/dev/zero of=direct bs=64k count=16 oflag=direct; dd if=direct of=/dev/null bs=64k iflag=direct
mkdir -m 700 private; echo text >private/file; mkdir -m 755 shown; for f in 1 2 3 4 5; do echo text >shown/$f; chmod 600 shown/$f; done
as() { setpriv --reuid=1234 --regid=1234 --clear-groups "$@"; }
as bash -c 'cat private/file; ls private; test -e private/file; for f in 1 2 3 4 5 1 2 3; do cat shown/$f; done; echo more >>shown/1'
as bash -c 'for f in a b c d e; do touch shown/new$f; mkdir shown/dir$f; ln -s x shown/link$f; done; mv shown/1 shown/moved; rm -f shown/2'
as bash -c 'chmod 777 shown shown/3; touch -d 2001-01-01 shown/4; truncate -s 0 shown/5'
mkdir -p full/not; for i in 1 2 3 4 5; do rmdir full; done; cat missing; rm -r full
exec 3<>direct; printf text >&3; exec 3>&-"#;

// SEMANTICS: explain-3.
#[test]
fn durable_direct_and_refused_operations_are_as_a_kernel_counts_them() {
    beside_a_kernel(REFUSED);
}

// SEMANTICS: explain-3.
#[test]
fn listings_of_any_size_are_as_a_kernel_counts_them() {
    // With `CURT_FULL` in the environment the largest is that of the benchmarks.
    let is_full = std::env::var_os("CURT_FULL").is_some();
    let sizes = [("few", 40), ("some", 3000), ("many", if is_full { 500_000 } else { 40_000 })];
    let world = World::exporting(|export| {
        for (name, count) in sizes {
            let directory = export.join(name);
            std::fs::create_dir(&directory).unwrap();
            for number in 0..count {
                std::fs::File::create(directory.join(format!("{number:012}"))).unwrap();
            }
        }
    });
    let commands = [
        "ls -f AT/few",
        "ls -f AT/some",
        "ls -f AT/many",
        "ls -l AT/some",
        "find AT/few AT/some -size +0",
        "ls AT/some; ls -l AT/some",
    ];
    let counted =
        counted(&world, &commands.map(|command| format!("bash -c '{}'", command.replace("AT", "/mnt/nfs"))));
    for (number, (command, counted)) in commands.iter().zip(counted).enumerate() {
        let mount = world.mount(&format!("mount{number}"), "");
        let command = command.replace("AT", &mount.directory().display().to_string());
        let explained = explain(&world.network, mount.directory(), LASTING, &["bash", "-c", &command]);
        mount.unmount().unwrap();
        let linux = calls(&explained.json["linux"]);
        println!("{command}: the model: {linux:?}, the kernel: {counted:?}");
        for listing in ["READDIR", "READDIRPLUS"] {
            assert_eq!(linux.get(listing), counted.get(listing), "{command}: {linux:?} {counted:?}");
        }
        as_counted(&explained, &counted);
    }
}

// SEMANTICS: explain-2.
#[test]
fn what_goes_on_when_a_command_has_ended_is_counted_or_said_to_be_missing() {
    let mut world = World::exporting(|export| {
        std::fs::write(export.join("large"), vec![7; 64 << 20]).unwrap();
        std::fs::write(export.join("f"), "text").unwrap();
    });
    let (network, mount) = (&world.network, world.mount("mount", ""));
    let at = mount.directory().display().to_string();
    // The kernel's read-ahead continues after its reader has ended; each time in another part of
    // the file. `explain` checks that the totals equal those of `curt stat`.
    for part in 0..20 {
        let read = format!("dd if={at}/large of=/dev/null bs=256k count=1 skip={}", part * 12);
        let explained = explain(network, mount.directory(), "", &["sh", "-c", &read]);
        assert_eq!(explained.json["unfinished"], false, "{}", explained.json);
        assert!(explained.total("requests") > 0);
    }
    // Requests that wait for a silent server are not waited for.
    let server = world.serve.process().pid();
    let stuck = format!(
        "kill -STOP {server}; until grep -q 'State:.T' /proc/{server}/status; do :; done; \
         cat {at}/missing >/dev/null 2>&1 & \
         until grep -q 'fuse\\|request_wait' /proc/$!/wchan; do :; done"
    );
    let mut command = network.command(program("curt").unwrap());
    let file = network.directory().join("unfinished.json");
    command.args(["explain", "--json", "--output"]).arg(&file);
    command.args(["sh", "-c", &stuck]);
    let (status, _, errors) = process::finish(&mut command, RUN).unwrap();
    network.shell(&format!("kill -CONT {server}"), RUN).unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    let all: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}\n{errors}"));
    assert!(status.success(), "{errors}");
    assert_eq!(all["mounts"][0]["unfinished"], true, "{all}");
    assert!(errors.contains("left processes behind"), "{errors}");
    mount.unmount().unwrap();
}

#[test]
fn what_is_written_and_read_after_an_explanation_is_as_ever() {
    let world = World::exporting(|export| {
        std::fs::write(export.join("large"), vec![7; 4 << 20]).unwrap();
    });
    let (network, mount) = (&world.network, world.mount("mount", ""));
    let at = mount.directory().display().to_string();
    // One file is open, with dirty data, during and after the explanation of another command.
    let script = format!(
        "import os; file = os.open('{at}/open', os.O_CREAT | os.O_WRONLY); os.write(file, b'before '); print('one', flush=True); \
         input(); os.write(file, b'and after'); os.fsync(file); print('two', flush=True); input()"
    );
    let mut writer =
        RunningProcess::start("a writer", network.command("python3").args(["-c", &script])).unwrap();
    writer.wait_for("one", RUN).unwrap();
    explain(network, mount.directory(), "", &["ls", &at]);
    let there = || std::fs::read(world.export.join("open")).unwrap();
    process::until("what was written is at the server", RUN, || Ok((there() == b"before ").then_some(())))
        .unwrap();
    writer.say("\n").unwrap();
    writer.wait_for("two", RUN).unwrap();
    assert_eq!(there(), b"before and after");
    let copy = format!("cp {at}/large {at}/copy && cmp {at}/large {}", world.export.join("copy").display());
    network.shell(&copy, RUN).unwrap();
    writer.say("\n").unwrap();
    writer.wait(RUN).unwrap();
    mount.unmount().unwrap();
}

#[test]
fn what_a_command_leaves_behind_is_reaped_and_waited_for_if_that_is_wanted() {
    let world = World::exporting(|export| {
        std::fs::write(export.join("f"), "text").unwrap();
    });
    let (network, mount) = (&world.network, world.mount("mount", ""));
    let at = mount.directory().display().to_string();
    // A process whose parent has ended ends during the command: it does not count as left behind.
    let orphan = r#"p=$(setsid sh -c 'sleep 100 >/dev/null & echo $!'); kill $p; until [ ! -e /proc/$p ]; do :; done; cat "$1/f""#;
    let explained = explain(network, mount.directory(), "", &["sh", "-c", orphan, "sh", &at]);
    assert_eq!((explained.status, &*explained.output), (0, "text"));
    let run = |arguments: &[&str]| {
        let mut command: Command = network.command(program("curt").unwrap());
        command.arg("explain").args(arguments);
        let (status, output, errors) = process::finish(&mut command, RUN).unwrap();
        assert!(status.success(), "{errors}");
        (output, errors)
    };
    // It begins its requests only when the command has ended.
    let late = r#"pipe=$(mktemp -u); mkfifo "$pipe"; (read go <"$pipe"; until [ "$(readlink /proc/'$$'/exe)" = "" ]; do :; done; cat "$1/f") & echo go >"$pipe"; rm "$pipe""#;
    let late = late.replace("'$$'", "$$");
    let (output, errors) = run(&["--wait", "sh", "-c", &late, "sh", &at]);
    assert_eq!(output, "text", "{errors}");
    assert!(errors.contains("open-check") && !errors.contains("left processes behind"), "{errors}");
    mount.unmount().unwrap();
}

#[test]
fn a_command_has_its_status_its_signals_and_its_orphans() {
    let world = World::exporting(|export| {
        std::fs::write(export.join("f"), "text").unwrap();
    });
    let (network, mount) = (&world.network, world.mount("mount", ""));
    let at = mount.directory().display().to_string();
    let shell = |script: &str| explain(network, mount.directory(), "", &["sh", "-c", script, "sh", &at]);
    let explained = shell("cat \"$1/f\"; exit 7");
    assert_eq!((explained.status, &*explained.output), (7, "text"));
    let read = explained.rows().find(|row| row["cause"] == "data-read").unwrap();
    assert_eq!(read["paths"][0]["path"], "/f");
    // Its parent has ended before its requests: it still belongs to the command.
    let script = format!(
        "(setsid sh -c 'until [ -e {0}/go ]; do sleep 0.01; done; stat \"$0/missing\"; touch {0}/done' \"$1\" 2>/dev/null &); \
         touch {0}/go; until [ -e {0}/done ]; do sleep 0.01; done; kill -TERM $$",
        network.make_directory("markers").unwrap().display()
    );
    let explained = shell(&script);
    assert_eq!(explained.status, 128 + 15);
    assert!(explained.total("requests") >= 1, "{}", explained.json);
    let refused = |arguments: &[&str], status: i32| {
        let mut command: Command = network.command(program("curt").unwrap());
        command.arg("explain").args(["--mount", &at]).args(arguments);
        let (ended, _, errors) = process::finish(&mut command, RUN).unwrap();
        assert_eq!(ended.code(), Some(status), "{errors}");
        assert!(errors.contains("curt explain: "), "{errors}");
    };
    refused(&["/nonexistent"], 127);
    refused(&["/etc/passwd"], 126);
    refused(&["-o", "sloppycto=3", "true"], 125);
    refused(&["--expand", "boredom", "true"], 125);
    mount.unmount().unwrap();
}
