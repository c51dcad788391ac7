//! The replies to GRANTED_MSG: GRANTED_RES, a call of its own. One thread sends them; what comes
//! too fast is dropped, since the server calls back again.

use std::net::IpAddr;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use curt_client::protocol::v3::nlm;
use curt_proto::nlm4::NlmStat4;

/// Replies that wait.
const QUEUE_MAX: usize = 64;

/// Timeout of each.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A reply to a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GrantedResult {
    pub(super) server: IpAddr,
    pub(super) cookie: Vec<u8>,
    pub(super) status: NlmStat4,
}

/// Starts the thread. It ends with the sender.
pub(super) fn start() -> std::io::Result<SyncSender<GrantedResult>> {
    let (sender, results) = sync_channel::<GrantedResult>(QUEUE_MAX);
    let send = move || {
        for GrantedResult { server, cookie, status } in results {
            nlm::send_granted_result(server, &cookie, status, TIMEOUT);
        }
    };
    thread::Builder::new().name("curt-granted".into()).spawn(send)?;
    Ok(sender)
}
