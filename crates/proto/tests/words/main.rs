//! The words of the protocols against their RFCs: every procedure's arguments and results, both
//! arms, survive a round trip; every cut of them is an error; layouts that an RFC fixes to the byte
//! are what it says.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod layout;
mod listing;
mod numbers;
mod others;
mod procedures;
mod survival;
