//! How the messages of a call are protected (RFC 5531 section 8.2; RFC 2203).
//!
//! A flavor works between record marking and the header: it writes the credential and the verifier,
//! and transforms what follows the header. AUTH_NONE and AUTH_SYS protect nothing. RPCSEC_GSS signs
//! the header of a call up to and including the credential, and replaces arguments and results by
//! bodies with integrity or privacy; so each of the steps below has its place, on both ends.

use std::{borrow::Cow, fmt, sync::Arc};

use curt_xdr::DecodeError;

use super::auth::{AuthStatus, OpaqueVerifier, encode_none};
use crate::message::CallFailure;

/// The protection of one call and its reply. The defaults protect nothing.
///
/// A client makes one for each call, and uses it again if it sends that call again: RPCSEC_GSS then
/// takes the next sequence number for the credential, and accepts the reply to any of them (RFC
/// 2203 section 5.3.3.1). A server makes one from the credential of each call that it receives.
pub trait AuthFlavor: Send + Sync {
    /// Appends the credential with its flavor and length: a client's.
    fn encode_credential(&self, out: &mut Vec<u8>);

    /// Appends the verifier of the header that `out` holds from `from` on: of a call all of it up
    /// to and including the credential, of a reply what precedes the verifier.
    fn sign(&self, out: &mut Vec<u8>, _from: usize) {
        encode_none(out);
    }

    /// Whether `verifier` is that of `signed`, the same bytes as in [`AuthFlavor::sign`].
    ///
    /// # Errors
    /// What is told to a client whose verifier is wrong. A reply whose verifier is wrong ends its
    /// call with [`AuthStatus::InvalidResponse`].
    fn verify(&self, _signed: &[u8], _verifier: OpaqueVerifier<'_>) -> Result<(), AuthStatus> {
        Ok(())
    }

    /// Whether [`AuthFlavor::wrap`] changes anything. If it does, data are neither sent nor used
    /// from where they are: not with [`RpcRequest::bulk`](crate::connection::RpcRequest::bulk),
    /// a [`ReplySink`](crate::connection::ReplySink) or sendfile(2).
    fn wraps(&self) -> bool {
        false
    }

    /// Replaces the arguments or results that `out` holds from `from` on by their protected form.
    fn wrap(&self, _out: &mut Vec<u8>, _from: usize) {}

    /// The arguments or results that `body` protects.
    ///
    /// # Errors
    /// They are not what the peer sent: GARBAGE_ARGS for a call, a malformed reply.
    fn unwrap<'m>(&self, body: &'m [u8]) -> Result<Cow<'m, [u8]>, DecodeError> {
        Ok(Cow::Borrowed(body))
    }

    /// How long the protected form of `length` bytes may be.
    fn wrapped_max(&self, length: usize) -> usize {
        length
    }
}

/// A client's end of a security context, such as RPCSEC_GSS has one for each user and server.
pub trait FlavorInitiator: fmt::Debug + Send + Sync {
    /// The flavor of the next call.
    fn begin_call(&self) -> Arc<dyn AuthFlavor>;
}

/// A server's end of all security contexts.
///
/// Calls that make or destroy a context (RFC 2203 sections 5.2.2 and 5.4) are calls of NULL with
/// arguments and results of their own: a service in front of the others answers them.
pub trait FlavorAcceptor: fmt::Debug + Send + Sync {
    /// The flavor of a call with this credential.
    ///
    /// # Errors
    /// Why it is not executed. A sequence number that came before is dropped without a reply:
    /// [`CallFailure::NoReply`].
    fn accept(&self, flavor: u32, credential: &[u8]) -> Result<Arc<dyn AuthFlavor>, CallFailure>;
}

/// AUTH_NONE, and what a server protects calls of AUTH_SYS with.
pub(crate) struct AuthNone;

impl AuthFlavor for AuthNone {
    fn encode_credential(&self, out: &mut Vec<u8>) {
        encode_none(out);
    }
}
