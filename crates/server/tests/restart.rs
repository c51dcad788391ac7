//! The state that a server keeps over a restart, over a directory of this machine: handles,
//! exclusive creates, and the effect of `--new-key`.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "shared by the tests of this folder")]
mod calling;

use std::path::Path;
use std::sync::Arc;

use curt_loopback::LoopbackTransport;
use curt_observe::ServerCounters;
use curt_proto::nfs3::{
    self, CreateArguments, CreateHow, CreateOk, CreateVerf3, DirOpArgs, Fattr, Filename, NfsFh3,
    NfsProcedure, NfsResult, NfsStat3, WccData,
};
use curt_rpc::client::CallArguments;
use curt_server::{ExportDefinition, ExportRules, NfsService, NfsServiceConfig, PersistentState, Squash};
use curt_vfs::{HandleChoice, LocalOptions, LocalVfs};
use curt_xdr::decode_all;

/// One run of a server that exports `top/export` as /export.
struct Life(LoopbackTransport);

impl Life {
    fn begin(top: &Path, handles: HandleChoice) -> Self {
        let state = top.join("state");
        let options =
            LocalOptions { handles, table: Some(state.join("table.redb")), ..LocalOptions::default() };
        let state = PersistentState::open(&state).unwrap();
        let vfs = Arc::new(LocalVfs::open(&top.join("export"), &options).unwrap());
        let rules = ExportRules { squash: Squash::None, ..ExportRules::default() };
        let exports = vec![ExportDefinition::for_everyone(b"/export".to_vec(), vfs, rules)];
        let counters = Arc::new(ServerCounters::default());
        Self(LoopbackTransport::new(Arc::new(
            NfsService::new(NfsServiceConfig { state, exports, counters }).unwrap(),
        )))
    }

    fn call(&self, procedure: NfsProcedure, arguments: &dyn CallArguments) -> Vec<u8> {
        calling::call(&self.0, myself(), (nfs3::PROGRAM, procedure.number()), arguments)
    }

    fn root(&self) -> NfsFh3 {
        calling::mount(&self.0, myself(), "/export")
    }

    fn getattr(&self, file: NfsFh3) -> Result<Fattr, NfsStat3> {
        let results = self.call(NfsProcedure::Getattr, &file);
        match decode_all::<NfsResult<Fattr>>(&results).unwrap() {
            NfsResult::Ok(attributes) => Ok(attributes),
            NfsResult::Failed(status, ()) => Err(status),
        }
    }

    fn create(&self, name: &[u8], verifier: u8) -> Result<NfsFh3, NfsStat3> {
        let place = DirOpArgs { directory: self.root(), name: Filename::new(name).unwrap() };
        let how = CreateHow::Exclusive(CreateVerf3([verifier; 8]));
        let results = self.call(NfsProcedure::Create, &CreateArguments { place, how });
        match decode_all::<NfsResult<CreateOk, WccData>>(&results).unwrap() {
            NfsResult::Ok(created) => Ok(created.object.unwrap()),
            NfsResult::Failed(status, _) => Err(status),
        }
    }
}

/// The user that runs the tests: without privileges a directory can only be served as its owner.
fn myself() -> (u32, u32) {
    (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

fn top() -> tempfile::TempDir {
    let top = tempfile::tempdir().unwrap();
    std::fs::create_dir(top.path().join("export")).unwrap();
    top
}

#[test]
fn handles_and_exclusive_creates_survive_a_restart() {
    for handles in [HandleChoice::Auto, HandleChoice::Table] {
        let top = top();
        let life = Life::begin(top.path(), handles);
        let (root, file) = (life.root(), life.create(b"file", 7).unwrap());
        let before = life.getattr(file).unwrap();
        drop(life);
        let life = Life::begin(top.path(), handles);
        assert_eq!(life.root(), root, "{handles:?}");
        assert_eq!(life.getattr(file), Ok(before), "{handles:?}: the fsid, too");
        assert_eq!(life.create(b"file", 7), Ok(file), "{handles:?}: the retry of what was done before");
        assert_eq!(life.create(b"file", 8), Err(NfsStat3::Exist), "{handles:?}");
        std::fs::remove_file(top.path().join("export/file")).unwrap();
        assert_eq!(life.getattr(file), Err(NfsStat3::Stale), "{handles:?}");
    }
}

#[test]
fn a_file_made_anew_under_an_old_name_has_another_handle() {
    for handles in [HandleChoice::Auto, HandleChoice::Table] {
        let top = top();
        let life = Life::begin(top.path(), handles);
        let old = life.create(b"file", 7).unwrap();
        std::fs::remove_file(top.path().join("export/file")).unwrap();
        let new = life.create(b"file", 9).unwrap();
        assert_ne!(old, new, "{handles:?}");
        assert_eq!(
            (life.getattr(old), life.getattr(new).is_ok()),
            (Err(NfsStat3::Stale), true),
            "{handles:?}"
        );
    }
}

#[test]
fn a_new_key_makes_every_old_handle_stale() {
    let top = top();
    let life = Life::begin(top.path(), HandleChoice::Auto);
    let root = life.root();
    drop(life);
    PersistentState::new_key(&top.path().join("state")).unwrap();
    let life = Life::begin(top.path(), HandleChoice::Auto);
    assert_eq!(life.getattr(root), Err(NfsStat3::Stale));
    assert!(life.getattr(life.root()).is_ok());
}

#[test]
fn another_file_system_at_the_same_path_makes_old_handles_stale() {
    let top = top();
    let life = Life::begin(top.path(), HandleChoice::Auto);
    let root = life.root();
    drop(life);
    // According to the state, the path belonged to another file system, as after a disk was
    // replaced.
    let numbers = top.path().join("state/numbers");
    let text = std::fs::read_to_string(&numbers).unwrap();
    let (head, _) = text.split_once("filesystem 1 ").unwrap();
    std::fs::write(&numbers, format!("{head}filesystem 1 00000000000000aa\n")).unwrap();
    let life = Life::begin(top.path(), HandleChoice::Auto);
    assert_eq!(life.getattr(root), Err(NfsStat3::Stale));
    assert_eq!(life.getattr(life.root()).unwrap().fsid, (1 << 32) + 2);
}
