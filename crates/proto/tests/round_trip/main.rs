//! The wire types against their RFCs: the arguments and results of each procedure, in both arms,
//! survive a round trip; each truncation is an error; layouts that an RFC fixes are exact.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod layout;
mod listing;
mod locks;
mod nfs4;
mod numbers;
mod others;
mod procedures;
mod survival;
