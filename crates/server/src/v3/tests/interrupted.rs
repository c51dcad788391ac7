//! Calls that are repeated after the server was killed, over a directory of this machine: before
//! the change, after it, and after the reply was saved.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::Arc;

use curt_observe::{ServerCounter, ServerCounters};
use curt_proto::nfs3::{
    CreateArguments, CreateHow, CreateOk, DirOpArgs, Filename, LinkArguments, LookupOk, MkdirArguments,
    MknodArguments, MknodData, NfsFh3, NfsProcedure, NfsResult, NfsStat3, PROGRAM, RenameArguments, Sattr,
    SetattrArguments, SymlinkArguments, VERSION, WccData,
};
use curt_rpc::auth::{AuthSys, AuthSysGids, OpaqueAuth};
use curt_rpc::message::CallMessage;
use curt_rpc::server::{CallContext, CallFailure, RpcService as _};
use curt_types::Fault;
use curt_vfs::{HandleChoice, LocalOptions, LocalVfs};
use curt_xdr::decode_all;

use super::fixture::{bytes_of, place, rules};
use crate::file_handle::{ExportId, HandleContents};
use crate::replay::{ChangedNames, Execution, ExecutionWindow, Replay};
use crate::v3::{ProcedureCall, wire_handle};
use crate::{ExportDefinition, NfsService, NfsServiceConfig, PersistentState};

/// One run of a server.
struct Run {
    service: NfsService,
    counters: Arc<ServerCounters>,
    root: NfsFh3,
}

/// The time at which a run is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Killed {
    BeforeTheChange,
    AfterTheChange,
    AfterTheReplyWasSaved,
}

/// A call at which the server is killed.
struct KilledExecution<'r> {
    when: Killed,
    execution: ProcedureCall<'r>,
}

impl Execution for KilledExecution<'_> {
    fn run(
        &mut self,
        repeated: Option<ExecutionWindow>,
        context: &mut CallContext<'_>,
        reply: &mut Vec<u8>,
    ) -> Result<Option<Fault>, CallFailure> {
        match self.when {
            Killed::BeforeTheChange => Err(CallFailure::NoReply),
            Killed::AfterTheChange => {
                self.execution.run(repeated, context, reply)?;
                Err(CallFailure::NoReply)
            }
            Killed::AfterTheReplyWasSaved => self.execution.run(repeated, context, reply),
        }
    }

    fn subjects(&self, name: &dyn Fn(&[u8], &[u8]) -> u64) -> ChangedNames {
        self.execution.subjects(name)
    }
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
        let state = PersistentState::open(&state).unwrap();
        let vfs = Arc::new(LocalVfs::open(&export, &options).unwrap());
        let exports = vec![ExportDefinition::for_everyone(b"/export".to_vec(), vfs, rules())];
        let counters = Arc::new(ServerCounters::default());
        let setup = NfsServiceConfig { state, exports, counters: Arc::clone(&counters) };
        let mut service = NfsService::new(setup).unwrap();
        service.save_replies().unwrap();
        let export = Arc::clone(service.exports.current().by_id(ExportId(1)).unwrap());
        let root = wire_handle(&service.key.sign(&HandleContents {
            export: export.id,
            file_system: export.file_system,
            node: export.vfs.root(),
            parent: None,
        }));
        Self { service, counters, root }
    }

    /// Sends a call with the xid `xid`, each time from another port.
    fn send(&self, xid: u32, procedure: NfsProcedure, arguments: &[u8]) -> Vec<u8> {
        let (call, mut context) = call(xid, procedure, arguments);
        let mut reply = Vec::new();
        self.service.call(&call, &mut context, &mut reply).unwrap();
        reply
    }

    fn status(&self, xid: u32, procedure: NfsProcedure, arguments: &[u8]) -> NfsStat3 {
        status(&self.send(xid, procedure, arguments))
    }

    /// Sends a call at which the server is killed.
    fn killed(self, when: Killed, xid: u32, procedure: NfsProcedure, arguments: &[u8]) {
        self.until(when, xid, procedure, arguments);
    }

    /// Sends a call that is executed so far.
    fn until(&self, when: Killed, xid: u32, procedure: NfsProcedure, arguments: &[u8]) {
        let (call, mut context) = call(xid, procedure, arguments);
        let mut execution = KilledExecution {
            when,
            execution: ProcedureCall { service: &self.service, procedure, call: &call },
        };
        let replay = Replay::ReplyCache(&self.service.reply_cache);
        let answered = replay.answer(&call, &mut context, &mut Vec::new(), &mut execution);
        assert_eq!(answered.is_ok(), when == Killed::AfterTheReplyWasSaved);
    }

    fn counted(&self, counter: ServerCounter) -> u64 {
        self.counters.events.value(counter)
    }

    fn handle(&self, name: &str) -> NfsFh3 {
        let found = self.send(0, NfsProcedure::Lookup, &bytes_of(&place(self.root, name.as_bytes())));
        match decode_all::<NfsResult<LookupOk, Option<curt_proto::nfs3::Fattr>>>(&found).unwrap() {
            NfsResult::Ok(found) => found.object,
            NfsResult::Failed(status, _) => panic!("{name}: {status}"),
        }
    }
}

