//! Workloads through the client library, without a mount: a kernel's part is played by
//! [`SimulatedKernel`], and in [`InProcessServer`] a server in the same process answers while a
//! scripted clock tells the time, so that a replay gives the same counts every time.

pub mod documents;
mod in_process;
mod kernel;
mod replay;

pub use in_process::{InProcessMount, InProcessServer, InProcessServerError, ScriptedClock};
pub use kernel::{FollowLinks, SimulatedFile, SimulatedKernel};
pub use replay::replay;
