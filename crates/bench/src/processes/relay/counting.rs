//! Counts requests and bytes, and delays replies.
//!
//! These are counts on the wire, independent of client and server.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use curt_proto::{
    nfs3::{self, NfsProcedure},
    nfs4::{self, Nfs4Operation, Nfs4Procedure},
};

use super::{RelayDecision, Watch, body, relay, word};

/// Every third reply of a listing is delayed.
const HOLD_EACH: u64 = 3;

/// Traffic since the last reset.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Requests of all programs.
    pub total: u64,
    /// Bytes of all replies, with their marks.
    pub received: u64,
    /// Number of READDIRs and READDIRPLUSes, of each version.
    pub readdir: u64,
    /// Listing requests with cookie 0.
    pub cookie_zero: u64,
    /// The times at which replies with attributes of the listed directory were forwarded: those of
    /// listings, and of GETATTR, LOOKUP and ACCESS on it.
    pub renewed: Vec<Instant>,
}

#[derive(Debug, Default)]
struct State {
    counts: Counts,
    hold: Option<Duration>,
    held: u64,
    /// Handle of the last listed directory.
    listed: Vec<u8>,
    /// Pending calls whose replies contain that directory's attributes, by connection and xid.
    renewing: HashMap<(u64, u32), DirectoryCallKind>,
}

/// A call whose reply contains a directory's attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DirectoryCallKind {
    Listing,
    Asking,
}

/// A counting relay on loopback.
#[derive(Debug)]
pub struct CountingRelay {
    counter: Arc<Counter>,
    port: u16,
}

impl CountingRelay {
    /// Relays to `server` from a free port on loopback, with an added round-trip time of
    /// `round_trip`.
    ///
    /// # Errors
    /// There is no free port, or no thread can be started.
    pub fn start(server: SocketAddr, round_trip: Duration) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let counter = Arc::new(Counter::default());
        let watch = Arc::clone(&counter);
        std::thread::Builder::new()
            .name("relay".into())
            .spawn(move || relay(&listener, server, round_trip / 2, &watch))?;
        Ok(Self { counter, port })
    }

    /// Its address, on loopback.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Resets the counters, and delays every third reply of a listing by `hold`.
    pub fn begin(&self, hold: Option<Duration>) {
        self.counter.begin(hold);
    }

    /// Traffic since the last reset.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counter.state().counts.clone()
    }
}

#[derive(Debug, Default)]
struct Counter(Mutex<State>);

impl Watch for Counter {
    fn call(&self, connection: u64, record: Vec<u8>) -> RelayDecision {
        self.note_call(connection, body(&record));
        RelayDecision::Now(record)
    }

    fn reply(&self, connection: u64, record: Vec<u8>) -> RelayDecision {
        match self.note_reply(connection, body(&record)) {
            None => RelayDecision::Now(record),
            Some(hold) => RelayDecision::Late(hold, record),
        }
    }
}

impl Counter {
    fn begin(&self, hold: Option<Duration>) {
        let mut state = self.state();
        state.counts = Counts::default();
        (state.hold, state.held) = (hold, 0);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The counters are valid even if a thread panicked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_call(&self, connection: u64, record: &[u8]) {
        let mut state = self.state();
        state.counts.total += 1;
        let Some(about) = about(record) else { return };
        if let Some(cookie) = about.cookie {
            state.counts.readdir += 1;
            state.counts.cookie_zero += u64::from(cookie == 0);
            state.listed = about.handle.to_vec();
            state.renewing.insert((connection, about.xid), DirectoryCallKind::Listing);
        } else if about.handle == state.listed {
            state.renewing.insert((connection, about.xid), DirectoryCallKind::Asking);
        }
    }

    /// The delay of a reply.
    fn note_reply(&self, connection: u64, record: &[u8]) -> Option<Duration> {
        let xid = word(record, 0)?;
        let mut state = self.state();
        state.counts.received += record.len() as u64 + 4;
        let renewing = state.renewing.remove(&(connection, xid))?;
        state.held += u64::from(renewing == DirectoryCallKind::Listing);
        let is_held = renewing == DirectoryCallKind::Listing && state.held.is_multiple_of(HOLD_EACH);
        let hold = state.hold.filter(|_| is_held);
        let passed = Instant::now() + hold.unwrap_or_default();
        state.counts.renewed.push(passed);
        hold
    }
}

/// A call whose reply contains attributes of the directory that it is about.
#[derive(Debug, PartialEq, Eq)]
struct DirectoryCall<'a> {
    xid: u32,
    handle: &'a [u8],
    /// The cookie, if it is a listing.
    cookie: Option<u64>,
}

