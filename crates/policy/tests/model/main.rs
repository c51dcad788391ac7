//! Model check of the policy: two clients and a server, every interleaving of requests and replies
//! up to a bound.
//!
//! The clients call the crate's own decide and absorb functions. The model adds what surrounds
//! them: a table of pages or names, threads, messages in flight, a server with a coarse clock. The
//! common parts of all models are in `server`, `setting` and `table`. The search is breadth-first,
//! so a violation is reported with a shortest trace. Each property is also shown to be falsifiable:
//! a planted fault must be found.

#![allow(clippy::unwrap_used, reason = "a test may stop where its own model is wrong")]

mod delegations;
mod directories;
mod explore;
mod files;
mod locks;
mod names;
mod search;
mod server;
mod setting;
mod table;
mod time;
