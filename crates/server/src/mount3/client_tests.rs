//! MOUNT for clients that may use different exports, in different ways.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::Arc;

use curt_observe::ServerCounters;
use curt_proto::mount3::{DirPath, ExportList, MountReply, MountStat3, PROGRAM};
use curt_rpc::auth::OpaqueAuth;
use curt_rpc::message::CallMessage;
use curt_rpc::server::{CallContext, RpcService as _};
use curt_types::SetAttributes;
use curt_vfs::{FsCred, MemoryOptions, MemoryVfs, NewNode, Vfs};
use curt_xdr::{Encode, Opaque, decode_all};

use crate::file_handle::HandleContents;
use crate::{
    ExportClient, ExportDefinition, ExportRules, NfsService, NfsServiceConfig, ParsedExports, PersistentState,
};

const LINES: &str = "/srv 10.0.0.0/8(rw,insecure) *(ro)\n\
                     /srv/inner 10.0.0.1(sec=none:sys,insecure) 10.0.0.2(secure)\n\
                     /open *(rw,insecure)\n";

/// A server of [`LINES`], whose trees have `inner/deep`.
fn service() -> NfsService {
    let mut parsed = ParsedExports::default();
    parsed.read(Path::new("exports"), LINES.as_bytes());
    assert!(!parsed.has_errors());
    let definition = |path: &str| {
        let vfs = MemoryVfs::new(MemoryOptions::default());
        let set = SetAttributes::with_mode(0o755);
        let inner = vfs.make(&FsCred::ROOT, &vfs.root(), b"inner", NewNode::Directory(&set));
        let inner = inner.value.unwrap().node.handle;
        for parent in [inner, vfs.root()] {
            let deep = vfs.make(&FsCred::ROOT, &parent, b"deep", NewNode::Directory(&set));
            deep.value.unwrap();
        }
        let of_path = parsed.entries.iter().filter(|entry| entry.path == path.as_bytes());
        let clients = of_path.map(|entry| ExportClient {
            client: entry.client.clone(),
            rules: entry.options.rules(),
            options: entry.options.to_string(),
        });
        let everyone =
            ExportDefinition::for_everyone(path.as_bytes().to_vec(), Arc::new(vfs), ExportRules::default());
        ExportDefinition {
            clients: clients.collect(),
            canonical_path: (path == "/open").then(|| b"/where/it/is".to_vec()),
            ..everyone
        }
    };
    NfsService::new(NfsServiceConfig {
        state: PersistentState::with_key([1; 16]),
        exports: ["/srv", "/srv/inner", "/open"].map(definition).into(),
        counters: Arc::new(ServerCounters::default()),
    })
    .unwrap()
}

fn ask(service: &NfsService, client: &str, procedure: u32, arguments: &[u8]) -> Vec<u8> {
    let call = CallMessage {
        xid: 1,
        program: PROGRAM,
        version: 3,
        procedure,
        credential: OpaqueAuth::None,
        arguments,
    };
    let mut reply = Vec::new();
    let mut context = CallContext::detached(client.parse().unwrap(), "10.0.0.99:2049".parse().unwrap());
    service.call(&call, &mut context, &mut reply).unwrap();
    reply
}

/// The export that a client gets for a path, and the flavours in the reply.
fn mount(service: &NfsService, client: &str, path: &str) -> Result<(String, Vec<u32>), MountStat3> {
    let mut arguments = Vec::new();
    DirPath(Opaque::new(path.as_bytes()).unwrap()).encode(&mut arguments);
    match decode_all(&ask(service, client, 1, &arguments)).unwrap() {
        MountReply::Ok(ok) => {
            let HandleContents { export, .. } = service.key.verify(ok.root.as_bytes()).unwrap();
            let exports = service.exports.current();
            let path = exports.by_id(export).unwrap().path().escape_ascii().to_string();
            Ok((path, ok.flavors.to_vec()))
        }
        MountReply::Failed(status) => Err(status),
    }
}

#[test]
fn a_client_mounts_the_innermost_export_that_is_open_to_it() {
    let service = service();
    let rows = [
        // Its own flavours, in their order.
        ("10.0.0.1:5000", "/srv/inner", Ok(("/srv/inner", vec![0, 1]))),
        ("10.0.0.1:5000", "/srv/inner/deep", Ok(("/srv/inner", vec![0, 1]))),
        ("10.0.0.1:5000", "/srv", Ok(("/srv", vec![1]))),
        // Open, but only to reserved ports.
        ("10.0.0.2:5000", "/srv/inner", Err(MountStat3::Acces)),
        ("10.0.0.2:500", "/srv/inner", Ok(("/srv/inner", vec![1]))),
        // Not open: the client gets the directory in the outer export.
        ("10.0.0.3:5000", "/srv/inner/deep", Ok(("/srv", vec![1]))),
        // All clients, from reserved ports only.
        ("192.168.0.1:5000", "/srv", Err(MountStat3::Acces)),
        ("192.168.0.1:500", "/srv/inner", Ok(("/srv", vec![1]))),
        ("[::ffff:10.0.0.3]:5000", "/srv", Ok(("/srv", vec![1]))),
        // By either of its paths.
        ("[fe80::1]:5000", "/open/inner", Ok(("/open", vec![1]))),
        ("[fe80::1]:5000", "/where/it/is/inner", Ok(("/open", vec![1]))),
        ("[fe80::1]:5000", "/where/it", Err(MountStat3::Noent)),
    ];
    for (client, path, expected) in rows {
        let expected = expected.map(|(path, flavors)| (path.to_owned(), flavors));
        assert_eq!(mount(&service, client, path), expected, "{client} {path}");
    }
}

#[test]
fn export_lists_the_exports_that_a_client_may_use_with_all_their_clients() {
    let service = service();
    let (outer, inner, open) = ("/srv 10.0.0.0/8,*", "/srv/inner 10.0.0.1,10.0.0.2", "/open ");
    let rows = [
        ("10.0.0.1:5000", vec![outer, inner, open]),
        ("[::ffff:10.0.0.2]:5000", vec![outer, inner, open]),
        ("10.0.0.3:5000", vec![outer, open]),
        ("[fe80::1]:5000", vec![outer, open]),
    ];
    for (asker, expected) in rows {
        let reply = ask(&service, asker, 5, &[]);
        let list: ExportList<'_> = decode_all(&reply).unwrap();
        let line = |entry: &curt_proto::mount3::ExportNode<'_>| {
            let groups = entry.groups.iter().map(|group| group.0.bytes().escape_ascii().to_string());
            let path = entry.path.0.bytes().escape_ascii();
            format!("{path} {}", groups.collect::<Vec<_>>().join(","))
        };
        let lines: Vec<String> = list.0.iter().map(line).collect();
        assert_eq!(lines, expected, "{asker}");
    }
}
