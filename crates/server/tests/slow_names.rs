//! A connection while one of its calls of MOUNT waits for a name service.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "shared by the tests of this folder")]
mod calling;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use curt_proto::mount3::{self, DirPath, MountReply};
use curt_proto::nfs3;
use curt_rpc::client::TcpTransport;
use curt_rpc::clock::ScriptedTime;
use curt_server::{ClientSpec, ExportClient, ExportDefinition, ExportRules, NameService, NfsService};
use curt_vfs::{MemoryOptions, MemoryVfs};
use curt_xdr::{Opaque, decode_all};
use parking_lot::Mutex;

use calling::{ROOT, call};

/// Reports each query, and answers when the test permits it.
struct Slow {
    asked: Sender<()>,
    answer: Mutex<Receiver<()>>,
}

impl Slow {
    fn wait(&self) {
        // The other side may have ended.
        let _ = self.asked.send(());
        let _ = self.answer.lock().recv();
    }
}

impl NameService for Slow {
    fn addresses(&self, _: &str) -> Option<Vec<IpAddr>> {
        self.wait();
        Some(vec!["127.0.0.1".parse().unwrap()])
    }

    fn name(&self, _: IpAddr) -> Option<Option<String>> {
        self.wait();
        Some(Some("client.lab".into()))
    }

    fn in_netgroup(&self, _: &str, _: &str) -> Option<bool> {
        unreachable!("no netgroup is exported to")
    }

    fn groups(&self, _: u32) -> Option<Option<Vec<u32>>> {
        unreachable!("groups come with the calls")
    }
}

/// A server of a directory for hosts whose names `names` resolves, which ends with the test's
/// process, and one connection to it.
fn serve(names: Slow) -> TcpTransport {
    let rules = ExportRules { secure_ports: false, ..ExportRules::default() };
    let tree = Arc::new(MemoryVfs::new(MemoryOptions::default()));
    let definition = ExportDefinition {
        clients: vec![ExportClient {
            client: ClientSpec::parse("*.lab").unwrap(),
            ..ExportClient::everyone(rules)
        }],
        ..ExportDefinition::for_everyone(b"/tree".to_vec(), tree, rules)
    };
    // Its time stands still.
    let clock = ScriptedTime::new().clock();
    let service =
        NfsService::with_environment(calling::setup(vec![definition]), Box::new(names), clock).unwrap();
    calling::connect(calling::serve(Arc::new(service)))
}

#[test]
fn a_mount_that_waits_for_a_name_holds_up_no_other_call_of_its_connection() {
    let (asked, asks) = channel();
    let (answer, answers) = channel();
    let transport = &serve(Slow { asked, answer: Mutex::new(answers) });
    let path = DirPath(Opaque::new(b"/tree").unwrap());
    std::thread::scope(|scope| {
        let mounting = scope.spawn(|| call(transport, ROOT, (mount3::PROGRAM, 1), &path));
        asks.recv().unwrap();
        // It is answered before the name is known, or the mount has timed out.
        call(transport, ROOT, (nfs3::PROGRAM, 0), &());
        drop(answer);
        let mounted = mounting.join().unwrap();
        let mounted: MountReply = decode_all(&mounted).unwrap();
        assert!(matches!(mounted, MountReply::Ok(_)), "{mounted:?}");
    });
}
