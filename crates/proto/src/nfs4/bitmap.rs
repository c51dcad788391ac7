//! Sets of small numbers: attributes, operations, kinds of notification (`bitmap4`).

use core::fmt;

use curt_xdr::{Decode, DecodeError, Decoder, Encode};

/// The words that are kept: all attributes and operations fit.
const WORDS: usize = 3;
/// Maximum number of words when decoding. Words beyond those kept name nothing that is known.
const WORDS_MAX: usize = 64;

/// A set of numbers below 96. Whether a peer's set had larger numbers is known, not which.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Bitmap4 {
    words: [u32; WORDS],
    unknown: bool,
}

impl Bitmap4 {
    /// No number.
    pub const EMPTY: Self = Self { words: [0; WORDS], unknown: false };

    /// This set with a number below 96.
    #[must_use]
    #[inline]
    pub const fn with(mut self, number: u32) -> Self {
        self.words[(number / 32) as usize] |= 1 << (number % 32);
        self
    }

    /// Whether the number is in the set.
    #[must_use]
    #[inline]
    pub const fn contains(&self, number: u32) -> bool {
        let word = (number / 32) as usize;
        word < WORDS && self.words[word] & (1 << (number % 32)) != 0
    }

    /// Whether there is no number.
    #[must_use]
    #[inline]
    pub const fn is_empty(&self) -> bool {
        !self.unknown && self.words[0] | self.words[1] | self.words[2] == 0
    }

    /// The numbers that both have.
    #[must_use]
    #[inline]
    pub const fn common(self, other: Self) -> Self {
        let [a, b, c] = self.words;
        let [x, y, z] = other.words;
        Self { words: [a & x, b & y, c & z], unknown: false }
    }

    /// The numbers that either has.
    #[must_use]
    #[inline]
    pub const fn union(self, other: Self) -> Self {
        let [a, b, c] = self.words;
        let [x, y, z] = other.words;
        Self { words: [a | x, b | y, c | z], unknown: self.unknown || other.unknown }
    }

    /// The numbers that only this has.
    #[must_use]
    #[inline]
    pub const fn without(self, other: Self) -> Self {
        let [a, b, c] = self.words;
        let [x, y, z] = other.words;
        Self { words: [a & !x, b & !y, c & !z], unknown: self.unknown }
    }

    /// The numbers in ascending order.
    #[inline]
    pub fn numbers(self) -> impl Iterator<Item = u32> {
        (0..).zip(self.words).flat_map(|(index, word)| {
            let mut rest: u32 = word;
            core::iter::from_fn(move || {
                let bit = rest.trailing_zeros();
                (rest != 0).then(|| {
                    rest &= rest - 1;
                    index * 32 + bit
                })
            })
        })
    }
}

impl fmt::Debug for Bitmap4 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.numbers()).finish()?;
        if self.unknown { f.write_str("+unknown") } else { Ok(()) }
    }
}

impl FromIterator<u32> for Bitmap4 {
    fn from_iter<I: IntoIterator<Item = u32>>(numbers: I) -> Self {
        numbers.into_iter().fold(Self::EMPTY, Self::with)
    }
}

impl Encode for Bitmap4 {
    /// Without trailing zero words.
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        let [a, b, c] = self.words;
        let words: &[u32] = match (a, b, c) {
            (0, 0, 0) => &[],
            (_, 0, 0) => &[a],
            (_, _, 0) => &[a, b],
            _ => &[a, b, c],
        };
        #[expect(clippy::cast_possible_truncation, reason = "at most three")]
        let count = words.len() as u32;
        count.encode(out);
        for word in words {
            word.encode(out);
        }
    }
}

impl Decode<'_> for Bitmap4 {
    #[inline]
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let mut bitmap = Self::EMPTY;
        for index in 0..decoder.length(WORDS_MAX)? {
            let word = decoder.u32()?;
            match bitmap.words.get_mut(index) {
                Some(kept) => *kept = word,
                None => bitmap.unknown |= word != 0,
            }
        }
        Ok(bitmap)
    }
}
