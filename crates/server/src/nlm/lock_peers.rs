//! The peers of the lock manager: GRANTED, and the results of asynchronous requests, as calls to
//! other hosts.
//!
//! The threads that make the calls are those of [`LockPeers`], which the program implements (in
//! `curt`: `serve/locks/nlm_callbacks.rs`). A call is queued by a serving thread, which
//! does not wait; its outcome comes later, by any thread.

use std::net::IpAddr;
use std::time::Duration;

use curt_proto::nlm4::{
    NlmLock, NlmProcedure, NlmResult, NlmStat4, NlmTestArguments, lock_type, offset_and_length,
};
use curt_types::{ByteRange, FileHandle, LockType};
use curt_xdr::{Encode, Opaque, decode_all};

use crate::state::locks::{CallbackAnswer, CallbackId, LockCallback};

/// Makes calls to the lock managers of other hosts, and has hosts watched.
pub trait LockPeers: Send + Sync {
    /// Queues a call. Returns whether it was queued; if not, it is dropped.
    fn call(&self, call: PeerCall) -> bool;

    /// Queues a job that runs with the privileges of the process, on another thread, after those
    /// queued before it: serving threads have the identity of a caller.
    fn run(&self, job: Box<dyn FnOnce() + Send>);

    /// Has the system's status monitor, if there is one, watch a host, or not any more.
    fn watch(&self, host: IpAddr, is_watched: bool);
}

/// A call to the lock manager of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerCall {
    /// The host's address. Its port is known by the portmapper there.
    pub peer: IpAddr,
    /// The address of this host to call from, by which the host knows it; `None`: by the route.
    pub local: Option<IpAddr>,
    /// The kind of call.
    pub kind: PeerCallKind,
}

impl PeerCall {
    /// Whether it is a `_RES`.
    #[must_use]
    pub const fn is_result(&self) -> bool {
        matches!(self.kind, PeerCallKind::Result { .. })
    }
}

/// The procedures that are called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerCallKind {
    /// GRANTED, or GRANTED_MSG for a host that does not support it. It is sent at most once, after
    /// [`NfsService::begin_grant`](crate::NfsService::begin_grant) has allowed it. Its outcome is
    /// reported with [`NfsService::grant_answered`](crate::NfsService::grant_answered), unless it
    /// was GRANTED_MSG and may have been received: then GRANTED_RES is its outcome.
    Granted(GrantedLock),
    /// A `_RES`: nothing depends on its outcome.
    Result {
        /// The procedure.
        procedure: NlmProcedure,
        /// Its encoded arguments.
        arguments: Vec<u8>,
    },
}

/// A lock that a waiter has got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantedLock {
    /// Identifies the callback.
    pub id: GrantId,
    /// The file, by the handle that its host sent.
    pub file: FileHandle,
    /// The owner's process at its host.
    pub svid: i32,
    /// The bytes.
    pub range: ByteRange,
    /// How they are locked.
    pub lock_type: LockType,
    /// The encoded arguments of GRANTED.
    pub arguments: Vec<u8>,
}

/// Identifies a GRANTED, as its cookie does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GrantId(u64);

/// How a GRANTED ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantedCallOutcome {
    /// The host knows of the lock.
    Accepted,
    /// The client does not want the lock.
    Refused,
    /// The peer has not received this copy: no port, or no connection.
    Undelivered,
    /// The peer may have received this copy.
    Unanswered,
}

impl GrantedCallOutcome {
    /// The outcome by the results of GRANTED.
    #[must_use]
    pub fn of_results(results: &[u8]) -> Self {
        decode_all::<NlmResult<'_>>(results).map_or(Self::Unanswered, |result| Self::of_status(result.status))
    }

    pub(super) const fn of_status(status: NlmStat4) -> Self {
        match status {
            NlmStat4::Granted => Self::Accepted,
            // It takes no locks now, but may know of this one.
            NlmStat4::DeniedGracePeriod => Self::Unanswered,
            _ => Self::Refused,
        }
    }

    /// In the terms of the lock table.
    pub(super) const fn answer(self, round_trip: Duration) -> CallbackAnswer {
        match self {
            Self::Accepted => CallbackAnswer::Accepted { round_trip },
            Self::Refused => CallbackAnswer::Refused,
            Self::Undelivered => CallbackAnswer::Undelivered,
            Self::Unanswered => CallbackAnswer::Unanswered,
        }
    }
}

impl GrantId {
    /// The bytes of its cookie.
    #[must_use]
    pub const fn cookie(self) -> [u8; 8] {
        self.0.to_be_bytes()
    }

    /// The id in a cookie.
    #[must_use]
    pub fn of_cookie(cookie: &[u8]) -> Option<Self> {
        Some(Self(u64::from_be_bytes(cookie.try_into().ok()?)))
    }

    pub(super) const fn callback(self) -> CallbackId {
        CallbackId(self.0)
    }
}

impl GrantedLock {
    /// The lock of a callback. `server`: this host's name.
    pub(super) fn of(callback: &LockCallback, server: &[u8]) -> Self {
        let id = GrantId(callback.id.0);
        let holder = &callback.lock;
        let (offset, length) = offset_and_length(holder.range);
        let svid = holder.process.cast_signed();
        let cookie = id.cookie();
        let arguments = NlmTestArguments {
            cookie: Opaque::new(&cookie).unwrap_or_default(),
            exclusive: holder.lock_type == LockType::Write,
            lock: NlmLock {
                caller_name: Opaque::new(server).unwrap_or_default(),
                fh: Opaque::new(callback.handle.as_bytes()).unwrap_or_default(),
                oh: Opaque::new(&holder.name).unwrap_or_default(),
                svid,
                offset,
                length,
            },
        };
        let mut encoded = Vec::new();
        arguments.encode(&mut encoded);
        Self {
            id,
            file: callback.handle.clone(),
            svid,
            range: holder.range,
            lock_type: lock_type(arguments.exclusive),
            arguments: encoded,
        }
    }
}
