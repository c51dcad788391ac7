//! The calls of an operation, made beforehand: while it is measured, a call is copied, numbered and
//! sent.

use std::ops::Range;

use anyhow::Result;
use curt_proto::nfs3::{
    AccessArguments, AccessMask, Cookie, CookieVerifier, CreateArguments, CreateHow, DirOpArgs, Filename,
    NfsFh3, NfsProcedure, PROGRAM, ReadArguments, ReaddirPlusArguments, Sattr, StableHow, VERSION,
    WriteArguments,
};
use curt_rpc::auth::RpcCredential;
use curt_rpc::message::encode_call_header;
use curt_rpc::record::{self, MARK_SIZE};
use curt_xdr::{Encode, Opaque};

use super::content;
use super::load::{BLOCK_BYTES, BLOCK_COUNT, LatencyOperation};
use super::tree::{LatencyTree, file_name};

/// Bits of a call's number that say its slot; the others count.
const SLOT_BITS: u32 = 8;
/// Digits of a name that is made and removed again.
const NAME_DIGITS: usize = 8;
/// The most bytes of names, and of everything, that READDIRPLUS asks for: room for all names at
/// once.
const LISTING_BYTES: u32 = 64 << 10;

/// The calls of one connection, one for each slot.
pub(super) struct PreparedCalls {
    slots: Vec<Vec<u8>>,
    /// Where in a call the digits of its name are.
    digits_at: Option<usize>,
    next_name: u32,
    next_number: u32,
}

impl PreparedCalls {
    /// Calls of `operation` on what belongs to connection `connection` in `tree`.
    pub(super) fn new(
        operation: LatencyOperation,
        tree: &LatencyTree,
        connection: usize,
        slots_count: usize,
        credential: &RpcCredential,
        generation: u64,
    ) -> Result<Self> {
        let name = made_name(connection);
        let slots = (0..slots_count)
            .map(|slot| {
                let mut call = Vec::new();
                let place = CallTarget {
                    tree,
                    connection,
                    slot,
                    name: &name,
                };
                place.encode(operation, credential, generation, &mut call)?;
                Ok(call)
            })
            .collect::<Result<Vec<_>>>()?;
        let digits_at = match operation {
            LatencyOperation::Create | LatencyOperation::Remove => {
                find(&slots[0], &name).map(|at| at + name.len() - NAME_DIGITS)
            }
            _ => None,
        };
        Ok(Self {
            slots,
            digits_at,
            next_name: 0,
            next_number: 1,
        })
    }

    /// Calls that are there already.
    pub(super) fn ready(slots: Vec<Vec<u8>>) -> Self {
        Self {
            slots,
            digits_at: None,
            next_name: 0,
            next_number: 1,
        }
    }

    /// How many there can be at once.
    pub(super) fn slots_count(&self) -> usize {
        self.slots.len()
    }

    /// The length of a slot's calls, in bytes.
    pub(super) fn length(&self, slot: usize) -> usize {
        self.slots[slot].len()
    }

    /// One of them, as it would be sent first.
    pub(super) fn sample(&self) -> &[u8] {
        &self.slots[0]
    }

    /// Where in a call the name's bytes are, for operations whose calls differ by them.
    pub(super) fn name_span(&self) -> Option<Range<usize>> {
        let end = self.digits_at? + NAME_DIGITS;
        Some(end - made_name(0).len()..end)
    }

    /// Names begin anew: what was made is now removed.
    pub(super) fn rewind(&mut self) {
        self.next_name = 0;
    }

    /// Appends the next call of `slot` and returns its number.
    pub(super) fn put(&mut self, slot: usize, out: &mut Vec<u8>) -> u32 {
        let own = u8::try_from(slot).expect("a connection has at most 256 slots");
        let number = (self.next_number << SLOT_BITS) | u32::from(own);
        self.next_number = (self.next_number + 1) & (u32::MAX >> SLOT_BITS);
        let start = out.len();
        out.extend_from_slice(&self.slots[slot]);
        out[start + MARK_SIZE..start + MARK_SIZE + 4].copy_from_slice(&number.to_be_bytes());
        if let Some(at) = self.digits_at {
            put_digits(&mut out[start + at..start + at + NAME_DIGITS], self.next_name);
            self.next_name += 1;
        }
        number
    }
}

/// The slot of the call with this number.
pub(super) const fn slot_of(number: u32) -> usize {
    (number & ((1 << SLOT_BITS) - 1)) as usize
}

/// The first name that a connection makes; the others differ in the digits at its end.
fn made_name(connection: usize) -> Vec<u8> {
    format!("made-{connection:02}-{:0NAME_DIGITS$x}", 0).into_bytes()
}

