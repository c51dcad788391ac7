//! Directories that answer for their names (`dirfill=auto`), against a server that is a function
//! and lies as it is told to: what the client then answers, and how many requests it sends,
//! exactly.

#![allow(clippy::unwrap_used, reason = "a test may end in a panic")]

mod changes;
mod lies;
mod server;
mod tree;
mod world;
