//! TEST, LOCK, CANCEL, UNLOCK, SHARE and UNSHARE: decoded arguments in, results out.
//!
//! A lock that is free is granted by the serving thread without another thread, and without I/O
//! but the look at the file's permissions; the first lock of a host also writes the list of hosts.

use std::net::IpAddr;
use std::sync::Arc;

use curt_observe::events::handle_hash;
use curt_observe::{ServerCounter, probe};
use curt_proto::nlm4::{
    NetObj, NlmCancelArguments, NlmHolder, NlmLock, NlmLockArguments, NlmResult, NlmShareArguments,
    NlmShareResult, NlmStat4, NlmTestArguments, NlmTestReply, NlmTestResult, NlmUnlockArguments,
    REPEATED_COOKIE, lock_type, offset_and_length,
};
use curt_rpc::message::CallMessage;
use curt_rpc::server::{CallContext, CallFailure};
use curt_types::{Access, ByteRange, Fault, FileKind, LockType};
use curt_xdr::{Encode, Opaque};

use super::deferred::{DeferredRequest, WantedFromFile};
use super::host_states::HostLockKey;
use super::hosts::{Host, known_local};
use super::shares::{NoShare, ShareOwner};
use crate::file_handle::HandleContents;
use crate::recalls::WaitedCall;
use crate::request::{NfsRequest, Refusal, VerifiedHandle};
use crate::service::NfsService;
use crate::state::locks::{
    CancelOutcome, LockClient, LockDenial, LockHolder, LockOutcome, LockOwner, LockRequest, LockWait,
};
use crate::state::{ChangeKind, FileChange, FileKey, ShareBits, ShareMode, WantedAccess};

/// Whether the host is notified of a restart of this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Monitoring {
    Yes,
    /// NM_LOCK.
    No,
}

/// A call in progress.
pub(super) struct NlmRequest<'r, 'c> {
    request: NfsRequest<'r, 'c>,
}

/// Why a request has no effect.
enum LockRefusal {
    Status(NlmStat4),
    Call(CallFailure),
}

impl From<NlmStat4> for LockRefusal {
    fn from(status: NlmStat4) -> Self {
        Self::Status(status)
    }
}

impl From<Fault> for LockRefusal {
    fn from(fault: Fault) -> Self {
        Self::Status(match fault {
            Fault::Stale | Fault::Badhandle => NlmStat4::StaleFh,
            Fault::Rofs => NlmStat4::Rofs,
            Fault::Fbig => NlmStat4::Fbig,
            // A limit of this server.
            Fault::Dquot => NlmStat4::DeniedNolocks,
            // A later request may succeed: another process has a lease, for instance. The host
            // repeats it, and its process learns nothing of it.
            Fault::Jukebox => NlmStat4::DeniedGracePeriod,
            _ => NlmStat4::Failed,
        })
    }
}

impl From<Refusal> for LockRefusal {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Fault(fault) => fault.into(),
            Refusal::Call(failure) => Self::Call(failure),
        }
    }
}

impl From<LockDenial> for LockRefusal {
    fn from(denial: LockDenial) -> Self {
        Self::Status(match denial {
            LockDenial::Conflict(_) => NlmStat4::Denied,
            LockDenial::Grace | LockDenial::NoGrace => NlmStat4::DeniedGracePeriod,
            LockDenial::NoLocks => NlmStat4::DeniedNolocks,
        })
    }
}

type Done = Result<NlmStat4, LockRefusal>;

impl<'r, 'c> NlmRequest<'r, 'c> {
    pub(super) fn new(
        service: &'r NfsService,
        call: &'r CallMessage<'r>,
        context: &'r mut CallContext<'c>,
    ) -> Self {
        let waited = context.resumed::<WaitedCall>();
        let mut request = NfsRequest::new(service, &call.credential, context);
        if let Some(waited) = waited {
            request.has_waited(&waited);
        }
        Self { request }
    }

