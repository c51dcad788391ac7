//! COMPOUND (RFC 8881 section 16.2): the context that its operations share, and the loop over them.

use curt_observe::stages::{self, RequestStage};
use curt_observe::{ServerCounter, probe};
use curt_proto::Operation;
use curt_proto::nfs4::{Availability, Nfs4Operation, NfsStat4, Position, Stateid, TAG_MAX};
use curt_rpc::auth::AuthStatus;
use curt_rpc::message::CallMessage;
use curt_rpc::server::{CallContext, CallFailure};
use curt_types::Attributes;
use curt_xdr::{Decoder, Encode, put_opaque};

use super::object::Object;
use super::operation_outcome::{OpFailure, Outcome};
use super::table;
use crate::authorisation_cache::CallerCredential;
use crate::recalls::WaitedCall;
use crate::request::NfsRequest;
use crate::service::NfsService;
use crate::state::SlotInUse;

/// The largest reply in bytes without a session. Only operations with small results need none.
const REPLY_MAX: usize = 64 << 10;
/// The bytes of an accepted reply before the results.
const REPLY_HEADER: usize = 24;
/// The bytes of an operation's number and status.
const RESULT_HEADER: usize = 8;
/// The most bytes of a failed operation's result: SETATTR adds an empty bitmap.
pub(super) const FAILED_RESULT: usize = RESULT_HEADER + 4;

/// The context of a compound's operations.
pub(crate) struct Compound<'r, 'c> {
    pub(crate) request: NfsRequest<'r, 'c>,
    xid: u32,
    pub(crate) minor_version: u32,
    /// The number of its operations.
    pub(crate) operations: u32,
    /// The position of the operation that is executed, from 0.
    pub(crate) position: u32,
    /// The arguments of COMPOUND as sent.
    pub(crate) arguments: &'r [u8],
    current: Option<Object<'r>>,
    /// The attributes of the current filehandle's object, if the last operations have returned
    /// them: see [`keeps_attributes`].
    current_attributes: Option<Attributes>,
    saved: Option<Object<'r>>,
    /// The current stateid (RFC 8881 section 16.2.3.1.2).
    pub(crate) current_stateid: Option<Stateid>,
    saved_stateid: Option<Stateid>,
    /// The slot that SEQUENCE has taken.
    pub(crate) slot: Option<SlotInUse>,
    /// The slot that SEQUENCE had taken before the compound waited.
    pub(crate) kept_slot: Option<SlotInUse>,
    /// The number of operations that were counted before the compound waited.
    counted: u32,
    /// Whether an operation has changed something.
    has_changed: bool,
    /// The compound waits, and will be executed again.
    waits: bool,
    /// The reply that SEQUENCE found for a repeated request. It replaces this compound's.
    pub(crate) replayed: Option<Vec<u8>>,
    /// Where this compound's results begin in the reply.
    start: usize,
    /// The bytes of a file that the reply will contain beside those in its buffer.
    pub(crate) attached: usize,
}

/// Answers a call of COMPOUND.
pub(super) fn call(
    service: &NfsService,
    call: &CallMessage<'_>,
    context: &mut CallContext<'_>,
    reply: &mut Vec<u8>,
) -> Result<(), CallFailure> {
    if CallerCredential::of(&call.credential).is_none() {
        return Err(CallFailure::Denied(AuthStatus::TooWeak));
    }
    let waited = context.resumed::<WaitedCall>();
    let garbage = |_| CallFailure::GarbageArguments;
    let arguments = &mut Decoder::new(call.arguments);
    let tag = arguments.opaque(TAG_MAX).map_err(garbage)?;
    let minor_version = arguments.u32().map_err(garbage)?;
    let operations = arguments.u32().map_err(garbage)?;
    let start = reply.len();
    NfsStat4::Ok.encode(reply);
    put_opaque(reply, tag);
    let count_at = reply.len();
    0_u32.encode(reply);
    let mut compound = Compound {
        request: NfsRequest::new(service, &call.credential, context),
        xid: call.xid,
        minor_version,
        operations,
        position: 0,
        arguments: call.arguments,
        current: None,
        current_attributes: None,
        saved: None,
        current_stateid: None,
        saved_stateid: None,
        slot: None,
        kept_slot: None,
        counted: 0,
        has_changed: false,
        waits: false,
        replayed: None,
        start,
        attached: 0,
    };
    if let Some(waited) = waited {
        compound.request.has_waited(&waited);
        compound.kept_slot = waited.slot;
        compound.counted = waited.counted;
    }
    let (status, results) = if !service.versions.has_minor(minor_version) {
        (NfsStat4::MinorVersMismatch, 0)
    } else if str::from_utf8(tag).is_err() {
        // RFC 8881 section 14.4. Names are not checked, because those of Unix may have any bytes.
        (NfsStat4::Inval, 0)
    } else {
        compound.run(arguments, reply)
    };
    stages::proceed(RequestStage::Encode);
    if compound.waits {
        return Err(CallFailure::NoReply);
    }
    if let Some(replayed) = compound.replayed {
        reply.truncate(start);
        reply.extend_from_slice(&replayed);
        return Ok(());
    }
    reply[start..start + 4].copy_from_slice(&status.number().to_be_bytes());
    reply[count_at..count_at + 4].copy_from_slice(&results.to_be_bytes());
    if let Some(slot) = compound.slot.take() {
        slot.finish(&reply[start..]);
    }
    Ok(())
}

