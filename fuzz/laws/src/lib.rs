//! Properties that hold for any input: one function for each parser of bytes from a peer or an
//! operator.
//!
//! Each takes the bytes and panics if its property is violated. The fuzz targets (`fuzz/targets`)
//! pass libFuzzer's inputs; the tests of this crate pass the stored inputs (`fuzz/corpus`) and
//! random bytes, with any compiler.

mod compound;
mod control;
mod exports;
mod filter;
mod handle;
mod message;
mod metrics;
mod record;
mod recording;
mod ring;
mod round_trip;
mod service;
mod states;
mod world;

pub use compound::{compound_round_trip, compounds};
pub use control::control_question;
pub use exports::exports;
pub use filter::filter;
pub use handle::handle;
pub use message::message;
pub use metrics::metrics_request;
pub use record::record;
pub use recording::recording;
pub use ring::ring;
pub use round_trip::{mount_round_trip, nfs_round_trip, portmap_round_trip};
pub use service::{mount_service, service};
pub use states::states;

/// A property as a function of the bytes.
pub type Law = fn(&[u8]);

/// All targets with their properties; the names are those of the binaries and of the corpora.
pub const LAWS: [(&str, Law); 17] = [
    ("record", record),
    ("message", message),
    ("portmap_round_trip", portmap_round_trip),
    ("mount_round_trip", mount_round_trip),
    ("nfs_round_trip", nfs_round_trip),
    ("mount_service", mount_service),
    ("service", service),
    ("compound_round_trip", compound_round_trip),
    ("compounds", compounds),
    ("states", states),
    ("handle", handle),
    ("exports", exports),
    ("filter", filter),
    ("recording", recording),
    ("ring", ring),
    ("metrics_request", metrics_request),
    ("control_question", control_question),
];
