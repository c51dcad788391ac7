//! The context of one operation of a caller on a mount.
//!
//! Created once per request. It reads the clock at its start and again after each wait. Its options
//! are those in force at its start.

use std::{cell::Cell, fmt, sync::Arc, time::Instant};

use curt_policy::{CacheOptions, Moment};
use curt_rpc::client::Interrupt;

use crate::{
    caller::{Caller, InternedCaller},
    inode::OpTime,
    protocol::{Protocol, RpcCaller},
    superblock::Superblock,
};

/// Most rounds of decision and request before an operation fails.
const ROUNDS_MAX: usize = 16;

/// After this many rounds an operation uses the last reply.
const ROUNDS_BEFORE_CACHE: usize = 12;

/// One operation: its caller, its start time, and the options in force then.
pub struct Op<'a> {
    /// The mount of the operation.
    pub(crate) sb: &'a Superblock,
    /// The calling thread; 0 if there is none.
    pub(crate) pid: u32,
    pub(crate) identity: Arc<InternedCaller>,
    interrupt: Interrupt,
    pub(crate) began: Moment,
    /// When the server's last restart was detected.
    server_since: Moment,
    pub(crate) options: CacheOptions,
    /// The cached current time; cleared when a request is sent or awaited.
    now: Cell<Option<Moment>>,
    /// The server did not respond within the time of `softreval`: cached data are used.
    pub(crate) uses_cache: Cell<bool>,
}

impl<'a> Op<'a> {
    pub(crate) fn new(
        sb: &'a Superblock,
        identity: Arc<InternedCaller>,
        interrupt: Interrupt,
        began: Moment,
    ) -> Self {
        Self {
            sb,
            pid: 0,
            identity,
            interrupt,
            began,
            server_since: Moment::default(),
            options: sb.core.options(),
            now: Cell::new(None),
            uses_cache: Cell::new(false),
        }
    }

    /// The current time. The clock is read once, and again after each wait.
    pub(crate) fn now(&self) -> Moment {
        let now = self.now.get().unwrap_or_else(|| self.sb.core.now());
        self.now.set(Some(now));
        now
    }

    /// The times by which attributes are judged for this operation.
    pub(crate) fn time(&self) -> OpTime {
        OpTime {
            began: self.began,
            now: self.now(),
            server_since: self.server_since,
            uses_cache: self.uses_cache.get(),
        }
    }

    /// Interrupts a wait of this operation. The caller is about to wait, so the clock is read again
    /// afterwards.
    pub(crate) fn interrupt(&self) -> &Interrupt {
        self.now.set(None);
        &self.interrupt
    }

    /// The rounds of decision and request. Each round has sent a request. If attributes are still
    /// not valid after many rounds, they change faster than the client can revalidate them; the
    /// last reply is used then, since it was true after the operation began.
    pub(crate) fn rounds(&self) -> impl Iterator<Item = usize> {
        (0..ROUNDS_MAX).inspect(|round| {
            if *round == ROUNDS_BEFORE_CACHE {
                self.uses_cache.set(true);
            }
        })
    }

    /// The protocol that sends its requests.
    pub(crate) fn protocol(&self) -> &'a dyn Protocol {
        &*self.sb.core.protocol
    }

    pub(crate) fn rpc_caller(&self) -> RpcCaller<'_> {
        RpcCaller { credential: &self.identity.credential, interrupt: self.interrupt() }
    }
}

impl Superblock {
    /// An operation of `caller` that begins now.
    #[must_use]
    pub fn op(&self, caller: &Caller) -> Op<'_> {
        self.op_at(caller, self.core.now())
    }

    /// The same for an operation that began at `began`.
    #[must_use]
    pub fn op_since(&self, caller: &Caller, began: Instant) -> Op<'_> {
        self.op_at(caller, self.core.moment(began))
    }

    fn op_at(&self, caller: &Caller, began: Moment) -> Op<'_> {
        let identity = self.core.identities.of(caller);
        Op {
            pid: caller.pid,
            server_since: self.core.server_since(),
            now: Cell::new(Some(began)),
            ..Op::new(self, identity, caller.interrupt.clone(), began)
        }
    }
}

impl fmt::Debug for Op<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Op").field("began", &self.began).finish_non_exhaustive()
    }
}