/// Whether an operation only prepares others, or returns what they made: the time of a compound is
/// counted for its last other operation.
const fn is_auxiliary(operation: Nfs4Operation) -> bool {
    use Nfs4Operation::{Getattr, Getfh, Putfh, Putrootfh, Restorefh, Savefh};
    matches!(operation, Getattr | Getfh | Putfh | Putrootfh | Restorefh | Savefh)
}

/// Whether the attributes that an operation before this one has returned are still used after it.
///
/// RFC 8881 section 16.2.3 promises no isolation of a compound: requests of others may take effect
/// between any two of its operations, or between none. So an operation may return the attributes of
/// an earlier instant within the same compound, as if it were executed at that instant. This holds
/// while the operations in between change nothing, do not wait for a disk or a client, and promise
/// nothing about later changes, as OPEN does with a delegation. Everything else queries anew.
const fn keeps_attributes(operation: Nfs4Operation) -> bool {
    use Nfs4Operation::{Getattr, Getfh, Lookup, Nverify, Savefh, Verify};
    matches!(operation, Getattr | Getfh | Lookup | Nverify | Savefh | Verify)
}

/// Ends the result of an operation that has failed. It begins at `at`, with its header.
pub(super) fn end_failed(operation: Nfs4Operation, failure: OpFailure, at: usize, reply: &mut Vec<u8>) {
    if matches!(failure, OpFailure::Status(_)) {
        reply.truncate(at + RESULT_HEADER);
        if operation == Nfs4Operation::Setattr {
            // Its result has the attributes that were set, whatever its status.
            0_u32.encode(reply);
        }
    }
    reply[at + 4..at + 8].copy_from_slice(&failure.status().number().to_be_bytes());
}

impl<'r, 'c> Compound<'r, 'c> {
    /// Executes the operations until one fails. Returns the status of the last, and the number of
    /// results.
    fn run(&mut self, arguments: &mut Decoder<'r>, reply: &mut Vec<u8>) -> (NfsStat4, u32) {
        while self.position < self.operations {
            let number = arguments.u32();
            let operation = number.as_ref().ok().and_then(|number| Nfs4Operation::from_number(*number));
            let availability = operation.map(|operation| operation.availability(self.minor_version));
            let operation = operation.filter(|_| availability != Some(Availability::Illegal));
            let at = reply.len();
            operation.unwrap_or(Nfs4Operation::Illegal).encode(reply);
            NfsStat4::Ok.encode(reply);
            let outcome = match (number, operation) {
                (Err(_), _) => Err(NfsStat4::Badxdr.into()),
                (Ok(_), None) => Err(NfsStat4::OpIllegal.into()),
                (Ok(_), Some(operation)) => self.execute(operation, arguments, reply),
            };
            if self.replayed.is_some() {
                return (NfsStat4::Ok, 0);
            }
            self.position += 1;
            let outcome = match outcome {
                Ok(()) => self.check_size(reply, self.next_result_min(arguments)),
                Err(OpFailure::WithBody(_)) => self.check_size(reply, 0).and(outcome),
                Err(OpFailure::Status(_)) => outcome,
            };
            let status = outcome.map_or_else(OpFailure::status, |()| NfsStat4::Ok);
            if outcome.is_err() && !self.has_changed && self.request.wait(&mut self.slot, self.position) {
                self.waits = true;
                return (status, 0);
            }
            if operation.is_some_and(|operation| operation.properties().changes) {
                self.has_changed = true;
            }
            probe!(NfsdCompoundStatus {
                xid: self.xid,
                procedure: operation.unwrap_or(Nfs4Operation::Illegal).name(),
                entries: self.operations,
                status: status.number()
            });
            if let Err(failure) = outcome {
                self.count_failure(operation, status);
                end_failed(operation.unwrap_or(Nfs4Operation::Illegal), failure, at, reply);
                return (status, self.position);
            }
        }
        (NfsStat4::Ok, self.position)
    }

