//! Who calls, and how that is proved (RFC 5531 sections 8 and 13).

pub mod auth;
