//! The least that a turn takes if the next process has to wait for the replies of a server to
//! UNLOCK and to LOCK: the processes, an agent that has their queue, and an echo over TCP, without
//! a file system and without locks.
//!
//! Processes and the agent exchange datagrams, as the kernel and a mount's daemon exchange requests
//! and replies.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context as _, Result};
use indicatif::ProgressBar;
use tempfile::TempDir;

use super::acquisitions::{self, AcquisitionPlan, Acquisitions};

/// The agent's socket; those of processes are named by their number.
const AGENT: &str = "agent";
/// Size of a message to the server and of its reply in bytes: about that of NLM_LOCK.
const MESSAGE_BYTES: usize = 200;

const LOCK: u8 = 0;
const UNLOCK: u8 = 1;
/// Ends the agent.
const END: u8 = 2;

/// One process's end.
pub(super) struct FloorLock {
    number: u32,
    /// Not connected: a connected socket receives from its peer alone.
    socket: UnixDatagram,
    agent: PathBuf,
}

impl FloorLock {
    pub(super) fn open(directory: &Path, number: u32) -> io::Result<Self> {
        let socket = UnixDatagram::bind(directory.join(number.to_string()))?;
        Ok(Self { number, socket, agent: directory.join(AGENT) })
    }

    pub(super) fn lock(&self) -> io::Result<()> {
        self.call(LOCK)
    }

    pub(super) fn unlock(&self) -> io::Result<()> {
        self.call(UNLOCK)
    }

    fn call(&self, kind: u8) -> io::Result<()> {
        self.socket.send_to(&request(kind, self.number), &self.agent)?;
        self.socket.recv(&mut [0]).map(drop)
    }
}

fn request(kind: u8, number: u32) -> [u8; 5] {
    let [a, b, c, d] = number.to_ne_bytes();
    [kind, a, b, c, d]
}

/// Takes turns.
pub(super) fn take(plan: &AcquisitionPlan, bar: &ProgressBar) -> Result<Acquisitions> {
    let directory = TempDir::with_prefix("curt-bench-")?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let server = TcpStream::connect(listener.local_addr()?)?;
    let echo = listener.accept()?.0;
    server.set_nodelay(true)?;
    echo.set_nodelay(true)?;
    let requests = UnixDatagram::bind(directory.path().join(AGENT))?;
    thread::scope(|scope| {
        let echo = scope.spawn(move || answer(echo));
        let path = directory.path();
        let agent = scope.spawn(move || queue(path, &requests, server));
        let turns = acquisitions::take(&[path.to_owned()], plan, true, bar);
        // The agent may have ended with an error, which is reported.
        let _ = UnixDatagram::unbound()?.send_to(&request(END, 0), path.join(AGENT));
        agent.join().expect("the agent does not panic").context("the queue without a file system")?;
        echo.join().expect("the echo does not panic").context("the echo")?;
        turns
    })
}

/// Answers each message by the same, until the connection ends.
fn answer(mut client: TcpStream) -> io::Result<()> {
    let mut message = [0; MESSAGE_BYTES];
    loop {
        match client.read_exact(&mut message) {
            Ok(()) => client.write_all(&message)?,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// Lets processes wait in the order of their requests.
fn queue(directory: &Path, requests: &UnixDatagram, mut server: TcpStream) -> io::Result<()> {
    let mut round_trip = || {
        let mut message = [0; MESSAGE_BYTES];
        server.write_all(&message)?;
        server.read_exact(&mut message)
    };
    let replies = UnixDatagram::unbound()?;
    // A process that was killed has no socket.
    let reply = |number: u32| drop(replies.send_to(&[0], directory.join(number.to_string())));
    let (mut is_locked, mut waiting) = (false, VecDeque::new());
    loop {
        let mut bytes = [0; 5];
        requests.recv(&mut bytes)?;
        let [kind, a, b, c, d] = bytes;
        let number = u32::from_ne_bytes([a, b, c, d]);
        match kind {
            LOCK => waiting.push_back(number),
            UNLOCK => {
                round_trip()?;
                is_locked = false;
                reply(number);
            }
            _ => return Ok(()),
        }
        if !is_locked && let Some(next) = waiting.pop_front() {
            round_trip()?;
            is_locked = true;
            reply(next);
        }
    }
}
