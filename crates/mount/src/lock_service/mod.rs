//! What the lock managers of one network namespace share: the numbers of owners (`svid`), and the
//! services that servers call.
//!
//! knfsd tells the owners of a client's locks apart by the client's address and `svid` alone, so a
//! number must not be used twice on a host.

mod membership;
mod programs;
mod record;
mod registration;
mod svid_block;

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::Relaxed};
use std::sync::{Arc, Once, Weak, mpsc};
use std::thread;
use std::time::Duration;

use curt_client::protocol::v3::nlm::NlmHost;
use curt_client::protocol::{LockEvents, WireOwner};
use curt_rpc::auth::RpcCredential;
use curt_types::FileHandle;
use parking_lot::Mutex;
use tracing::warn;

use membership::Member;
use record::{LockRecord, RecordedServer};
use svid_block::SvidBlock;

/// How long the first lock waits for the service.
const JOIN_TIMEOUT: Duration = Duration::from_secs(5);

/// The part of a mount in what lock managers share.
#[derive(Debug)]
pub(crate) struct LockHost {
    record: LockRecord,
    /// Dropped after the record.
    _svids: SvidBlock,
    member: Arc<Member>,
    join: Once,
}

impl LockHost {
    /// A mount of a server with these addresses. It joins the service of this network namespace
    /// with its first lock: most mounts never lock.
    ///
    /// `lock_port`: that of the server's lock manager, if it is given.
    pub(crate) fn new(servers: Vec<IpAddr>, lock_port: Option<u16>) -> Arc<Self> {
        let directory = record::directory();
        let has_records = directory.read_dir().is_ok_and(|mut records| records.next().is_some());
        if has_records {
            record::begin_to_unlock_abandoned();
        }
        let svids = SvidBlock::reserve();
        let address = servers.first().copied().unwrap_or(registration::HERE);
        let server = RecordedServer { address, port: lock_port };
        let record = LockRecord::new(&directory, svids.first(), server);
        let member = Member {
            first_svid: svids.first(),
            servers,
            events: Mutex::default(),
            can_be_called: AtomicBool::new(false),
            state: AtomicI32::new(0),
        };
        Arc::new(Self { record, _svids: svids, member: Arc::new(member), join: Once::new() })
    }
}

impl NlmHost for LockHost {
    fn first_svid(&self) -> i32 {
        self.member.first_svid
    }

    fn can_be_called(&self) -> bool {
        // A hint: without callbacks the server is asked again.
        self.member.can_be_called.load(Relaxed)
    }

    fn nsm_state(&self) -> i32 {
        self.member.state.load(Relaxed)
    }

    fn monitor(&self) {
        self.join.call_once(|| {
            let (member, (joined, decided)) = (Arc::downgrade(&self.member), mpsc::channel());
            let keep = move || membership::keep(&member, &joined);
            match thread::Builder::new().name("curt-locks".into()).spawn(keep) {
                // Without the service locks of other machines are polled for.
                Ok(_) => drop(decided.recv_timeout(JOIN_TIMEOUT)),
                Err(error) => warn!(%error, "no thread for the lock service"),
            }
        });
    }

    fn note_lock(&self, file: &FileHandle, owner: WireOwner, credential: &RpcCredential) {
        self.record.note(file, owner, credential);
    }

    fn forget_file(&self, file: &FileHandle) {
        self.record.forget_file(file);
    }

    fn forget_owners(&self, owners: &[WireOwner]) {
        self.record.forget_owners(owners);
    }

    fn report(&self, events: Weak<dyn LockEvents>) {
        *self.member.events.lock() = Some(events);
    }
}
