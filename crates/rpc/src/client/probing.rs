//! Probing the server over a new connection while the current one is silent.
//!
//! During an outage each connection of a transport has at most one attempt at a time, on a thread
//! that exists only for this time. The connection that answers first is used. A byte on the old
//! connection ends the attempts. The reply to NULL (RFC 1813 section 3.3.0: no operation) on the
//! new one ends the old connection, and its callers send their calls again, as after any loss of a
//! connection, with the same xids. So a call is sent again once per outage, and only if the
//! server's kernel acknowledges nothing on the old connection while the server replies on the new
//! one. A slow or stopped server receives no call twice.
//!
//! `TCP_USER_TIMEOUT` alone is not sufficient: with a value of seconds it would end connections to
//! servers with a closed window, and all connections during an outage, even if no other connection
//! can be made.

use std::{
    io,
    net::SocketAddr,
    os::fd::OwnedFd,
    sync::{Arc, Weak},
    time::Duration,
};

use curt_xdr::Decoder;
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    io::Errno,
    net::{RecvFlags, SendFlags, sockopt},
};

use super::{
    connect::{KeepAlive, connect},
    connection::ClientConnection,
    connection_slot::{ConnectAttempts, ConnectionSlot, ConnectionSlotState, connect_until_done},
    options::TcpOptions,
    silence::{LOOK_INTERVAL, Silence},
    statistics::ConnectStatistics,
    sys,
    tcp::TcpTransportInner,
};
use crate::{
    message::{call::call_record, reply::decode_reply_header},
    record::{self, MARK_SIZE},
    security::credential::RpcCredential,
};

/// Maximum size of the reply to NULL: a header with a verifier, or a denial.
const REPLY_MAX: usize = 1024;

/// Procedure 0, which does nothing (RFC 5531 section 12.1).
const NULL: u32 = 0;

impl ConnectionSlot {
    /// No byte has arrived on `connection` for some time, although calls wait. Called by the caller
    /// that reads.
    pub(super) fn quiet(
        self: &Arc<Self>,
        shared: &Arc<TcpTransportInner>,
        connection: &Arc<ClientConnection>,
    ) {
        let now = shared.options.clock.now();
        connection.quiet(now);
        let mut state = self.state.lock();
        let current = state.connection.as_ref();
        let is_current = current.is_some_and(|current| Arc::ptr_eq(current, connection));
        let may = is_current && !state.connecting && !state.closed;
        if may && connection.is_to_be_probed(now, state.fruitless) {
            let silent = Arc::downgrade(connection);
            self.spawn(shared, &mut state, move |slot, shared| probe(slot, shared, &silent));
        }
    }
}

/// The next action of the probing thread.
enum ProbeTask {
    /// Continue.
    Probe,
    /// The silent connection has ended, and callers wait for another one.
    Connection,
    /// Nothing: bytes arrived, or no caller waits.
    Nothing,
}

/// The probing thread. Like the connecting thread, it holds references neither to the slot nor to
/// the transport while it waits for the network.
fn probe(slot: &Weak<ConnectionSlot>, shared: &Weak<TcpTransportInner>, silent: &Weak<ClientConnection>) {
    loop {
        let Some((options, call)) = prepare(slot, shared, silent) else {
            return;
        };
        let Some(call) = call else {
            return connect_until_done(slot, shared, ConnectAttempts::UntilConnected);
        };
        let began = options.clock.now();
        let is_needed = || {
            let slot = slot.upgrade();
            slot.is_some_and(|slot| matches!(need(&slot.state.lock(), silent), ProbeTask::Probe))
        };
        let answered = connect(&options, Some(call.peer)).and_then(|socket| {
            ask(&socket, call, &options, is_needed)?;
            Ok(socket)
        });
        match settle(slot, shared, silent, answered, options.clock.since(began)) {
            ProbeTask::Probe => {}
            ProbeTask::Connection => {
                return connect_until_done(slot, shared, ConnectAttempts::UntilConnected);
            }
            ProbeTask::Nothing => return,
        }
    }
}

/// Waits before the next attempt, and returns where to connect and what to send: no call if an
/// ordinary connection is needed, and `None` if none is needed.
fn prepare(
    slot: &Weak<ConnectionSlot>,
    shared: &Weak<TcpTransportInner>,
    silent: &Weak<ClientConnection>,
) -> Option<(TcpOptions, Option<NullCall>)> {
    let (slot, shared) = (slot.upgrade()?, shared.upgrade()?);
    let mut state = slot.pause(slot.state.lock(), &shared.options.clock);
    let options = shared.options.clone();
    match need(&state, silent) {
        ProbeTask::Connection => return Some((options, None)),
        ProbeTask::Nothing => {
            state.connecting = false;
            return None;
        }
        ProbeTask::Probe => {}
    }
    let peer = silent.upgrade().and_then(|silent| silent.peer());
    let (Some(peer), Some(program)) = (peer, shared.program()) else {
        state.connecting = false;
        return None;
    };
    let xid = shared.next_xid();
    Some((options, Some(NullCall { peer, xid, program })))
}

fn need(state: &ConnectionSlotState, silent: &Weak<ClientConnection>) -> ProbeTask {
    if state.closed {
        return ProbeTask::Nothing;
    }
    match silent.upgrade().filter(|silent| !silent.is_closed()) {
        Some(silent) if silent.is_silent() => ProbeTask::Probe,
        Some(_) => ProbeTask::Nothing,
        None if state.has_waiters() => ProbeTask::Connection,
        None => ProbeTask::Nothing,
    }
}

