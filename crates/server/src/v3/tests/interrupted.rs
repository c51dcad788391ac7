//! Calls that come again after the server was killed, over a directory of this machine: before the change, after it, and after
//! the reply was saved.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use curt_proto::nfs3::{
    CreateArguments, CreateHow, Created, DirectoryName, FileHandle, Filename, LinkArguments, LookupOk,
    MkdirArguments, MknodArguments, MknodData, Outcome, PROGRAM, Procedure, RenameArguments, Sattr,
    SetattrArguments, Status, SymlinkArguments, VERSION, WccData,
};
use curt_rpc::auth::{Auth, AuthSys, Groups};
use curt_rpc::message::Call;
use curt_rpc::server::{CallFailure, Context, Service as _};
use curt_trace::{ServerCounter, ServerCounters};
use curt_vfs::{HandleChoice, LocalOptions, LocalVfs};
use curt_xdr::decode_all;

use super::fixture::{bytes_of, place, rules};
use crate::file_handle::{ExportId, Signed};
use crate::request::Request;
use crate::{ExportDefinition, NfsService, Setup, State};

/// One run of a server.
struct Run {
    service: NfsService,
    counters: Arc<ServerCounters>,
    root: FileHandle,
}

/// When a run is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Killed {
    BeforeTheChange,
    AfterTheChange,
    AfterTheReplyWasSaved,
}

impl Run {
    fn begin(top: &Path) -> Self {
        let state = top.join("state");
        let options = LocalOptions {
            handles: HandleChoice::Auto,
            table: Some(state.join("table.redb")),
            ..LocalOptions::default()
        };
        let export = top.join("export");
        std::fs::create_dir_all(&export).unwrap();
        let state = State::open(&state).unwrap();
        let vfs = Arc::new(LocalVfs::open(&export, &options).unwrap());
        let exports = vec![ExportDefinition::for_everyone(b"/export".to_vec(), vfs, rules())];
        let counters = Arc::new(ServerCounters::default());
        let setup = Setup {
            state,
            exports,
            counters: Arc::clone(&counters),
        };
        let mut service = NfsService::new(setup).unwrap();
        service.save_replies().unwrap();
        let export = Arc::clone(service.exports.current().by_id(ExportId(1)).unwrap());
        let root = service.key.sign(&Signed {
            export: export.id,
            file_system: export.file_system,
            node: export.vfs.root(),
            parent: None,
        });
        Self {
            service,
            counters,
            root,
        }
    }

    /// Sends a call of number `xid` from another port each time.
    fn send(&self, xid: u32, procedure: Procedure, arguments: &[u8]) -> Vec<u8> {
        let (call, mut context) = call(xid, procedure, arguments);
        let mut reply = Vec::new();
        self.service.call(&call, &mut context, &mut reply).unwrap();
        reply
    }

    fn status(&self, xid: u32, procedure: Procedure, arguments: &[u8]) -> Status {
        status(&self.send(xid, procedure, arguments))
    }

    /// Sends a call at which the server is killed.
    fn killed(self, when: Killed, xid: u32, procedure: Procedure, arguments: &[u8]) {
        let (call, mut context) = call(xid, procedure, arguments);
        let service = &self.service;
        let perform = |_, context: &mut Context<'_>, reply: &mut Vec<u8>| {
            let mut request = Request {
                service,
                credential: &call.credential,
                context,
            };
            match when {
                Killed::BeforeTheChange => return Err(CallFailure::NoReply),
                Killed::AfterTheChange => {
                    crate::v3::call(procedure, &mut request, call.arguments, reply)?;
                    return Err(CallFailure::NoReply);
                }
                Killed::AfterTheReplyWasSaved => {}
            }
            crate::v3::call(procedure, &mut request, call.arguments, reply)
        };
        let mut reply = Vec::new();
        let answered = service
            .replies
            .answer(&call, &mut context, &mut reply, &self.counters, perform);
        assert_eq!(answered.is_ok(), when == Killed::AfterTheReplyWasSaved);
    }

    fn counted(&self, counter: ServerCounter) -> u64 {
        self.counters.events.value(counter)
    }

    fn handle(&self, name: &str) -> FileHandle {
        let found = self.send(
            0,
            Procedure::Lookup,
            &bytes_of(&place(self.root, name.as_bytes())),
        );
        match decode_all::<Outcome<LookupOk, Option<curt_proto::nfs3::Fattr>>>(&found).unwrap() {
            Outcome::Ok(found) => found.object,
            Outcome::Failed(status, _) => panic!("{name}: {status}"),
        }
    }
}

