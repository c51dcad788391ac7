//! MOUNT: calls in, replies out.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use curt_observe::ServerCounters;
use curt_proto::mount3::{DirPath, ExportList, MountList, MountReply, MountStat3, PROGRAM};
use curt_proto::nfs3::NfsFh3;
use curt_rpc::auth::OpaqueAuth;
use curt_rpc::message::{CallMessage, VersionRange};
use curt_rpc::server::{CallContext, CallFailure, RpcService as _};
use curt_types::SetAttributes;
use curt_vfs::{FsCred, MemoryOptions, MemoryVfs, NewNode, Vfs};
use curt_xdr::{Encode, Opaque, decode_all};

use crate::{ExportDefinition, ExportRules, NfsService, NfsServiceConfig, NfsServiceError, PersistentState};

fn service() -> NfsService {
    let vfs = MemoryVfs::new(MemoryOptions::default());
    let set = SetAttributes::with_mode(0o700);
    let made = vfs.make(&FsCred::ROOT, &vfs.root(), b"users", NewNode::Directory(&set)).value.unwrap();
    vfs.make(&FsCred::ROOT, &made.node.handle, b"alice", NewNode::Directory(&set)).value.unwrap();
    let target = SetAttributes::default();
    vfs.make(&FsCred::ROOT, &vfs.root(), b"link", NewNode::Symlink(b"users", &target)).value.unwrap();
    vfs.create(&FsCred::ROOT, &vfs.root(), b"file", curt_vfs::CreateMode::Guarded(&set)).value.unwrap();
    let definition =
        ExportDefinition::for_everyone(b"/srv/data".to_vec(), Arc::new(vfs), ExportRules::default());
    let counters = Arc::new(ServerCounters::default());
    let setup =
        NfsServiceConfig { state: PersistentState::with_key([1; 16]), exports: vec![definition], counters };
    NfsService::new(setup).unwrap()
}

fn call(
    service: &NfsService,
    version: u32,
    procedure: u32,
    arguments: &[u8],
) -> Result<Vec<u8>, CallFailure> {
    call_from(service, "10.0.0.7:700", version, procedure, arguments)
}

fn call_from(
    service: &NfsService,
    client: &str,
    version: u32,
    procedure: u32,
    arguments: &[u8],
) -> Result<Vec<u8>, CallFailure> {
    let call =
        CallMessage { xid: 1, program: PROGRAM, version, procedure, credential: OpaqueAuth::None, arguments };
    let mut reply = Vec::new();
    let mut context = CallContext::detached(client.parse().unwrap(), "10.0.0.1:20048".parse().unwrap());
    service.call(&call, &mut context, &mut reply).map(|()| reply)
}

fn path(path: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    DirPath(Opaque::new(path).unwrap()).encode(&mut bytes);
    bytes
}

fn mount(service: &NfsService, name: &[u8]) -> Result<NfsFh3, MountStat3> {
    match decode_all(&call(service, 3, 1, &path(name)).unwrap()).unwrap() {
        MountReply::Ok(ok) => {
            assert_eq!(&*ok.flavors, &[1]);
            Ok(ok.root)
        }
        MountReply::Failed(status) => Err(status),
    }
}

#[test]
fn mnt_gives_the_handle_of_the_export_or_of_a_directory_below() {
    let service = service();
    let root = mount(&service, b"/srv/data").unwrap();
    assert_eq!(mount(&service, b"//srv/data/./"), Ok(root));
    let below = mount(&service, b"/srv/data/users/alice").unwrap();
    assert_ne!(below, root);
    assert_eq!(
        service.key.verify(below.as_bytes()).unwrap().export,
        service.key.verify(root.as_bytes()).unwrap().export
    );
}

