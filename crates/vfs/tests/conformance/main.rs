//! What every `Vfs` must do, claimed once and tried on each: memory, a local directory by the
//! kernel's handles and by table, on the disk's file system and on tmpfs. Local trees need root, as
//! a server that changes users does.
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
