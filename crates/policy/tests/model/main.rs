//! Model check of the policy: two clients and a server, every interleaving of requests and replies
//! up to a bound.
//!
//! The clients call the crate's own decide and absorb functions; the model adds only what lies
//! around them: a table of pages or names, threads, messages on their way, a server whose clock is
//! coarse. What is alike in all models of that is in `server`, `setting` and `table`. Breadth
//! first, so that what is found comes as a shortest trace. Each property is also shown to be able
//! to fail: a planted mistake must be found.

#![allow(clippy::unwrap_used, reason = "a test may stop where its own model is wrong")]

mod directories;
mod explore;
mod files;
mod names;
mod server;
mod setting;
mod table;
mod time;
