//! What is done before requests can be sent: the client presents itself, creates a session, and
//! reclaims or reopens what it had open (RFC 8881 sections 8.4, 10.2.1 and 18.51).
//!
//! One thread does it, with the interrupt of its own request; the others wait. If it is
//! interrupted, the next one continues. Opens of before a restart of the server are reclaimed
//! before any other request. What cannot be reclaimed is opened again when it is used; if that
//! fails too, its users alone get EIO.

use std::{
    collections::HashSet,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use curt_proto::nfs4::{
    BindConnToSessionArgs4, BindConnToSessionOk4, CallbackSecParms4, CallbackSysCredentials,
    ChannelAttributes, ChannelDirFromClient, ChannelDirFromServer, ClientOwner, Clientid, CompoundEncoder,
    CreateSessionArgs4, CreateSessionFlags, CreateSessionOk4, DelegationType, DestroyClientidArgs4,
    DestroySessionArgs4, ExchangeIdArgs4, ExchangeIdFlags, ExchangeIdOk4, FreeStateidArgs4, ImplementationId,
    Nfs4Operation, NfsStat4, OpaqueLimited, OpenClaim, OpenOk4, ReclaimCompleteArgs4, SequenceId, SessionId,
    StateProtectArgs, Stateid, TestStateidArgs4, TestStateidOk4,
};
use curt_rpc::{
    auth::RpcCredential,
    client::{CallError, Interrupt},
};
use curt_types::{Fault, FileHandle};
use curt_xdr::{Opaque, VarArray};

use super::{
    NfsV4, attributes, callback,
    compound::{
        CompoundReply,
        request::{Append, CompoundRequest, OWN_OPERATIONS_MAX, get_attributes, put_fh},
    },
    delegation_table::DelegationToReclaim,
    open_codec::{GrantedOpen, OPEN_RESULTS_MAX, OpenRequest},
    open_key::OpenKey,
    open_table::{OpenToRestore, SentOpen},
    results::{CompoundResultReader, fault, is_revoked, optional, outcome},
    server_traits::{ServerFeature, ServerIdentity, UsedFeatures},
    session::{CompoundPurpose, FreeOrder, MESSAGE_MIN, RecoveryStep, SLOTS_MAX, SessionGeneration},
};
use crate::protocol::{
    OpenOwner, RpcCaller, ShareAccess,
    rpc_client::{JUKEBOX_DELAY_MAX, JUKEBOX_DELAY_MIN},
};

/// Longest requests and replies that the client asks for, in bytes: 1 MiB of data, and what is
/// beside them.
const MESSAGE_MAX: u32 = (1 << 20) + 4096;

/// Longest reply that the server should keep, in bytes. Those of operations that change something
/// have a handle and two sets of attributes.
const CACHED_MAX: u32 = 4096;

/// The most operations of a compound that the client sends: SEQUENCE, piggybacked operations,
/// LOOKUPs of a path, and the operations of one request.
const OPERATIONS_MAX: u32 = 64;

/// The operations that reclaim an open and a delegation.
const OPERATIONS_TO_RECLAIM: u32 = 3;

/// The most OPENs of one compound that reclaims.
const RECLAIMS_MAX: usize = 16;

/// Bytes of these operations, and of their results, each.
const RECLAIM_BYTES: usize = 512;

/// Stateids of one TEST_STATEID.
const TESTS_MAX: usize = 128;

/// The most FREE_STATEIDs of one compound: the smallest session has room for these.
const FREES_MAX: u32 = OPERATIONS_MAX - 1;

/// The first pause between two attempts of a step; each is twice the one before, up to
/// [`JUKEBOX_DELAY_MAX`].
pub(super) const RECOVERY_PAUSE: Duration = JUKEBOX_DELAY_MIN;

/// How often the server is asked to end a session or the client's record.
const ENDS_MAX: u32 = 5;

/// The steps of one recovery that a hard mount takes without a pause.
const STEPS_AT_ONCE: u32 = 8;

/// The most steps of one recovery: a server that undoes each does not keep a thread for ever.
const STEPS_MAX: u32 = 32;

/// Whether a server that refuses a step of recovery with this status may get over it, as one that
/// is coming up does. Other refusals are about what the client asks for, which does not change.
const fn may_pass(status: NfsStat4) -> bool {
    matches!(status, NfsStat4::Serverfault | NfsStat4::Nospc | NfsStat4::ClidInuse | NfsStat4::Resource)
}

/// Whether an operation was refused because of those before it, or asks for time.
const fn is_of_compound(status: NfsStat4) -> bool {
    matches!(status, NfsStat4::Delay | NfsStat4::Grace | NfsStat4::RepTooBig)
}

/// PUTFH and OPEN of each of these, and GETATTR behind those with a delegation.
fn push_reclaims(operations: &mut CompoundEncoder<'_>, batch: &[Reclaim<'_>], client: Clientid) {
    for Reclaim { key, access, is_delegated } in batch {
        let kind = if *is_delegated { DelegationType::Read } else { DelegationType::None };
        let open = OpenRequest {
            claim: OpenClaim::Previous(kind),
            ..OpenRequest::by_handle(client, key.owner, *access, 0)
        };
        put_fh(operations, &key.file);
        operations.push(&open.arguments());
        if *is_delegated {
            get_attributes(operations, attributes::OBJECT);
        }
    }
}