fn call(xid: u32, procedure: Procedure, arguments: &[u8]) -> (Call<'_>, Context<'static>) {
    static PORT: std::sync::atomic::AtomicU16 = std::sync::atomic::AtomicU16::new(0);
    let port = 600 + PORT.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % 400;
    let (uid, gid) = myself();
    let sys = AuthSys {
        stamp: 0,
        machine_name: b"test",
        uid,
        gid,
        groups: Groups::first_of(&[]),
    };
    let call = Call {
        xid,
        program: PROGRAM,
        version: VERSION,
        procedure: procedure.number(),
        credential: Auth::Sys(sys),
        arguments,
    };
    let context = Context::detached(([10, 0, 0, 1], port).into(), ([10, 0, 0, 9], 2049).into());
    (call, context)
}

fn myself() -> (u32, u32) {
    (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    )
}

fn status(results: &[u8]) -> Status {
    Status::from_number(u32::from_be_bytes(*results.first_chunk().unwrap())).unwrap()
}

/// A directory where things are old.
fn top() -> tempfile::TempDir {
    let top = tempfile::tempdir().unwrap();
    let export = top.path().join("export");
    std::fs::create_dir_all(export.join("old directory")).unwrap();
    std::fs::write(export.join("old file"), "").unwrap();
    wait_for_the_clock(&export);
    top
}

/// Waits until what is changed from now on has a later time.
fn wait_for_the_clock(export: &Path) {
    let last = std::fs::metadata(export).unwrap();
    let probe = export.join("probe");
    loop {
        std::fs::write(&probe, "").unwrap();
        let now = std::fs::metadata(&probe).unwrap();
        std::fs::remove_file(&probe).unwrap();
        if (now.ctime(), now.ctime_nsec() / 20_000_000) > (last.ctime(), last.ctime_nsec() / 20_000_000) {
            return;
        }
    }
}

fn mkdir(directory: FileHandle, name: &str) -> Vec<u8> {
    bytes_of(&MkdirArguments {
        place: place(directory, name.as_bytes()),
        attributes: Sattr {
            mode: Some(0o750),
            ..Sattr::default()
        },
    })
}

/// Every call that cannot be repeated, on a tree with `old file` and `old directory`.
fn unrepeatable(run: &Run) -> Vec<(Procedure, Vec<u8>)> {
    let attributes = Sattr {
        mode: Some(0o640),
        ..Sattr::default()
    };
    let at = |name: &'static str| DirectoryName {
        directory: run.root,
        name: Filename::new(name.as_bytes()).unwrap(),
    };
    let create = CreateArguments {
        place: at("made"),
        how: CreateHow::Guarded(attributes),
    };
    let symlink = SymlinkArguments {
        place: at("made"),
        attributes,
        target: curt_proto::nfs3::Path::new(b"target").unwrap(),
    };
    let mknod = MknodArguments {
        place: at("made"),
        what: MknodData::Fifo(attributes),
    };
    let link = LinkArguments {
        file: run.handle("old file"),
        place: at("made"),
    };
    let rename = |name| RenameArguments {
        from: at(name),
        to: at("made"),
    };
    vec![
        (Procedure::Mkdir, mkdir(run.root, "made")),
        (Procedure::Create, bytes_of(&create)),
        (Procedure::Symlink, bytes_of(&symlink)),
        (Procedure::Mknod, bytes_of(&mknod)),
        (Procedure::Link, bytes_of(&link)),
        (Procedure::Remove, bytes_of(&at("old file"))),
        (Procedure::Rmdir, bytes_of(&at("old directory"))),
        (Procedure::Rename, bytes_of(&rename("old file"))),
        (Procedure::Rename, bytes_of(&rename("old directory"))),
    ]
}

// SEMANTICS: restart-1.
#[test]
fn a_call_that_comes_again_after_a_kill_at_any_moment_is_told_of_its_own_work() {
    use Killed::{AfterTheChange, AfterTheReplyWasSaved, BeforeTheChange};
    let count = unrepeatable(&Run::begin(top().path())).len();
    for (number, when) in (0..count).flat_map(|number| {
        [BeforeTheChange, AfterTheChange, AfterTheReplyWasSaved].map(|when| (number, when))
    }) {
        let top = top();
        let run = Run::begin(top.path());
        let (procedure, arguments) = unrepeatable(&run).swap_remove(number);
        run.killed(when, 7, procedure, &arguments);
        // The next run may be killed before the client is back.
        drop(Run::begin(top.path()));
        let run = Run::begin(top.path());
        let first = run.send(7, procedure, &arguments);
        assert_eq!(status(&first), Status::Ok, "{procedure} {when:?}");
        let counted = [
            ServerCounter::ReplyCacheRecognised,
            ServerCounter::ReplyCacheHitRestored,
        ]
        .map(|counter| run.counted(counter));
        let expected = [when == AfterTheChange, when == AfterTheReplyWasSaved].map(u64::from);
        assert_eq!(counted, expected, "{procedure} {when:?}");
        assert_eq!(run.counted(ServerCounter::ReplyCacheRestored), expected[1]);
        // From now on it is a reply like any other.
        assert_eq!(run.send(7, procedure, &arguments), first);
        drop(run);
        assert_eq!(Run::begin(top.path()).send(7, procedure, &arguments), first);
        // Another call is not taken for it.
        let again = Run::begin(top.path()).status(8, procedure, &arguments);
        assert!(
            matches!(again, Status::Exist | Status::Noent),
            "{procedure}: {again}"
        );
    }
}