    const fn service(&self) -> &'r NfsService {
        self.request.service
    }

    const fn host(&self) -> IpAddr {
        self.request.context.peer().ip()
    }

    fn owner<'a>(&self, lock: &NlmLock<'a>) -> LockOwner<'a> {
        let client = LockClient::Host(self.host());
        LockOwner { client, process: lock.svid.cast_unsigned(), name: lock.oh.bytes() }
    }

    fn resolve(&mut self, handle: NetObj<'_>) -> Result<VerifiedHandle<'r>, LockRefusal> {
        Ok(self.request.resolve(handle.bytes())?)
    }

    /// A file that may not exist any more, nor its export, so that what is left of it is released.
    fn resolve_known(&mut self, handle: NetObj<'_>) -> Result<FileKey, LockRefusal> {
        match self.resolve(handle) {
            Ok(target) => Ok(target.file_key()),
            Err(LockRefusal::Status(NlmStat4::StaleFh)) => {
                let HandleContents { file_system, node, .. } = self.service().key.verify(handle.bytes())?;
                Ok(FileKey { file_system, node })
            }
            Err(error) => Err(error),
        }
    }

    /// Refuses files that the caller could not open: for reading (read locks), or for writing. The
    /// owner may have opened it before its mode changed. (knfsd: `NFSD_MAY_LOCK`)
    fn check_access(&mut self, target: &VerifiedHandle<'_>, asked: Access) -> Result<(), LockRefusal> {
        if asked.contains(Access::MODIFY) {
            target.writable()?;
        }
        self.request.may_block_on_metadata(target);
        let caller = target.caller();
        let result = target.vfs().access(&caller, &target.node, asked);
        let allowed = result.value.map_err(Fault::from)?;
        let attributes = result.attributes.ok_or(Fault::Stale)?;
        if attributes.kind != FileKind::Regular {
            return Err(Fault::Inval.into());
        }
        let is_allowed =
            allowed.contains(asked) || attributes.uid == caller.uid || target.rules().insecure_locks;
        if is_allowed { Ok(()) } else { Err(Fault::Acces.into()) }
    }

    /// Recalls the delegations of others that do not know of a lock or a reservation of `owner`
    /// (`oh`). No other one is granted as long as the result exists. The call waits for them, and
    /// then its host repeats it as in the grace period: every other denial would reach a process.
    /// So it does, if it still wants to, after it has given the request up.
    fn begin_change(
        &mut self,
        target: &VerifiedHandle<'r>,
        kind: ChangeKind,
        owner: &[u8],
        wanted: WantedFromFile,
    ) -> Result<FileChange<'r>, LockRefusal> {
        let file = target.file_key();
        if self.is_given_up() {
            return Err(NlmStat4::DeniedGracePeriod.into());
        }
        self.request.begin_allowed_change(&file, kind).map_err(|fault| match fault {
            Fault::Jukebox => {
                let asked = || DeferredRequest::new(self.host(), owner, file, wanted);
                if self.request.deferred.is_none() {
                    self.request.deferred = Some(self.service().lock_manager.deferred.insert(asked()));
                }
                match self.request.wait(&mut None, 0) {
                    true => LockRefusal::Call(CallFailure::NoReply),
                    false => NlmStat4::DeniedGracePeriod.into(),
                }
            }
            fault => fault.into(),
        })
    }

    /// Whether the host has given the request up while it waited.
    fn is_given_up(&self) -> bool {
        self.request.deferred.as_ref().is_some_and(|deferred| deferred.has_ended())
    }

    /// The host releases what an owner (`oh`) may wait for. Returns whether it does.
    fn end_deferred(&self, owner: &[u8], file: &FileKey, released: WantedFromFile) -> bool {
        self.service().lock_manager.deferred.end(self.host(), owner, file, released)
    }

    /// The host, before it gets a lock or a reservation. If it has to be recorded, the thread hands
    /// the connection over first.
    fn begin_host(&mut self, name: &[u8], monitoring: Monitoring) -> Result<Arc<Host>, LockRefusal> {
        let (address, local) = (self.host(), known_local(self.request.context.local().ip()));
        let host = self.service().lock_manager.hosts.of_request(address, local, name);
        let host = host.ok_or(NlmStat4::DeniedNolocks)?;
        if monitoring == Monitoring::Yes {
            host.wants_monitoring();
        }
        if !host.is_recorded() {
            self.request.context.may_block();
        }
        Ok(host)
    }

    /// Whether the request is a reclaim of what the host cannot have had. It is then answered as
    /// one of a new lock in the grace period, so that no client takes what others have not
    /// reclaimed yet.
    fn is_false_reclaim(&self, reclaim: bool) -> bool {
        reclaim && !self.service().lock_manager.hosts.had_locks(self.host())
    }

    /// Records the host, which has begun, unless it is recorded.
    fn record(&self) -> Result<(), Fault> {
        let service = self.service();
        service.lock_manager.record(&service.state, self.host())
    }
}

