//! A server and its mounts as processes of the program `curt`, and a counting relay between them.
//!
//! The processes that a benchmark starts end with it in all cases.

mod daemon;
mod machine;
pub mod names;
pub mod relay;
mod sys;
mod testbed;
mod trees;

pub use daemon::{Curt, Daemon, resident_mib, until};
pub use machine::Machine;
pub use relay::counting::{CountingRelay, Counts};
pub use sys::{end_with_parent, processor_time};
pub use testbed::{MountProcess, Testbed, cache_directory, free_port};
pub use trees::{SETTLE, progress_bar, tree_directory};
