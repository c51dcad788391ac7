//! Workloads through the client library, without a mount. [`SimulatedKernel`] models the kernel's
//! side, and [`InProcessServer`] is a server in the same process with a scripted clock, so that a
//! replay has the same counts each time.

pub mod documents;
mod in_process;
mod kernel;
mod replay;

pub use in_process::{InProcessMount, InProcessServer, InProcessServerError, ScriptedClock};
pub use kernel::{FollowLinks, SimulatedFile, SimulatedKernel};
pub use replay::replay;
