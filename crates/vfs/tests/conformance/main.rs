//! Tests of each `Vfs`: in memory, and local directories with the kernel's handles and with a
//! table, on a disk and on tmpfs. Local trees need root, like a server that changes credentials.
#![allow(clippy::unwrap_used, reason = "a test fails where it unwraps")]

mod attributes;
mod data;
mod failing;
mod handles;
mod listing;
mod model;
mod names;
mod open_files;
mod permission;
mod trees;
