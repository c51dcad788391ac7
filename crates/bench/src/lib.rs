//! Workloads: trees and traces, their replay, and reports.
//!
//! A workload is a tree of files and a trace of operations on it, both recorded from a real program and built into this crate. It is performed below any
//! directory ([`replay`]), by system calls, or through the client library ([`library`]). What
//! comes back is checked against the tree: results, sizes, names and bytes.
//!
//! This crate must not know how a mount is made or how requests are counted; `curt bench` does.

pub mod child;
pub mod content;
pub mod library;
pub mod make;
mod memory;
pub mod replay;
pub mod report;
pub mod trace;
pub mod tree;
pub mod workload;

pub use memory::memory;
