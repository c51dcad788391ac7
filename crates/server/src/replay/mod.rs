//! Repeated requests.
//!
//! A client that lost its connection does not know which of its calls were executed, and repeats
//! them. A MKDIR that is executed twice fails with "exists", a REMOVE with "no such file": programs
//! see a false error. The protocol version decides how a repetition is recognised: NFSv3 has only
//! the xid and the call's bytes ([`reply_cache`]); a session of NFSv4.1 has slots. The caller
//! specifies what is executed, and for which requests replies are cached ([`Replay`],
//! [`Execution`]): this module knows no operations.

pub(crate) mod reply_cache;

use curt_rpc::message::CallMessage;
use curt_rpc::server::{CallContext, CallFailure};
use curt_types::{Fault, Timestamp};

use self::reply_cache::ReplyCache;

/// How repetitions of a request are answered.
#[derive(Clone, Copy)]
pub(crate) enum Replay<'r> {
    /// By executing them again, without a lock of this module.
    Nothing,
    /// From the cached reply, by xid, peer and content.
    ReplyCache(&'r ReplyCache),
}

/// The execution of a request.
pub(crate) trait Execution {
    /// Executes the request and appends its results. Returns its fault if it failed.
    ///
    /// With a window, the request has failed and may have been executed before, in that window.
    /// Then this call creates, renames and removes nothing. It succeeds if the tree shows that the
    /// request was executed; of a created object it sets the owner, group and times, which the
    /// interrupted execution may not have set any more.
    fn run(
        &mut self,
        repeated: Option<ExecutionWindow>,
        context: &mut CallContext<'_>,
        reply: &mut Vec<u8>,
    ) -> Result<Option<Fault>, CallFailure>;

    /// The names that it creates and removes, as far as its arguments show. `name` hashes the
    /// handle of a directory and a name in it.
    fn subjects(&self, name: &dyn Fn(&[u8], &[u8]) -> u64) -> ChangedNames;
}

/// The names that a request changes, as hashes; zero for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChangedNames {
    /// The name that it creates.
    pub(crate) created: u64,
    /// The name that it removes.
    pub(crate) removed: u64,
}

/// The window in which a request was executed, if it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExecutionWindow {
    /// The time at which it began.
    pub(crate) from: Timestamp,
    /// The time at which this run of the server began, which has not executed it.
    pub(crate) until: Timestamp,
}

impl Replay<'_> {
    /// Answers `call` with its cached reply, or executes it.
    #[inline]
    pub(crate) fn answer(
        self,
        call: &CallMessage<'_>,
        context: &mut CallContext<'_>,
        reply: &mut Vec<u8>,
        execution: &mut impl Execution,
    ) -> Result<(), CallFailure> {
        match self {
            Self::Nothing => execution.run(None, context, reply).map(|_| ()),
            Self::ReplyCache(cache) => cache.answer(call, context, reply, execution),
        }
    }
}
