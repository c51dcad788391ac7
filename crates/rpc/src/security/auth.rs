//! Credentials: the identity that a caller claims (RFC 5531 section 8.2, appendix A).
//!
//! [`OpaqueAuth`] is a credential borrowed from a message;
//! [`RpcCredential`](super::credential::RpcCredential) is one that a client sends. The service
//! decides whether to accept a credential, not this module.

use std::{fmt, ops::Deref};

use curt_xdr::{DecodeError, Decoder, Encode, Xdr};

/// The largest body of a credential or verifier, in bytes (RFC 5531 section 8.2).
pub const AUTH_BODY_MAX: usize = 400;

/// The longest machine name of AUTH_SYS, in bytes (RFC 5531 appendix A).
pub const MACHINE_NAME_MAX: usize = 255;

/// The most supplementary groups AUTH_SYS carries (RFC 5531 appendix A).
pub const GROUPS_MAX: usize = 16;

pub(crate) const FLAVOR_NONE: u32 = 0;
pub(super) const FLAVOR_SYS: u32 = 1;

/// Why authentication failed (RFC 5531 section 9, `auth_stat`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Xdr)]
pub enum AuthStatus {
    /// Success; not a valid reason of a denial.
    Ok = 0,
    /// The credential is malformed (bad seal or encoding).
    BadCredential = 1,
    /// The client must begin a new session.
    RejectedCredential = 2,
    /// The verifier is malformed.
    BadVerifier = 3,
    /// The verifier has expired or was replayed.
    RejectedVerifier = 4,
    /// Rejected for security reasons: another flavor is required.
    TooWeak = 5,
    /// The server's verifier is invalid.
    InvalidResponse = 6,
    /// Any other reason.
    Failed = 7,
    /// Kerberos, general error.
    KerberosGeneric = 8,
    /// Kerberos, the time of the credential has expired.
    KerberosTimeExpired = 9,
    /// Kerberos, a problem with the ticket file.
    KerberosTicketFile = 10,
    /// Kerberos, the authenticator could not be decoded.
    KerberosDecode = 11,
    /// Kerberos, the network address in the ticket is wrong.
    KerberosNetworkAddress = 12,
    /// RPCSEC_GSS: no credentials for the user (RFC 2203).
    GssCredentialProblem = 13,
    /// RPCSEC_GSS: a problem with the context (RFC 2203).
    GssContextProblem = 14,
}

/// At most [`GROUPS_MAX`] supplementary group ids, stored inline.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct AuthSysGids {
    ids: [u32; GROUPS_MAX],
    count: u8,
}

impl AuthSysGids {
    /// Uses the first [`GROUPS_MAX`] of `ids`: AUTH_SYS has no room for more.
    #[must_use]
    pub fn first_of(ids: &[u32]) -> Self {
        let mut groups = Self::default();
        for (place, id) in groups.ids.iter_mut().zip(ids) {
            *place = *id;
            groups.count += 1;
        }
        groups
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let mut groups = Self::default();
        let count = decoder.length(GROUPS_MAX)?;
        for place in &mut groups.ids[..count] {
            *place = decoder.u32()?;
            groups.count += 1;
        }
        Ok(groups)
    }
}

impl Deref for AuthSysGids {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        &self.ids[..usize::from(self.count)]
    }
}

impl fmt::Debug for AuthSysGids {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// The body of an AUTH_SYS credential (RFC 5531 appendix A), borrowed from its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthSys<'a> {
    /// Chosen by the client; not used.
    pub stamp: u32,
    /// The caller's host name, unverified; at most [`MACHINE_NAME_MAX`] bytes of any value.
    pub machine_name: &'a [u8],
    /// The caller's effective user id.
    pub uid: u32,
    /// The caller's effective group id.
    pub gid: u32,
    /// The caller's supplementary groups.
    pub groups: AuthSysGids,
}

impl<'a> AuthSys<'a> {
    fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(body);
        let value = Self {
            stamp: decoder.u32()?,
            machine_name: decoder.opaque(MACHINE_NAME_MAX)?,
            uid: decoder.u32()?,
            gid: decoder.u32()?,
            groups: AuthSysGids::decode(&mut decoder)?,
        };
        decoder.finish()?;
        Ok(value)
    }
}

/// A credential or verifier as received (RFC 5531 section 8.2, `opaque_auth`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpaqueAuth<'a> {
    /// AUTH_NONE. Its body, which should be empty, is ignored.
    None,
    /// AUTH_SYS, well formed.
    Sys(AuthSys<'a>),
    /// A flavor that this crate does not interpret.
    Other {
        /// The flavor's number.
        flavor: u32,
        /// Its body, at most [`AUTH_BODY_MAX`] bytes.
        body: &'a [u8],
    },
}

impl<'a> OpaqueAuth<'a> {
    /// Decodes a credential and its body.
    ///
    /// # Errors
    /// [`AuthError::Framing`] if the message ends inside it or its body is longer than
    /// [`AUTH_BODY_MAX`], so that the following bytes cannot be found; [`AuthError::Body`] if only
    /// the body of an AUTH_SYS is malformed.
    #[inline]
    pub(crate) fn decode(decoder: &mut Decoder<'a>) -> Result<Self, AuthError> {
        let flavor = decoder.u32().map_err(AuthError::Framing)?;
        let body = decoder.opaque(AUTH_BODY_MAX).map_err(AuthError::Framing)?;
        match flavor {
            FLAVOR_NONE => Ok(Self::None),
            FLAVOR_SYS => AuthSys::decode(body).map(Self::Sys).map_err(AuthError::Body),
            _ => Ok(Self::Other { flavor, body }),
        }
    }
}

/// A verifier as received. The verifiers of AUTH_NONE and AUTH_SYS are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpaqueVerifier<'a> {
    /// The flavor's number.
    pub flavor: u32,
    /// Its body, at most [`AUTH_BODY_MAX`] bytes.
    pub body: &'a [u8],
}

impl<'a> OpaqueVerifier<'a> {
    #[inline]
    pub(crate) fn decode(decoder: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        Ok(Self { flavor: decoder.u32()?, body: decoder.opaque(AUTH_BODY_MAX)? })
    }
}

/// The fault of a credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AuthError {
    /// Its end cannot be found.
    Framing(DecodeError),
    /// Its body is malformed for its flavor.
    Body(DecodeError),
}

/// Appends an AUTH_NONE credential or verifier.
pub(crate) fn encode_none(out: &mut Vec<u8>) {
    FLAVOR_NONE.encode(out);
    0u32.encode(out);
}
