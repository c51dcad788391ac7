//! Concurrent building blocks that several crates share.
//!
//! Must not know what is kept in them. No lock of theirs is held while a value is dropped, which
//! may close a file.

#![forbid(unsafe_code)]

mod clock_cache;

pub use clock_cache::ClockCache;
