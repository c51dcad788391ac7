//! Credentials that a client sends, and the flavor that each implies.

use std::{hash, sync::Arc};

use curt_xdr::{Encode, put_opaque};

use super::{
    auth::{AuthSysGids, FLAVOR_SYS, MACHINE_NAME_MAX},
    flavor::{AuthFlavor, AuthNone, FlavorInitiator},
};

/// A host name for AUTH_SYS; cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MachineName(Arc<[u8]>);

impl MachineName {
    /// Uses the first [`MACHINE_NAME_MAX`] bytes of `name`.
    #[must_use]
    pub fn new(name: &[u8]) -> Self {
        Self(name[..name.len().min(MACHINE_NAME_MAX)].into())
    }
}

/// The identity that a client sends with a call. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RpcCredential {
    /// AUTH_NONE.
    None,
    /// AUTH_SYS.
    Sys(AuthSysCredential),
    /// The credential of a security context.
    Context(ContextCredential),
}

/// The parts of an AUTH_SYS credential that a client sends.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AuthSysCredential {
    /// The client's host name.
    pub machine_name: MachineName,
    /// The caller's user id.
    pub uid: u32,
    /// The caller's group id.
    pub gid: u32,
    /// The caller's supplementary groups, as many as fit.
    pub groups: AuthSysGids,
}

impl Encode for AuthSysCredential {
    /// Appends the encoded credential.
    fn encode(&self, out: &mut Vec<u8>) {
        FLAVOR_SYS.encode(out);
        let length_at = out.len();
        0u32.encode(out);
        self.encode_body(out);
        let length = out.len() - length_at - 4;
        let length = u32::try_from(length).expect("a body is at most 400 bytes");
        out[length_at..length_at + 4].copy_from_slice(&length.to_be_bytes());
    }
}

impl AuthSysCredential {
    fn encode_body(&self, out: &mut Vec<u8>) {
        // The stamp is arbitrary (RFC 5531 appendix A).
        0u32.encode(out);
        put_opaque(out, &self.machine_name.0);
        self.uid.encode(out);
        self.gid.encode(out);
        u32::try_from(self.groups.len()).unwrap_or_default().encode(out);
        for gid in self.groups.iter() {
            gid.encode(out);
        }
    }
}

/// A credential of a security context. Two are equal if they have the same context.
#[derive(Clone, Debug)]
pub struct ContextCredential(pub Arc<dyn FlavorInitiator>);

impl PartialEq for ContextCredential {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for ContextCredential {}

impl hash::Hash for ContextCredential {
    fn hash<H: hash::Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}

impl AuthFlavor for AuthSysCredential {
    fn encode_credential(&self, out: &mut Vec<u8>) {
        self.encode(out);
    }
}

/// The flavor of a client's call.
pub(crate) enum CallFlavor<'a> {
    /// A credential without protection.
    Identity(&'a dyn AuthFlavor),
    /// A security context.
    Context(Arc<dyn AuthFlavor>),
}

impl<'a> CallFlavor<'a> {
    pub(crate) fn of(credential: &'a RpcCredential) -> Self {
        match credential {
            RpcCredential::None => Self::Identity(&AuthNone),
            RpcCredential::Sys(sys) => Self::Identity(sys),
            RpcCredential::Context(context) => Self::Context(context.0.begin_call()),
        }
    }

    pub(crate) fn get(&self) -> &dyn AuthFlavor {
        match self {
            Self::Identity(flavor) => *flavor,
            Self::Context(flavor) => &**flavor,
        }
    }

    /// Verifies the reply, if it has to be verified.
    pub(crate) const fn context(&self) -> Option<&Arc<dyn AuthFlavor>> {
        match self {
            Self::Identity(_) => None,
            Self::Context(flavor) => Some(flavor),
        }
    }
}
