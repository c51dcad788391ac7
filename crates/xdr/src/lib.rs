//! XDR (RFC 4506): decode from a borrowed slice, encode into a reused buffer, limits from the
//! types.
//!
//! Owns the byte layout and nothing else: no protocol's words, no I/O. Invariants: decoding never
//! reads beyond its slice, never panics, and never allocates more than a small multiple of the
//! bytes that are really there; encoding is infallible because each type's constructor already
//! enforced its limit.
//!
//! Padding bytes are not checked: RFC 4506 wants zeroes there, but peers exist that send what was
//! in memory, and nothing is decided from them.

// The derive names this crate by its full path, also in this crate's own tests.
extern crate self as curt_xdr;

mod collections;
mod decode;
mod encode;

pub use collections::{Opaque, OptionalList, TooLong, VarArray};
pub use curt_xdr_derive::Xdr;
pub use decode::{Decode, DecodeError, Decoder, decode_all};
pub use encode::{Encode, put_fixed, put_opaque, put_padding};

/// How many zero bytes follow an opaque of `length` bytes, so that the next item starts at a
/// multiple of four.
#[must_use]
pub const fn padding(length: usize) -> usize {
    length.wrapping_neg() & 3
}