/// Applies the result of an attempt; returns the next step.
fn settle(
    slot: &Weak<ConnectionSlot>,
    shared: &Weak<TcpTransportInner>,
    silent: &Weak<ClientConnection>,
    answered: io::Result<OwnedFd>,
    time: Duration,
) -> ProbeTask {
    let (Some(slot), Some(shared)) = (slot.upgrade(), shared.upgrade()) else {
        return ProbeTask::Nothing;
    };
    let mut state = slot.state.lock();
    let need = need(&state, silent);
    if matches!(need, ProbeTask::Nothing) {
        state.connecting = false;
        if let Ok(socket) = &answered {
            // No call was sent over it, and a reset frees its port at once.
            let _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
        }
        return need;
    }
    let made = answered.and_then(|socket| shared.adopt(socket));
    state.connect_statistics.add(&ConnectStatistics { binds: 0, connects: u64::from(made.is_ok()), time });
    let failure = made.as_ref().err().map(io::Error::kind);
    let _ = state.finish(made, &shared, ConnectAttempts::UntilConnected);
    let silent = silent.upgrade();
    match failure {
        None => {
            let was_fruitful = silent.as_ref().is_none_or(|silent| silent.has_replied());
            state.fruitless = if was_fruitful { 0 } else { state.fruitless.saturating_add(1) };
            state.connecting = false;
            state.wake_all();
            drop(state);
            if let Some(silent) = silent {
                silent.abandon("it was silent, and the server answers over another connection");
            }
            ProbeTask::Nothing
        }
        // The host is up again, and the port may have changed.
        Some(io::ErrorKind::ConnectionRefused) => {
            drop(state);
            if let Some(silent) = silent {
                silent.abandon("it was silent, and the server refuses another connection");
            }
            ProbeTask::Connection
        }
        Some(_) => need,
    }
}

/// A call of NULL to this address.
#[derive(Clone, Copy)]
struct NullCall {
    peer: SocketAddr,
    xid: u32,
    program: (u32, u32),
}

/// Waits until the server replies to `call` on `socket`, without a limit; any reply is sufficient.
///
/// # Errors
/// The connection ends or becomes silent as well, the reply cannot be decoded, or the connection is
/// no longer needed.
/// more.
fn ask(
    socket: &OwnedFd,
    call: NullCall,
    options: &TcpOptions,
    is_needed: impl Fn() -> bool,
) -> io::Result<()> {
    let keep_alive = KeepAlive::of(options);
    keep_alive.every(LOOK_INTERVAL).set(socket)?;
    let (program, version) = call.program;
    let record = call_record(call.xid, program, version, NULL, &RpcCredential::None, &());
    // It fits the empty buffer of a new connection.
    rustix::net::send(socket, &record, SendFlags::NOSIGNAL)?;
    let mut received = Vec::new();
    let mut silence: Option<Silence> = None;
    let interval = Timespec::try_from(LOOK_INTERVAL).ok();
    while !is_reply(&received, call.xid)? {
        match rustix::event::poll(&mut [PollFd::new(socket, PollFlags::IN)], interval.as_ref()) {
            Ok(0) => {
                let now = options.clock.now();
                let silence = silence.get_or_insert_with(|| Silence::new(now));
                silence.look(now, sys::acknowledgements(socket).as_ref());
                if silence.is_to_be_probed(now, 0) || !is_needed() {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
            Ok(_) => receive(socket, &mut received)?,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(keep_alive.set(socket)?)
}

fn receive(socket: &OwnedFd, received: &mut Vec<u8>) -> io::Result<()> {
    let mut room = [0; MARK_SIZE + REPLY_MAX];
    match rustix::net::recv(socket, &mut room[..], RecvFlags::DONTWAIT) {
        Ok((_, 0)) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok((_, count)) => {
            received.extend_from_slice(&room[..count]);
            Ok(())
        }
        Err(Errno::AGAIN | Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Whether `received` is the reply to the only call on a connection. `Ok(false)` if it is
/// incomplete.
fn is_reply(received: &[u8], xid: u32) -> io::Result<bool> {
    let Some((mark, body)) = received.split_first_chunk::<MARK_SIZE>() else {
        return Ok(false);
    };
    // Servers send short replies as one fragment.
    let length = u32::from_be_bytes(*mark) & 0x7fff_ffff;
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    let is_mark = *mark == record::record_mark(length) && length <= REPLY_MAX;
    if !is_mark || body.len() > length {
        return Err(io::ErrorKind::InvalidData.into());
    }
    if body.len() < length {
        return Ok(false);
    }
    let header = decode_reply_header(&mut Decoder::new(body));
    match header {
        Ok(header) if header.xid == xid => Ok(true),
        Ok(_) | Err(_) => Err(io::ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::reply::encode_accepted_header;

    fn reply(xid: u32) -> Vec<u8> {
        let mut out = Vec::new();
        let body = record::begin_record(&mut out);
        encode_accepted_header(&mut out, xid);
        record::finish_record(&mut out, body, 0);
        out
    }

    #[test]
    fn only_one_whole_reply_to_the_call_is_an_answer() {
        let record = reply(7);
        for length in 0..record.len() {
            assert_eq!(is_reply(&record[..length], 7).ok(), Some(false), "{length}");
        }
        assert_eq!(is_reply(&record, 7).ok(), Some(true));
        assert!(is_reply(&record, 8).is_err());
        assert!(is_reply(&[record.clone(), vec![0]].concat(), 7).is_err());
        let mut long = record::record_mark(REPLY_MAX).to_vec();
        assert_eq!(is_reply(&long, 7).ok(), Some(false));
        long = record::record_mark(REPLY_MAX + 1).to_vec();
        assert!(is_reply(&long, 7).is_err());
        let mut fragment = record;
        fragment[0] = 0;
        assert!(is_reply(&fragment, 7).is_err());
        assert!(is_reply(&[record::record_mark(8).to_vec(), vec![0; 8]].concat(), 0).is_err());
    }
}
