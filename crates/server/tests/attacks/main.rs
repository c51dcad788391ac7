//! Attacks: each class of fault that was found in NFS servers and exists in NFS, MOUNT or
//! portmap. SECURITY.md lists the classes. Attacks on records and connections (partial records,
//! clients that never read, too many fragments) are in curt-rpc's tests, forged credentials on one
//! connection in `grants`.
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
mod sessions;
mod side_protocols;
