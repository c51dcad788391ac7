//! A relay between clients and a server: forwards records, and calls an observer for each.
//!
//! A delayed record does not delay those behind it: RPC replies may arrive in any order. With an
//! added latency each record arrives later by that time, however many are in transit.

pub(super) mod counting;

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// Maximum size of a forwarded record in bytes.
const RECORD_MAX: usize = 4 << 20;
/// Size of a record mark (RFC 5531 section 11).
const MARK_BYTES: usize = 4;

/// The treatment of a record, including its mark.
#[derive(Debug, PartialEq, Eq)]
pub enum RelayDecision {
    /// Forward it.
    Now(Vec<u8>),
    /// Forward it after a delay.
    Late(Duration, Vec<u8>),
    /// Drop it, and close both connections.
    Never,
}

/// Observes forwarded records. Connections are numbered.
pub trait Watch: Send + Sync + 'static {
    /// A call of a client.
    fn call(&self, connection: u64, record: Vec<u8>) -> RelayDecision;

    /// A reply of the server.
    fn reply(&self, connection: u64, record: Vec<u8>) -> RelayDecision;
}

/// Relays connections to `listener` to `server`, until the listener is closed. Each record takes
/// `way` longer.
///
/// This thread opens the connections to the server: they are in its network namespace.
pub fn relay<W: Watch>(listener: &TcpListener, server: SocketAddr, way: Duration, watch: &Arc<W>) {
    for (number, client) in (1..).zip(listener.incoming().flatten()) {
        // On an error the client's connection is closed.
        let _ = connect(number, client, server, way, watch);
    }
}

fn connect<W: Watch>(
    number: u64,
    client: TcpStream,
    server: SocketAddr,
    way: Duration,
    watch: &Arc<W>,
) -> io::Result<()> {
    let server = TcpStream::connect(server)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (calls, replies) = (Arc::clone(watch), Arc::clone(watch));
    let (from, to) = (client.try_clone()?, server.try_clone()?);
    pass_on(from, to, way, move |record| calls.call(number, record))?;
    pass_on(server, client, way, move |record| replies.reply(number, record))
}

/// The destination of records.
#[derive(Clone)]
struct RelayOutput {
    to: Arc<Mutex<TcpStream>>,
    /// Records in transit, with the times of their arrival, if there is an added latency.
    on_the_way: Option<mpsc::Sender<(Instant, Vec<u8>)>>,
    way: Duration,
}

impl RelayOutput {
    fn new(to: TcpStream, way: Duration) -> io::Result<Self> {
        let to = Arc::new(Mutex::new(to));
        if way.is_zero() {
            let on_the_way = None;
            return Ok(Self { to, on_the_way, way });
        }
        let (send, sent) = mpsc::channel::<(Instant, Vec<u8>)>();
        let there = Arc::clone(&to);
        std::thread::Builder::new().name("on the way".into()).spawn(move || {
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
            Some(way) => {
                way.send((Instant::now() + self.way, bytes)).map_err(|_| io::ErrorKind::BrokenPipe.into())
            }
        }
    }

    /// Forwards it after the delay.
    fn pass_late(&self, hold: Duration, bytes: Vec<u8>) -> io::Result<()> {
        let far = self.clone();
        let late = move || {
            std::thread::sleep(hold);
            // The destination may be closed.
            let _ = far.pass(bytes);
        };
        std::thread::Builder::new().name("held".into()).spawn(late).map(drop)
    }
}

fn write(to: &Mutex<TcpStream>, bytes: &[u8]) -> io::Result<()> {
    to.lock().unwrap_or_else(PoisonError::into_inner).write_all(bytes)
}

fn end(to: &Mutex<TcpStream>) {
    // It may have ended already.
    let _ = to.lock().unwrap_or_else(PoisonError::into_inner).shutdown(Shutdown::Both);
}

/// Forwards records until either side ends or one is to end both, as `watch` decides.
fn pass_on(
    mut from: TcpStream,
    to: TcpStream,
    way: Duration,
    watch: impl Fn(Vec<u8>) -> RelayDecision + Send + 'static,
) -> io::Result<()> {
    let far = RelayOutput::new(to, way)?;
    std::thread::Builder::new().name("relayed".into()).spawn(move || {
        while let Ok(bytes) = record(&mut from) {
            let passed = match watch(bytes) {
                RelayDecision::Now(bytes) => far.pass(bytes),
                RelayDecision::Late(hold, bytes) => far.pass_late(hold, bytes),
                RelayDecision::Never => break,
            };
            if passed.is_err() {
                break;
            }
        }
        if far.on_the_way.is_none() {
            end(&far.to);
        }
        // Records in transit arrive first.
        let _ = from.shutdown(Shutdown::Both);
    })?;
    Ok(())
}

/// One record, with the mark of a single fragment; several fragments are joined.
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

/// The bytes after a record's mark.
#[must_use]
pub fn body(record: &[u8]) -> &[u8] {
    record.get(MARK_BYTES..).unwrap_or_default()
}

/// The number at a position of a record's body.
#[must_use]
pub fn word(body: &[u8], at: usize) -> Option<u32> {
    body.get(at..at + 4)?.try_into().ok().map(u32::from_be_bytes)
}