impl NfsV4 {
    /// Recovers the connection, the session and the client ID, as far as each is lost.
    ///
    /// # Errors
    /// There is no reply, or the server refuses the client.
    pub(super) fn recover(&self, interrupt: &Interrupt) -> Result<(), CallError> {
        let generation = self.session.lock().generation();
        let result = self.recover_steps(interrupt, self.is_hard, RecoveryStep::None);
        let result = result.map_err(|error| match error {
            RecoveryError::Call(error) => error,
            RecoveryError::Refused(status) => {
                tracing::warn!(%status, "the server refuses this client");
                CallError::SystemError
            }
            RecoveryError::TooSmall => {
                tracing::warn!("the server's sessions are too small now");
                CallError::SystemError
            }
        });
        // In a hard mount each waits for the server as long as its own caller does.
        let failure = result.err().filter(|error| !self.is_hard && *error != CallError::Interrupted);
        self.session.recovered(failure);
        if result.is_ok() && self.session.lock().generation() != generation {
            self.tell_callbacks_lost();
        }
        result
    }

    /// Runs the steps of recovery until none above `enough` is needed, and returns why one failed.
    /// A step whose refusal may pass is repeated if `is_patient`.
    pub(super) fn recover_steps(
        &self,
        interrupt: &Interrupt,
        is_patient: bool,
        enough: RecoveryStep,
    ) -> Result<(), RecoveryError> {
        let caller = RpcCaller { credential: &self.machine, interrupt };
        let (mut steps, mut wait, mut is_known) = (0, RECOVERY_PAUSE, false);
        while steps < STEPS_MAX {
            // The mount's end takes the steps up to this itself.
            if enough == RecoveryStep::None && self.has_ended.load(Relaxed) {
                return Err(RecoveryError::Call(CallError::Interrupted));
            }
            let need = self.session.lock().need();
            let progress = match need {
                _ if need <= enough => return Ok(()),
                RecoveryStep::None => return Ok(()),
                RecoveryStep::Client => self.exchange_id(caller),
                RecoveryStep::Session => self.create_session(caller),
                RecoveryStep::Reclaim => self.reclaim(caller),
                RecoveryStep::TestStates => self.test_states(caller),
            };
            match progress {
                Ok(StepProgress::Done) | Err(StepError::SessionLost) => {
                    steps += 1;
                    if !is_patient || steps <= STEPS_AT_ONCE {
                        continue;
                    }
                }
                Ok(StepProgress::Delayed) => {}
                Err(StepError::Failed(RecoveryError::Refused(status))) if is_patient && may_pass(status) => {
                    if !std::mem::replace(&mut is_known, true) {
                        tracing::warn!(%status, "the server refuses this client: it is asked again");
                    }
                    steps = 0;
                    if need == RecoveryStep::Session {
                        self.session.lock().not_created();
                    }
                }
                Err(StepError::Failed(error)) => return Err(error),
            }
            wait = self.pause_longer(wait, interrupt)?;
        }
        Err(RecoveryError::Refused(NfsStat4::Serverfault))
    }

    /// Waits before a step is repeated.
    pub(super) fn pause(&self, wait: Duration, interrupt: &Interrupt) -> Result<(), CallError> {
        self.rpc.pause(wait, interrupt);
        if interrupt.is_raised() { Err(CallError::Interrupted) } else { Ok(()) }
    }

    /// As [`Self::pause`]. Returns how long the next pause is.
    pub(super) fn pause_longer(&self, wait: Duration, interrupt: &Interrupt) -> Result<Duration, CallError> {
        self.pause(wait, interrupt)?;
        Ok((wait * 2).min(JUKEBOX_DELAY_MAX))
    }

