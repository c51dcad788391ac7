//! Clients, sessions and their connections: EXCHANGE_ID, CREATE_SESSION, SEQUENCE,
//! BIND_CONN_TO_SESSION, BACKCHANNEL_CTL, RECLAIM_COMPLETE, and what ends them (RFC 8881 sections
//! 18.33 to 18.37, 18.46, 18.50, 18.51).

use curt_xdr::{Opaque, VarArray, Xdr};

use crate::nfs4::{
    Bitmap4, Clientid, NfsTime4, OPAQUE_MAX, OpaqueLimited, SequenceId, SessionId, SlotId, Verifier4,
};

/// Maximum number of object identifiers or handles in SP4_SSV's parameters when decoding.
const SSV_ITEMS_MAX: usize = 16;
/// Maximum number of flavours that a client offers for callbacks.
pub const CALLBACK_FLAVORS_MAX: usize = 16;
/// Maximum length of a machine name of AUTH_SYS.
const MACHINE_NAME_MAX: usize = 255;
/// Maximum number of supplementary groups of AUTH_SYS.
const GROUPS_MAX: usize = 16;

/// A client's instance and its lasting name (`client_owner4`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct ClientOwner<'a> {
    /// Differs for each instance of the client.
    pub verifier: Verifier4,
    /// The client owner, equal for all its instances.
    pub owner: OpaqueLimited<'a>,
}

/// Flags of EXCHANGE_ID and its result (`EXCHGID4_FLAG_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Xdr)]
pub struct ExchangeIdFlags(pub u32);

impl ExchangeIdFlags {
    /// The client follows referrals.
    pub const SUPP_MOVED_REFER: u32 = 0x1;
    /// The client follows migrations.
    pub const SUPP_MOVED_MIGR: u32 = 0x2;
    /// Stateids of clients are bound to principals.
    pub const BIND_PRINC_STATEID: u32 = 0x100;
    /// Not a server of pNFS.
    pub const USE_NON_PNFS: u32 = 0x1_0000;
    /// A metadata server of pNFS.
    pub const USE_PNFS_MDS: u32 = 0x2_0000;
    /// A data server of pNFS.
    pub const USE_PNFS_DS: u32 = 0x4_0000;
    /// The roles.
    pub const MASK_PNFS: u32 = 0x7_0000;
    /// The client's record exists, and is to be updated.
    pub const UPD_CONFIRMED_REC_A: u32 = 0x4000_0000;
    /// In the result: the client's record is confirmed.
    pub const CONFIRMED_R: u32 = 0x8000_0000;
    /// The flags that an argument may have.
    pub const MASK_A: u32 = 0x4007_0103;
}

/// The operations that must or may use the machine credential (`state_protect_ops4`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Xdr)]
pub struct StateProtectOps {
    /// Must.
    pub must_enforce: Bitmap4,
    /// May.
    pub must_allow: Bitmap4,
}

/// Parameters of SP4_SSV (`ssv_sp_parms4`).
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct SsvParameters<'a> {
    /// The operations.
    pub operations: StateProtectOps,
    /// Hash algorithms that the client offers.
    pub hash_algorithms: VarArray<OpaqueLimited<'a>, SSV_ITEMS_MAX>,
    /// Encryption algorithms that the client offers.
    pub encryption_algorithms: VarArray<OpaqueLimited<'a>, SSV_ITEMS_MAX>,
    /// The number of versions of the SSV kept.
    pub window: u32,
    /// The number of GSS handles wanted.
    pub gss_handles: u32,
}

/// How the client's state is protected (`state_protect4_a`).
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
#[xdr(union)]
pub enum StateProtectArgs<'a> {
    /// Not.
    #[xdr(case = 0)]
    None,
    /// By the machine credential.
    #[xdr(case = 1)]
    MachineCredential(StateProtectOps),
    /// By a secret state verifier.
    #[xdr(case = 2)]
    Ssv(SsvParameters<'a>),
}

/// The parameters of SP4_SSV that the server grants (`ssv_prot_info4`).
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct SsvInfo<'a> {
    /// The operations.
    pub operations: StateProtectOps,
    /// The index of the hash algorithm.
    pub hash_algorithm: u32,
    /// The index of the encryption algorithm.
    pub encryption_algorithm: u32,
    /// The length of the SSV.
    pub ssv_length: u32,
    /// The number of versions of the SSV kept.
    pub window: u32,
    /// GSS handles.
    pub handles: VarArray<OpaqueLimited<'a>, SSV_ITEMS_MAX>,
}

/// How the client's state is protected, as granted (`state_protect4_r`).
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
#[xdr(union)]
pub enum StateProtectOk<'a> {
    /// Not.
    #[xdr(case = 0)]
    None,
    /// By the machine credential.
    #[xdr(case = 1)]
    MachineCredential(StateProtectOps),
    /// By a secret state verifier.
    #[xdr(case = 2)]
    Ssv(SsvInfo<'a>),
}

