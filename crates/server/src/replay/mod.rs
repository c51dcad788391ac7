//! What answers a request that comes again.
//!
//! A client that lost its connection does not know which of its calls were executed, and sends
//! them again. A MKDIR that is executed twice answers "exists", a REMOVE "no such file": for
//! programs that is an error that nobody made. The protocol version decides how a repetition is
//! known: NFSv3 has only the transaction number and the call's bytes ([`reply_cache`]); a session
//! of NFSv4.1 has slots. The caller says what is executed, and which requests are remembered
//! ([`Replay`], [`Execution`]): this module knows no operations.

pub(crate) mod reply_cache;

use curt_rpc::message::CallMessage;
use curt_rpc::server::{CallContext, CallFailure};
use curt_types::{Fault, Timestamp};

use self::reply_cache::ReplyCache;

/// What answers repetitions of a request.
#[derive(Clone, Copy)]
pub(crate) enum Replay<'r> {
    /// Nothing: it can be executed again, and touches no lock of this module.
    Nothing,
    /// Its reply is kept, by transaction number, peer and content.
    ReplyCache(&'r ReplyCache),
}

/// A request as it is executed.
pub(crate) trait Execution {
    /// Executes it and appends its results; says how it failed, if it did.
    ///
    /// With a window, it has failed and may have been executed before, in that time: then nothing
    /// is changed, and it succeeds if that is so.
    fn run(
        &mut self,
        repeated: Option<ExecutionWindow>,
        context: &mut CallContext<'_>,
        reply: &mut Vec<u8>,
    ) -> Result<Option<Fault>, CallFailure>;

    /// The names that it makes and takes away, as far as its arguments say: `name` has a number for
    /// each handle of a directory and name in it.
    fn subjects(&self, name: &dyn Fn(&[u8], &[u8]) -> u64) -> Subjects;
}

/// The names that a request changes, by number; zero for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Subjects {
    /// The name that it makes.
    pub(crate) made: u64,
    /// The name that it takes away.
    pub(crate) taken: u64,
}

/// When a request was executed, if it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExecutionWindow {
    /// When it began.
    pub(crate) from: Timestamp,
    /// When this run of the server began, which has not executed it.
    pub(crate) until: Timestamp,
}

impl Replay<'_> {
    /// Answers `call` with what it was answered before, or by its execution.
    pub(crate) fn answer(
        self,
        call: &CallMessage<'_>,
        context: &mut CallContext<'_>,
        reply: &mut Vec<u8>,
        execution: &mut dyn Execution,
    ) -> Result<(), CallFailure> {
        match self {
            Self::Nothing => execution.run(None, context, reply).map(|_| ()),
            Self::ReplyCache(cache) => cache.answer(call, context, reply, execution),
        }
    }
}