    fn count_failure(&self, operation: Option<Nfs4Operation>, status: NfsStat4) {
        let special = match status {
            NfsStat4::Stale => Some(ServerCounter::ErrorsStale),
            NfsStat4::Badhandle => Some(ServerCounter::ErrorsBadHandle),
            NfsStat4::Access | NfsStat4::Perm => Some(ServerCounter::ErrorsAccess),
            // These report that there are too many locks.
            NfsStat4::Serverfault
                if matches!(operation, Some(Nfs4Operation::Lock | Nfs4Operation::Locku)) =>
            {
                None
            }
            NfsStat4::Io | NfsStat4::Serverfault => {
                let operation = operation.unwrap_or(Nfs4Operation::Illegal);
                tracing::warn!(%operation, status = status.number(), "the file system failed");
                Some(ServerCounter::ErrorsIo)
            }
            _ => None,
        };
        let counters = &self.request.service.counters;
        counters.count(ServerCounter::Errors);
        if let Some(special) = special {
            counters.count(special);
        }
    }

    /// Executes one operation, which appends the body of its result.
    fn execute(
        &mut self,
        operation: Nfs4Operation,
        arguments: &mut Decoder<'r>,
        reply: &mut Vec<u8>,
    ) -> Outcome {
        if self.position >= self.counted {
            self.request.service.counters.calls.count(Operation::Nfs4(operation));
        }
        let properties = operation.properties();
        if self.position == 0 || !is_auxiliary(operation) {
            stages::set_operation(Operation::Nfs4(operation));
        }
        self.check_position(properties.position)?;
        if operation.availability(self.minor_version) != Availability::Supported {
            return Err(NfsStat4::Notsupp.into());
        }
        let needed = properties.handles;
        if needed.current() && self.current.is_none() || needed.saved() && self.saved.is_none() {
            return Err(NfsStat4::Nofilehandle.into());
        }
        let result_max = table::result_max(operation);
        if properties.changes && self.slot.is_some() && self.room(reply) < result_max {
            return Err(self.too_big().into());
        }
        if !keeps_attributes(operation) {
            self.current_attributes = None;
        }
        let at = reply.len();
        let outcome = table::function(operation)(self, arguments, reply);
        debug_assert!(
            !properties.changes || outcome.is_err() || reply.len() - at <= result_max,
            "{operation}: {} bytes",
            reply.len() - at
        );
        outcome
    }

    /// Whether an operation may stand here (RFC 8881 section 2.10.6.4).
    fn check_position(&self, position: Position) -> Outcome {
        let in_session = self.slot.is_some();
        let status = match position {
            Position::First if self.position > 0 => NfsStat4::SequencePos,
            Position::InSession if !in_session => NfsStat4::OpNotInSession,
            Position::InSessionOrAlone if !in_session && self.operations != 1 => NfsStat4::NotOnlyOp,
            Position::Alone if self.operations != 1 => NfsStat4::NotOnlyOp,
            _ => return Ok(()),
        };
        Err(status.into())
    }

