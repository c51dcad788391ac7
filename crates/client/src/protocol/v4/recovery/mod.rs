//! What is done before requests can be sent: the client presents itself, creates a session
//! (`session_setup`), and reclaims what it had open and locked (`reclaim`, `reclaim_locks`); then
//! the states that the server has revoked are found and freed (`revoked_states`). RFC 8881 sections
//! 8.4, 10.2.1 and 18.51.
//!
//! A session that was replaced is ended (`session_end`), and the last one at the end of the mount.
//!
//! One thread does it, with the interrupt of its own request; the others wait. If it is
//! interrupted, the next one continues. Opens of before a restart of the server are reclaimed
//! before any other request. What cannot be reclaimed is opened again when it is used (`reopen`);
//! if that fails too, its users alone get EIO.

mod reclaim;
mod reclaim_locks;
mod reopen;
mod revoked_states;
mod session_end;
mod session_setup;

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use curt_proto::nfs4::NfsStat4;
use curt_rpc::client::{CallError, Interrupt};

use super::{
    NfsV4,
    compound::{reply::CompoundReply, request::CompoundRequest},
    session::{CompoundPurpose, RecoveryStep},
};
use crate::protocol::{
    RpcCaller,
    rpc_client::{JUKEBOX_DELAY_MAX, JUKEBOX_DELAY_MIN},
};

/// The first pause between two attempts of a step; each is twice the one before, up to
/// [`JUKEBOX_DELAY_MAX`].
const RECOVERY_PAUSE: Duration = JUKEBOX_DELAY_MIN;

/// The steps of one recovery that a hard mount takes without a pause.
const STEPS_AT_ONCE: u32 = 8;

/// The most steps of one recovery: a server that undoes each does not keep a thread for ever.
const STEPS_MAX: u32 = 32;

/// Whether a server that refuses a step of recovery with this status may get over it, as one that
/// is coming up does. Other refusals are about what the client asks for, which does not change.
const fn may_pass(status: NfsStat4) -> bool {
    matches!(status, NfsStat4::Serverfault | NfsStat4::Nospc | NfsStat4::ClidInuse | NfsStat4::Resource)
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
            if need == RecoveryStep::Session
                && matches!(progress, Err(StepError::Failed(RecoveryError::Refused(_))))
            {
                self.session.lock().not_created();
            }
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
                }
                Err(StepError::Failed(error)) => return Err(error),
            }
            wait = self.pause_longer(wait, interrupt)?;
        }
        Err(RecoveryError::Refused(NfsStat4::Serverfault))
    }

    /// Waits before a step is repeated.
    fn pause(&self, wait: Duration, interrupt: &Interrupt) -> Result<(), CallError> {
        self.rpc.pause(wait, interrupt);
        if interrupt.is_raised() { Err(CallError::Interrupted) } else { Ok(()) }
    }

    /// As [`Self::pause`]. Returns how long the next pause is.
    pub(super) fn pause_longer(&self, wait: Duration, interrupt: &Interrupt) -> Result<Duration, CallError> {
        self.pause(wait, interrupt)?;
        Ok((wait * 2).min(JUKEBOX_DELAY_MAX))
    }

    /// Sends a compound that is part of recovery.
    fn send_in_recovery(&self, request: &CompoundRequest<'_>) -> Result<CompoundReply, StepError> {
        self.send_for(request, CompoundPurpose::Recovery)?.ok_or(StepError::SessionLost)
    }
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
enum StepError {
    /// The session was lost meanwhile: another step is necessary first.
    SessionLost,
    Failed(RecoveryError),
}

impl<E: Into<RecoveryError>> From<E> for StepError {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}
