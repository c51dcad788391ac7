//! Every rule over every view, intent and option: laws that hold whatever the rest of a view says.
//!
//! A case is made by picking each of its fields from all values that matter; the generator walks
//! through all combinations.

#![allow(clippy::unwrap_used, reason = "a test may stop where its own case is wrong")]

mod access;
mod attributes;
mod cases;
mod clock;
mod complete;
mod fill;
mod kernel;
mod lookup;
mod names;
mod open;
mod retransmitted;
