//! Services on loopback for the tests of mounting, with scripted replies.

use std::{
    net::{Ipv4Addr, TcpListener},
    sync::Arc,
    thread::JoinHandle,
};

use curt_proto::{mount3, nfs3, portmap};
use curt_rpc::{
    message::{CallMessage, VersionRange},
    server::{CallContext, CallFailure, Limits, RpcServer, RpcServerHandle, RpcService},
};
use curt_xdr::{Decoder, Encode, VarArray};
use parking_lot::Mutex;

/// The replies of a host.
#[derive(Clone, Debug)]
pub(super) struct ScriptedAnswers {
    /// Ports that the portmapper returns for MOUNT and NFS; `None`: not registered.
    pub(super) mount_port: Option<u16>,
    pub(super) nfs_port: Option<u16>,
    pub(super) mount: mount3::MountStat3,
    pub(super) flavors: Vec<u32>,
    /// NFS is supported in another version only.
    pub(super) wrong_version: bool,
    /// NFS accepts calls and never replies.
    pub(super) silent: bool,
    pub(super) fsinfo: nfs3::NfsStat3,
}

/// A host with MOUNT and NFS at one port, and possibly a portmapper at port 111.
pub(super) struct ScriptedHost {
    pub(super) address: Ipv4Addr,
    pub(super) port: u16,
    pub(super) asked: Arc<Mutex<Vec<(u32, u32)>>>,
    handle: RpcServerHandle,
    thread: Option<JoinHandle<()>>,
    hold: Arc<Mutex<()>>,
}

struct ScriptedService {
    answers: Mutex<ScriptedAnswers>,
    asked: Arc<Mutex<Vec<(u32, u32)>>>,
    hold: Arc<Mutex<()>>,
}

pub(super) fn kind() -> ScriptedAnswers {
    ScriptedAnswers {
        mount_port: None,
        nfs_port: None,
        mount: mount3::MountStat3::Ok,
        flavors: vec![1],
        wrong_version: false,
        silent: false,
        fsinfo: nfs3::NfsStat3::Ok,
    }
}

impl ScriptedHost {
    /// Starts a host, with a portmapper at port 111 if `portmapper`; `None` if the test may not
    /// bind that port.
    pub(super) fn start(
        number: u8,
        portmapper: bool,
        answers: impl FnOnce(u16) -> ScriptedAnswers,
    ) -> Option<Self> {
        let [_, _, high, low] = std::process::id().to_be_bytes();
        // An address that only this process and test use.
        let address = Ipv4Addr::new(127, 80_u8.wrapping_add(number) & 0x7f | 0x40, high, low);
        let other = TcpListener::bind((address, 0)).expect("loopback has ports");
        let port = other.local_addr().expect("it is bound").port();
        let mut listeners = vec![other];
        if portmapper {
            listeners.push(TcpListener::bind((address, portmap::PORT)).ok()?);
        }
        let asked: Arc<Mutex<Vec<(u32, u32)>>> = Arc::default();
        let hold: Arc<Mutex<()>> = Arc::default();
        let answers = Mutex::new(answers(port));
        let script = ScriptedService { answers, asked: Arc::clone(&asked), hold: Arc::clone(&hold) };
        let server = RpcServer::new(listeners, Arc::new(script), Limits::default()).expect("it can listen");
        let handle = server.handle();
        let thread = std::thread::spawn(move || server.run());
        Some(Self { address, port, asked, handle, thread: Some(thread), hold })
    }

    /// Delays the calls of a silent server until the guard is dropped.
    pub(super) fn hold(&self) -> parking_lot::MutexGuard<'_, ()> {
        self.hold.lock()
    }
}

impl Drop for ScriptedHost {
    fn drop(&mut self) {
        self.handle.shutdown();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl RpcService for ScriptedService {
    fn call(
        &self,
        call: &CallMessage<'_>,
        context: &mut CallContext<'_>,
        reply: &mut Vec<u8>,
    ) -> Result<(), CallFailure> {
        self.asked.lock().push((call.program, call.procedure));
        let answers = self.answers.lock().clone();
        match (call.program, call.procedure) {
            (portmap::PROGRAM, 3) if call.version == 2 => {
                let program =
                    Decoder::new(call.arguments).u32().map_err(|_| CallFailure::GarbageArguments)?;
                let port = if program == nfs3::PROGRAM { answers.nfs_port } else { answers.mount_port };
                u32::from(port.unwrap_or(0)).encode(reply);
            }
            (mount3::PROGRAM, 1) => match answers.mount {
                mount3::MountStat3::Ok => {
                    let root = nfs3::NfsFh3::new(b"root").expect("short");
                    let flavors = VarArray::new(answers.flavors).expect("few");
                    mount3::MountReply::Ok(mount3::MountOk { root, flavors }).encode(reply);
                }
                status => mount3::MountReply::Failed(status).encode(reply),
            },
            (mount3::PROGRAM, 3) => {}
            (nfs3::PROGRAM, _) if answers.wrong_version => {
                return Err(CallFailure::ProgramMismatch(VersionRange { low: 4, high: 4 }));
            }
            (nfs3::PROGRAM, _) if answers.silent => {
                context.may_block();
                drop(self.hold.lock());
                return Err(CallFailure::SystemError);
            }
            (nfs3::PROGRAM, 19) if answers.fsinfo != nfs3::NfsStat3::Ok => {
                answers.fsinfo.encode(reply);
                None::<nfs3::Fattr>.encode(reply);
            }
            (nfs3::PROGRAM, 19) => put_fsinfo(reply),
            // A server that does not support PATHCONF for this file system.
            (nfs3::PROGRAM, 20) => {
                nfs3::NfsStat3::Notsupp.encode(reply);
                None::<nfs3::Fattr>.encode(reply);
            }
            _ => return Err(CallFailure::ProcedureUnavailable),
        }
        Ok(())
    }
}

fn put_fsinfo(reply: &mut Vec<u8>) {
    let limits = nfs3::FsinfoOk {
        attributes: None,
        rtmax: 1 << 20,
        rtpref: 1 << 20,
        rtmult: 4096,
        wtmax: 1 << 19,
        wtpref: 1 << 19,
        wtmult: 4096,
        dtpref: 65536,
        maxfilesize: u64::MAX,
        time_delta: nfs3::NfsTime { seconds: 0, nanoseconds: 1 },
        properties: nfs3::FsProperties::LINK.or(nfs3::FsProperties::SYMLINK),
    };
    nfs3::NfsResult::<_, Option<nfs3::Fattr>>::Ok(limits).encode(reply);
}
