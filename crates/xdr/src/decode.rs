//! Decoding: a cursor over borrowed bytes, and the trait of decodable values.

use crate::padding;

/// Why bytes could not be decoded. It contains only numbers of the peer, so it is `Copy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes end before the value does.
    #[error("the data end too early")]
    Short,
    /// A length exceeds the limit of its type.
    #[error("a length of {length} is above the limit of {limit}")]
    TooLong {
        /// The encoded length.
        length: u32,
        /// The maximum length of the type.
        limit: u32,
    },
    /// A number is not a value of its type.
    #[error("{value} is not a value of {name}")]
    BadValue {
        /// The expected type.
        name: &'static str,
        /// The encoded number.
        value: u32,
    },
    /// Bytes follow the value.
    #[error("{0} bytes follow the value")]
    Trailing(usize),
}

/// A cursor over the bytes of one message; results borrow from them.
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

    /// Decodes a value.
    ///
    /// # Errors
    /// The errors of the value's type.
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

    /// Reads `N` unsigned integers.
    ///
    /// # Errors
    /// [`DecodeError::Short`].
    #[inline]
    pub fn words<const N: usize>(&mut self) -> Result<[u32; N], DecodeError> {
        let (head, rest) = self.rest.split_at_checked(4 * N).ok_or(DecodeError::Short)?;
        self.rest = rest;
        let mut words = [0; N];
        for (word, bytes) in words.iter_mut().zip(head.as_chunks::<4>().0) {
            *word = u32::from_be_bytes(*bytes);
        }
        Ok(words)
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
    /// [`DecodeError::TooLong`] above `max`, [`DecodeError::Short`] if there are fewer bytes than
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
            _ => Err(DecodeError::TooLong { length, limit: u32::try_from(max).unwrap_or(u32::MAX) }),
        }
    }

    /// The remaining bytes.
    #[must_use]
    pub const fn remaining(&self) -> &'a [u8] {
        self.rest
    }

    /// Moves the remaining bytes to a new cursor; this one is then at its end.
    #[must_use]
    pub const fn take_rest(&mut self) -> Self {
        let rest = self.rest;
        self.rest = &[];
        Self { rest }
    }

    /// Ends decoding.
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

/// A type that can be decoded from XDR. The value may borrow from the message with lifetime `'a`.
pub trait Decode<'a>: Sized {
    /// Decodes one value and advances the cursor. After an error the cursor's position is
    /// unspecified.
    ///
    /// # Errors
    /// Any [`DecodeError`].
    fn decode(decoder: &mut Decoder<'a>) -> Result<Self, DecodeError>;
}

/// Decodes a value that must fill all of `bytes`.
///
/// # Errors
/// The errors of the value, and [`DecodeError::Trailing`].
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
        if decoder.bool()? { T::decode(decoder).map(Some) } else { Ok(None) }
    }
}