/// A peer's implementation (`nfs_impl_id4`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Xdr)]
pub struct ImplementationId<'a> {
    /// The domain of its author.
    pub domain: OpaqueLimited<'a>,
    /// Its name and version.
    pub name: OpaqueLimited<'a>,
    /// When it was built.
    pub date: NfsTime4,
}

/// EXCHANGE_ID's arguments.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct ExchangeIdArgs4<'a> {
    /// The client.
    pub owner: ClientOwner<'a>,
    /// Flags.
    pub flags: ExchangeIdFlags,
    /// How its state is protected.
    pub state_protect: StateProtectArgs<'a>,
    /// The client's implementation.
    pub implementation: VarArray<ImplementationId<'a>, 1>,
}

/// The server, for trunking (`server_owner4`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct ServerOwner<'a> {
    /// Sessions can be shared if this too is the same.
    pub minor_id: u64,
    /// Client identifiers can be shared if this is the same.
    pub major_id: OpaqueLimited<'a>,
}

/// EXCHANGE_ID's result.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct ExchangeIdOk4<'a> {
    /// The client's identifier.
    pub clientid: Clientid,
    /// The sequence number of the next CREATE_SESSION.
    pub sequence: SequenceId,
    /// Flags.
    pub flags: ExchangeIdFlags,
    /// How its state is protected.
    pub state_protect: StateProtectOk<'a>,
    /// The server.
    pub server_owner: ServerOwner<'a>,
    /// Handles are the same on servers with the same scope.
    pub server_scope: Opaque<'a, OPAQUE_MAX>,
    /// The server's implementation.
    pub implementation: VarArray<ImplementationId<'a>, 1>,
}

/// The limits of a channel (`channel_attrs4`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Xdr)]
pub struct ChannelAttributes {
    /// Padding of headers, for RDMA.
    pub header_padding: u32,
    /// Maximum size of a request in bytes.
    pub request_max: u32,
    /// Maximum size of a reply in bytes.
    pub response_max: u32,
    /// Maximum size of a reply that is kept for replay, in bytes.
    pub response_cached_max: u32,
    /// Maximum number of operations of a compound.
    pub operations_max: u32,
    /// Number of slots.
    pub requests_max: u32,
    /// Inbound read depth, for RDMA.
    pub rdma_ird: VarArray<u32, 1>,
}

/// Credentials of AUTH_SYS (`authsys_parms`).
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct CallbackSysCredentials<'a> {
    /// Arbitrary.
    pub stamp: u32,
    /// The machine's name.
    pub machine_name: Opaque<'a, MACHINE_NAME_MAX>,
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: VarArray<u32, GROUPS_MAX>,
}

/// GSS handles for callbacks (`gss_cb_handles4`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct CallbackGssHandles<'a> {
    /// The service.
    pub service: u32,
    /// The server's handle.
    pub from_server: OpaqueLimited<'a>,
    /// The client's handle.
    pub from_client: OpaqueLimited<'a>,
}

/// Credentials that the client accepts for callbacks (`callback_sec_parms4`).
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
#[xdr(union)]
pub enum CallbackSecParms4<'a> {
    /// AUTH_NONE.
    #[xdr(case = 0)]
    None,
    /// AUTH_SYS.
    #[xdr(case = 1)]
    Sys(CallbackSysCredentials<'a>),
    /// RPCSEC_GSS.
    #[xdr(case = 6)]
    Gss(CallbackGssHandles<'a>),
}

/// CREATE_SESSION's arguments.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct CreateSessionArgs4<'a> {
    /// The client.
    pub clientid: Clientid,
    /// Counts CREATE_SESSIONs of the client.
    pub sequence: SequenceId,
    /// Flags.
    pub flags: CreateSessionFlags,
    /// Wanted limits of the fore channel.
    pub fore: ChannelAttributes,
    /// Wanted limits of the backchannel.
    pub back: ChannelAttributes,
    /// The RPC program of callbacks.
    pub callback_program: u32,
    /// Credentials of callbacks.
    pub callback_security: VarArray<CallbackSecParms4<'a>, CALLBACK_FLAVORS_MAX>,
}

/// Flags of CREATE_SESSION and its result (`CREATE_SESSION4_FLAG_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Xdr)]
pub struct CreateSessionFlags(pub u32);

impl CreateSessionFlags {
    /// The reply cache is on stable storage.
    pub const PERSIST: u32 = 1;
    /// The connection becomes the backchannel's too.
    pub const CONN_BACK_CHAN: u32 = 2;
    /// The connection uses RDMA.
    pub const CONN_RDMA: u32 = 4;
    /// All flags.
    pub const MASK: u32 = 7;
}

