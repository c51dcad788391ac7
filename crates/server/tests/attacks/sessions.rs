//! Sessions of NFSv4 over connections that are not theirs.

use curt_proto::nfs4::*;
use curt_xdr::{Opaque, VarArray};

use crate::wire::{Served, Wire, memory};

/// The results of a compound.
fn compound(wire: &mut Wire, push: &dyn Fn(&mut CompoundEncoder<'_>)) -> Vec<u8> {
    let mut arguments = Vec::new();
    let mut compound = CompoundEncoder::new(&mut arguments, Opaque::default(), 1);
    push(&mut compound);
    compound.finish();
    wire.raw((PROGRAM, VERSION, 1), &arguments).unwrap()
}

fn status(wire: &mut Wire, push: &dyn Fn(&mut CompoundEncoder<'_>)) -> NfsStat4 {
    CompoundResults::new(&compound(wire, push)).unwrap().header().status
}

/// Another session of the client.
fn session(wire: &mut Wire) -> SessionId {
    let exchange = ExchangeIdArgs4 {
        owner: ClientOwner { verifier: Verifier4([1; 8]), owner: Opaque::new(b"client").unwrap() },
        flags: ExchangeIdFlags(0),
        state_protect: StateProtectArgs::None,
        implementation: VarArray::default(),
    };
    let reply = compound(wire, &|compound| compound.push(&exchange));
    let mut results = CompoundResults::new(&reply).unwrap();
    let client: ExchangeIdOk4<'_> = results.next(Nfs4Operation::ExchangeId).unwrap();
    let channel = ChannelAttributes {
        request_max: 8192,
        response_max: 8192,
        response_cached_max: 1024,
        operations_max: 8,
        requests_max: 1,
        ..ChannelAttributes::default()
    };
    let create = CreateSessionArgs4 {
        clientid: client.clientid,
        sequence: client.sequence,
        flags: CreateSessionFlags(0),
        fore: channel.clone(),
        back: channel,
        callback_program: 1 << 30,
        callback_security: VarArray::default(),
    };
    let reply = compound(wire, &|compound| compound.push(&create));
    let mut results = CompoundResults::new(&reply).unwrap();
    results.next::<CreateSessionOk4>(Nfs4Operation::CreateSession).unwrap().session
}

#[test]
fn a_session_is_destroyed_only_over_a_connection_that_is_associated_with_it() {
    let served = Served::new(vec![memory("/export", 1)]);
    let (mut own, mut other) = (served.connect(), served.connect());
    let destroy =
        |wire: &mut Wire, session| status(wire, &|compound| compound.push(&DestroySessionArgs4 { session }));
    let sequence = |session| SequenceArgs4 {
        session,
        sequence: SequenceId(1),
        slot: SlotId(0),
        highest_slot: SlotId(0),
        cache_this: false,
    };
    // By CREATE_SESSION.
    let one = session(&mut own);
    assert_eq!(destroy(&mut other, one), NfsStat4::ConnNotBoundToSession);
    assert_eq!(destroy(&mut own, one), NfsStat4::Ok);
    assert_eq!(destroy(&mut other, one), NfsStat4::Badsession);
    // By SEQUENCE; that of another session is not enough.
    let (two, three) = (session(&mut own), session(&mut own));
    let in_two = |wire: &mut Wire, session| {
        status(wire, &|compound| {
            compound.push(&sequence(two));
            compound.push(&DestroySessionArgs4 { session });
        })
    };
    assert_eq!(in_two(&mut other, three), NfsStat4::ConnNotBoundToSession);
    assert_eq!(destroy(&mut other, two), NfsStat4::Ok);
    // By BIND_CONN_TO_SESSION.
    let bind = BindConnToSessionArgs4 { session: three, direction: ChannelDirFromClient::Fore, rdma: false };
    assert_eq!(status(&mut other, &|compound| compound.push(&bind)), NfsStat4::Ok);
    assert_eq!(destroy(&mut other, three), NfsStat4::Ok);
}
