//! Workloads: trees and traces, their replay, and reports.
//!
//! A workload is a tree of files and a trace of operations on it, both recorded from a real program
//! and built into this crate. It is replayed below any directory by system calls ([`replay`]), or
//! through the client library ([`library`]). Results, sizes, names and bytes are checked against
//! the tree.
//!
//! [`processes`] starts servers and mounts for replays. The measurements are in `curt bench` and
//! `tools/bench`.

pub mod child;
pub mod content;
pub mod library;
pub mod make;
pub mod processes;
pub mod replay;
pub mod report;
pub mod statistics;
pub mod trace;
pub mod tree;
pub mod workload;
