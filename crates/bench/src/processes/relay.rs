//! A relay between clients and a server: passes records on, and asks whoever watches what is to
//! become of each.
//!
//! Owns its connections. A record that is held does not hold up those behind it: RPC replies may
//! come in any order. A longer way holds up nothing either: each record arrives as much later as
//! the way takes, however many are on it.

pub(super) mod counting;

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// The longest record that is passed on, in bytes.
const RECORD_MAX: usize = 4 << 20;
/// Bytes of a record's mark (RFC 5531, section 11).
const MARK_BYTES: usize = 4;

/// What becomes of a record, with its mark.
#[derive(Debug, PartialEq, Eq)]
pub enum Passage {
    /// It is passed on.
    Now(Vec<u8>),
    /// The same after so long.
    Late(Duration, Vec<u8>),
    /// It is lost, and both connections end.
    Never,
}

/// Whoever watches what passes. Connections are numbered.
pub trait Watch: Send + Sync + 'static {
    /// A client calls.
    fn call(&self, connection: u64, record: Vec<u8>) -> Passage;

    /// The server replies.
    fn reply(&self, connection: u64, record: Vec<u8>) -> Passage;
}

/// Relays those who connect to `listener` to `server`, for as long as there is a listener. Each
/// record takes `way` longer.
///
/// The connections to the server are made by this thread: they are of its network namespace.
pub fn relay<W: Watch>(listener: &TcpListener, server: SocketAddr, way: Duration, watch: &Arc<W>) {
    for (number, client) in (1..).zip(listener.incoming().flatten()) {
        // Whoever cannot be passed on sees its connection closed.
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

/// Where records are passed on to.
#[derive(Clone)]
struct RelayOutput {
    to: Arc<Mutex<TcpStream>>,
    /// What is on its way, by when it arrives, if that takes any time.
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

/// Passes records on until either side ends or one is to end both, each as `watch` says.
fn pass_on(
    mut from: TcpStream,
    to: TcpStream,
    way: Duration,
    watch: impl Fn(Vec<u8>) -> Passage + Send + 'static,
) -> io::Result<()> {
    let far = RelayOutput::new(to, way)?;
    std::thread::Builder::new()
        .name("relayed".into())
        .spawn(move || {
            while let Ok(bytes) = record(&mut from) {
                let passed = match watch(bytes) {
                    Passage::Now(bytes) => far.pass(bytes),
                    Passage::Late(hold, bytes) => far.pass_late(hold, bytes),
                    Passage::Never => break,
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

/// What follows a record's mark.
#[must_use]
pub fn body(record: &[u8]) -> &[u8] {
    record.get(MARK_BYTES..).unwrap_or_default()
}

/// The number at a place of a record's body.
#[must_use]
pub fn word(body: &[u8], at: usize) -> Option<u32> {
    body.get(at..at + 4)?.try_into().ok().map(u32::from_be_bytes)
}