#[test]
fn what_is_recognised_is_told_with_its_handle_and_attributes() {
    let top = top();
    let run = Run::begin(top.path());
    let arguments = mkdir(run.root, "made");
    run.killed(Killed::AfterTheChange, 7, Procedure::Mkdir, &arguments);
    let run = Run::begin(top.path());
    let made = run.send(7, Procedure::Mkdir, &arguments);
    let Outcome::Ok(made) = decode_all::<Outcome<Created, WccData>>(&made).unwrap() else {
        panic!("not recognised")
    };
    assert_eq!(made.object, Some(run.handle("made")));
    let attributes = made.attributes.unwrap();
    assert_eq!((attributes.mode, attributes.uid), (0o750, myself().0));
    assert!(made.directory.before.is_none() && made.directory.after.is_some());
}

// SEMANTICS: restart-3.
#[test]
fn what_was_there_or_not_there_before_is_nobodys_work() {
    let top = top();
    let run = Run::begin(top.path());
    let root = run.root;
    let old = CreateArguments {
        place: place(root, b"old file"),
        how: CreateHow::Guarded(Sattr::default()),
    };
    let rename = RenameArguments {
        from: place(root, b"missing"),
        to: place(root, b"old file"),
    };
    drop(run);
    for (xid, (procedure, arguments, expected)) in (10..).zip([
        (Procedure::Mkdir, mkdir(root, "old directory"), Status::Exist),
        (Procedure::Create, bytes_of(&old), Status::Exist),
        (
            Procedure::Remove,
            bytes_of(&place(root, b"missing")),
            Status::Noent,
        ),
        (
            Procedure::Rmdir,
            bytes_of(&place(root, b"missing")),
            Status::Noent,
        ),
        (Procedure::Rename, bytes_of(&rename), Status::Noent),
    ]) {
        wait_for_the_clock_alone();
        Run::begin(top.path()).killed(Killed::AfterTheChange, xid, procedure, &arguments);
        let run = Run::begin(top.path());
        assert_eq!(run.status(xid, procedure, &arguments), expected, "{procedure}");
        assert_eq!(run.counted(ServerCounter::ReplyCacheRecognised), 0);
    }
}

/// Waits until the last change of the export is older than a step of its clock, and changes nothing there.
fn wait_for_the_clock_alone() {
    let elsewhere = tempfile::tempdir().unwrap();
    wait_for_the_clock(elsewhere.path());
}

/// As a lock: of several who make one directory, one has made it.
// SEMANTICS: restart-2.
#[test]
fn of_two_clients_whose_mkdirs_were_interrupted_one_is_told_that_it_made_the_directory() {
    let top = top();
    let run = Run::begin(top.path());
    let arguments = mkdir(run.root, "lock");
    run.killed(Killed::AfterTheChange, 1, Procedure::Mkdir, &arguments);
    Run::begin(top.path()).killed(Killed::AfterTheChange, 2, Procedure::Mkdir, &arguments);
    let run = Run::begin(top.path());
    let told = [2, 1].map(|xid| run.status(xid, Procedure::Mkdir, &arguments));
    assert_eq!(
        told.map(|status| status == Status::Ok)
            .iter()
            .filter(|made| **made)
            .count(),
        1
    );
    drop(run);

    // One of them was answered before the other's was begun, or while it was executed.
    for is_answered_first in [true, false] {
        let top = self::top();
        let run = Run::begin(top.path());
        let arguments = mkdir(run.root, "lock");
        if is_answered_first {
            assert_eq!(run.status(1, Procedure::Mkdir, &arguments), Status::Ok);
            run.killed(Killed::AfterTheChange, 2, Procedure::Mkdir, &arguments);
        } else {
            run.killed(Killed::BeforeTheChange, 2, Procedure::Mkdir, &arguments);
            let run = Run::begin(top.path());
            assert_eq!(run.status(1, Procedure::Mkdir, &arguments), Status::Ok);
        }
        let run = Run::begin(top.path());
        assert_eq!(run.status(2, Procedure::Mkdir, &arguments), Status::Exist);
        assert_eq!(run.status(1, Procedure::Mkdir, &arguments), Status::Ok);
    }
}

