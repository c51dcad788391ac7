//! Attacks: each class of fault that servers of NFS were found to have, where it exists in NFSv3,
//! MOUNT or portmap, is tried here. SECURITY.md lists the classes. What belongs to records and
//! connections (half records, clients that never read, too many fragments) is tried in curt-rpc's
//! tests, forged credentials of one connection in `grants`.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../wire/mod.rs"]
#[allow(unreachable_pub, dead_code, reason = "shared by the tests of this folder")]
mod wire;

mod calls;
mod credentials;
mod escapes;
mod garbage;
mod names;
mod numbers;
mod object_types;
mod races;
mod side_protocols;