pub(super) fn test(
    call: &mut NlmRequest<'_, '_>,
    arguments: &NlmTestArguments<'_>,
    results: &mut Vec<u8>,
) -> Result<(), CallFailure> {
    let NlmTestArguments { cookie, exclusive, lock } = arguments;
    let found = tested(call, lock, lock_type(*exclusive));
    let reply = match &found {
        Ok(Some(holder)) => NlmTestReply::Denied(wire_holder(holder)),
        Ok(None) => NlmTestReply::Other(NlmStat4::Granted),
        Err(LockRefusal::Status(status)) => NlmTestReply::Other(*status),
        Err(LockRefusal::Call(failure)) => return Err(*failure),
    };
    NlmTestResult { cookie: *cookie, reply }.encode(results);
    Ok(())
}

fn tested(
    call: &mut NlmRequest<'_, '_>,
    lock: &NlmLock<'_>,
    lock_type: LockType,
) -> Result<Option<LockHolder>, LockRefusal> {
    let target = call.resolve(lock.fh)?;
    let range = lock.range().ok_or(Fault::Fbig)?;
    call.check_access(&target, needed(lock_type))?;
    let service = call.service();
    // Locks that are not reclaimed yet are not known.
    if service.is_in_grace() {
        return Err(NlmStat4::DeniedGracePeriod.into());
    }
    let test = || service.locks.test(&target, &call.owner(lock), lock_type, range);
    match test()? {
        Some(holder) if service.expire_lock_holder(&holder) == Ok(true) => Ok(test()?),
        holder => Ok(holder),
    }
}

/// The rights that an owner of a lock needs.
const fn needed(lock_type: LockType) -> Access {
    match lock_type {
        LockType::Read => Access::READ,
        LockType::Write => Access::MODIFY,
    }
}

/// A holder as the protocol describes it. Those of other protocols have no `svid`.
fn wire_holder(holder: &LockHolder) -> NlmHolder<'_> {
    let (offset, length) = offset_and_length(holder.range);
    NlmHolder {
        exclusive: holder.lock_type == LockType::Write,
        svid: holder.process.cast_signed(),
        oh: Opaque::new(&holder.name).unwrap_or_default(),
        offset,
        length,
    }
}

pub(super) fn lock(
    call: &mut NlmRequest<'_, '_>,
    arguments: &NlmLockArguments<'_>,
    monitoring: Monitoring,
    results: &mut Vec<u8>,
) -> Result<(), CallFailure> {
    let done = locked(call, arguments, monitoring);
    finish(call, arguments.cookie, Some(&arguments.lock), done, results)
}

