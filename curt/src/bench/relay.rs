//! A relay between a mount and its server that counts requests and bytes, holds replies back, and makes the way longer.
//!
//! Owns its connections. Its counts are those of the wire, whatever client and server say of themselves. A reply that is held does
//! not hold up those behind it: RPC replies may come in any order. A longer way holds up nothing either: each record arrives as
//! much later as the way takes, however many are on it.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use curt_proto::nfs3::{PROGRAM, Procedure};
use curt_trace::{PROCEDURES, ProcedureCalls};

/// The longest record that is passed on, in bytes.
const RECORD_MAX: usize = 4 << 20;

/// Each how-many-th reply of a listing is held.
const HOLD_EACH: u64 = 3;

/// What passed since it was last asked.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    /// Requests of any kind.
    pub(super) total: u64,
    /// Those of NFS, by procedure.
    pub(super) calls: [u64; PROCEDURES.len()],
    /// Bytes of all replies, with their marks.
    pub(super) received: u64,
    /// READDIR and READDIRPLUS.
    pub(super) readdir: u64,
    /// Those of them that begin at the beginning.
    pub(super) cookie_zero: u64,
    /// When replies were passed on that bring attributes of the directory that is listed: those of listings, and of GETATTR, LOOKUP and
    /// ACCESS about it.
    pub(super) renewed: Vec<Instant>,
}

#[derive(Debug, Default)]
struct State {
    counts: Counts,
    hold: Option<Duration>,
    held: u64,
    /// Handle of the directory that was listed last.
    listed: Vec<u8>,
    /// Calls whose replies bring that directory's attributes and are not here yet, by connection and xid.
    renewing: HashMap<(u64, u32), Renewing>,
    connections: u64,
}

/// What brings a directory's attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Renewing {
    Listing,
    Asking,
}

impl Counts {
    /// The requests of NFS by name.
    pub(super) fn by_procedure(&self) -> ProcedureCalls {
        let counted = PROCEDURES.iter().zip(self.calls).filter(|(_, count)| *count > 0);
        counted.map(|(name, count)| ((*name).to_owned(), count)).collect()
    }
}

/// The relay. Connections end with those who made them.
#[derive(Clone, Debug)]
pub(super) struct Relay {
    state: Arc<Mutex<State>>,
    port: u16,
    /// How long a record takes each way.
    way: Duration,
}

impl Relay {
    /// Relays to `server` from a port of its own on loopback.
    pub(super) fn start(server: SocketAddr) -> io::Result<Self> {
        Self::with_round_trip(server, Duration::ZERO)
    }

