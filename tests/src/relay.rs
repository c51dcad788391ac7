//! A relay in front of a server that loses replies, or replaces them.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use curt_bench::processes::relay::{RelayDecision, Watch, body, relay, word};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::curt::{CurtMount, CurtServe};
use crate::network::{ADDRESS, Network};

/// The position of the procedure number in a record, without its mark.
const PROCEDURE: usize = 20;

/// Replaces a reply: returns the bytes to send, given the record with its mark.
pub type ReplyRewrite = fn(Vec<u8>) -> Vec<u8>;

/// A relay that runs until the process ends.
pub struct LossyRelay {
    address: SocketAddr,
    calls: Arc<RelayedCalls>,
}

/// State shared by all connections: a client's second connection carries calls of its first.
struct RelayedCalls {
    chosen: Vec<u32>,
    procedures: Mutex<HashMap<u32, u32>>,
    cut: Mutex<HashSet<u32>>,
    cuts: AtomicUsize,
    /// The replacement of the next reply to a call of this procedure, or of all.
    lie: Mutex<Option<(u32, ReplyRewrite, bool)>>,
}

impl LossyRelay {
    /// Relays from a free port at the server's address to the server. It loses the first reply to
    /// each call of the procedures in `chosen`: both connections are closed when it arrives.
    ///
    /// # Errors
    /// The network cannot be entered or the port cannot be opened.
    pub fn start(network: &Network, server: SocketAddr, chosen: &[u32]) -> Result<Self> {
        let calls = Arc::new(RelayedCalls {
            chosen: chosen.to_vec(),
            procedures: Mutex::default(),
            cut: Mutex::default(),
            cuts: AtomicUsize::new(0),
            lie: Mutex::default(),
        });
        let address = start_relay(network, server, Duration::ZERO, &calls)?;
        Ok(Self { address, calls })
    }

    /// Its port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.address.port()
    }

    /// Replaces the next reply to a call of `procedure`.
    pub fn rewrite_next_reply(&self, procedure: u32, lie: ReplyRewrite) {
        *lock(&self.calls.lie) = Some((procedure, lie, false));
    }

    /// Replaces all replies to calls of `procedure`, until [`Self::end_rewriting`].
    pub fn rewrite_replies(&self, procedure: u32, lie: ReplyRewrite) {
        *lock(&self.calls.lie) = Some((procedure, lie, true));
    }

    /// Replies are as the server sends them from now on.
    pub fn end_rewriting(&self) {
        *lock(&self.calls.lie) = None;
    }

    /// Whether a reply is still to be replaced.
    #[must_use]
    pub fn is_about_to_lie(&self) -> bool {
        lock(&self.calls.lie).is_some()
    }

    /// Number of lost replies.
    #[must_use]
    pub fn cuts(&self) -> usize {
        self.calls.cuts.load(Ordering::SeqCst)
    }
}

/// `curt serve` of a new directory, with a relay in front of it, in a network of its own.
pub struct RelayedServe {
    /// In front of the server.
    pub relay: LossyRelay,
    /// The server.
    pub server: CurtServe,
    /// The directory that it exports.
    pub export: PathBuf,
    /// In which both run.
    pub network: Network,
}

impl RelayedServe {
    /// Starts both; `chosen` as for [`LossyRelay::start`].
    ///
    /// # Errors
    /// One of them does not start.
    pub fn start(chosen: &[u32]) -> Result<Self> {
        let network = Network::new()?;
        let export = network.make_directory("export")?;
        let server = CurtServe::start(&network, &export, &[])?;
        let address = SocketAddr::new(ADDRESS.parse()?, CurtServe::PORT);
        let relay = LossyRelay::start(&network, address, chosen)?;
        Ok(Self { relay, server, export, network })
    }

    /// Mount options with the port of the relay, and that of the server for MOUNT.
    #[must_use]
    pub fn ports(&self) -> String {
        format!("port={},mountport={}", self.relay.port(), CurtServe::PORT)
    }

    /// Mounts it through the relay, with more options.
    ///
    /// # Errors
    /// The mount fails.
    pub fn mount(&self, options: &str) -> Result<CurtMount> {
        let options = format!("{options},{}", self.ports());
        CurtMount::start(&self.network, "mount", &self.server.source(), &options)
    }
}

/// Relays from a free port at the server's address to the server until the process ends. Each
/// record takes `way` longer.
///
/// # Errors
/// The network cannot be entered or the port cannot be opened.
pub fn start_relay<W: Watch>(
    network: &Network,
    server: SocketAddr,
    way: Duration,
    watch: &Arc<W>,
) -> Result<SocketAddr> {
    let space = File::open(Path::new("/run/netns").join(network.name())).context("the network")?;
    let (tell, told) = mpsc::channel();
    let shared = Arc::clone(watch);
    // Its sockets are in the network of this thread.
    std::thread::spawn(move || {
        let entered = move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network));
        let listener = entered.map_err(io::Error::from).and_then(|()| TcpListener::bind((server.ip(), 0)));
        let address = match &listener {
            Ok(listener) => listener.local_addr().map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        // The starting thread waits for this.
        let _ = tell.send(address);
        let Ok(listener) = listener else { return };
        relay(&listener, server, way, &shared);
    });
    told.recv()?.map_err(|error| anyhow::anyhow!("the relay: {error}"))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watch for RelayedCalls {
    fn call(&self, _: u64, record: Vec<u8>) -> RelayDecision {
        let call = body(&record);
        if let (Some(xid), Some(procedure)) = (word(call, 0), word(call, PROCEDURE)) {
            lock(&self.procedures).insert(xid, procedure);
        }
        RelayDecision::Now(record)
    }

    fn reply(&self, _: u64, record: Vec<u8>) -> RelayDecision {
        let xid = word(body(&record), 0).unwrap_or_default();
        let Some(procedure) = lock(&self.procedures).get(&xid).copied() else {
            return RelayDecision::Now(record);
        };
        if self.chosen.contains(&procedure) && lock(&self.cut).insert(xid) {
            self.cuts.fetch_add(1, Ordering::SeqCst);
            return RelayDecision::Never;
        }
        let mut lies = lock(&self.lie);
        let lie = lies.filter(|(about, ..)| *about == procedure);
        if lie.is_some_and(|(.., is_lasting)| !is_lasting) {
            *lies = None;
        }
        drop(lies);
        RelayDecision::Now(match lie {
            Some((_, lie, _)) => lie(record),
            None => record,
        })
    }
}
