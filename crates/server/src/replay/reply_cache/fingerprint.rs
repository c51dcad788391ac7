//! The fingerprint of a call, which distinguishes calls with one xid: a keyed hash over every
//! significant byte.

use std::hash::{Hash, Hasher};
use std::net::SocketAddr;

use curt_rpc::auth::OpaqueAuth;
use curt_rpc::message::CallMessage;
use siphasher::sip::SipHasher13;

use super::table::ReplyCacheKey;

/// Ports below this are reserved for root on the client.
const RESERVED_PORTS_END: u16 = 1024;

/// The fingerprint. Peers cannot make two calls with one fingerprint, because they do not know the
/// key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fingerprint(pub(super) u64);

pub(super) struct FingerprintHasher(SipHasher13);

impl FingerprintHasher {
    pub(super) fn new(secret: [u8; 16]) -> Self {
        Self(SipHasher13::new_with_key(&secret))
    }

    /// Hashes program, version, procedure, credential, arguments and their lengths. It does not
    /// hash the stamp of AUTH_SYS, which some clients renew when they retransmit a call. Of the
    /// peer's port it hashes only whether it is reserved, because exports depend on that.
    pub(super) fn of(&self, call: &CallMessage<'_>, peer: SocketAddr) -> Fingerprint {
        let mut hasher = self.0;
        (call.program, call.version, call.procedure).hash(&mut hasher);
        match &call.credential {
            OpaqueAuth::None => 0_u8.hash(&mut hasher),
            OpaqueAuth::Sys(sys) => {
                1_u8.hash(&mut hasher);
                // Slices are hashed with their lengths.
                (sys.machine_name, sys.uid, sys.gid, &*sys.groups).hash(&mut hasher);
            }
            OpaqueAuth::Other { flavor, body } => (2_u8, flavor, body).hash(&mut hasher),
        }
        (peer.port() < RESERVED_PORTS_END).hash(&mut hasher);
        call.arguments.hash(&mut hasher);
        Fingerprint(hasher.finish())
    }

    /// The hash of a name in a directory.
    pub(super) fn of_name(&self, directory: &[u8], name: &[u8]) -> u64 {
        let mut hasher = self.0;
        (directory, name).hash(&mut hasher);
        hasher.finish()
    }

    /// The shard of `key`, modulo the number of shards.
    pub(super) fn place(&self, key: &ReplyCacheKey) -> usize {
        let mut hasher = self.0;
        key.hash(&mut hasher);
        // The lowest bits are enough.
        usize::try_from(hasher.finish() & 0xffff).unwrap_or_default()
    }
}
