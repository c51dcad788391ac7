//! What holds for any bytes at all: one function for each place where bytes of a peer, or of an
//! operator, are understood.
//!
//! Each takes the bytes and panics where its law is broken. The fuzz targets (`fuzz/targets`) hand
//! over what libFuzzer thinks of; the tests of this crate what was found worth keeping
//! (`fuzz/corpus`), and random bytes, with any compiler.

mod control;
mod exports;
mod filter;
mod handle;
mod message;
mod metrics;
mod record;
mod recording;
mod ring;
mod service;
mod words;
mod world;

pub use control::control_question;
pub use exports::exports;
pub use filter::filter;
pub use handle::handle;
pub use message::message;
pub use metrics::metrics_request;
pub use record::record;
pub use recording::recording;
pub use ring::ring;
pub use service::{mount_service, service};
pub use words::{mount_words, nfs_words, portmap_words};

/// A law, by which the bytes go in.
pub type Law = fn(&[u8]);

/// Every target with its law; the names are those of the binaries and of the corpora.
pub const LAWS: [(&str, Law); 14] = [
    ("record", record),
    ("message", message),
    ("portmap_words", portmap_words),
    ("mount_words", mount_words),
    ("nfs_words", nfs_words),
    ("mount_service", mount_service),
    ("service", service),
    ("handle", handle),
    ("exports", exports),
    ("filter", filter),
    ("recording", recording),
    ("ring", ring),
    ("metrics_request", metrics_request),
    ("control_question", control_question),
];
