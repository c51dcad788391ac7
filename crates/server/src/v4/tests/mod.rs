#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod compounds;
mod fixture;
mod objects;
mod opens;
mod pseudo;