// SEMANTICS: restart-3.
#[test]
fn a_directory_that_holds_something_or_changed_since_the_restart_is_not_taken_for_new() {
    let top = top();
    let run = Run::begin(top.path());
    let arguments = mkdir(run.root, "busy");
    let export = top.path().join("export");
    std::fs::create_dir(export.join("busy")).unwrap();
    run.killed(Killed::AfterTheChange, 1, Procedure::Mkdir, &arguments);
    std::fs::write(export.join("busy/file"), "").unwrap();
    let run = Run::begin(top.path());
    assert_eq!(run.status(1, Procedure::Mkdir, &arguments), Status::Exist);

    let arguments = mkdir(run.root, "later");
    run.killed(Killed::BeforeTheChange, 2, Procedure::Mkdir, &arguments);
    let run = Run::begin(top.path());
    wait_for_the_clock(&export);
    std::fs::create_dir(export.join("later")).unwrap();
    assert_eq!(run.status(2, Procedure::Mkdir, &arguments), Status::Exist);
}

// SEMANTICS: restart-4.
#[test]
fn replies_of_another_server_or_none_at_all_are_no_replies() {
    let top = top();
    let run = Run::begin(top.path());
    let arguments = mkdir(run.root, "made");
    assert_eq!(run.status(1, Procedure::Mkdir, &arguments), Status::Ok);
    drop(run);
    let replies = top.path().join("state/replies");
    let saved = std::fs::read(&replies).unwrap();
    let again = || {
        let run = Run::begin(top.path());
        let arguments = mkdir(run.root, "made");
        run.status(1, Procedure::Mkdir, &arguments)
    };
    for bytes in [
        &b""[..],
        b"CURTRPLY",
        &saved[..saved.len() / 2],
        &vec![0xff; saved.len()],
    ] {
        std::fs::write(&replies, bytes).unwrap();
        assert_eq!(again(), Status::Exist, "{} bytes", bytes.len());
    }
    std::fs::remove_file(&replies).unwrap();
    assert_eq!(again(), Status::Exist);
    // With another key the handles are others, too; a file of the first is nothing to the second.
    std::fs::write(&replies, &saved).unwrap();
    State::new_key(&top.path().join("state")).unwrap();
    let run = Run::begin(top.path());
    assert_eq!(run.counted(ServerCounter::ReplyCacheRestored), 0);
    let arguments = mkdir(run.root, "made");
    assert_eq!(run.status(1, Procedure::Mkdir, &arguments), Status::Exist);
}

// SEMANTICS: restart-1.
#[test]
fn a_truncation_that_was_answered_is_not_done_again_by_the_next_run() {
    let top = top();
    let run = Run::begin(top.path());
    let setattr = bytes_of(&SetattrArguments {
        object: run.handle("old file"),
        attributes: Sattr {
            size: Some(0),
            ..Sattr::default()
        },
        guard: None,
    });
    run.killed(Killed::AfterTheReplyWasSaved, 1, Procedure::Setattr, &setattr);
    let file = top.path().join("export/old file");
    std::fs::write(&file, "written since").unwrap();
    let run = Run::begin(top.path());
    assert_eq!(run.status(1, Procedure::Setattr, &setattr), Status::Ok);
    assert_eq!(std::fs::read(&file).unwrap(), b"written since");
}

/// SEMANTICS.md says so.
// SEMANTICS: restart-5.
#[test]
fn what_was_undone_or_cannot_be_recognised_is_executed_again() {
    let top = top();
    let export = top.path().join("export");
    let run = Run::begin(top.path());
    let root = run.root;
    run.killed(
        Killed::AfterTheChange,
        1,
        Procedure::Mkdir,
        &mkdir(root, "undone"),
    );
    std::fs::remove_dir(export.join("undone")).unwrap();
    let run = Run::begin(top.path());
    assert_eq!(
        run.status(1, Procedure::Mkdir, &mkdir(root, "undone")),
        Status::Ok
    );
    assert!(export.join("undone").exists());

    let missing = bytes_of(&place(root, b"missing"));
    run.killed(Killed::AfterTheChange, 2, Procedure::Remove, &missing);
    std::fs::write(export.join("another"), "").unwrap();
    let run = Run::begin(top.path());
    assert_eq!(run.status(2, Procedure::Remove, &missing), Status::Ok);

    let truncate = bytes_of(&SetattrArguments {
        object: run.handle("another"),
        attributes: Sattr {
            size: Some(0),
            ..Sattr::default()
        },
        guard: None,
    });
    run.killed(Killed::AfterTheChange, 3, Procedure::Setattr, &truncate);
    std::fs::write(export.join("another"), "written since").unwrap();
    let run = Run::begin(top.path());
    assert_eq!(run.status(3, Procedure::Setattr, &truncate), Status::Ok);
    assert_eq!(std::fs::read(export.join("another")).unwrap(), b"");
}