fn locked(call: &mut NlmRequest<'_, '_>, arguments: &NlmLockArguments<'_>, monitoring: Monitoring) -> Done {
    let NlmLockArguments { cookie, block, exclusive, lock, reclaim, state } = *arguments;
    let target = call.resolve(lock.fh)?;
    let range = lock.range().ok_or(Fault::Fbig)?;
    let lock_type = lock_type(exclusive);
    call.check_access(&target, needed(lock_type))?;
    if call.is_false_reclaim(reclaim) {
        return Err(NlmStat4::DeniedGracePeriod.into());
    }
    // Here, because the grace period may end before the lock service looks, and delegations would
    // not be recalled then.
    if !reclaim && call.service().is_in_grace() {
        return Err(NlmStat4::DeniedGracePeriod.into());
    }
    // A client that has a delegation keeps its locks for reading to itself.
    let change = if exclusive && !reclaim {
        let wanted = WantedFromFile::Lock { svid: lock.svid, range };
        Some(call.begin_change(&target, ChangeKind::Data, lock.oh.bytes(), wanted)?)
    } else {
        None
    };
    let host = call.begin_host(lock.caller_name.bytes(), monitoring)?;
    if monitoring == Monitoring::Yes {
        let LockOwner { process, name, .. } = call.owner(&lock);
        host.states.locks(state, HostLockKey { file: &target.file_key(), process, name });
    }
    let waits = !reclaim && cookie.bytes().starts_with(&REPEATED_COOKIE);
    let is_repeated = waits && (!block || !host.can_be_called(call.service().clock.now()));
    let wait = if is_repeated {
        LockWait::Repeated { handle: target.handle() }
    } else if block && !reclaim {
        // One that came as a datagram is called back from where the host has come last.
        let local = known_local(call.request.context.local().ip()).or_else(|| host.latest_local());
        LockWait::Granted { handle: target.handle(), local }
    } else {
        LockWait::No
    };
    let request = LockRequest { owner: call.owner(&lock), lock_type, range, wait, reclaim };
    let service = call.service();
    // Its first lock has it recorded. It may have had only unmonitored ones, or come to another
    // address. What it has stays as it is if that fails.
    if !host.is_recorded() && service.locks.has_begun(request.owner.client) {
        call.record()?;
    }
    let is_given_up = || call.is_given_up();
    let attempt = || service.locks.lock(&target, &request, &is_given_up, service.clock.now());
    let outcome = lock_past_expired(service, attempt)?;
    drop(change);
    // UNLOCK leaves a request in the queue.
    if matches!(outcome, LockOutcome::Blocked(_)) && is_given_up() {
        let _ =
            service.locks.cancel(&target.file_key(), &request.owner, lock_type, range, service.clock.now());
        return Err(NlmStat4::DeniedGracePeriod.into());
    }
    Ok(match outcome {
        LockOutcome::Granted => NlmStat4::Granted,
        // It waits for no callback.
        LockOutcome::Blocked(_) if block && is_repeated => NlmStat4::Denied,
        LockOutcome::Blocked(_) => NlmStat4::Blocked,
        LockOutcome::Denied(denial) => return Err(denial.into()),
    })
}

/// Locks, although an NFSv4 client whose lease has expired may have the lock that conflicts.
fn lock_past_expired(
    service: &NfsService,
    attempt: impl Fn() -> Result<LockOutcome, Fault>,
) -> Result<LockOutcome, Fault> {
    match attempt()? {
        LockOutcome::Denied(LockDenial::Conflict(holder))
            if service.expire_lock_holder(&holder) == Ok(true) =>
        {
            attempt()
        }
        LockOutcome::Blocked(holder) => {
            // The queued request gets the lock by a callback. If this fails, it is repeated when
            // leases are examined.
            let _ = service.expire_lock_holder(&holder);
            Ok(LockOutcome::Blocked(holder))
        }
        outcome => Ok(outcome),
    }
}

pub(super) fn cancel(
    call: &mut NlmRequest<'_, '_>,
    arguments: &NlmCancelArguments<'_>,
    results: &mut Vec<u8>,
) -> Result<(), CallFailure> {
    let done = cancelled(call, arguments);
    finish(call, arguments.cookie, Some(&arguments.lock), done, results)
}