#[test]
fn mnt_of_anything_else_says_why_not() {
    let service = service();
    let long = [b"/srv/data/".to_vec(), vec![b'n'; 256]].concat();
    let rows: [(&[u8], MountStat3); 9] = [
        (b"/srv", MountStat3::Noent),
        (b"/", MountStat3::Noent),
        (b"", MountStat3::Noent),
        (b"/srv/data/none", MountStat3::Noent),
        (b"/srv/data/file", MountStat3::Notdir),
        (b"/srv/data/link", MountStat3::Notdir),
        (b"/srv/data/../data", MountStat3::Noent),
        (b"/srv/data/users/..", MountStat3::Noent),
        (&long, MountStat3::Nametoolong),
    ];
    for (name, status) in rows {
        assert_eq!(mount(&service, name), Err(status), "{}", name.escape_ascii());
    }
    let refused = call_from(&service, "10.0.0.7:1024", 3, 1, &path(b"/srv/data")).unwrap();
    assert_eq!(decode_all::<MountReply>(&refused), Ok(MountReply::Failed(MountStat3::Acces)));
    assert!(service.remote_mounts.list().is_empty(), "who was refused is not listed");
}

#[test]
fn version_1_answers_all_but_mnt_and_version_2_nothing() {
    let service = service();
    assert_eq!(call(&service, 1, 0, &[]).unwrap(), b"");
    assert_eq!(call(&service, 1, 1, &path(b"/srv/data")).unwrap(), [0, 0, 0, 13]);
    assert_eq!(call(&service, 1, 5, &[]), call(&service, 3, 5, &[]));
    let versions = VersionRange { low: 1, high: 3 };
    for version in [0, 2, 4] {
        assert_eq!(call(&service, version, 0, &[]), Err(CallFailure::ProgramMismatch(versions)));
    }
    assert_eq!(call(&service, 3, 6, &[]), Err(CallFailure::ProcedureUnavailable));
    assert_eq!(call(&service, 3, 1, &[0, 0, 4, 1]), Err(CallFailure::GarbageArguments));
}

#[test]
fn dump_lists_a_mount_until_its_client_unmounts() {
    let service = service();
    let dump = || {
        let reply = call(&service, 3, 2, &[]).unwrap();
        let list: MountList<'_> = decode_all(&reply).unwrap();
        let line = |entry: &curt_proto::mount3::MountBody<'_>| {
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            format!("{}:{}", text(entry.client.0.bytes()), text(entry.path.0.bytes()))
        };
        list.0.iter().map(line).collect::<Vec<_>>()
    };
    mount(&service, b"/srv/data").unwrap();
    mount(&service, b"/srv/data/users").unwrap();
    call_from(&service, "[fe80::2]:700", 3, 1, &path(b"/srv/data")).unwrap();
    assert_eq!(dump(), ["10.0.0.7:/srv/data", "10.0.0.7:/srv/data/users", "fe80::2:/srv/data"]);
    call(&service, 3, 3, &path(b"/srv/data")).unwrap();
    assert_eq!(dump(), ["10.0.0.7:/srv/data/users", "fe80::2:/srv/data"]);
    call(&service, 3, 4, &[]).unwrap();
    assert_eq!(dump(), ["fe80::2:/srv/data"]);
}

#[test]
fn paths_that_no_client_could_mount_or_tell_apart_are_refused_at_start() {
    let start = |paths: &[Vec<u8>]| {
        let definition = |path: &Vec<u8>| {
            ExportDefinition::for_everyone(
                path.clone(),
                Arc::new(MemoryVfs::new(MemoryOptions::default())),
                ExportRules::default(),
            )
        };
        let exports = paths.iter().map(definition).collect();
        let counters = Arc::new(ServerCounters::default());
        NfsService::new(NfsServiceConfig { state: PersistentState::with_key([1; 16]), exports, counters })
            .map(drop)
    };
    let deep = |length: usize| [b"/".to_vec(), vec![b'd'; length - 1]].concat();
    assert!(start(&[deep(1024)]).is_ok());
    assert!(matches!(start(&[deep(1025)]), Err(NfsServiceError::PathTooLong { length: 1025, .. })));
    assert!(start(&[b"/a".to_vec(), b"/a/b".to_vec()]).is_ok());
    assert!(matches!(start(&[b"/a".to_vec(), b"/a/".to_vec()]), Err(NfsServiceError::Twice(_))));
}

#[test]
fn export_lists_paths_for_everybody() {
    let service = service();
    let reply = call(&service, 3, 5, &[]).unwrap();
    let list: ExportList<'_> = decode_all(&reply).unwrap();
    assert_eq!(list.0.len(), 1);
    assert_eq!(list.0[0].path.0.bytes(), b"/srv/data");
    assert!(list.0[0].groups.is_empty());
}
