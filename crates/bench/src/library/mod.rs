//! Workloads through the client library, without a mount: a kernel's part is played by [`Kernel`], and in [`World`] a server in
//! the same process answers while a scripted clock tells the time, so that a replay gives the same counts every time.

pub mod documents;
mod kernel;
mod linux;
mod replay;
mod world;

pub use kernel::{Kernel, KernelFile, Links};
pub use linux::LinuxReplay;
pub use replay::replay;
pub use world::{Mounted, ScriptedClock, World, WorldError};
