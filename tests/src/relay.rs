//! A relay before a server that loses replies, or says other things instead of them.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::network::Network;

/// The longest record that is passed on.
const RECORD_MAX: usize = 4 << 20;

/// Where in a record, without its mark, the number of the procedure is.
const PROCEDURE: std::ops::Range<usize> = 20..24;

/// What is said instead of a reply: from the record with its mark, the bytes that are sent.
pub type Lie = fn(Vec<u8>) -> Vec<u8>;

/// A relay that runs until the process ends.
pub struct Relay {
    address: SocketAddr,
    calls: Arc<Calls>,
}

/// What all connections share: a client's second connection carries calls of its first.
struct Calls {
    chosen: Vec<u32>,
    procedures: Mutex<HashMap<u32, u32>>,
    cut: Mutex<HashSet<u32>>,
    cuts: AtomicUsize,
    /// Of the next reply to a call of this procedure.
    lie: Mutex<Option<(u32, Lie)>>,
}

impl Relay {
    /// Relays from a port of its own at the server's address to the server. It loses the first reply to each call of the procedures that are
    /// `chosen`: both connections are cut when it comes by.
    ///
    /// # Errors
    /// The network cannot be entered or the port not be opened.
    pub fn start(network: &Network, server: SocketAddr, chosen: &[u32]) -> Result<Self> {
        let calls = Arc::new(Calls {
            chosen: chosen.to_vec(),
            procedures: Mutex::default(),
            cut: Mutex::default(),
            cuts: AtomicUsize::new(0),
            lie: Mutex::default(),
        });
        let space = File::open(Path::new("/run/netns").join(network.name())).context("the network")?;
        let (tell, told) = mpsc::channel();
        let shared = Arc::clone(&calls);
        // Its sockets are of the network that this thread is in, and it alone.
        std::thread::spawn(move || {
            let entered = move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network));
            let listener = entered
                .map_err(io::Error::from)
                .and_then(|()| TcpListener::bind((server.ip(), 0)));
            let address = match &listener {
                Ok(listener) => listener.local_addr().map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            };
            // Whoever started it is there: it waits for this.
            let _ = tell.send(address);
            let Ok(listener) = listener else { return };
            for client in listener.incoming().flatten() {
                if let Ok(server) = TcpStream::connect(server) {
                    relay(&client, &server, &shared);
                }
            }
        });
        let address = told
            .recv()?
            .map_err(|error| anyhow::anyhow!("the relay: {error}"))?;
        Ok(Self { address, calls })
    }

    /// Its port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.address.port()
    }

    /// Has the next reply to a call of `procedure` replaced.
    pub fn lie(&self, procedure: u32, lie: Lie) {
        *lock(&self.calls.lie) = Some((procedure, lie));
    }

    /// Whether a reply is still to be replaced.
    #[must_use]
    pub fn is_about_to_lie(&self) -> bool {
        lock(&self.calls.lie).is_some()
    }

    /// How many replies it has lost.
    #[must_use]
    pub fn cuts(&self) -> usize {
        self.calls.cuts.load(Ordering::SeqCst)
    }
}

/// Passes records both ways until either side ends or a reply is lost.
fn relay(client: &TcpStream, server: &TcpStream, calls: &Arc<Calls>) {
    for (from, to, is_reply) in [(client, server, false), (server, client, true)] {
        let (Ok(mut from), Ok(mut to)) = (from.try_clone(), to.try_clone()) else {
            return;
        };
        let calls = Arc::clone(calls);
        std::thread::spawn(move || {
            while let Ok(record) = read(&mut from) {
                let said = if is_reply {
                    calls.reply(record)
                } else {
                    calls.note_call(&record);
                    Some(record)
                };
                if said.is_none_or(|said| to.write_all(&said).is_err()) {
                    break;
                }
            }
            // Both ends hear of it, and the other direction's thread ends.
            let _ = from.shutdown(Shutdown::Both);
            let _ = to.shutdown(Shutdown::Both);
        });
    }
}

/// One record with its mark.
fn read(from: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut mark = [0; 4];
    from.read_exact(&mut mark)?;
    let length = (u32::from_be_bytes(mark) & 0x7fff_ffff) as usize;
    if length > RECORD_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut record = mark.to_vec();
    record.resize(4 + length, 0);
    from.read_exact(&mut record[4..])?;
    Ok(record)
}

fn word(record: &[u8], range: std::ops::Range<usize>) -> u32 {
    let bytes = record
        .get(4 + range.start..4 + range.end)
        .and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(u32::MAX, u32::from_be_bytes)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Calls {
    fn note_call(&self, record: &[u8]) {
        lock(&self.procedures).insert(word(record, 0..4), word(record, PROCEDURE));
    }

    /// What is said to the client; nothing if the reply is to be lost.
    fn reply(&self, record: Vec<u8>) -> Option<Vec<u8>> {
        let xid = word(&record, 0..4);
        let Some(procedure) = lock(&self.procedures).get(&xid).copied() else {
            return Some(record);
        };
        if self.chosen.contains(&procedure) && lock(&self.cut).insert(xid) {
            self.cuts.fetch_add(1, Ordering::SeqCst);
            return None;
        }
        let lie = lock(&self.lie).take_if(|(about, _)| *about == procedure);
        Some(match lie {
            Some((_, lie)) => lie(record),
            None => record,
        })
    }
}
