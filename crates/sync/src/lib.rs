//! Concurrent data structures that several crates share.
//!
//! They do not depend on the type of their values. No lock is held while a value is dropped,
//! because this may close a file.

#![forbid(unsafe_code)]

mod clock_cache;
mod interrupt;
mod single_flight;

pub use clock_cache::ClockCache;
pub use interrupt::{Interrupt, Wake, WakerRegistration};
pub use single_flight::{InFlightCall, InFlightOwner, SingleFlight};
