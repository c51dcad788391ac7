//! Every rule over every view, intent and option: laws that hold whatever the other fields of a
//! view are.
//!
//! A case picks each of its fields from all relevant values. The generator enumerates all
//! combinations.

#![allow(clippy::unwrap_used, reason = "a test may stop where its own case is wrong")]

mod access;
mod attributes;
mod cases;
mod clock;
mod complete_directory;
mod fill;
mod kernel;
mod locks;
mod lookup;
mod names;
mod open;
mod retransmitted;