/// Needs no right, as [`unlocked`].
fn cancelled(call: &mut NlmRequest<'_, '_>, arguments: &NlmCancelArguments<'_>) -> Done {
    let lock = &arguments.lock;
    let file = call.resolve_known(lock.fh)?;
    let range = lock.range().ok_or(Fault::Fbig)?;
    let (owner, lock_type) = (call.owner(lock), lock_type(arguments.exclusive));
    let service = call.service();
    let wanted = WantedFromFile::Lock { svid: lock.svid, range };
    let has_ended = call.end_deferred(lock.oh.bytes(), &file, wanted);
    // It may be in the queue as well: it is executed again, or was sent twice.
    match service.locks.cancel(&file, &owner, lock_type, range, service.clock.now()) {
        CancelOutcome::NotWaiting if !has_ended => Ok(NlmStat4::Denied),
        CancelOutcome::Cancelled | CancelOutcome::NotWaiting => Ok(NlmStat4::Granted),
    }
}

pub(super) fn unlock(
    call: &mut NlmRequest<'_, '_>,
    arguments: &NlmUnlockArguments<'_>,
    results: &mut Vec<u8>,
) -> Result<(), CallFailure> {
    let done = unlocked(call, arguments);
    finish(call, arguments.cookie, Some(&arguments.lock), done, results)
}

/// Needs no right: who has a lock may unlock it. The file need not exist, nor its export any more:
/// otherwise the lock would stay, and be found if the export came back.
fn unlocked(call: &mut NlmRequest<'_, '_>, arguments: &NlmUnlockArguments<'_>) -> Done {
    let lock = &arguments.lock;
    let service = call.service();
    let file = call.resolve_known(lock.fh)?;
    let range = lock.range().ok_or(Fault::Fbig)?;
    call.end_deferred(lock.oh.bytes(), &file, WantedFromFile::Lock { svid: lock.svid, range });
    service.locks.unlock(&file, &call.owner(lock), range, service.clock.now())?;
    Ok(NlmStat4::Granted)
}

pub(super) fn share(
    call: &mut NlmRequest<'_, '_>,
    arguments: &NlmShareArguments<'_>,
    results: &mut Vec<u8>,
) -> Result<(), CallFailure> {
    let done = shared(call, arguments);
    finish_share(call, arguments.cookie, done, results)
}

fn shared(call: &mut NlmRequest<'_, '_>, arguments: &NlmShareArguments<'_>) -> Done {
    let share = &arguments.share;
    let target = call.resolve(share.fh)?;
    let of_wire = |bits: u32| ShareBits::from_wire(bits).unwrap_or(ShareBits::BOTH);
    let bits = of_wire(share.access as u32);
    let mode = ShareMode { access: bits, deny: of_wire(share.deny as u32) };
    let rights = |bit, right| if bits.contains(bit) { right } else { Access::NONE };
    let needed = rights(ShareBits::READ, Access::READ).with(rights(ShareBits::WRITE, Access::MODIFY));
    call.check_access(&target, needed)?;
    let service = call.service();
    if service.is_in_grace() != arguments.reclaim || call.is_false_reclaim(arguments.reclaim) {
        return Err(NlmStat4::DeniedGracePeriod.into());
    }
    let change = mode.change().filter(|_| !arguments.reclaim);
    let begin = |kind| call.begin_change(&target, kind, share.oh.bytes(), WantedFromFile::Share);
    let change = change.map(begin).transpose()?;
    let host = call.begin_host(share.caller_name.bytes(), Monitoring::Yes)?;
    call.record()?;
    let owner = ShareOwner { host: call.host(), name: share.oh.bytes().into() };
    let (file, table, state) = (target.file_key(), &service.held.shares, host.states.latest());
    let share = || {
        let mut shares = service.lock_manager.shares.lock();
        // Who gives it up marks it before it locks the reservations.
        if call.is_given_up() {
            return Err(NoShare::GivenUp);
        }
        shares.share(table, file, owner.clone(), mode, state)
    };
    let outcome = match share() {
        Err(NoShare::Conflict) if service.expire_holders(&file, WantedAccess::Open(mode)).is_ok() => share(),
        outcome => outcome,
    };
    if outcome.is_err() {
        service.end_without_shares(call.host());
    }
    drop(change);
    outcome?;
    Ok(NlmStat4::Granted)
}

