//! The arguments and the results of OPEN.

use curt_policy::delegation::DelegationReply;
use curt_proto::nfs4::{
    Clientid, NoDelegation, OpaqueLimited, OpenArgs4, OpenClaim, OpenDelegation, OpenHow, OpenOk4,
    OpenResultFlags, ShareAccess4, StateOwner, Stateid,
};

use crate::protocol::ShareAccess;

/// Longest results of an OPEN, in bytes; a delegation has the name of a user.
pub(super) const OPEN_RESULTS_MAX: usize = 4096;

/// An OPEN that denies others nothing.
pub(super) struct OpenRequest<'a> {
    pub(super) client: Clientid,
    /// The name of the owner.
    pub(super) owner: [u8; 8],
    pub(super) access: ShareAccess,
    pub(super) how: OpenHow<'a>,
    pub(super) claim: OpenClaim<'a>,
    /// The wish about a delegation, a bit of [`ShareAccess4::WANT_MASK`].
    pub(super) wish: u32,
}

impl OpenRequest<'_> {
    /// OPEN of a file that exists, by its handle.
    pub(super) fn by_handle(client: Clientid, owner: u32, access: ShareAccess, wish: u32) -> Self {
        let [a, b, c, d] = owner.to_be_bytes();
        let owner = [b'o', b'p', b'e', b'n', a, b, c, d];
        Self { client, owner, access, how: OpenHow::NoCreate, claim: OpenClaim::Fh, wish }
    }

    pub(super) fn arguments(&self) -> OpenArgs4<'_> {
        let owner = OpaqueLimited::new(&self.owner).unwrap_or_default();
        OpenArgs4 {
            seqid: 0,
            share_access: ShareAccess4(wire(self.access) | self.wish),
            share_deny: 0,
            owner: StateOwner { clientid: self.client, owner },
            how: self.how,
            claim: self.claim,
        }
    }
}

/// The share access on the wire.
pub(super) const fn wire(access: ShareAccess) -> u32 {
    match access {
        ShareAccess::Read => ShareAccess4::READ,
        ShareAccess::Write => ShareAccess4::WRITE,
        ShareAccess::Both => ShareAccess4::BOTH,
    }
}

/// The result of an OPEN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GrantedOpen {
    pub(super) stateid: Stateid,
    pub(super) is_preserved: bool,
    pub(super) may_notify: bool,
    pub(super) delegation: Option<OfferedDelegation>,
    /// The server's answer about delegations.
    pub(super) granting: DelegationReply,
}

/// A delegation in the result of an OPEN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OfferedDelegation {
    pub(super) stateid: Stateid,
    pub(super) is_read: bool,
    pub(super) is_recalled: bool,
}

impl From<&OpenOk4<'_>> for GrantedOpen {
    fn from(ok: &OpenOk4<'_>) -> Self {
        let offered = |stateid, is_read, is_recalled| {
            (Some(OfferedDelegation { stateid, is_read, is_recalled }), DelegationReply::Granted)
        };
        let (delegation, granting) = match ok.delegation {
            OpenDelegation::Read { stateid, recall, .. } => offered(stateid, true, recall),
            OpenDelegation::Write { stateid, recall, .. } => offered(stateid, false, recall),
            OpenDelegation::NoneExt(NoDelegation::Contention(_)) => (None, DelegationReply::Contended),
            OpenDelegation::None | OpenDelegation::NoneExt(_) => (None, DelegationReply::Refused),
        };
        let is_preserved = ok.flags.0 & OpenResultFlags::PRESERVE_UNLINKED != 0;
        let may_notify = ok.flags.0 & OpenResultFlags::MAY_NOTIFY_LOCK != 0;
        Self { stateid: ok.stateid, is_preserved, may_notify, delegation, granting }
    }
}
