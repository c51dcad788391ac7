//! XDR (RFC 4506): decodes from a borrowed slice, encodes into a reused buffer; limits are in the
//! types.
//!
//! This crate implements the byte layout only, no protocol and no I/O. Invariants: decoding never
//! reads beyond its slice, never panics, and never allocates more than a small multiple of the
//! bytes present; encoding is infallible, because each type's constructor enforces its limit.
//!
//! Padding bytes are not checked: RFC 4506 requires zeros, but some peers send arbitrary bytes, and
//! nothing depends on them.

// The derive macro uses this crate's full path, also in its own tests.
extern crate self as curt_xdr;

mod collections;
mod decode;
mod encode;

pub use collections::{Opaque, OptionalList, TooLong, VarArray};
pub use curt_xdr_derive::Xdr;
pub use decode::{Decode, DecodeError, Decoder, decode_all};
pub use encode::{Encode, Encoded, put_fixed, put_opaque, put_padding};

/// Number of zero bytes after an opaque of `length` bytes, so that the next item starts at a
/// multiple of four.
#[must_use]
pub const fn padding(length: usize) -> usize {
    length.wrapping_neg() & 3
}
