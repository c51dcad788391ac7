//! Listings against a server that is a function and lies as it is told to: huge directories,
//! directories that change, and servers that cannot count, forget, or go round in circles.

#![allow(clippy::unwrap_used, reason = "a test may end in a panic")]

mod batches;
mod large;
mod lies;
mod server;
