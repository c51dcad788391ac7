//! Whole-program tests: real peers, a real kernel, real mounts.
//!
//! A test makes a [`network::Network`] of its own and starts in it what it needs: our server or
//! mount ([`curt`]), a Linux kernel as client or server ([`kernel`]), Ganesha ([`ganesha`]), a
//! capture ([`capture`]). Everything that a test starts ends with the value that stands for it,
//! also when the test fails; should the test's process be killed, the kernel ends its children.
//!
//! These tests need root and the packages that `cargo xtask test` installs.

pub mod again;
pub mod capture;
mod control;
pub mod curt;
pub mod ganesha;
pub mod inside;
pub mod kernel;
pub mod mountstats;
pub mod network;
pub mod process;
pub mod prometheus;
pub mod random;
pub mod relay;
pub mod requests;
pub mod sys;