fn call(xid: u32, procedure: NfsProcedure, arguments: &[u8]) -> (CallMessage<'_>, CallContext<'static>) {
    static PORT: std::sync::atomic::AtomicU16 = std::sync::atomic::AtomicU16::new(0);
    let port = 600 + PORT.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % 400;
    let (uid, gid) = myself();
    let sys = AuthSys { stamp: 0, machine_name: b"test", uid, gid, groups: AuthSysGids::first_of(&[]) };
    let call = CallMessage {
        xid,
        program: PROGRAM,
        version: VERSION,
        procedure: procedure.number(),
        credential: OpaqueAuth::Sys(sys),
        arguments,
    };
    let context = CallContext::detached(([10, 0, 0, 1], port).into(), ([10, 0, 0, 9], 2049).into());
    (call, context)
}

fn myself() -> (u32, u32) {
    (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

fn status(results: &[u8]) -> NfsStat3 {
    NfsStat3::from_number(u32::from_be_bytes(*results.first_chunk().unwrap())).unwrap()
}

/// A directory with old times.
fn top() -> tempfile::TempDir {
    let top = tempfile::tempdir().unwrap();
    let export = top.path().join("export");
    std::fs::create_dir_all(export.join("old directory")).unwrap();
    std::fs::write(export.join("old file"), "").unwrap();
    wait_for_the_clock(&export);
    top
}

/// Waits until later changes have a later time.
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

fn mkdir(directory: NfsFh3, name: &str) -> Vec<u8> {
    bytes_of(&MkdirArguments {
        place: place(directory, name.as_bytes()),
        attributes: Sattr { mode: Some(0o750), ..Sattr::default() },
    })
}

/// Every non-idempotent call, on a tree with `old file` and `old directory`.
fn unrepeatable(run: &Run) -> Vec<(NfsProcedure, Vec<u8>)> {
    let attributes = Sattr { mode: Some(0o640), ..Sattr::default() };
    let at =
        |name: &'static str| DirOpArgs { directory: run.root, name: Filename::new(name.as_bytes()).unwrap() };
    let create = CreateArguments { place: at("made"), how: CreateHow::Guarded(attributes) };
    let symlink = SymlinkArguments {
        place: at("made"),
        attributes,
        target: curt_proto::nfs3::NfsPath::new(b"target").unwrap(),
    };
    let mknod = MknodArguments { place: at("made"), what: MknodData::Fifo(attributes) };
    let link = LinkArguments { file: run.handle("old file"), place: at("made") };
    let rename = |name| RenameArguments { from: at(name), to: at("made") };
    vec![
        (NfsProcedure::Mkdir, mkdir(run.root, "made")),
        (NfsProcedure::Create, bytes_of(&create)),
        (NfsProcedure::Symlink, bytes_of(&symlink)),
        (NfsProcedure::Mknod, bytes_of(&mknod)),
        (NfsProcedure::Link, bytes_of(&link)),
        (NfsProcedure::Remove, bytes_of(&at("old file"))),
        (NfsProcedure::Rmdir, bytes_of(&at("old directory"))),
        (NfsProcedure::Rename, bytes_of(&rename("old file"))),
        (NfsProcedure::Rename, bytes_of(&rename("old directory"))),
    ]
}

// SEMANTICS: restart-1.
#[test]
fn a_call_repeated_after_a_kill_at_any_moment_gets_the_result_of_its_own_execution() {
    use Killed::{AfterTheChange, AfterTheReplyWasSaved, BeforeTheChange};
    let count = unrepeatable(&Run::begin(top().path())).len();
    for (number, when) in (0..count).flat_map(|number| {
        [BeforeTheChange, AfterTheChange, AfterTheReplyWasSaved].map(|when| (number, when))
    }) {
        let top = top();
        let run = Run::begin(top.path());
        let (procedure, arguments) = unrepeatable(&run).swap_remove(number);
        run.killed(when, 7, procedure, &arguments);
        // The next run may be killed before the client has reconnected.
        drop(Run::begin(top.path()));
        let run = Run::begin(top.path());
        if when != AfterTheReplyWasSaved {
            // It may have to wait, and is then executed again.
            run.until(BeforeTheChange, 7, procedure, &arguments);
        }
        let first = run.send(7, procedure, &arguments);
        assert_eq!(status(&first), NfsStat3::Ok, "{procedure} {when:?}");
        let counted = [ServerCounter::ReplyCacheRecognised, ServerCounter::ReplyCacheHitRestored]
            .map(|counter| run.counted(counter));
        let expected = [when == AfterTheChange, when == AfterTheReplyWasSaved].map(u64::from);
        assert_eq!(counted, expected, "{procedure} {when:?}");
        assert_eq!(run.counted(ServerCounter::ReplyCacheRestored), expected[1]);
        // From now on it is an ordinary cached reply.
        assert_eq!(run.send(7, procedure, &arguments), first);
        drop(run);
        assert_eq!(Run::begin(top.path()).send(7, procedure, &arguments), first);
        // Another call is not mistaken for it.
        let again = Run::begin(top.path()).status(8, procedure, &arguments);
        assert!(matches!(again, NfsStat3::Exist | NfsStat3::Noent), "{procedure}: {again}");
    }
}

#[test]
fn a_recognised_creation_returns_handle_and_attributes() {
    let top = top();
    let run = Run::begin(top.path());
    let arguments = mkdir(run.root, "made");
    run.killed(Killed::AfterTheChange, 7, NfsProcedure::Mkdir, &arguments);
    let run = Run::begin(top.path());
    let made = run.send(7, NfsProcedure::Mkdir, &arguments);
    let NfsResult::Ok(made) = decode_all::<NfsResult<CreateOk, WccData>>(&made).unwrap() else {
        panic!("not recognised")
    };
    assert_eq!(made.object, Some(run.handle("made")));
    let attributes = made.attributes.unwrap();
    assert_eq!((attributes.mode, attributes.uid), (0o750, myself().0));
    assert!(made.directory.before.is_none() && made.directory.after.is_some());
}

// SEMANTICS: restart-3.
#[test]
fn objects_present_or_missing_before_are_not_taken_for_a_calls_work() {
    let top = top();
    let run = Run::begin(top.path());
    let root = run.root;
    let old = CreateArguments { place: place(root, b"old file"), how: CreateHow::Guarded(Sattr::default()) };
    let rename = RenameArguments { from: place(root, b"missing"), to: place(root, b"old file") };
    drop(run);
    for (xid, (procedure, arguments, expected)) in (10..).zip([
        (NfsProcedure::Mkdir, mkdir(root, "old directory"), NfsStat3::Exist),
        (NfsProcedure::Create, bytes_of(&old), NfsStat3::Exist),
        (NfsProcedure::Remove, bytes_of(&place(root, b"missing")), NfsStat3::Noent),
        (NfsProcedure::Rmdir, bytes_of(&place(root, b"missing")), NfsStat3::Noent),
        (NfsProcedure::Rename, bytes_of(&rename), NfsStat3::Noent),
    ]) {
        wait_for_the_clock_alone();
        Run::begin(top.path()).killed(Killed::AfterTheChange, xid, procedure, &arguments);
        let run = Run::begin(top.path());
        assert_eq!(run.status(xid, procedure, &arguments), expected, "{procedure}");
        assert_eq!(run.counted(ServerCounter::ReplyCacheRecognised), 0);
    }
}

/// Waits until the last change of the export is older than a step of its clock, without a change
/// there.
fn wait_for_the_clock_alone() {
    let elsewhere = tempfile::tempdir().unwrap();
    wait_for_the_clock(elsewhere.path());
}

/// As for a lock: of several clients that create one directory, one has created it.
// SEMANTICS: restart-2.
#[test]
fn of_two_clients_whose_mkdirs_were_interrupted_only_one_succeeds() {
    let top = top();
    let run = Run::begin(top.path());
    let arguments = mkdir(run.root, "lock");
    run.killed(Killed::AfterTheChange, 1, NfsProcedure::Mkdir, &arguments);
    Run::begin(top.path()).killed(Killed::AfterTheChange, 2, NfsProcedure::Mkdir, &arguments);
    let run = Run::begin(top.path());
    let told = [2, 1].map(|xid| run.status(xid, NfsProcedure::Mkdir, &arguments));
    assert_eq!(told.map(|status| status == NfsStat3::Ok).iter().filter(|made| **made).count(), 1);
    drop(run);

    // One of them was answered before the other was begun, or while it was executed.
    for is_answered_first in [true, false] {
        let top = self::top();
        let run = Run::begin(top.path());
        let arguments = mkdir(run.root, "lock");
        if is_answered_first {
            assert_eq!(run.status(1, NfsProcedure::Mkdir, &arguments), NfsStat3::Ok);
            run.killed(Killed::AfterTheChange, 2, NfsProcedure::Mkdir, &arguments);
        } else {
            run.killed(Killed::BeforeTheChange, 2, NfsProcedure::Mkdir, &arguments);
            let run = Run::begin(top.path());
            assert_eq!(run.status(1, NfsProcedure::Mkdir, &arguments), NfsStat3::Ok);
        }
        let run = Run::begin(top.path());
        assert_eq!(run.status(2, NfsProcedure::Mkdir, &arguments), NfsStat3::Exist);
        assert_eq!(run.status(1, NfsProcedure::Mkdir, &arguments), NfsStat3::Ok);
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
    run.killed(Killed::AfterTheChange, 1, NfsProcedure::Mkdir, &arguments);
    std::fs::write(export.join("busy/file"), "").unwrap();
    let run = Run::begin(top.path());
    assert_eq!(run.status(1, NfsProcedure::Mkdir, &arguments), NfsStat3::Exist);

    let arguments = mkdir(run.root, "later");
    run.killed(Killed::BeforeTheChange, 2, NfsProcedure::Mkdir, &arguments);
    let run = Run::begin(top.path());
    wait_for_the_clock(&export);
    std::fs::create_dir(export.join("later")).unwrap();
    assert_eq!(run.status(2, NfsProcedure::Mkdir, &arguments), NfsStat3::Exist);
}

// SEMANTICS: restart-4.
#[test]
fn replies_of_another_server_or_none_at_all_are_no_replies() {
    let top = top();
    let run = Run::begin(top.path());
    let arguments = mkdir(run.root, "made");
    assert_eq!(run.status(1, NfsProcedure::Mkdir, &arguments), NfsStat3::Ok);
    drop(run);
    let replies = top.path().join("state/replies");
    let saved = std::fs::read(&replies).unwrap();
    let again = || {
        let run = Run::begin(top.path());
        let arguments = mkdir(run.root, "made");
        run.status(1, NfsProcedure::Mkdir, &arguments)
    };
    for bytes in [&b""[..], b"CURTRPLY", &saved[..saved.len() / 2], &vec![0xff; saved.len()]] {
        std::fs::write(&replies, bytes).unwrap();
        assert_eq!(again(), NfsStat3::Exist, "{} bytes", bytes.len());
    }
    std::fs::remove_file(&replies).unwrap();
    assert_eq!(again(), NfsStat3::Exist);
    // With another key the handles differ, too; the file of another server is ignored.
    std::fs::write(&replies, &saved).unwrap();
    PersistentState::new_key(&top.path().join("state")).unwrap();
    let run = Run::begin(top.path());
    assert_eq!(run.counted(ServerCounter::ReplyCacheRestored), 0);
    let arguments = mkdir(run.root, "made");
    assert_eq!(run.status(1, NfsProcedure::Mkdir, &arguments), NfsStat3::Exist);
}

// SEMANTICS: restart-1.
#[test]
fn a_truncation_that_was_answered_is_not_done_again_by_the_next_run() {
    let top = top();
    let run = Run::begin(top.path());
    let setattr = bytes_of(&SetattrArguments {
        object: run.handle("old file"),
        attributes: Sattr { size: Some(0), ..Sattr::default() },
        guard: None,
    });
    run.killed(Killed::AfterTheReplyWasSaved, 1, NfsProcedure::Setattr, &setattr);
    let file = top.path().join("export/old file");
    std::fs::write(&file, "written since").unwrap();
    let run = Run::begin(top.path());
    assert_eq!(run.status(1, NfsProcedure::Setattr, &setattr), NfsStat3::Ok);
    assert_eq!(std::fs::read(&file).unwrap(), b"written since");
}

/// Documented in SEMANTICS.md.
// SEMANTICS: restart-5.
// SEMANTICS: restart-2.
#[test]
fn an_object_with_more_rights_than_requested_is_not_taken_for_a_calls_work() {
    let top = top();
    let run = Run::begin(top.path());
    let arguments = mkdir(run.root, "made");
    run.killed(Killed::AfterTheChange, 1, NfsProcedure::Mkdir, &arguments);
    let made = top.path().join("export/made");
    std::fs::set_permissions(&made, std::fs::Permissions::from_mode(0o777)).unwrap();
    let run = Run::begin(top.path());
    assert_eq!(run.status(1, NfsProcedure::Mkdir, &arguments), NfsStat3::Exist);
    assert_eq!(run.counted(ServerCounter::ReplyCacheRecognised), 0);
}

#[test]
fn what_was_undone_or_cannot_be_recognised_is_executed_again() {
    let top = top();
    let export = top.path().join("export");
    let run = Run::begin(top.path());
    let root = run.root;
    run.killed(Killed::AfterTheChange, 1, NfsProcedure::Mkdir, &mkdir(root, "undone"));
    std::fs::remove_dir(export.join("undone")).unwrap();
    let run = Run::begin(top.path());
    assert_eq!(run.status(1, NfsProcedure::Mkdir, &mkdir(root, "undone")), NfsStat3::Ok);
    assert!(export.join("undone").exists());

    let missing = bytes_of(&place(root, b"missing"));
    run.killed(Killed::AfterTheChange, 2, NfsProcedure::Remove, &missing);
    std::fs::write(export.join("another"), "").unwrap();
    let run = Run::begin(top.path());
    assert_eq!(run.status(2, NfsProcedure::Remove, &missing), NfsStat3::Ok);

    let truncate = bytes_of(&SetattrArguments {
        object: run.handle("another"),
        attributes: Sattr { size: Some(0), ..Sattr::default() },
        guard: None,
    });
    run.killed(Killed::AfterTheChange, 3, NfsProcedure::Setattr, &truncate);
    std::fs::write(export.join("another"), "written since").unwrap();
    let run = Run::begin(top.path());
    assert_eq!(run.status(3, NfsProcedure::Setattr, &truncate), NfsStat3::Ok);
    assert_eq!(std::fs::read(export.join("another")).unwrap(), b"");
}
