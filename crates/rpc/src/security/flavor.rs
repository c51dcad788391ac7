//! Protection of a call's messages (RFC 5531 section 8.2; RFC 2203).
//!
//! A flavor works between record marking and the header: it encodes the credential and the
//! verifier, and transforms the bytes after the header. AUTH_NONE and AUTH_SYS protect nothing.
//! RPCSEC_GSS signs the header of a call up to and including the credential, and replaces arguments
//! and results by bodies with integrity or privacy. So each of the steps below has its place on
//! both ends.

use std::{borrow::Cow, fmt, sync::Arc};

use curt_xdr::DecodeError;

use super::auth::{AuthStatus, OpaqueVerifier, encode_none};
use crate::message::failure::CallFailure;

/// The protection of one call and its reply. The defaults protect nothing.
///
/// A client creates one for each call, and uses it again to send that call again: RPCSEC_GSS then
/// uses the next sequence number for the credential, and accepts the reply to any of them (RFC 2203
/// section 5.3.3.1). A server creates one from the credential of each call.
pub trait AuthFlavor: Send + Sync {
    /// Appends the client's credential with its flavor and length.
    fn encode_credential(&self, out: &mut Vec<u8>);

    /// Appends the verifier of the bytes of `out` from `_from` on: for a call the header up to and
    /// including the credential, for a reply the bytes before the verifier.
    fn sign(&self, out: &mut Vec<u8>, _from: usize) {
        encode_none(out);
    }

    /// Whether `verifier` is valid for `signed`, the same bytes as in [`AuthFlavor::sign`].
    ///
    /// # Errors
    /// The status for a client whose verifier is invalid. A reply with an invalid verifier ends its
    /// call with [`AuthStatus::InvalidResponse`].
    fn verify(&self, _signed: &[u8], _verifier: OpaqueVerifier<'_>) -> Result<(), AuthStatus> {
        Ok(())
    }

    /// Whether [`AuthFlavor::wrap`] changes the bytes. If it does, data are copied:
    /// [`BulkData`](crate::connection::BulkData),
    /// [`ReplySink`](crate::connection::reply_sink::ReplySink) and sendfile(2) are not used.
    fn wraps(&self) -> bool {
        false
    }

    /// Replaces the arguments or results in `out` from `_from` on by their protected form.
    fn wrap(&self, _out: &mut Vec<u8>, _from: usize) {}

    /// The arguments or results that `body` protects.
    ///
    /// # Errors
    /// They were changed or cannot be decoded: GARBAGE_ARGS for a call, a malformed reply.
    fn unwrap<'m>(&self, body: &'m [u8]) -> Result<Cow<'m, [u8]>, DecodeError> {
        Ok(Cow::Borrowed(body))
    }

    /// Maximum length of the protected form of `length` bytes.
    fn wrapped_max(&self, length: usize) -> usize {
        length
    }
}

/// The client's end of a security context; RPCSEC_GSS has one for each user and server.
pub trait FlavorInitiator: fmt::Debug + Send + Sync {
    /// The flavor of the next call.
    fn begin_call(&self) -> Arc<dyn AuthFlavor>;
}

/// The server's end of all security contexts.
///
/// Calls that create or destroy a context (RFC 2203 sections 5.2.2 and 5.4) are calls of NULL with
/// their own arguments and results: a separate service before the others handles them.
pub trait FlavorAcceptor: fmt::Debug + Send + Sync {
    /// The flavor of a call with this credential.
    ///
    /// # Errors
    /// Why the call is not executed. A repeated sequence number is dropped without a reply:
    /// [`CallFailure::NoReply`].
    fn accept(&self, flavor: u32, credential: &[u8]) -> Result<Arc<dyn AuthFlavor>, CallFailure>;
}

/// AUTH_NONE, and the server's protection of calls of AUTH_SYS.
pub(crate) struct AuthNone;

impl AuthFlavor for AuthNone {
    fn encode_credential(&self, out: &mut Vec<u8>) {
        encode_none(out);
    }
}