pub(super) fn unshare(
    call: &mut NlmRequest<'_, '_>,
    arguments: &NlmShareArguments<'_>,
    results: &mut Vec<u8>,
) -> Result<(), CallFailure> {
    let done = unshared(call, arguments);
    finish_share(call, arguments.cookie, done, results)
}

fn unshared(call: &mut NlmRequest<'_, '_>, arguments: &NlmShareArguments<'_>) -> Done {
    let file = call.resolve_known(arguments.share.fh)?;
    let (service, owner) = (call.service(), arguments.share.oh.bytes());
    call.end_deferred(owner, &file, WantedFromFile::Share);
    let mut shares = service.lock_manager.shares.lock();
    shares.unshare(&service.held.shares, &file, call.host(), owner);
    drop(shares);
    service.end_without_shares(call.host());
    Ok(NlmStat4::Granted)
}

impl From<NoShare> for LockRefusal {
    fn from(refused: NoShare) -> Self {
        Self::Status(match refused {
            NoShare::Conflict => NlmStat4::Denied,
            NoShare::GivenUp => NlmStat4::DeniedGracePeriod,
            NoShare::TooMany => NlmStat4::DeniedNolocks,
        })
    }
}

/// Encodes the result of a request about a lock.
fn finish(
    call: &NlmRequest<'_, '_>,
    cookie: NetObj<'_>,
    lock: Option<&NlmLock<'_>>,
    done: Done,
    results: &mut Vec<u8>,
) -> Result<(), CallFailure> {
    let status = status_of(call, done)?;
    if let Some(lock) = lock {
        let range = lock.range().unwrap_or(ByteRange::WHOLE);
        probe!(NfsdLockDone {
            fhandle: handle_hash(&lock.fh),
            lock_first: range.first(),
            lock_last: range.last(),
            pid: lock.svid.cast_unsigned(),
            reason: status.name().as_bytes()
        });
    }
    NlmResult { cookie, status }.encode(results);
    Ok(())
}

fn finish_share(
    call: &NlmRequest<'_, '_>,
    cookie: NetObj<'_>,
    done: Done,
    results: &mut Vec<u8>,
) -> Result<(), CallFailure> {
    let status = status_of(call, done)?;
    NlmShareResult { cookie, status, sequence: 0 }.encode(results);
    Ok(())
}

/// The status of a request, which is counted.
fn status_of(call: &NlmRequest<'_, '_>, done: Done) -> Result<NlmStat4, CallFailure> {
    let status = match done {
        Ok(status) | Err(LockRefusal::Status(status)) => status,
        Err(LockRefusal::Call(failure)) => return Err(failure),
    };
    let counters = &call.service().counters;
    match status {
        NlmStat4::Granted => {}
        NlmStat4::Blocked => counters.count(ServerCounter::LocksBlocked),
        NlmStat4::Denied | NlmStat4::Deadlck => counters.count(ServerCounter::LocksDenied),
        NlmStat4::DeniedGracePeriod => counters.count(ServerCounter::LocksDeniedGrace),
        NlmStat4::DeniedNolocks => counters.count(ServerCounter::LocksLimited),
        NlmStat4::StaleFh => counters.count(ServerCounter::ErrorsStale),
        NlmStat4::Rofs | NlmStat4::Fbig | NlmStat4::Failed => counters.count(ServerCounter::Errors),
    }
    Ok(status)
}
