//! Changes of a file that is being executed on the server.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "wire/mod.rs"]
#[allow(unreachable_pub, dead_code, reason = "shared by the tests of this folder")]
mod wire;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use curt_proto::nfs3::{
    NfsFh3, NfsProcedure, NfsResult, NfsStat3, Sattr, SetattrArguments, StableHow, WccData, WriteArguments,
    WriteOk,
};
use curt_server::{ExportRules, Squash};
use curt_vfs::{LocalOptions, LocalVfs};
use curt_xdr::Opaque;
use wire::{Served, Wire, export, open_rules};

fn serve(directory: &Path) -> Served {
    let options = LocalOptions { table: Some(directory.join(".table")), ..LocalOptions::default() };
    let vfs = LocalVfs::open(directory, &options).unwrap();
    let rules = ExportRules {
        squash: Squash::All,
        anonymous_uid: rustix::process::geteuid().as_raw(),
        anonymous_gid: rustix::process::getegid().as_raw(),
        ..open_rules()
    };
    Served::new(vec![export("/programs", Arc::new(vfs), rules)])
}

/// Runs a program until its standard input ends.
fn run(program: &Path) -> Child {
    Command::new(program).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
}

fn write(wire: &mut Wire, file: NfsFh3) -> Result<u32, NfsStat3> {
    let data = Opaque::new(b"other").unwrap();
    let arguments = WriteArguments { file, offset: 0, count: 5, stable: StableHow::FileSync, data };
    match wire.ask::<WriteOk, WccData>(NfsProcedure::Write, &arguments) {
        NfsResult::Ok(written) => Ok(written.count),
        NfsResult::Failed(status, _) => Err(status),
    }
}

fn truncate(wire: &mut Wire, object: NfsFh3) -> Result<(), NfsStat3> {
    let attributes = Sattr { size: Some(0), ..Sattr::default() };
    let arguments = SetattrArguments { object, attributes, guard: None };
    match wire.ask::<WccData, WccData>(NfsProcedure::Setattr, &arguments) {
        NfsResult::Ok(_) => Ok(()),
        NfsResult::Failed(status, _) => Err(status),
    }
}

// SEMANTICS: serve-6.
#[test]
fn a_file_that_is_being_executed_cannot_be_written_until_the_program_ends() {
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let program = directory.path().join("program");
    std::fs::copy("/bin/cat", &program).unwrap();
    let bytes = std::fs::read(&program).unwrap();
    let served = serve(directory.path());
    let mut wire = served.connect();
    let root = wire.mount("/programs");
    let NfsResult::Ok(found) = wire.lookup(root, b"program") else { panic!("it is there") };
    let mut child = run(&program);
    assert_eq!(write(&mut wire, found.object), Err(NfsStat3::Io));
    assert_eq!(truncate(&mut wire, found.object), Err(NfsStat3::Io));
    assert_eq!(std::fs::read(&program).unwrap(), bytes, "nothing has changed");
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success(), "the program still runs");
    assert_eq!(write(&mut wire, found.object), Ok(5));
    assert!(std::fs::read(&program).unwrap().starts_with(b"other"));
    assert_eq!(truncate(&mut wire, found.object), Ok(()));
}