fn put_digits(digits: &mut [u8], number: u32) {
    for (position, digit) in digits.iter_mut().rev().enumerate() {
        *digit = b"0123456789abcdef"[(number >> (4 * position)) as usize & 15];
    }
}

fn find(call: &[u8], name: &[u8]) -> Option<usize> {
    call.windows(name.len()).position(|window| window == name)
}

/// What one call is about.
struct CallTarget<'a> {
    tree: &'a LatencyTree,
    connection: usize,
    slot: usize,
    name: &'a [u8],
}

impl CallTarget<'_> {
    fn encode(
        &self,
        operation: LatencyOperation,
        credential: &RpcCredential,
        generation: u64,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let files = &self.tree.files[self.connection];
        let (file, written) = (files.read, files.written);
        let offset = (self.slot * BLOCK_BYTES) as u64;
        let mut put = |procedure, arguments: &dyn Encode| {
            put_call(out, credential, procedure, arguments);
        };
        match operation {
            LatencyOperation::Getattr => put(NfsProcedure::Getattr, &file),
            LatencyOperation::Access => {
                let access = AccessMask::ALL;
                put(NfsProcedure::Access, &AccessArguments { object: file, access });
            }
            LatencyOperation::Lookup => {
                let name = file_name(self.connection);
                put(
                    NfsProcedure::Lookup,
                    &named(self.tree.directory, name.as_bytes())?,
                );
            }
            LatencyOperation::Read => {
                let count = BLOCK_COUNT;
                put(NfsProcedure::Read, &ReadArguments { file, offset, count });
            }
            LatencyOperation::WriteUnstable | LatencyOperation::WriteFileSync => {
                let data = content::block(self.slot, generation);
                let stability = match operation {
                    LatencyOperation::WriteFileSync => StableHow::FileSync,
                    _ => StableHow::Unstable,
                };
                let arguments = write(written, offset, stability, &data)?;
                put(NfsProcedure::Write, &arguments);
            }
            LatencyOperation::Create => {
                let place = named(self.tree.made, self.name)?;
                let how = CreateHow::Guarded(Sattr {
                    mode: Some(0o644),
                    ..Sattr::default()
                });
                put(NfsProcedure::Create, &CreateArguments { place, how });
            }
            LatencyOperation::Remove => put(NfsProcedure::Remove, &named(self.tree.made, self.name)?),
            LatencyOperation::ReaddirPlus => put(NfsProcedure::ReaddirPlus, &listing(self.tree.listed)),
        }
        Ok(())
    }
}

/// All of a directory, from its beginning.
pub(super) fn listing(directory: NfsFh3) -> ReaddirPlusArguments {
    ReaddirPlusArguments {
        directory,
        cookie: Cookie(0),
        verifier: CookieVerifier([0; 8]),
        directory_count: LISTING_BYTES,
        max_count: LISTING_BYTES,
    }
}

/// The arguments of a WRITE.
pub(super) fn write(
    file: NfsFh3,
    offset: u64,
    stability: StableHow,
    data: &[u8],
) -> Result<WriteArguments<'_>> {
    Ok(WriteArguments {
        file,
        offset,
        count: u32::try_from(data.len())?,
        stable: stability,
        data: Opaque::new(data)?,
    })
}

/// A name in a directory.
pub(super) fn named(directory: NfsFh3, name: &[u8]) -> Result<DirOpArgs<'_>> {
    Ok(DirOpArgs {
        directory,
        name: Filename::new(name)?,
    })
}

/// Appends a call of NFS as a record; its number is put in when it is sent.
pub(super) fn put_call(
    out: &mut Vec<u8>,
    credential: &RpcCredential,
    procedure: NfsProcedure,
    arguments: &dyn Encode,
) {
    let body = record::begin_record(out);
    encode_call_header(out, 0, PROGRAM, VERSION, procedure.number(), credential);
    arguments.encode(out);
    record::finish_record(out, body, 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_count_in_hexadecimal_digits() {
        let mut digits = *b"........";
        put_digits(&mut digits, 0x12ab);
        assert_eq!(&digits, b"000012ab");
    }

    #[test]
    fn numbers_tell_their_slot_and_differ() {
        let mut calls = PreparedCalls::ready(vec![vec![0; 40]; 3]);
        let mut out = Vec::new();
        let (one, other) = (calls.put(2, &mut out), calls.put(2, &mut out));
        assert_ne!(one, other);
        assert_eq!((slot_of(one), slot_of(other), out.len()), (2, 2, 80));
        assert_eq!(out[4..8], one.to_be_bytes());
    }
}