/// Decodes such a call of NFSv3 or NFSv4 (RFC 5531 section 9).
fn about(record: &[u8]) -> Option<DirectoryCall<'_>> {
    if word(record, 4)? != 0 || word(record, 12)? != nfs3::PROGRAM {
        return None;
    }
    let mut arguments = 24;
    for _ in ["credential", "verifier"] {
        arguments = after_opaque(record, arguments + 4)?;
    }
    let procedure = word(record, 20)?;
    match word(record, 16)? {
        nfs3::VERSION => about_procedure(record, NfsProcedure::from_number(procedure)?, arguments),
        nfs4::VERSION if procedure == Nfs4Procedure::Compound as u32 => about_compound(record, arguments),
        _ => None,
    }
}

/// A procedure of NFSv3, whose arguments begin with a handle; a listing's cookie follows (RFC 1813
/// sections 3.3.1, 3.3.3, 3.3.4, 3.3.16 and 3.3.17).
fn about_procedure(record: &[u8], procedure: NfsProcedure, arguments: usize) -> Option<DirectoryCall<'_>> {
    let cookie = match procedure {
        NfsProcedure::Readdir | NfsProcedure::ReaddirPlus => {
            Some(double_word(record, after_opaque(record, arguments)?)?)
        }
        NfsProcedure::Getattr | NfsProcedure::Lookup | NfsProcedure::Access => None,
        _ => return None,
    };
    Some(DirectoryCall { xid: word(record, 0)?, handle: opaque(record, arguments)?, cookie })
}

/// A compound, whose first operations are those with which Curt precedes a request about an object
/// (RFC 8881 sections 16.2.2, 18.1.1, 18.2.1, 18.7.1, 18.13.1, 18.19.1, 18.23.1 and 18.46.1).
fn about_compound(record: &[u8], arguments: usize) -> Option<DirectoryCall<'_>> {
    // A tag, the minor version, and the number of operations.
    let mut at = after_opaque(record, arguments)? + 8;
    let mut handle = None;
    for _ in 0..word(record, at - 4)? {
        let operation = Nfs4Operation::from_number(word(record, at)?)?;
        at += 4;
        match operation {
            Nfs4Operation::Sequence => at += 32,
            Nfs4Operation::Close => at += 20,
            Nfs4Operation::Putfh => {
                handle = opaque(record, at);
                at = after_opaque(record, at)?;
            }
            Nfs4Operation::Readdir
            | Nfs4Operation::Getattr
            | Nfs4Operation::Lookup
            | Nfs4Operation::Access => {
                let lists = operation == Nfs4Operation::Readdir;
                let cookie = if lists { Some(double_word(record, at)?) } else { None };
                return Some(DirectoryCall { xid: word(record, 0)?, handle: handle?, cookie });
            }
            _ => return None,
        }
    }
    None
}

/// The bytes of variable length at `at`.
fn opaque(record: &[u8], at: usize) -> Option<&[u8]> {
    let length = word(record, at)? as usize;
    record.get(at + 4..)?.get(..length)
}

/// The end of the bytes of variable length at `at`.
fn after_opaque(record: &[u8], at: usize) -> Option<usize> {
    Some(at + 4 + (word(record, at)? as usize).next_multiple_of(4))
}

