//! Round trips, exact bytes, and false lengths that cost no memory.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use curt_xdr::{
    Decode, DecodeError, Decoder, Encode, Opaque, OptionalList, VarArray, Xdr, decode_all, padding,
};
use proptest::prelude::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
enum Colour {
    Red = 1,
    Blue = 7,
}

#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
struct Everything<'a> {
    small: u32,
    signed: i32,
    large: u64,
    large_signed: i64,
    flag: bool,
    tag: [u8; 5],
    name: Opaque<'a, 16>,
    maybe: Option<u64>,
    list: VarArray<u32, 8>,
    chain: OptionalList<Inner<'a>, 8>,
    colour: Colour,
    choice: Choice<'a>,
}

#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
struct Inner<'a>(u32, Opaque<'a, 4>);

#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
#[xdr(union)]
enum Choice<'a> {
    #[xdr(case = 0)]
    Nothing,
    #[xdr(case = 3)]
    Named { name: Opaque<'a, 8> },
    #[xdr(default)]
    Other(u32, bool),
}

#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
#[xdr(union)]
enum Strict {
    #[xdr(case = 2)]
    Two(u32),
}

fn bytes_of(value: &impl Encode) -> Vec<u8> {
    let mut out = Vec::new();
    value.encode(&mut out);
    out
}

fn round_trip<'a, T: Decode<'a> + Encode + PartialEq + std::fmt::Debug>(value: &T, buffer: &'a mut Vec<u8>) {
    value.encode(buffer);
    assert_eq!(buffer.len() % 4, 0);
    assert_eq!(&decode_all::<T>(buffer).unwrap(), value);
}

proptest! {
    #[test]
    fn every_kind_of_item_survives_a_round_trip(
        small: u32, signed: i32, large: u64, large_signed: i64, flag: bool, tag: [u8; 5],
        name in prop::collection::vec(any::<u8>(), 0..=16), maybe: Option<u64>,
        list in prop::collection::vec(any::<u32>(), 0..=8),
        chain in prop::collection::vec((any::<u32>(), prop::collection::vec(any::<u8>(), 0..=4)), 0..=8),
        red: bool, choice in 0u32..6,
    ) {
        let chain = chain.iter().map(|(n, s)| Inner(*n, Opaque::new(s).unwrap())).collect();
        let value = Everything {
            small, signed, large, large_signed, flag, tag,
            name: Opaque::new(&name).unwrap(),
            maybe,
            list: VarArray::new(list).unwrap(),
            chain: OptionalList::new(chain).unwrap(),
            colour: if red { Colour::Red } else { Colour::Blue },
            choice: match choice {
                0 => Choice::Nothing,
                3 => Choice::Named { name: Opaque::new(&name[..name.len().min(8)]).unwrap() },
                other => Choice::Other(other, flag),
            },
        };
        round_trip(&value, &mut Vec::new());
    }

    /// Decoding any strict prefix of a message returns `Short`, and does not panic.
    #[test]
    fn a_message_cut_anywhere_is_an_error(cut in 0usize..44) {
        let value = (Opaque::<'_, 16>::new(b"abcde").unwrap(), 7u64, Some(1u32));
        let mut out = Vec::new();
        value.0.encode(&mut out);
        value.1.encode(&mut out);
        value.2.encode(&mut out);
        let cut = cut.min(out.len() - 1);
        let mut decoder = Decoder::new(&out[..cut]);
        let result = decoder.get::<Opaque<'_, 16>>()
            .and_then(|_| decoder.get::<u64>()).and_then(|_| decoder.get::<Option<u32>>());
        prop_assert_eq!(result, Err(DecodeError::Short));
    }

    #[test]
    fn noise_never_panics(noise in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = decode_all::<Everything<'_>>(&noise);
        let _ = decode_all::<VarArray<Opaque<'_, 400>, 1000>>(&noise);
        let _ = decode_all::<OptionalList<u32, 1000>>(&noise);
    }
}

#[test]
fn bytes_are_those_of_the_rfc() {
    assert_eq!(bytes_of(&Opaque::<'_, 9>::new(b"sillyprog").unwrap()), b"\0\0\0\x09sillyprog\0\0\0");
    assert_eq!(bytes_of(&-2i32), [0xff, 0xff, 0xff, 0xfe]);
    assert_eq!(bytes_of(&0x0102_0304_0506_0708u64), [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(bytes_of(&[1u8, 2, 3]), [1, 2, 3, 0]);
    assert_eq!(bytes_of(&Some(5u32)), [0, 0, 0, 1, 0, 0, 0, 5]);
    assert_eq!(bytes_of(&Colour::Blue), [0, 0, 0, 7]);
    assert_eq!(bytes_of(&Choice::Other(9, true)), [0, 0, 0, 9, 0, 0, 0, 1]);
    let chain: OptionalList<u32, 2> = OptionalList::new(vec![8]).unwrap();
    assert_eq!(bytes_of(&chain), [0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0, 0]);
}

#[test]
fn lengths_are_refused_one_above_their_bound_and_before_anything_is_allocated() {
    assert!(Opaque::<'_, 4>::new(b"12345").is_err());
    assert!(VarArray::<u32, 2>::new(vec![1, 2, 3]).is_err());
    let at = bytes_of(&Opaque::<'_, 5>::new(b"12345").unwrap());
    assert_eq!(
        decode_all::<Opaque<'_, 4>>(&at),
        Err(DecodeError::TooLong { length: 5, limit: 4 }),
        "the limit is the type's, not the sender's"
    );
    // The announced length is 4 billion, with no bytes.
    let huge = [0xff; 4];
    assert!(matches!(decode_all::<Opaque<'_, 4>>(&huge), Err(DecodeError::TooLong { .. })));
    assert_eq!(decode_all::<Opaque<'_, { usize::MAX }>>(&huge), Err(DecodeError::Short));
    assert_eq!(decode_all::<VarArray<u64, { usize::MAX }>>(&huge), Err(DecodeError::Short));
    let three: OptionalList<u32, 3> = OptionalList::new(vec![1, 2, 3]).unwrap();
    let three = bytes_of(&three);
    assert_eq!(decode_all::<OptionalList<u32, 2>>(&three), Err(DecodeError::TooLong { length: 3, limit: 2 }));
    assert!(decode_all::<OptionalList<u32, 3>>(&three).is_ok());
}

#[test]
fn unknown_values_and_trailing_bytes_are_refused() {
    assert_eq!(decode_all::<Colour>(&[0, 0, 0, 2]), Err(DecodeError::BadValue { name: "Colour", value: 2 }));
    assert_eq!(decode_all::<bool>(&[0, 0, 0, 2]), Err(DecodeError::BadValue { name: "bool", value: 2 }));
    assert_eq!(decode_all::<Strict>(&[0; 8]), Err(DecodeError::BadValue { name: "Strict", value: 0 }));
    assert_eq!(decode_all::<u32>(&[0; 5]), Err(DecodeError::Trailing(1)));
}

#[test]
fn decoded_bytes_are_borrowed_from_the_message() {
    let message = bytes_of(&Opaque::<'_, 8>::new(b"borrowed").unwrap());
    let value: Opaque<'_, 8> = decode_all(&message).unwrap();
    assert!(std::ptr::eq(value.bytes(), &raw const message[4..12]));
}

#[test]
fn padding_reaches_the_next_multiple_of_four() {
    for length in 0..64 {
        assert_eq!((length + padding(length)) % 4, 0);
        assert!(padding(length) < 4);
    }
}
