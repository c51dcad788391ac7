//! Workloads through the client library, without a mount. [`SimulatedKernel`] models the kernel's
//! side.

mod kernel;
mod replay;

pub use kernel::{FollowLinks, SimulatedFile, SimulatedKernel};
pub use replay::replay;
