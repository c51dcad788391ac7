//! Credentials and the protection of messages (RFC 5531 sections 8 and 13).

pub mod auth;
pub(crate) mod credential;
pub mod flavor;