    /// The current filehandle's object.
    pub(crate) fn current(&self) -> Result<Object<'r>, OpFailure> {
        self.current.clone().ok_or(OpFailure::Status(NfsStat4::Nofilehandle))
    }

    /// As [`Self::current`], with the context, for an operation that keeps neither.
    pub(crate) fn current_in_request(&mut self) -> Result<(&Object<'r>, &mut NfsRequest<'r, 'c>), OpFailure> {
        let current = self.current.as_ref().ok_or(OpFailure::Status(NfsStat4::Nofilehandle))?;
        Ok((current, &mut self.request))
    }

    /// The saved filehandle's object.
    pub(crate) fn saved(&self) -> Result<Object<'r>, OpFailure> {
        self.saved.clone().ok_or(OpFailure::Status(NfsStat4::Nofilehandle))
    }

    /// Sets the current filehandle; there is no current stateid until an operation returns one.
    pub(crate) fn set_current(&mut self, object: Object<'r>) {
        self.current = Some(object);
        self.current_attributes = None;
        self.current_stateid = None;
    }

    /// Keeps the attributes of the current filehandle's object that an operation has returned.
    pub(crate) const fn keep_attributes(&mut self, attributes: Option<Attributes>) {
        self.current_attributes = attributes;
    }

    /// The attributes that are kept for the next operation.
    pub(crate) const fn kept_attributes(&self) -> Option<Attributes> {
        self.current_attributes
    }

    /// After SECINFO, there is no current filehandle (RFC 8881 section 2.6.3.1.1.8).
    pub(crate) fn consume_current(&mut self) {
        self.current = None;
        self.current_attributes = None;
        self.current_stateid = None;
    }

    /// SAVEFH.
    pub(crate) fn save(&mut self) {
        self.saved.clone_from(&self.current);
        self.saved_stateid = self.current_stateid;
    }

    /// RESTOREFH restores the current stateid too.
    pub(crate) const fn restore_stateid(&mut self) {
        self.current_stateid = self.saved_stateid;
    }

    /// The stateid that an argument means. For the special value that says so, it is the current
    /// one in its newest state (RFC 8881 section 8.2.3).
    pub(crate) fn stateid(&self, given: Stateid) -> Result<Stateid, OpFailure> {
        let meant = self.exact_stateid(given)?;
        Ok(if given == Stateid::CURRENT { Stateid { seqid: 0, ..meant } } else { meant })
    }

    /// The stateid with the seqid of the current stateid, for CLOSE and OPEN_DOWNGRADE.
    pub(crate) fn exact_stateid(&self, given: Stateid) -> Result<Stateid, OpFailure> {
        if given == Stateid::CURRENT {
            return self.current_stateid.ok_or(OpFailure::Status(NfsStat4::BadStateid));
        }
        Ok(given)
    }

    /// How many bytes the result of the operation that is executed may still append.
    pub(crate) fn room(&self, reply: &[u8]) -> usize {
        let used = self.used(reply);
        let last = self.position + 1 >= self.operations;
        self.reply_max().saturating_sub(used + if last { 0 } else { FAILED_RESULT })
    }

    /// The largest reply that the session allows.
    fn reply_max(&self) -> usize {
        let Some(slot) = &self.slot else { return REPLY_MAX };
        let max = usize::try_from(slot.session().fore.reply).unwrap_or(usize::MAX);
        slot.cached_max().map_or(max, |cached| cached.min(max))
    }

    /// The size of the reply so far, as the limits of a session count it.
    pub(super) const fn used(&self, reply: &[u8]) -> usize {
        REPLY_HEADER + reply.len() - self.start + self.attached
    }

    /// The operation that follows the one that is executed, whose arguments are decoded.
    pub(super) fn next_operation(&self, arguments: &Decoder<'_>) -> Option<Nfs4Operation> {
        let is_last = self.position + 1 >= self.operations;
        let number = arguments.clone().u32().ok().filter(|_| !is_last)?;
        Nfs4Operation::from_number(number)
    }

    /// The least size of the result of the operation that follows: that of its failure.
    fn next_result_min(&self, arguments: &Decoder<'_>) -> usize {
        if self.position == self.operations {
            return 0;
        }
        let is_setattr = arguments.clone().u32() == Ok(Nfs4Operation::Setattr.number());
        if is_setattr { FAILED_RESULT } else { RESULT_HEADER }
    }

    /// Refuses a reply that, with the bytes that will be appended at least, is larger than the
    /// session allows.
    fn check_size(&self, reply: &[u8], appended: usize) -> Outcome {
        if self.used(reply) + appended > self.reply_max() { Err(self.too_big().into()) } else { Ok(()) }
    }

    /// The status of an operation whose result has no room in the reply.
    pub(crate) fn too_big(&self) -> NfsStat4 {
        match &self.slot {
            Some(slot) if slot.cached_max().is_some() => NfsStat4::RepTooBigToCache,
            _ => NfsStat4::RepTooBig,
        }
    }
}
