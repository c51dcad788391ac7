//! Workloads: trees and traces, their replay, and reports.
//!
//! A workload is a tree of files and a trace of operations on it, both recorded from a real program
//! and built into this crate. It is performed below any directory ([`replay`]), by system calls, or
//! through the client library ([`library`]). What comes back is checked against the tree: results,
//! sizes, names and bytes.
//!
//! [`processes`] starts servers and mounts to perform it on. What is measured there, and what it is
//! compared with, is not known here but to `curt bench` and to `tools/bench`.

pub mod child;
pub mod content;
pub mod library;
pub mod make;
mod memory;
pub mod processes;
pub mod replay;
pub mod report;
pub mod trace;
pub mod tree;
pub mod workload;

pub use memory::memory;
