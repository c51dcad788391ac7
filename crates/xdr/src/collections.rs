//! Values of variable length, with the limit in their type.

use core::ops::Deref;

use crate::encode::{put_length, put_opaque};
use crate::{Decode, DecodeError, Decoder, Encode};

/// A value is longer than its type allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a length of {length} is above the limit of {limit}")]
pub struct TooLong {
    /// The length.
    pub length: usize,
    /// The maximum length of the type.
    pub limit: usize,
}

impl TooLong {
    const fn check(length: usize, limit: usize) -> Result<(), Self> {
        if length > limit { Err(Self { length, limit }) } else { Ok(()) }
    }
}

/// Borrowed opaque bytes or a string, at most `MAX` of them (RFC 4506 sections 4.10 and 4.11).
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Opaque<'a, const MAX: usize>(&'a [u8]);

impl<'a, const MAX: usize> Opaque<'a, MAX> {
    /// Wraps `bytes`.
    ///
    /// # Errors
    /// [`TooLong`] above `MAX`.
    pub const fn new(bytes: &'a [u8]) -> Result<Self, TooLong> {
        match TooLong::check(bytes.len(), MAX) {
            Ok(()) => Ok(Self(bytes)),
            Err(too_long) => Err(too_long),
        }
    }

    /// The bytes, with the lifetime of the message.
    #[must_use]
    pub const fn bytes(&self) -> &'a [u8] {
        self.0
    }
}

impl<const MAX: usize> core::fmt::Debug for Opaque<'_, MAX> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl<const MAX: usize> Deref for Opaque<'_, MAX> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0
    }
}

impl<'a, const MAX: usize> Decode<'a> for Opaque<'a, MAX> {
    #[inline]
    fn decode(decoder: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        decoder.opaque(MAX).map(Self)
    }
}

impl<const MAX: usize> Encode for Opaque<'_, MAX> {
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        put_opaque(out, self.0);
    }
}

/// A counted array of at most `MAX` items (RFC 4506 section 4.13). Items must not be void: each has
/// at least four bytes, so that a count that exceeds the message is rejected before memory is
/// allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VarArray<T, const MAX: usize>(Vec<T>);

impl<T, const MAX: usize> VarArray<T, MAX> {
    /// Wraps `items`.
    ///
    /// # Errors
    /// [`TooLong`] above `MAX`.
    pub fn new(items: Vec<T>) -> Result<Self, TooLong> {
        TooLong::check(items.len(), MAX).map(|()| Self(items))
    }

    /// The items.
    #[must_use]
    pub fn into_inner(self) -> Vec<T> {
        self.0
    }
}

impl<T, const MAX: usize> Default for VarArray<T, MAX> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T, const MAX: usize> Deref for VarArray<T, MAX> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<'a, T: Decode<'a>, const MAX: usize> Decode<'a> for VarArray<T, MAX> {
    fn decode(decoder: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        let count = decoder.length(MAX)?;
        let present = decoder.remaining().len();
        if count > present / 4 {
            return Err(DecodeError::Short);
        }
        // An item may be larger in memory than on the wire: never allocate more memory than was
        // sent.
        let mut items = Vec::with_capacity(count.min(present / size_of::<T>().max(4)));
        for _ in 0..count {
            items.push(T::decode(decoder)?);
        }
        Ok(Self(items))
    }
}

impl<T: Encode, const MAX: usize> Encode for VarArray<T, MAX> {
    fn encode(&self, out: &mut Vec<u8>) {
        put_length(out, self.0.len());
        for item in &self.0 {
            item.encode(out);
        }
    }
}

/// A linked list of at most `MAX` items: TRUE precedes each, FALSE follows the last (RFC 4506
/// section 4.19).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionalList<T, const MAX: usize>(Vec<T>);

impl<T, const MAX: usize> OptionalList<T, MAX> {
    /// Wraps `items`.
    ///
    /// # Errors
    /// [`TooLong`] above `MAX`.
    pub fn new(items: Vec<T>) -> Result<Self, TooLong> {
        TooLong::check(items.len(), MAX).map(|()| Self(items))
    }

    /// The items.
    #[must_use]
    pub fn into_inner(self) -> Vec<T> {
        self.0
    }
}

impl<T, const MAX: usize> Default for OptionalList<T, MAX> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T, const MAX: usize> Deref for OptionalList<T, MAX> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<'a, T: Decode<'a>, const MAX: usize> Decode<'a> for OptionalList<T, MAX> {
    fn decode(decoder: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        let limit = u32::try_from(MAX).unwrap_or(u32::MAX);
        let mut items = Vec::new();
        while decoder.bool()? {
            if items.len() == MAX {
                return Err(DecodeError::TooLong { length: limit.saturating_add(1), limit });
            }
            items.push(T::decode(decoder)?);
        }
        Ok(Self(items))
    }
}

impl<T: Encode, const MAX: usize> Encode for OptionalList<T, MAX> {
    fn encode(&self, out: &mut Vec<u8>) {
        for item in &self.0 {
            true.encode(out);
            item.encode(out);
        }
        false.encode(out);
    }
}
