//! Listings against a scripted server that returns false data on request: huge directories,
//! directories that change, and servers that miscount, lose cookies or list in a loop.

#![allow(clippy::unwrap_used, reason = "a test may end in a panic")]

mod batches;
mod faulty_server;
mod large;
mod server;
