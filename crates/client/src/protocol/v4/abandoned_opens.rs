//! OPENs of which nobody knows whether the server has executed them.

use std::sync::Arc;

use curt_rpc::auth::RpcCredential;
use curt_types::FileHandle;
use parking_lot::Mutex;

use crate::protocol::{OpenOwner, ShareAccess};

/// An OPEN that was abandoned before its reply: the server may have executed it.
#[derive(Clone, Debug)]
pub(super) struct AbandonedOpen {
    pub(super) target: OpenTarget,
    pub(super) owner: u32,
    pub(super) credential: Arc<RpcCredential>,
    pub(super) access: ShareAccess,
}

impl AbandonedOpen {
    pub(super) fn new(target: OpenTarget, owner: OpenOwner<'_>, access: ShareAccess) -> Self {
        Self { target, owner: owner.number, credential: Arc::clone(owner.credential), access }
    }
}

/// The file that an [`AbandonedOpen`] was sent for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OpenTarget {
    /// By its handle.
    File(FileHandle),
    /// By its name in a directory.
    Name(FileHandle, Vec<u8>),
}

/// The most abandoned OPENs that are remembered. The server keeps what others have opened until
/// this client ends.
const ABANDONED_MAX: usize = 1024;

/// The abandoned OPENs of a client.
#[derive(Debug, Default)]
pub(super) struct AbandonedOpens(Mutex<Vec<AbandonedOpen>>);

impl AbandonedOpens {
    /// Remembers these.
    pub(super) fn add(&self, opens: Vec<AbandonedOpen>) {
        let abandoned = &mut self.0.lock();
        abandoned.extend(opens);
        abandoned.truncate(ABANDONED_MAX);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Takes all of them.
    pub(super) fn take(&self) -> Vec<AbandonedOpen> {
        std::mem::take(&mut self.0.lock())
    }
}
