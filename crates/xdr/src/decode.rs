//! Reading: a cursor over borrowed bytes, and the trait of everything that can be read from it.

use crate::padding;

/// Why bytes were not the value that was expected. Carries no peer data beyond numbers, so it is
/// `Copy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes end before the value does.
    #[error("the data end too early")]
    Short,
    /// A length is above what its type allows.
    #[error("a length of {length} is above the limit of {limit}")]
    TooLong {
        /// The length that was sent.
        length: u32,
        /// The largest length the type allows.
        limit: u32,
    },
    /// A number is none of its type's values.
    #[error("{value} is not a value of {name}")]
    BadValue {
        /// The type whose value was expected.
        name: &'static str,
        /// The number that was sent.
        value: u32,
    },
    /// Bytes are left after the value.
    #[error("{0} bytes follow the value")]
    Trailing(usize),
}

/// A cursor over the bytes of one message; what it returns borrows from them.
#[derive(Clone, Debug)]
pub struct Decoder<'a> {
    rest: &'a [u8],
}

impl<'a> Decoder<'a> {
    /// Starts at the first of `bytes`.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Reads any decodable value.
    ///
    /// # Errors
    /// Those of the value's type.
    #[inline]
    pub fn get<T: Decode<'a>>(&mut self) -> Result<T, DecodeError> {
        T::decode(self)
    }

    /// Reads an unsigned integer (RFC 4506 section 4.2).
    ///
    /// # Errors
    /// [`DecodeError::Short`].
    #[inline]
    pub const fn u32(&mut self) -> Result<u32, DecodeError> {
        match self.rest.split_first_chunk::<4>() {
            Some((head, rest)) => {
                self.rest = rest;
                Ok(u32::from_be_bytes(*head))
            }
            None => Err(DecodeError::Short),
        }
    }

    /// Reads an integer (RFC 4506 section 4.1).
    ///
    /// # Errors
    /// [`DecodeError::Short`].
    #[inline]
    pub fn i32(&mut self) -> Result<i32, DecodeError> {
        self.u32().map(u32::cast_signed)
    }

    /// Reads an unsigned hyper integer (RFC 4506 section 4.5).
    ///
    /// # Errors
    /// [`DecodeError::Short`].
    #[inline]
    pub const fn u64(&mut self) -> Result<u64, DecodeError> {
        match self.rest.split_first_chunk::<8>() {
            Some((head, rest)) => {
                self.rest = rest;
                Ok(u64::from_be_bytes(*head))
            }
            None => Err(DecodeError::Short),
        }
    }

    /// Reads a hyper integer (RFC 4506 section 4.5).
    ///
    /// # Errors
    /// [`DecodeError::Short`].
    #[inline]
    pub fn i64(&mut self) -> Result<i64, DecodeError> {
        self.u64().map(u64::cast_signed)
    }

    /// Reads a boolean (RFC 4506 section 4.4).
    ///
    /// # Errors
    /// [`DecodeError::Short`]; [`DecodeError::BadValue`] for anything but 0 and 1.
    #[inline]
    pub fn bool(&mut self) -> Result<bool, DecodeError> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(DecodeError::BadValue { name: "bool", value }),
        }
    }

    /// Reads `N` opaque bytes and their padding (RFC 4506 section 4.9).
    ///
    /// # Errors
    /// [`DecodeError::Short`].
    #[inline]
    pub fn fixed<const N: usize>(&mut self) -> Result<&'a [u8; N], DecodeError> {
        let (value, rest) = self.rest.split_first_chunk::<N>().ok_or(DecodeError::Short)?;
        self.rest = rest.get(padding(N)..).ok_or(DecodeError::Short)?;
        Ok(value)
    }

    /// Reads variable-length opaque bytes of at most `max` (RFC 4506 section 4.10).
    ///
    /// # Errors
    /// [`DecodeError::TooLong`] above `max`, [`DecodeError::Short`] if fewer are there than
    /// announced.
    #[inline]
    pub fn opaque(&mut self, max: usize) -> Result<&'a [u8], DecodeError> {
        let length = self.length(max)?;
        let (value, rest) = self.rest.split_at_checked(length).ok_or(DecodeError::Short)?;
        self.rest = rest.get(padding(length)..).ok_or(DecodeError::Short)?;
        Ok(value)
    }

    /// Reads a length and compares it with `max`.
    ///
    /// # Errors
    /// [`DecodeError::TooLong`], [`DecodeError::Short`].
    #[inline]
    pub fn length(&mut self, max: usize) -> Result<usize, DecodeError> {
        let length = self.u32()?;
        match usize::try_from(length) {
            Ok(fits) if fits <= max => Ok(fits),
            _ => Err(DecodeError::TooLong {
                length,
                limit: u32::try_from(max).unwrap_or(u32::MAX),
            }),
        }
    }

    /// What has not been read yet.
    #[must_use]
    pub const fn remaining(&self) -> &'a [u8] {
        self.rest
    }

    /// Hands all that has not been read yet to a cursor of its own; this one is then at its end.
    #[must_use]
    pub const fn take_rest(&mut self) -> Self {
        let rest = self.rest;
        self.rest = &[];
        Self { rest }
    }

    /// Ends the reading.
    ///
    /// # Errors
    /// [`DecodeError::Trailing`] if bytes are left.
    pub const fn finish(self) -> Result<(), DecodeError> {
        match self.rest.len() {
            0 => Ok(()),
            left => Err(DecodeError::Trailing(left)),
        }
    }
}

/// What can be read from XDR. `'a` is the lifetime of the message that the value may borrow from.
pub trait Decode<'a>: Sized {
    /// Reads one value and leaves the cursor behind it. After an error the cursor's place is
    /// unspecified.
    ///
    /// # Errors
    /// Whatever of [`DecodeError`] fits.
    fn decode(decoder: &mut Decoder<'a>) -> Result<Self, DecodeError>;
}

/// Reads a value that must fill all of `bytes`.
///
/// # Errors
/// The value's own, and [`DecodeError::Trailing`].
pub fn decode_all<'a, T: Decode<'a>>(bytes: &'a [u8]) -> Result<T, DecodeError> {
    let mut decoder = Decoder::new(bytes);
    let value = T::decode(&mut decoder)?;
    decoder.finish()?;
    Ok(value)
}

impl Decode<'_> for () {
    #[inline]
    fn decode(_: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(())
    }
}

impl Decode<'_> for u32 {
    #[inline]
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        decoder.u32()
    }
}

impl Decode<'_> for i32 {
    #[inline]
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        decoder.i32()
    }
}

impl Decode<'_> for u64 {
    #[inline]
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        decoder.u64()
    }
}

impl Decode<'_> for i64 {
    #[inline]
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        decoder.i64()
    }
}

impl Decode<'_> for bool {
    #[inline]
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        decoder.bool()
    }
}

impl<const N: usize> Decode<'_> for [u8; N] {
    #[inline]
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        decoder.fixed::<N>().copied()
    }
}

/// Optional data (RFC 4506 section 4.19).
impl<'a, T: Decode<'a>> Decode<'a> for Option<T> {
    #[inline]
    fn decode(decoder: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        if decoder.bool()? {
            T::decode(decoder).map(Some)
        } else {
            Ok(None)
        }
    }
}
