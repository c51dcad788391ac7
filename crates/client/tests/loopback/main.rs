//! The client against Curt's own server over a tree in memory, in one process and with a scripted
//! clock: the exact requests and their results.

#![allow(clippy::unwrap_used, reason = "a test may end in a panic")]

mod access;
mod closing;
mod copies;
mod forgotten;
mod judges;
mod limits;
mod listings;
mod locks;
mod meetings;
mod memory;
mod mutations;
mod names;
mod openers;
mod opens;
mod pairs;
mod restarts;
mod retransmitted;
mod silence;
mod staleness;
mod trouble;
mod unwritten;
mod world;
