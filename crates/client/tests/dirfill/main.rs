//! Prefetching names (`dirfill=auto`), against a scripted server that returns
//! false data on request: the results of the client, and the exact number of its requests.

#![allow(clippy::unwrap_used, reason = "a test may end in a panic")]

mod changes;
mod faulty_server;
mod server;
mod tree;
mod world;
