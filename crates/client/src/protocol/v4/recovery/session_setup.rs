//! EXCHANGE_ID, CREATE_SESSION and BIND_CONN_TO_SESSION (RFC 8881 sections 18.35, 18.36 and 18.34).

use std::sync::atomic::Ordering::Relaxed;

use curt_proto::nfs4::{
    BindConnToSessionArgs4, BindConnToSessionOk4, CallbackSecParms4, CallbackSysCredentials,
    ChannelAttributes, ChannelDirFromClient, ChannelDirFromServer, ClientOwner, Clientid, CreateSessionArgs4,
    CreateSessionFlags, CreateSessionOk4, ExchangeIdArgs4, ExchangeIdFlags, ExchangeIdOk4, ImplementationId,
    Nfs4Operation, NfsStat4, OpaqueLimited, SequenceId, StateProtectArgs,
};
use curt_rpc::client::{CallError, Interrupt, Wake as _};
use curt_xdr::{Opaque, VarArray};

use super::{RecoveryError, StepError, StepProgress};
use crate::protocol::{
    RpcCaller,
    v4::{
        NfsV4, callback, compound::request::OWN_OPERATIONS_MAX, server_traits::ServerIdentity,
        session::SLOTS_MAX,
    },
};

/// Longest requests and replies that the client asks for, in bytes: 1 MiB of data, and what is
/// beside them.
const MESSAGE_MAX: u32 = (1 << 20) + 4096;

/// The smallest requests and replies that a session must allow, in bytes.
const MESSAGE_MIN: u32 = 4096;

/// Longest reply that the server should keep, in bytes. Those of operations that change something
/// have a handle and two sets of attributes.
const CACHED_MAX: u32 = 4096;

/// The most operations of a compound that the client sends: SEQUENCE, piggybacked operations,
/// LOOKUPs of a path, and the operations of one request.
pub(super) const OPERATIONS_MAX: u32 = 64;

impl NfsV4 {
    pub(super) fn exchange_id(&self, caller: RpcCaller<'_>) -> Result<StepProgress, StepError> {
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
                    self.delegations.to_reclaim().clear();
                }
                Ok(StepProgress::Done)
            }
            Err(NfsStat4::Delay) => Ok(StepProgress::Delayed),
            Err(status) => Err(RecoveryError::Refused(status).into()),
        }
    }

    pub(super) fn create_session(&self, caller: RpcCaller<'_>) -> Result<StepProgress, StepError> {
        let (client, sequence) = {
            let state = self.session.lock();
            (state.client, state.create_sequence.next())
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
                    session.backchannel.bound_replacements = replacements;
                    session.created(&ok, self.rpc.now())
                };
                if let Some(replaced) = replaced {
                    // Requests need not wait for its end.
                    self.session.wake();
                    if let Err(error) = self.destroy_replaced(caller, replaced) {
                        tracing::debug!(%error, "a session that is replaced is left to the server");
                    }
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

    /// Binds a connection to the session, for both channels if the server allows that.
    pub(in crate::protocol::v4) fn bind_connection(&self, interrupt: &Interrupt) -> Result<(), CallError> {
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
                    self.session.lock().backchannel.bound();
                }
                // What the server has called meanwhile is lost.
                self.tell_callbacks_lost();
            }
            Err(status) => tracing::debug!(%status, "the connection is not bound to the session"),
        }
        Ok(())
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
