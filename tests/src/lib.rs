//! Whole-program tests with real peers, kernels and mounts.
//!
//! A test creates its own [`network::Network`] and starts programs in it: Curt's server or mount
//! ([`curt`]), a Linux kernel as client or server ([`kernel`]), Ganesha ([`ganesha`]), a packet
//! capture ([`capture`]). Each program ends when its value is dropped, also if the test fails; if
//! the test's process is killed, the kernel ends its children.
//!
//! These tests need root and the packages that `cargo xtask test` installs.
//! These tests need root and the packages that `cargo xtask test` installs.

pub mod capture;
mod control;
pub mod curt;
pub mod ganesha;
pub mod kernel;
pub mod kernel_server;
pub mod linux_locker;
pub mod lock_scenarios;
pub mod lock_scripts;
pub mod lock_server;
pub mod locker;
pub mod mountstats;
pub mod network;
pub mod nfs4_client;
pub mod other_machine;
pub mod process;
pub mod prometheus;
pub mod random;
pub mod relay;
pub mod repeated_requests;
pub mod requests;
pub mod round_trips;
pub mod sys;