    fn exchange_id(&self, caller: RpcCaller<'_>) -> Result<StepProgress, StepError> {
        let implementation = ImplementationId {
            domain: OpaqueLimited::new(b"curt").unwrap_or_default(),
            name: OpaqueLimited::new(concat!("Curt ", env!("CARGO_PKG_VERSION")).as_bytes())
                .unwrap_or_default(),
            ..ImplementationId::default()
        };
        let verifier = match self.has_ended.load(Relaxed) {
            true => self.identity.next_instance(),
            false => self.identity.verifier,
        };
        let arguments = ExchangeIdArgs4 {
            owner: ClientOwner {
                verifier,
                owner: OpaqueLimited::new(&self.identity.owner).unwrap_or_default(),
            },
            flags: ExchangeIdFlags(0),
            state_protect: StateProtectArgs::None,
            implementation: VarArray::new(vec![implementation]).unwrap_or_default(),
        };
        // The result lends from the reply, so its parts are taken within.
        let answer = self.send_alone::<Exchanged>(caller, Nfs4Operation::ExchangeId, &|operations, _| {
            operations.push(&arguments);
        })?;
        match answer {
            Ok(Exchanged { client, sequence, is_confirmed, server }) => {
                let may_reclaim = self.server.exchanged(server);
                let (is_new, next) = {
                    let mut session = self.session.lock();
                    (session.exchanged(client, sequence, is_confirmed), session.generation().next())
                };
                if is_new {
                    self.forget_state(next);
                }
                if !may_reclaim {
                    self.opens.none_reclaimed();
                    self.delegations.end_reclaiming();
                }
                Ok(StepProgress::Done)
            }
            Err(NfsStat4::Delay) => Ok(StepProgress::Delayed),
            Err(status) => Err(RecoveryError::Refused(status).into()),
        }
    }

    fn create_session(&self, caller: RpcCaller<'_>) -> Result<StepProgress, StepError> {
        let (client, sequence) = {
            let state = self.session.lock();
            (state.client, state.create_sequence)
        };
        let limits = ChannelAttributes {
            request_max: MESSAGE_MAX,
            response_max: MESSAGE_MAX,
            response_cached_max: CACHED_MAX,
            operations_max: OPERATIONS_MAX,
            requests_max: SLOTS_MAX,
            ..ChannelAttributes::default()
        };
        let sys = CallbackSysCredentials {
            stamp: 0,
            machine_name: Opaque::new(b"curt").unwrap_or_default(),
            uid: 0,
            gid: 0,
            groups: VarArray::default(),
        };
        let arguments = CreateSessionArgs4 {
            clientid: client,
            sequence,
            flags: CreateSessionFlags(CreateSessionFlags::CONN_BACK_CHAN),
            fore: limits,
            back: callback::limits(),
            callback_program: callback::PROGRAM,
            callback_security: VarArray::new(vec![CallbackSecParms4::Sys(sys), CallbackSecParms4::None])
                .unwrap_or_default(),
        };
        let creating = self.callbacks.begin_creating();
        let answer =
            self.send_alone::<CreateSessionOk4>(caller, Nfs4Operation::CreateSession, &|operations, _| {
                operations.push(&arguments);
            })?;
        match answer {
            Ok(ok) => {
                if ok.fore.operations_max < OWN_OPERATIONS_MAX
                    || ok.fore.request_max.min(ok.fore.response_max) < MESSAGE_MIN
                {
                    self.session.lock().rejected();
                    drop(creating);
                    self.destroy_session(caller, ok.session)?;
                    return Err(RecoveryError::TooSmall.into());
                }
                self.callbacks.serve(ok.session, self.minor_version);
                drop(creating);
                let replacements = self.rpc.transport().replacements();
                let replaced = {
                    let mut session = self.session.lock();
                    session.bound_replacements = replacements;
                    session.created(&ok, self.rpc.now())
                };
                if let Some(replaced) = replaced {
                    self.destroy_replaced(caller, replaced)?;
                }
                Ok(StepProgress::Done)
            }
            Err(NfsStat4::Delay) => Ok(StepProgress::Delayed),
            Err(NfsStat4::StaleClientid) => {
                self.session.lock().client_unknown();
                Ok(StepProgress::Done)
            }
            Err(NfsStat4::SeqMisordered) => {
                self.session.lock().misordered();
                Ok(StepProgress::Done)
            }
            Err(status) => Err(RecoveryError::Refused(status).into()),
        }
    }

    /// The server knows nothing that was open before the session `next`.
    fn forget_state(&self, next: SessionGeneration) {
        // First: what is abandoned from now on may be of the next session, and is closed in it.
        drop(self.abandoned.take());
        self.opens.forgotten_by_server(next);
        self.delegations.forgotten_by_server(next);
        self.locks.forgotten_by_server();
    }

    /// Ends a session that another has replaced, when the requests that were sent in it have ended:
    /// as long as the server has it, it executes none of them twice. If they take longer than a
    /// server gets to end a session, the session is left to it.
    fn destroy_replaced(&self, caller: RpcCaller<'_>, session: SessionId) -> Result<(), CallError> {
        let mut wait = RECOVERY_PAUSE;
        for _ in 1..ENDS_MAX {
            if !self.session.lock().is_replaced_in_use() {
                break;
            }
            wait = self.pause_longer(wait, caller.interrupt)?;
        }
        if self.session.lock().is_replaced_in_use() {
            tracing::debug!("a session that is replaced is still in use");
            return Ok(());
        }
        self.destroy_session(caller, session)
    }

