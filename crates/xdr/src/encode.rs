//! Encoding: values append themselves to a buffer that the caller reuses.

use crate::padding;

/// A type that can be encoded as XDR. Infallible: constructors reject values that are too long.
pub trait Encode {
    /// Appends the value to `out`.
    fn encode(&self, out: &mut Vec<u8>);
}

/// Appends the zero bytes that follow an opaque of `length` bytes.
#[inline]
pub fn put_padding(out: &mut Vec<u8>, length: usize) {
    out.extend_from_slice(&[0; 3][..padding(length)]);
}

/// Appends variable-length opaque bytes: length, bytes, padding.
///
/// # Panics
/// If `bytes` is longer than 4 GiB, which no message can carry.
#[inline]
pub fn put_opaque(out: &mut Vec<u8>, bytes: &[u8]) {
    put_length(out, bytes.len());
    put_fixed(out, bytes);
}

/// Appends fixed-length opaque bytes: bytes, padding.
#[inline]
pub fn put_fixed(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(bytes);
    put_padding(out, bytes.len());
}

/// Bytes that are encoded already, such as the arguments of a COMPOUND.
#[derive(Clone, Copy, Debug)]
pub struct Encoded<'a>(pub &'a [u8]);

impl Encode for Encoded<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        put_fixed(out, self.0);
    }
}

/// Appends the length of a list or an opaque.
#[inline]
pub(crate) fn put_length(out: &mut Vec<u8>, length: usize) {
    u32::try_from(length).expect("a message is shorter than 4 GiB").encode(out);
}

impl Encode for () {
    #[inline]
    fn encode(&self, _: &mut Vec<u8>) {}
}

impl Encode for u32 {
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_be_bytes());
    }
}

impl Encode for i32 {
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_be_bytes());
    }
}

impl Encode for u64 {
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_be_bytes());
    }
}

impl Encode for i64 {
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_be_bytes());
    }
}

impl Encode for bool {
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        u32::from(*self).encode(out);
    }
}

impl<const N: usize> Encode for [u8; N] {
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        put_fixed(out, self);
    }
}

impl<T: Encode> Encode for Option<T> {
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Some(value) => {
                1u32.encode(out);
                value.encode(out);
            }
            None => 0u32.encode(out),
        }
    }
}

impl<T: Encode + ?Sized> Encode for &T {
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        (**self).encode(out);
    }
}
