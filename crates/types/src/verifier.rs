//! Verifiers of a server (RFC 1813 section 2.5, `verifier4` of RFC 8881 section 3.2).

/// The verifier under which the cookies of a directory are valid (`cookieverf3`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CookieVerifier(pub [u8; 8]);

/// Changes when a server may have lost unstable writes (`writeverf3`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct WriteVerifier(pub [u8; 8]);
