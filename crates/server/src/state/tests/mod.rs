//! Tests of the state.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod clients;
mod delegations;
mod exploration;
mod grace;
mod lock_states;
mod lock_table;
mod model;
mod opens;
mod restarts;
mod sessions;

use std::{net::IpAddr, sync::Arc, time::Duration};

use curt_proto::nfs4::{Clientid, SequenceId, SessionId, SlotId, Stateid, Verifier4};
use curt_vfs::{HandleScheme, NodeHandle};

use super::clients::ExchangedId;
use super::sessions::SessionCreated;
use super::{
    ChannelLimits, Client, CreateSession, ExchangeId, FileKey, OpenRequest, Principal, SequenceRequest,
    Sequenced, ServerState, ShareBits, ShareMode, SlotInUse, StateFault, StateLimits,
};
use crate::file_handle::FileSystemId;

/// The fore channel that test clients ask for.
const FORE: ChannelLimits =
    ChannelLimits { request: 8192, reply: 8192, cached: 4096, operations: 16, slots: 4 };

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn state() -> ServerState {
    with_limits(StateLimits::default())
}

fn with_limits(limits: StateLimits) -> ServerState {
    ServerState::new(limits, 7, &[1; 16], Arc::default(), None)
}

fn file(number: u8) -> FileKey {
    let node = NodeHandle::new(HandleScheme::Memory, 0, &[number]).unwrap();
    FileKey { file_system: FileSystemId(1), node }
}

/// A mode, by the wire's numbers.
fn mode(access: u32, deny: u32) -> ShareMode {
    let bits = |bits| ShareBits::from_wire(bits).unwrap();
    ShareMode { access: bits(access), deny: bits(deny) }
}

/// A client's presentation.
fn presented(owner: &str, verifier: u8, principal: Principal) -> ExchangeId<'_> {
    ExchangeId {
        owner: owner.as_bytes(),
        verifier: Verifier4([verifier; 8]),
        principal,
        is_update: false,
        implementation: b"test",
        peer: IpAddr::from([127, 0, 0, 1]),
    }
}

fn exchange(state: &ServerState, owner: &str) -> ExchangedId {
    let exchanged = state.exchange_id(&presented(owner, 1, Principal::Uid(0)), at(0)).unwrap();
    release(state);
    exchanged
}

fn creation(client: Clientid, sequence: u32) -> CreateSession {
    CreateSession {
        client,
        sequence: SequenceId(sequence),
        principal: Principal::Uid(0),
        fore: FORE,
        back: FORE,
        backchannel: None,
        callback_program: 1,
        callback_security: None,
        minor_version: 1,
    }
}

fn session_of(state: &ServerState, exchanged: ExchangedId) -> SessionCreated {
    let created = state.create_session(&creation(exchanged.client, exchanged.sequence.0), at(0)).unwrap();
    release(state);
    created
}

/// A client that has completed its reclaims, and its session.
fn client(state: &ServerState, owner: &str) -> (Arc<Client>, SessionId) {
    let created = session_of(state, exchange(state, owner));
    let client = Arc::clone(&state.session(&created.session).unwrap().client);
    state.reclaim_complete(&client).unwrap();
    (client, created.session)
}

/// As [`client`], from this address.
fn client_at(state: &ServerState, owner: &str, peer: &str) -> Arc<Client> {
    let presented = ExchangeId { peer: peer.parse().unwrap(), ..presented(owner, 1, Principal::Uid(0)) };
    let created = session_of(state, state.exchange_id(&presented, at(0)).unwrap());
    let client = Arc::clone(&state.session(&created.session).unwrap().client);
    state.reclaim_complete(&client).unwrap();
    client
}

/// The client with this id, if it has a record.
fn client_of(state: &ServerState, id: Clientid) -> Option<Arc<Client>> {
    state.clients.lock().records.get(&id).map(|record| Arc::clone(&record.client))
}

fn request(session: SessionId, slot: u32, sequence: u32) -> SequenceRequest {
    SequenceRequest {
        session,
        slot: SlotId(slot),
        sequence: SequenceId(sequence),
        highest_slot: SlotId(slot),
        is_cached: true,
        operations: 1,
        size: 100,
        reply_min: 80,
        fingerprint: 1,
    }
}

/// The slot of a new request.
fn executed(outcome: Result<Sequenced, StateFault>) -> SlotInUse {
    match outcome {
        Ok(Sequenced::Execute(slot)) => slot,
        Ok(_) => panic!("the request was executed before"),
        Err(fault) => panic!("{fault:?}"),
    }
}

fn open(
    state: &ServerState,
    client: &Client,
    owner: &str,
    file: FileKey,
    mode: ShareMode,
) -> Result<Stateid, StateFault> {
    let asked =
        OpenRequest { owner: owner.as_bytes(), file, mode, is_reclaim: false, is_admitted: false, pin: None };
    state.open(client, &asked).map(|granted| granted.stateid)
}

/// Releases the state of clients that were removed.
fn release(state: &ServerState) {
    state.release_departing(&state.departing());
}

fn expire(state: &ServerState, now: Duration) -> usize {
    let count = state.expire(now);
    release(state);
    count
}

fn expire_client(state: &ServerState, id: Clientid) {
    state.expire_client(id).unwrap();
    release(state);
}