/// CREATE_SESSION's result.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct CreateSessionOk4 {
    /// The session.
    pub session: SessionId,
    /// The sequence number of the arguments.
    pub sequence: SequenceId,
    /// Flags, as granted.
    pub flags: CreateSessionFlags,
    /// Limits of the fore channel.
    pub fore: ChannelAttributes,
    /// Limits of the backchannel.
    pub back: ChannelAttributes,
}

/// SEQUENCE's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct SequenceArgs4 {
    /// The session.
    pub session: SessionId,
    /// The slot's sequence number.
    pub sequence: SequenceId,
    /// The slot.
    pub slot: SlotId,
    /// The highest slot in use by the client.
    pub highest_slot: SlotId,
    /// Whether the reply is to be kept.
    pub cache_this: bool,
}

/// SEQUENCE's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct SequenceOk4 {
    /// The session.
    pub session: SessionId,
    /// The slot's sequence number.
    pub sequence: SequenceId,
    /// The slot.
    pub slot: SlotId,
    /// The highest slot that the server accepts.
    pub highest_slot: SlotId,
    /// The highest slot that the client should use.
    pub target_highest_slot: SlotId,
    /// Conditions that the client should know.
    pub status_flags: SequenceStatusFlags,
}

/// Conditions that the client should know (`SEQ4_STATUS_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Xdr)]
pub struct SequenceStatusFlags(pub u32);

impl SequenceStatusFlags {
    /// The client has no working callback path.
    pub const CB_PATH_DOWN: u32 = 0x1;
    /// The GSS contexts of callbacks expire soon.
    pub const CB_GSS_CONTEXTS_EXPIRING: u32 = 0x2;
    /// The GSS contexts of callbacks have expired.
    pub const CB_GSS_CONTEXTS_EXPIRED: u32 = 0x4;
    /// All state was lost with the lease.
    pub const EXPIRED_ALL_STATE_REVOKED: u32 = 0x8;
    /// Some state was lost with the lease.
    pub const EXPIRED_SOME_STATE_REVOKED: u32 = 0x10;
    /// The administrator revoked state.
    pub const ADMIN_STATE_REVOKED: u32 = 0x20;
    /// Delegations or layouts were revoked.
    pub const RECALLABLE_STATE_REVOKED: u32 = 0x40;
    /// The lease is at another server.
    pub const LEASE_MOVED: u32 = 0x80;
    /// The server was restarted: state must be reclaimed.
    pub const RESTART_RECLAIM_NEEDED: u32 = 0x100;
    /// This session has no working callback path.
    pub const CB_PATH_DOWN_SESSION: u32 = 0x200;
    /// The backchannel has a fault.
    pub const BACKCHANNEL_FAULT: u32 = 0x400;
    /// A device identifier has changed.
    pub const DEVID_CHANGED: u32 = 0x800;
    /// A device identifier was deleted.
    pub const DEVID_DELETED: u32 = 0x1000;
}

/// The channels of a connection that a client asks for (`channel_dir_from_client4`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
#[repr(u32)]
pub enum ChannelDirFromClient {
    /// The fore channel.
    Fore = 1,
    /// The backchannel.
    Back = 2,
    /// The fore channel or both.
    ForeOrBoth = 3,
    /// The backchannel or both.
    BackOrBoth = 7,
}

/// The channels of a connection (`channel_dir_from_server4`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
#[repr(u32)]
pub enum ChannelDirFromServer {
    /// The fore channel.
    Fore = 1,
    /// The backchannel.
    Back = 2,
    /// Both.
    Both = 3,
}

/// BIND_CONN_TO_SESSION's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct BindConnToSessionArgs4 {
    /// The session.
    pub session: SessionId,
    /// The channels.
    pub direction: ChannelDirFromClient,
    /// Whether to use RDMA.
    pub rdma: bool,
}

/// BIND_CONN_TO_SESSION's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct BindConnToSessionOk4 {
    /// The session.
    pub session: SessionId,
    /// The channels.
    pub direction: ChannelDirFromServer,
    /// Whether RDMA is used.
    pub rdma: bool,
}

/// BACKCHANNEL_CTL's arguments.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct BackchannelCtlArgs4<'a> {
    /// The RPC program of callbacks.
    pub callback_program: u32,
    /// Credentials of callbacks.
    pub callback_security: VarArray<CallbackSecParms4<'a>, CALLBACK_FLAVORS_MAX>,
}

/// DESTROY_SESSION's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct DestroySessionArgs4 {
    /// The session.
    pub session: SessionId,
}

/// SET_SSV's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct SetSsvArgs4<'a> {
    /// The change of the secret.
    pub ssv: OpaqueLimited<'a>,
    /// The proof that the client knows the secret so far.
    pub digest: OpaqueLimited<'a>,
}

/// DESTROY_CLIENTID's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct DestroyClientidArgs4 {
    /// The client.
    pub clientid: Clientid,
}

/// RECLAIM_COMPLETE's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct ReclaimCompleteArgs4 {
    /// Whether the current filehandle's file system alone is meant.
    pub one_file_system: bool,
}