    /// Ends a session of which the server may know nothing any more.
    fn destroy_session(&self, caller: RpcCaller<'_>, session: SessionId) -> Result<(), CallError> {
        let arguments = DestroySessionArgs4 { session };
        let append = |operations: &mut CompoundEncoder<'_>, _: Stateid| operations.push(&arguments);
        if let Err(status) = self.end_at_server(caller, Nfs4Operation::DestroySession, &append)? {
            tracing::debug!(%status, "the server does not end a session");
        }
        Ok(())
    }

    /// Has the server end a session or the client's record. It asks for time while it executes
    /// requests for it.
    fn end_at_server(
        &self,
        caller: RpcCaller<'_>,
        operation: Nfs4Operation,
        append: Append<'_>,
    ) -> Result<Result<(), NfsStat4>, CallError> {
        let mut wait = RECOVERY_PAUSE;
        for _ in 1..ENDS_MAX {
            let ended = self.send_alone::<()>(caller, operation, append)?;
            if !ended.is_err_and(|status| fault(status) == Fault::Jukebox) {
                return Ok(ended);
            }
            wait = self.pause_longer(wait, caller.interrupt)?;
        }
        self.send_alone(caller, operation, append)
    }

    /// Reclaims the opens and then the locks, and says that this is all.
    fn reclaim(&self, caller: RpcCaller<'_>) -> Result<StepProgress, StepError> {
        let forgotten = {
            let mut session = self.session.lock();
            session.take_forgotten().then(|| session.generation())
        };
        if let Some(generation) = forgotten {
            self.forget_state(generation);
        }
        let interrupt = caller.interrupt;
        self.reclaim_opens(interrupt)?;
        self.reclaim_delegations(interrupt)?;
        self.reclaim_locks(interrupt)?;
        let complete = ReclaimCompleteArgs4 { one_file_system: false };
        let append = |operations: &mut CompoundEncoder<'_>, _: Stateid| {
            operations.push(&complete);
            // A server may have another lease when it is restarted.
            operations.bare(Nfs4Operation::Putrootfh);
            get_attributes(operations, attributes::LEASE);
        };
        let request = CompoundRequest::non_idempotent(caller, Nfs4Operation::ReclaimComplete, 0, &append);
        let reply = self.send_in_recovery(&request)?;
        let mut results = self.decoded(reply.results())?;
        match self.decoded(outcome(results.next::<()>(Nfs4Operation::ReclaimComplete)))? {
            Ok(()) | Err(NfsStat4::CompleteAlready | NfsStat4::Notsupp) => {
                self.delegations.end_reclaiming();
                self.decoded(optional(results.next::<()>(Nfs4Operation::Putrootfh)))?;
                let lease = CompoundResultReader::new(results, reply.generation()).values(attributes::LEASE);
                let lease = self.decoded(lease)?.and_then(|values| values.lease_time);
                let mut session = self.session.lock();
                if let Some(lease) = lease {
                    session.set_lease(lease);
                }
                session.satisfied(RecoveryStep::Reclaim);
                Ok(StepProgress::Done)
            }
            Err(status) => Err(RecoveryError::Refused(status).into()),
        }
    }

    /// Sends a compound that is part of recovery.
    pub(super) fn send_in_recovery(&self, request: &CompoundRequest<'_>) -> Result<CompoundReply, StepError> {
        self.send_for(request, CompoundPurpose::Recovery)?.ok_or(StepError::SessionLost)
    }

    /// Sends an OPEN of a file that was open.
    fn send_open_again(
        &self,
        open: &OpenToRestore,
        access: ShareAccess,
        used: UsedFeatures,
        interrupt: &Interrupt,
    ) -> Result<Result<(), NfsStat4>, CallError> {
        let client = self.session.lock().client;
        let asked = OpenRequest::by_handle(client, open.key.owner, access, used.wish(false));
        let append = |operations: &mut CompoundEncoder<'_>, _: Stateid| {
            put_fh(operations, &open.key.file);
            operations.push(&asked.arguments());
        };
        let caller = RpcCaller { credential: &open.credential, interrupt };
        let reply = self.send(&CompoundRequest::non_idempotent(caller, Nfs4Operation::Open, 1, &append))?;
        let mut results = self.decoded(reply.results())?;
        let found = self.decoded(outcome(results.next::<()>(Nfs4Operation::Putfh)))?;
        let opened = self.decoded(outcome(results.next::<OpenOk4<'_>>(Nfs4Operation::Open)))?;
        Ok(found.and(opened).map(|ok| {
            let owner = OpenOwner { number: open.key.owner, credential: &open.credential };
            let generation = reply.generation();
            let sent = SentOpen { access, wants_delegation: false, generation, is_reopening: true };
            self.opened(&open.key.file, owner, sent, GrantedOpen::from(&ok));
        }))
    }

    /// Opens a file of which only the server may know that it is open. A refusal is that of the
    /// next open.
    pub(super) fn open_again(
        &self,
        file: &FileHandle,
        owner: OpenOwner<'_>,
        access: ShareAccess,
        interrupt: &Interrupt,
    ) -> Result<(), CallError> {
        let key = OpenKey { file: file.clone(), owner: owner.number };
        let credential = Arc::clone(owner.credential);
        let open = OpenToRestore { key, credential, accesses: Vec::new() };
        let _ = self.send_open_again(&open, access, self.server.used(), interrupt)?;
        self.opens.narrow(&open.key);
        self.close_soon();
        Ok(())
    }

    /// The most OPENs of one compound that reclaims.
    fn reclaims_max(&self) -> usize {
        let state = self.session.lock();
        let operations = state.operations_max.saturating_sub(1) / OPERATIONS_TO_RECLAIM;
        let bytes = state.operations_bytes_max().min(state.results_bytes_max()) / RECLAIM_BYTES;
        usize::try_from(operations).unwrap_or(usize::MAX).min(bytes).clamp(1, RECLAIMS_MAX)
    }

    /// Reclaims the opens, with the delegations that came with them.
    fn reclaim_opens(&self, interrupt: &Interrupt) -> Result<(), StepError> {
        let most = self.reclaims_max();
        loop {
            let opens = self.opens.next_to_reclaim(most);
            let Some(OpenToRestore { credential, .. }) = opens.first() else { return Ok(()) };
            let accesses =
                opens.iter().flat_map(|open| open.accesses.iter().map(move |access| (open, *access)));
            let reclaims = accesses.map(|(OpenToRestore { key, .. }, access)| Reclaim {
                key,
                access,
                is_delegated: access == ShareAccess::Read && self.delegations.must_reclaim(key),
            });
            let reclaims: Vec<_> = reclaims.collect();
            let ReclaimedBatch { mut done, refused } = self.reclaim_some(credential, &reclaims, interrupt)?;
            if refused == Some(NfsStat4::NoGrace) {
                tracing::info!("it is too late to reclaim open files: they are opened again");
                self.opens.none_reclaimed();
                self.delegations.end_reclaiming();
                return Ok(());
            }
            for open in &opens {
                let left = done.checked_sub(open.accesses.len());
                if left.is_none() && refused.is_none() {
                    break;
                }
                self.opens.not_reclaimed(&open.key);
                self.delegations.reclaim_ended(&open.key);
                let Some(left) = left else {
                    tracing::info!(?refused, "an open file cannot be reclaimed: it is opened again");
                    break;
                };
                done = left;
            }
        }
    }

    /// Reclaims the delegations of files that nobody has open.
    fn reclaim_delegations(&self, interrupt: &Interrupt) -> Result<(), StepError> {
        let most = self.reclaims_max();
        loop {
            let batch = self.delegations.take_to_reclaim(most);
            let Some(DelegationToReclaim { credential, .. }) = batch.first() else { return Ok(()) };
            let reclaims = batch.iter().map(|waiting| Reclaim {
                key: &waiting.key,
                access: ShareAccess::Read,
                is_delegated: true,
            });
            let reclaims: Vec<_> = reclaims.collect();
            let reclaimed = self.reclaim_some(credential, &reclaims, interrupt);
            let ReclaimedBatch { done, refused } = reclaimed.unwrap_or_default();
            // The first that is refused is lost, with all others if it is too late for them.
            let is_over = matches!(refused, Some(NfsStat4::NoGrace | NfsStat4::ReclaimBad));
            if is_over {
                self.delegations.end_reclaiming();
            } else {
                let gone = done + usize::from(refused.is_some());
                self.delegations
                    .put_back_to_reclaim(batch.into_iter().skip(gone).collect::<Vec<_>>().into_iter());
            }
            reclaimed?;
        }
    }

    /// Sends OPENs of one owner that reclaim in one compound.
    fn reclaim_some(
        &self,
        credential: &Arc<RpcCredential>,
        batch: &[Reclaim<'_>],
        interrupt: &Interrupt,
    ) -> Result<ReclaimedBatch, StepError> {
        let Some(first) = batch.first() else { return Ok(ReclaimedBatch::default()) };
        let owner = OpenOwner { number: first.key.owner, credential };
        let client = self.session.lock().client;
        let append = |operations: &mut CompoundEncoder<'_>, _: Stateid| {
            push_reclaims(operations, batch, client);
        };
        let wants_delegation = batch.iter().any(|reclaim| reclaim.is_delegated);
        let opening = wants_delegation.then(|| self.delegations.begin_opening());
        let request = CompoundRequest {
            required: Some(1),
            results_max: 2 * OPEN_RESULTS_MAX * batch.len(),
            may_piggyback: false,
            opening: opening.as_ref(),
            ..CompoundRequest::idempotent(RpcCaller { credential, interrupt }, Nfs4Operation::Open, &append)
        };
        let reply = self.send_in_recovery(&request)?;
        let mut results = CompoundResultReader::new(self.decoded(reply.results())?, reply.generation());
        let lose_reply = || opening.iter().for_each(|opening| opening.lose_reply(credential));
        for (done, Reclaim { key, access, is_delegated }) in batch.iter().enumerate() {
            let found = outcome(results.operations.next::<()>(Nfs4Operation::Putfh));
            let opened = outcome(results.operations.next::<OpenOk4<'_>>(Nfs4Operation::Open));
            let opened = found.and_then(|found| opened.map(|opened| found.and(opened)));
            let ok = match self.decoded(opened) {
                Ok(Ok(ok)) => ok,
                // These are sent again, first in a compound.
                Ok(Err(status)) if done > 0 && is_of_compound(status) => {
                    return Ok(ReclaimedBatch { done, refused: None });
                }
                Ok(Err(status)) => return Ok(ReclaimedBatch { done, refused: Some(status) }),
                // The first open counts as refused, with all its accesses. Others are sent again.
                Err(_) => {
                    lose_reply();
                    let refused = (*key == first.key).then_some(NfsStat4::Badxdr);
                    return Ok(ReclaimedBatch { done, refused });
                }
            };
            let sent = SentOpen {
                access: *access,
                wants_delegation: *is_delegated,
                generation: results.generation,
                is_reopening: true,
            };
            let held = self.opened(&key.file, owner, sent, GrantedOpen::from(&ok));
            if held.is_none() && !self.opens.has_users(key) {
                self.close_soon();
            }
            if !*is_delegated {
                continue;
            }
            // If its open is sent again, the delegation is not reclaimed twice.
            self.delegations.reclaim_ended(key);
            match self.decoded(results.attributes()) {
                Ok(Some(about)) => held.iter().for_each(|held| {
                    self.delegations.report_confirmed(&key.file, held, &about, reply.call.sent_at);
                }),
                // What follows was not executed, and is sent again.
                Ok(None) => return Ok(ReclaimedBatch { done: done + 1, refused: None }),
                // Malformed (knfsd: see `CompoundResults::status`). So is what follows.
                Err(_) => {
                    lose_reply();
                    return Ok(ReclaimedBatch { done: done + 1, refused: None });
                }
            }
        }
        Ok(ReclaimedBatch { done: batch.len(), refused: None })
    }

    /// Opens a file again whose open the server does not know any more.
    pub(super) fn reopen(&self, key: &OpenKey, interrupt: &Interrupt) -> Result<(), CallError> {
        let Some(open) = self.opens.to_reopen(key) else { return Ok(()) };
        if !self.server.has(ServerFeature::OpenByHandle) {
            self.opens.forget(key);
            return Ok(());
        }
        for access in &open.accesses {
            let used = self.server.used();
            match self.send_open_again(&open, *access, used, interrupt)? {
                Ok(()) => {}
                // The caller asks for it again, in another way.
                Err(status) if self.server.refused_open(fault(status), used) => break,
                Err(status) => {
                    tracing::warn!(%status, "a file cannot be opened again");
                    self.opens.lose(key);
                    break;
                }
            }
        }
        if open.accesses.is_empty() {
            // Data that are written later use the anonymous stateid.
            self.opens.forget(key);
        }
        if !self.opens.has_users(key) {
            self.close_soon();
        }
        Ok(())
    }

    /// The server refuses this stateid of an open with this status: what was locked through it is
    /// lost. Returns whether lock states are to be freed.
    pub(super) fn doubt_open(&self, key: &OpenKey, stateid: Stateid, status: NfsStat4) -> bool {
        self.opens.stateid_refused(key, stateid) && self.lose_locks_of(key, status)
    }

    /// A state that this client is about to drop was refused with this status.
    pub(super) fn free_revoked(&self, stateid: Stateid, status: NfsStat4) {
        if is_revoked(status) {
            self.session.free(FreeOrder::Others, stateid);
        }
    }

    /// Frees the revoked states that are dropped already.
    fn free_dropped_states(&self, caller: RpcCaller<'_>) -> Result<(), StepError> {
        let mut held = HashSet::new();
        loop {
            let states = self.session.lock().to_free();
            let mut has_freed = false;
            self.free_states(caller, &states, |index, status| match status {
                // It is freed after its locks, which are among these or are not known here.
                NfsStat4::LocksHeld if held.insert(states[index].other) => {}
                _ => {
                    self.session.lock().freed(states[index]);
                    has_freed = true;
                }
            })?;
            // Others may be revoked meanwhile.
            let left = self.session.lock().to_free();
            if !has_freed && left.iter().all(|stateid| held.contains(&stateid.other)) {
                left.iter().for_each(|stateid| self.session.lock().freed(*stateid));
                return Ok(());
            }
        }
    }

    /// Frees the revoked states that are dropped already, and tests which others the server has
    /// revoked.
    fn test_states(&self, caller: RpcCaller<'_>) -> Result<StepProgress, StepError> {
        self.free_dropped_states(caller)?;
        if !self.session.lock().must_test() {
            self.session.lock().satisfied(RecoveryStep::TestStates);
            return Ok(StepProgress::Done);
        }
        // Sequence numbers are zero, which stands for the newest state (section 8.2.2): replies
        // that replace stateids are in flight.
        let newest = |stateid: &Stateid| Stateid { seqid: 0, ..*stateid };
        let locks = self.locks.stateids().into_iter().map(|(file, stateid)| (HeldState::Lock(file), stateid));
        let opens = self.opens.held().into_iter().map(|(key, stateid)| (HeldState::Open(key), stateid));
        let delegations = self.delegations.all().into_iter();
        let delegations = delegations.map(|(key, stateid)| (HeldState::Delegation(key), stateid));
        let all: Vec<_> = locks.chain(opens).chain(delegations).collect();
        for held in all.chunks(TESTS_MAX) {
            let stateids = held.iter().map(|(_, stateid)| newest(stateid)).collect();
            let arguments =
                TestStateidArgs4 { stateids: VarArray::new(stateids).unwrap_or_else(|_| empty()) };
            let append = |operations: &mut CompoundEncoder<'_>, _: Stateid| operations.push(&arguments);
            let request = CompoundRequest::idempotent(caller, Nfs4Operation::TestStateid, &append);
            let reply = self.send_in_recovery(&request)?;
            let mut results = self.decoded(reply.results())?;
            let tested = self.decoded(outcome(results.next::<TestStateidOk4>(Nfs4Operation::TestStateid)))?;
            let Ok(tested) = tested else { break };
            // A server may not accept zero: one that knows a newer state has not revoked it.
            let is_revoked = |status: &NfsStat4| !matches!(status, NfsStat4::Ok | NfsStat4::OldStateid);
            let revoked = held.iter().zip(tested.statuses.iter()).filter(|(_, status)| is_revoked(status));
            let revoked: Vec<_> = revoked.collect();
            let stateids: Vec<_> = revoked.iter().map(|((_, stateid), _)| newest(stateid)).collect();
            self.free_states(caller, &stateids, |index, freed| {
                let ((state, stateid), status) = revoked[index];
                match state {
                    HeldState::Open(key) => {
                        let has_locks = self.doubt_open(key, *stateid, *status);
                        if has_locks && freed == NfsStat4::LocksHeld {
                            self.session.free(FreeOrder::Others, *stateid);
                        }
                    }
                    HeldState::Delegation(key) => {
                        self.delegations.lose(&key.file, *stateid);
                        self.opens.undelegated(key, self.rpc.now());
                    }
                    HeldState::Lock(file) => drop(self.lose_lock_state(file, *stateid)),
                }
            })?;
        }
        if self.opens.unused_count() > 0 {
            // A delegation that is lost has kept some.
            self.close_soon();
        }
        self.session.lock().satisfied(RecoveryStep::TestStates);
        Ok(StepProgress::Done)
    }

    /// Acknowledges revoked states to the server, many in one compound. `freed` gets the index and
    /// the status of each.
    fn free_states(
        &self,
        caller: RpcCaller<'_>,
        stateids: &[Stateid],
        mut freed: impl FnMut(usize, NfsStat4),
    ) -> Result<(), StepError> {
        let mut done = 0;
        while done < stateids.len() {
            let most = self.session.lock().operations_max.saturating_sub(1).clamp(1, FREES_MAX);
            let batch = stateids[done..].iter().zip(0..most).map(|(stateid, _)| *stateid);
            let batch: Vec<_> = batch.map(|stateid| FreeStateidArgs4 { stateid }).collect();
            let append = |operations: &mut CompoundEncoder<'_>, _: Stateid| {
                batch.iter().for_each(|arguments| operations.push(arguments));
            };
            let request = CompoundRequest::non_idempotent(caller, Nfs4Operation::FreeStateid, 0, &append);
            let operations = u32::try_from(1 + batch.len()).unwrap_or(u32::MAX);
            let reply = self.send_in_recovery(&CompoundRequest { operations, ..request })?;
            let mut results = self.decoded(reply.results())?;
            for position in 0..batch.len() {
                // A malformed result is not asked for again.
                let result = self.decoded(outcome(results.next::<()>(Nfs4Operation::FreeStateid)));
                let status = result.map_or(NfsStat4::Badxdr, |result| result.err().unwrap_or(NfsStat4::Ok));
                // Those behind it were not executed. If it asks for time it is sent again, first.
                if position > 0 && is_of_compound(status) {
                    break;
                }
                freed(done, status);
                done += 1;
                if status != NfsStat4::Ok {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Binds a connection to the session, for both channels if the server allows that.
    pub(super) fn bind_connection(&self, interrupt: &Interrupt) -> Result<(), CallError> {
        let session = self.session.lock().session;
        let arguments =
            BindConnToSessionArgs4 { session, direction: ChannelDirFromClient::ForeOrBoth, rdma: false };
        let caller = RpcCaller { credential: &self.machine, interrupt };
        let bound = self.send_alone::<BindConnToSessionOk4>(
            caller,
            Nfs4Operation::BindConnToSession,
            &|operations, _| operations.push(&arguments),
        )?;
        match bound {
            Ok(bound) => {
                if bound.direction != ChannelDirFromServer::Fore {
                    self.session.lock().bound();
                }
                // What the server has called meanwhile is lost.
                self.tell_callbacks_lost();
            }
            Err(status) => tracing::debug!(%status, "the connection is not bound to the session"),
        }
        Ok(())
    }

    /// Ends the session and the client's record, with all that it had open, locked or delegated, in
    /// four requests: the server discards that when another instance of the client creates a
    /// session. To close thousands of files one by one takes longer than the end of a mount may.
    pub(super) fn destroy(&self, interrupt: &Interrupt) -> Result<(), CallError> {
        self.session.lock().client_unknown();
        if let Err(error) = self.recover_steps(interrupt, false, RecoveryStep::Reclaim) {
            tracing::debug!(?error, "the server keeps what is open until the lease ends");
        }
        let caller = RpcCaller { credential: &self.machine, interrupt };
        let (session, client) = {
            let state = self.session.lock();
            (state.session, state.client)
        };
        self.destroy_session(caller, session)?;
        let client = DestroyClientidArgs4 { clientid: client };
        let append = |operations: &mut CompoundEncoder<'_>, _: Stateid| operations.push(&client);
        if let Err(status) = self.end_at_server(caller, Nfs4Operation::DestroyClientid, &append)? {
            tracing::debug!(%status, "the server keeps this client's state until its lease ends");
        }
        Ok(())
    }
}

fn empty<T, const MAX: usize>() -> VarArray<T, MAX>
where
    VarArray<T, MAX>: Default,
{
    VarArray::default()
}

/// An OPEN that reclaims.
struct Reclaim<'a> {
    key: &'a OpenKey,
    access: ShareAccess,
    /// Also the delegation that came with it.
    is_delegated: bool,
}

/// The result of a compound that reclaims.
#[derive(Clone, Copy, Default)]
struct ReclaimedBatch {
    /// How many OPENs were executed.
    done: usize,
    /// Why the next one was refused: those behind it were not executed.
    refused: Option<NfsStat4>,
}

/// The state that a stateid stands for.
#[derive(Debug)]
enum HeldState {
    Open(OpenKey),
    Delegation(OpenKey),
    Lock(FileHandle),
}

/// The result of a step of recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StepProgress {
    /// The step is done, or another one is necessary first.
    Done,
    /// The server asks for time (NFS4ERR_DELAY), as long as it likes.
    Delayed,
}

/// Why recovery has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecoveryError {
    /// There is no reply.
    Call(CallError),
    /// The server refuses the client.
    Refused(NfsStat4),
    /// Its sessions are too small.
    TooSmall,
}

impl From<CallError> for RecoveryError {
    fn from(error: CallError) -> Self {
        Self::Call(error)
    }
}

/// Why a step of recovery has ended before its end.
#[derive(Clone, Copy, Debug)]
pub(super) enum StepError {
    /// The session was lost meanwhile: another step is necessary first.
    SessionLost,
    Failed(RecoveryError),
}

impl<E: Into<RecoveryError>> From<E> for StepError {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// The part of the result of EXCHANGE_ID that the client needs.
struct Exchanged {
    client: Clientid,
    sequence: SequenceId,
    /// The server has a confirmed record of this client.
    is_confirmed: bool,
    server: ServerIdentity,
}

impl<'a> curt_xdr::Decode<'a> for Exchanged {
    fn decode(decoder: &mut curt_xdr::Decoder<'a>) -> Result<Self, curt_xdr::DecodeError> {
        let ok: ExchangeIdOk4<'a> = decoder.get()?;
        Ok(Self {
            client: ok.clientid,
            sequence: ok.sequence,
            is_confirmed: ok.flags.0 & ExchangeIdFlags::CONFIRMED_R != 0,
            server: ServerIdentity::from(&ok),
        })
    }
}
