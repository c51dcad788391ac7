//! Counts requests and bytes, and delays replies.
//!
//! These are counts on the wire, independent of client and server.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use curt_proto::nfs3::{NfsProcedure, PROGRAM};

use super::{Passage, Watch, body, relay, word};

/// Every third reply of a listing is delayed.
const HOLD_EACH: u64 = 3;

/// Traffic since the last reset.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Requests of all programs.
    pub total: u64,
    /// NFS requests, by procedure.
    pub calls: [u64; NfsProcedure::ALL.len()],
    /// Bytes of all replies, with their marks.
    pub received: u64,
    /// Number of READDIRs and READDIRPLUSes.
    pub readdir: u64,
    /// Those of them with cookie 0.
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
    renewing: HashMap<(u64, u32), Renewing>,
}

/// A call whose reply contains a directory's attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Renewing {
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
    fn call(&self, connection: u64, record: Vec<u8>) -> Passage {
        self.note_call(connection, body(&record));
        Passage::Now(record)
    }

    fn reply(&self, connection: u64, record: Vec<u8>) -> Passage {
        match self.note_reply(connection, body(&record)) {
            None => Passage::Now(record),
            Some(hold) => Passage::Late(hold, record),
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
        if let Some(count) = procedure(record).and_then(|number| state.counts.calls.get_mut(number)) {
            *count += 1;
        }
        let Some(about) = about(record) else { return };
        if let Some(cookie) = about.cookie {
            state.counts.readdir += 1;
            state.counts.cookie_zero += u64::from(cookie == 0);
            state.listed = about.handle.to_vec();
            state.renewing.insert((connection, about.xid), Renewing::Listing);
        } else if about.handle == state.listed {
            state.renewing.insert((connection, about.xid), Renewing::Asking);
        }
    }

    /// The delay of a reply.
    fn note_reply(&self, connection: u64, record: &[u8]) -> Option<Duration> {
        let xid = word(record, 0)?;
        let mut state = self.state();
        state.counts.received += record.len() as u64 + 4;
        let renewing = state.renewing.remove(&(connection, xid))?;
        state.held += u64::from(renewing == Renewing::Listing);
        let is_held = renewing == Renewing::Listing && state.held.is_multiple_of(HOLD_EACH);
        let hold = state.hold.filter(|_| is_held);
        let passed = Instant::now() + hold.unwrap_or_default();
        state.counts.renewed.push(passed);
        hold
    }
}

/// The procedure of an NFS call (RFC 5531 section 9).
fn procedure(record: &[u8]) -> Option<usize> {
    if word(record, 4)? != 0 || word(record, 12)? != PROGRAM {
        return None;
    }
    usize::try_from(word(record, 20)?).ok()
}

/// A call whose reply contains attributes of the directory that it is about.
#[derive(Debug, PartialEq, Eq)]
struct About<'a> {
    xid: u32,
    handle: &'a [u8],
    /// The cookie, if it is a listing.
    cookie: Option<u64>,
}

/// Decodes such a call: it begins with a handle, and a listing's cookie follows (RFC 1813 sections
/// 3.3.1, 3.3.3, 3.3.4, 3.3.16 and 3.3.17).
fn about(record: &[u8]) -> Option<About<'_>> {
    let is = |wanted: NfsProcedure, number: u32| wanted.number() == number;
    let procedure = u32::try_from(procedure(record)?).ok()?;
    let lists = is(NfsProcedure::Readdir, procedure) || is(NfsProcedure::ReaddirPlus, procedure);
    let asks = [NfsProcedure::Getattr, NfsProcedure::Lookup, NfsProcedure::Access];
    if !lists && !asks.iter().any(|asking| is(*asking, procedure)) {
        return None;
    }
    let mut at = 24;
    for _ in ["credential", "verifier"] {
        at += 8 + (word(record, at + 4)? as usize).next_multiple_of(4);
    }
    let length = word(record, at)? as usize;
    let handle = record.get(at + 4..at + 4 + length)?;
    at += 4 + length.next_multiple_of(4);
    let cookie = if lists {
        Some(u64::from(word(record, at)?) << 32 | u64::from(word(record, at + 4)?))
    } else {
        None
    };
    let xid = word(record, 0)?;
    Some(About { xid, handle, cookie })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A call with an empty credential and verifier, a handle of five bytes and these words.
    fn call(xid: u32, procedure: NfsProcedure, handle: [u8; 5], words: &[u32]) -> Vec<u8> {
        let head = [xid, 0, 2, PROGRAM, 3, procedure.number(), 0, 0, 0, 0, 5];
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
}