fn double_word(record: &[u8], at: usize) -> Option<u64> {
    Some(u64::from(word(record, at)?) << 32 | u64::from(word(record, at + 4)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A call with an empty credential and verifier, a handle of five bytes and these words.
    fn call(xid: u32, procedure: NfsProcedure, handle: [u8; 5], words: &[u32]) -> Vec<u8> {
        let head = [xid, 0, 2, nfs3::PROGRAM, 3, procedure.number(), 0, 0, 0, 0, 5];
        let mut record: Vec<u8> = head.iter().flat_map(|word| word.to_be_bytes()).collect();
        record.extend_from_slice(&handle);
        record.extend_from_slice(&[0; 3]);
        record.extend(words.iter().flat_map(|word| word.to_be_bytes()));
        record
    }

    #[test]
    fn what_brings_the_listed_directorys_attributes_is_noted_and_listings_alone_are_held() {
        let relay = Counter::default();
        let hold = Duration::from_secs(3);
        relay.begin(Some(hold));
        let [listed, other] = [*b"above", *b"below"];
        let calls = [
            call(1, NfsProcedure::ReaddirPlus, listed, &[0, 0]),
            call(2, NfsProcedure::Readdir, listed, &[1, 7]),
            call(3, NfsProcedure::Getattr, listed, &[]),
            call(4, NfsProcedure::Getattr, other, &[]),
            call(5, NfsProcedure::Read, listed, &[0, 0, 0]),
            call(6, NfsProcedure::Lookup, listed, &[0]),
            call(7, NfsProcedure::ReaddirPlus, listed, &[1, 8]),
        ];
        let held: Vec<_> = calls
            .iter()
            .map(|record| {
                relay.note_call(0, record);
                relay.note_reply(0, &record[..4])
            })
            .collect();
        assert_eq!(held, [None, None, None, None, None, None, Some(hold)]);
        let counts = relay.state().counts.clone();
        assert_eq!((counts.total, counts.readdir, counts.cookie_zero), (7, 3, 1));
        assert_eq!(counts.renewed.len(), 5);
        let cookie = about(&calls[1]).and_then(|about| about.cookie);
        assert_eq!(cookie, Some(1 << 32 | 7));
        assert_eq!(about(&calls[1][..50]), None);
    }
    /// A compound that closes another file, and then does `operation` on the object of a handle.
    fn compound(xid: u32, handle: [u8; 5], operation: Nfs4Operation, words: &[u32]) -> Vec<u8> {
        let number = |operation: Nfs4Operation| operation.number();
        let mut all = vec![xid, 0, 2, nfs4::PROGRAM, 4, 1, 0, 0, 0, 0];
        all.extend([0, 1, 5, number(Nfs4Operation::Sequence)]);
        all.extend([0; 8]);
        all.extend([number(Nfs4Operation::Putfh), 4, 7, number(Nfs4Operation::Close)]);
        all.extend([0; 5]);
        all.extend([number(Nfs4Operation::Putfh), 5]);
        let mut record: Vec<u8> = all.iter().flat_map(|word| word.to_be_bytes()).collect();
        record.extend_from_slice(&handle);
        record.extend_from_slice(&[0; 3]);
        let rest = [&[number(operation)], words].concat();
        record.extend(rest.iter().flat_map(|word| word.to_be_bytes()));
        record
    }

    #[test]
    fn listings_of_nfs4_are_counted_too() {
        let relay = Counter::default();
        let [listed, other] = [*b"above", *b"below"];
        let calls = [
            compound(1, listed, Nfs4Operation::Readdir, &[0, 0]),
            compound(2, listed, Nfs4Operation::Readdir, &[1, 7]),
            compound(3, listed, Nfs4Operation::Getattr, &[]),
            compound(4, other, Nfs4Operation::Getattr, &[]),
            compound(5, listed, Nfs4Operation::Read, &[]),
        ];
        for record in &calls {
            relay.note_call(0, record);
            assert_eq!(relay.note_reply(0, &record[..4]), None);
        }
        let counts = relay.state().counts.clone();
        assert_eq!((counts.total, counts.readdir, counts.cookie_zero), (5, 2, 1));
        assert_eq!(counts.renewed.len(), 3);
        for end in 0..calls[1].len() {
            assert_eq!(about(&calls[1][..end]), None, "{end}");
        }
    }
}
