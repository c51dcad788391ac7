//! Who calls, and how that and what is said is protected (RFC 5531 sections 8 and 13).

pub mod auth;
pub(crate) mod credential;
pub mod flavor;