    /// The same with a way that takes `round_trip` there and back.
    pub(super) fn with_round_trip(server: SocketAddr, round_trip: Duration) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let relay = Self {
            state: Arc::default(),
            port: listener.local_addr()?.port(),
            way: round_trip / 2,
        };
        let accepting = relay.clone();
        std::thread::Builder::new().name("relay".into()).spawn(move || {
            for client in listener.incoming().flatten() {
                // Whoever cannot be passed on sees its connection closed.
                let _ = accepting.connect(client, server);
            }
        })?;
        Ok(relay)
    }

    /// Where it listens, on loopback.
    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// From now on counts anew, and holds every third reply of a listing for so long.
    pub(super) fn begin(&self, hold: Option<Duration>) {
        let mut state = self.state();
        state.counts = Counts::default();
        (state.hold, state.held) = (hold, 0);
    }

    /// What passed since.
    pub(super) fn counts(&self) -> Counts {
        self.state().counts.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Numbers are whole whoever panicked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connect(&self, client: TcpStream, server: SocketAddr) -> io::Result<()> {
        let server = TcpStream::connect(server)?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let number = {
            let mut state = self.state();
            state.connections += 1;
            state.connections
        };
        let (calls, replies) = (self.clone(), self.clone());
        let (from, to) = (client.try_clone()?, server.try_clone()?);
        pass_on(from, to, self.way, move |record| calls.note_call(number, record))?;
        pass_on(server, client, self.way, move |record| {
            replies.note_reply(number, record)
        })
    }

    fn note_call(&self, connection: u64, record: &[u8]) -> Option<Duration> {
        let mut state = self.state();
        state.counts.total += 1;
        if let Some(count) = procedure(record).and_then(|number| state.counts.calls.get_mut(number)) {
            *count += 1;
        }
        let about = about(record)?;
        if let Some(cookie) = about.cookie {
            state.counts.readdir += 1;
            state.counts.cookie_zero += u64::from(cookie == 0);
            state.listed = about.handle.to_vec();
            state.renewing.insert((connection, about.xid), Renewing::Listing);
        } else if about.handle == state.listed {
            state.renewing.insert((connection, about.xid), Renewing::Asking);
        }
        None
    }

    /// For how long a reply is held.
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

/// Where records are passed on to.
#[derive(Clone)]
struct Far {
    to: Arc<Mutex<TcpStream>>,
    /// What is on its way, by when it arrives, if that takes any time.
    on_the_way: Option<mpsc::Sender<(Instant, Vec<u8>)>>,
    way: Duration,
}

impl Far {
    fn new(to: TcpStream, way: Duration) -> io::Result<Self> {
        let to = Arc::new(Mutex::new(to));
        if way.is_zero() {
            let on_the_way = None;
            return Ok(Self { to, on_the_way, way });
        }
        let (send, sent) = mpsc::channel::<(Instant, Vec<u8>)>();
        let there = Arc::clone(&to);
        std::thread::Builder::new()
            .name("on the way".into())
            .spawn(move || {
                for (arrives, bytes) in sent {
                    std::thread::sleep(arrives.saturating_duration_since(Instant::now()));
                    if write(&there, &bytes).is_err() {
                        break;
                    }
                }
                end(&there);
            })?;
        let on_the_way = Some(send);
        Ok(Self { to, on_the_way, way })
    }

    fn pass(&self, bytes: Vec<u8>) -> io::Result<()> {
        match &self.on_the_way {
            None => write(&self.to, &bytes),
            Some(way) => way
                .send((Instant::now() + self.way, bytes))
                .map_err(|_| io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Passes it on when it was held for so long.
    fn pass_late(&self, hold: Duration, bytes: Vec<u8>) -> io::Result<()> {
        let far = self.clone();
        let late = move || {
            std::thread::sleep(hold);
            // Whoever has gone meanwhile does not want it.
            let _ = far.pass(bytes);
        };
        std::thread::Builder::new()
            .name("held".into())
            .spawn(late)
            .map(drop)
    }
}

fn write(to: &Mutex<TcpStream>, bytes: &[u8]) -> io::Result<()> {
    to.lock().unwrap_or_else(PoisonError::into_inner).write_all(bytes)
}

fn end(to: &Mutex<TcpStream>) {
    // It may have ended already.
    let _ = to
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .shutdown(Shutdown::Both);
}

/// Passes records on until either side ends, each once `note` has seen it and as late as that says.
fn pass_on(
    mut from: TcpStream,
    to: TcpStream,
    way: Duration,
    note: impl Fn(&[u8]) -> Option<Duration> + Send + 'static,
) -> io::Result<()> {
    let far = Far::new(to, way)?;
    std::thread::Builder::new()
        .name("relayed".into())
        .spawn(move || {
            while let Ok(bytes) = record(&mut from) {
                let held = note(bytes.get(4..).unwrap_or_default());
                let passed = match held {
                    None => far.pass(bytes),
                    Some(hold) => far.pass_late(hold, bytes),
                };
                if passed.is_err() {
                    break;
                }
            }
            if far.on_the_way.is_none() {
                end(&far.to);
            }
            // What is still on its way arrives first.
            let _ = from.shutdown(Shutdown::Both);
        })?;
    Ok(())
}

/// One record, with the mark of its only fragment; several fragments become one.
fn record(from: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 4];
    loop {
        let mut mark = [0; 4];
        from.read_exact(&mut mark)?;
        let mark = u32::from_be_bytes(mark);
        let length = (mark & 0x7fff_ffff) as usize;
        let start = bytes.len();
        if start + length > RECORD_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        bytes.resize(start + length, 0);
        from.read_exact(&mut bytes[start..])?;
        if mark >> 31 == 1 {
            let whole = u32::try_from(bytes.len() - 4).map_err(io::Error::other)? | 1 << 31;
            bytes[..4].copy_from_slice(&whole.to_be_bytes());
            return Ok(bytes);
        }
    }
}

/// The procedure of a call of NFS (RFC 5531, section 9).
fn procedure(record: &[u8]) -> Option<usize> {
    if word(record, 4)? != 0 || word(record, 12)? != PROGRAM {
        return None;
    }
    usize::try_from(word(record, 20)?).ok()
}

/// A call whose reply brings a directory's attributes if it is about one.
#[derive(Debug, PartialEq, Eq)]
struct About<'a> {
    xid: u32,
    handle: &'a [u8],
    /// Where it goes on, if it lists.
    cookie: Option<u64>,
}

/// Whether a call is one of those: it begins with a handle, and a listing's cookie comes next (RFC 1813, sections 3.3.1, 3.3.3, 3.3.4,
/// 3.3.16 and 3.3.17).
fn about(record: &[u8]) -> Option<About<'_>> {
    let is = |wanted: Procedure, number: u32| wanted.number() == number;
    let procedure = u32::try_from(procedure(record)?).ok()?;
    let lists = is(Procedure::Readdir, procedure) || is(Procedure::ReaddirPlus, procedure);
    let asks = [Procedure::Getattr, Procedure::Lookup, Procedure::Access];
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

fn word(record: &[u8], at: usize) -> Option<u32> {
    record.get(at..at + 4)?.try_into().ok().map(u32::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A call with an empty credential and verifier, a handle of five bytes and these words.
    fn call(xid: u32, procedure: Procedure, handle: [u8; 5], words: &[u32]) -> Vec<u8> {
        let head = [xid, 0, 2, PROGRAM, 3, procedure.number(), 0, 0, 0, 0, 5];
        let mut record: Vec<u8> = head.iter().flat_map(|word| word.to_be_bytes()).collect();
        record.extend_from_slice(&handle);
        record.extend_from_slice(&[0; 3]);
        record.extend(words.iter().flat_map(|word| word.to_be_bytes()));
        record
    }

    #[test]
    fn what_brings_the_listed_directorys_attributes_is_noted_and_listings_alone_are_held() {
        let relay = Relay {
            state: Arc::default(),
            port: 0,
            way: Duration::ZERO,
        };
        let hold = Duration::from_secs(3);
        relay.begin(Some(hold));
        let [listed, other] = [*b"above", *b"below"];
        let calls = [
            call(1, Procedure::ReaddirPlus, listed, &[0, 0]),
            call(2, Procedure::Readdir, listed, &[1, 7]),
            call(3, Procedure::Getattr, listed, &[]),
            call(4, Procedure::Getattr, other, &[]),
            call(5, Procedure::Read, listed, &[0, 0, 0]),
            call(6, Procedure::Lookup, listed, &[0]),
            call(7, Procedure::ReaddirPlus, listed, &[1, 8]),
        ];
        let held: Vec<_> = calls
            .iter()
            .map(|record| {
                relay.note_call(0, record);
                relay.note_reply(0, &record[..4])
            })
            .collect();
        assert_eq!(held, [None, None, None, None, None, None, Some(hold)]);
        let counts = relay.counts();
        assert_eq!((counts.total, counts.readdir, counts.cookie_zero), (7, 3, 1));
        assert_eq!(counts.renewed.len(), 5);
        let cookie = about(&calls[1]).and_then(|about| about.cookie);
        assert_eq!(cookie, Some(1 << 32 | 7));
        assert_eq!(about(&calls[1][..50]), None);
    }
}
