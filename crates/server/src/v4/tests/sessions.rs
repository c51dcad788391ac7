//! Tests of sessions as clients see them.

use std::sync::Arc;

use curt_observe::ServerCounters;
use curt_proto::nfs4::{
    BackchannelCtlArgs4, BindConnToSessionArgs4, BindConnToSessionOk4, CallbackGssHandles, CallbackSecParms4,
    ChannelAttributes, ChannelDirFromClient, ChannelDirFromServer, ClientOwner, Clientid, CompoundEncoder,
    CompoundResults, CreateSessionArgs4, CreateSessionFlags, CreateSessionOk4, DestroyClientidArgs4,
    DestroySessionArgs4, ExchangeIdArgs4, ExchangeIdFlags, ExchangeIdOk4, Fattr4, FreeStateidArgs4,
    Nfs4Operation, NfsStat4, PROGRAM, ReclaimCompleteArgs4, SequenceArgs4, SequenceId, SequenceOk4,
    SessionId, SetattrArgs4, SlotId, StateProtectArgs, StateProtectOps, Stateid, TestStateidArgs4,
    TestStateidOk4, VERSION, Verifier4,
};
use curt_rpc::auth::{AuthSys, AuthSysGids, OpaqueAuth};
use curt_rpc::message::CallMessage;
use curt_rpc::server::{CallContext, RpcService as _};
use curt_xdr::{Opaque, VarArray};

use crate::{NfsService, NfsServiceConfig, PersistentState};

/// The operations of a compound.
type Operations<'a> = &'a dyn Fn(&mut CompoundEncoder<'_>);

struct Server(NfsService);

impl Server {
    fn new() -> Self {
        Self::with_key([9; 16])
    }

    fn with_key(key: [u8; 16]) -> Self {
        let setup = NfsServiceConfig {
            state: PersistentState::with_key(key),
            exports: Vec::new(),
            counters: Arc::new(ServerCounters::default()),
        };
        Self(NfsService::new(setup).unwrap())
    }

    /// Calls as a user, with a tag.
    fn call(&self, uid: u32, tag: &[u8], operations: Operations<'_>) -> Vec<u8> {
        let mut arguments = Vec::new();
        let mut compound = CompoundEncoder::new(&mut arguments, Opaque::new(tag).unwrap(), 1);
        operations(&mut compound);
        compound.finish();
        let groups = AuthSysGids::first_of(&[]);
        let credential = OpaqueAuth::Sys(AuthSys { stamp: 0, machine_name: b"test", uid, gid: 0, groups });
        let call = CallMessage {
            xid: 1,
            program: PROGRAM,
            version: VERSION,
            procedure: 1,
            credential,
            arguments: &arguments,
        };
        let (peer, local) = ("127.0.0.1:1000".parse().unwrap(), "127.0.0.1:2049".parse().unwrap());
        let mut reply = Vec::new();
        self.0.call(&call, &mut CallContext::detached(peer, local), &mut reply).unwrap();
        reply
    }

    /// The status of a compound.
    fn status(&self, operations: Operations<'_>) -> NfsStat4 {
        CompoundResults::new(&self.call(0, b"", operations)).unwrap().header().status
    }

    fn exchange(&self, arguments: &ExchangeIdArgs4<'_>) -> Result<(Clientid, SequenceId, u32), NfsStat4> {
        let reply = self.call(0, b"", &|compound| compound.push(arguments));
        let mut results = CompoundResults::new(&reply).unwrap();
        match results.header().status {
            NfsStat4::Ok => {
                let ok: ExchangeIdOk4<'_> = results.next(Nfs4Operation::ExchangeId).unwrap();
                Ok((ok.clientid, ok.sequence, ok.flags.0))
            }
            status => Err(status),
        }
    }

    fn client(&self, owner: &[u8]) -> Clientid {
        self.exchange(&presented(owner)).unwrap().0
    }

    fn session(&self, client: Clientid, fore: ChannelAttributes) -> SessionId {
        let reply = self.call(0, b"", &|compound| compound.push(&creation(client, 1, fore.clone())));
        let mut results = CompoundResults::new(&reply).unwrap();
        results.next::<CreateSessionOk4>(Nfs4Operation::CreateSession).unwrap().session
    }

    /// A client's session, after RECLAIM_COMPLETE.
    fn ready(&self) -> SessionId {
        let session = self.session(self.client(b"client"), channel());
        let complete = ReclaimCompleteArgs4 { one_file_system: false };
        let status = self.status(&|compound| {
            compound.push(&sequence(session, 7, 1));
            compound.push(&complete);
        });
        assert_eq!(status, NfsStat4::Ok);
        session
    }
}

fn presented(owner: &[u8]) -> ExchangeIdArgs4<'_> {
    ExchangeIdArgs4 {
        owner: ClientOwner { verifier: Verifier4([1; 8]), owner: Opaque::new(owner).unwrap() },
        flags: ExchangeIdFlags(0),
        state_protect: StateProtectArgs::None,
        implementation: VarArray::default(),
    }
}

fn channel() -> ChannelAttributes {
    ChannelAttributes {
        header_padding: 0,
        request_max: 8192,
        response_max: 8192,
        response_cached_max: 8192,
        operations_max: 16,
        requests_max: 8,
        rdma_ird: VarArray::default(),
    }
}

fn creation(clientid: Clientid, sequence: u32, fore: ChannelAttributes) -> CreateSessionArgs4<'static> {
    CreateSessionArgs4 {
        clientid,
        sequence: SequenceId(sequence),
        flags: CreateSessionFlags(0),
        fore,
        back: channel(),
        callback_program: 123,
        callback_security: VarArray::default(),
    }
}

fn sequence(session: SessionId, slot: u32, sequence: u32) -> SequenceArgs4 {
    SequenceArgs4 {
        session,
        sequence: SequenceId(sequence),
        slot: SlotId(slot),
        highest_slot: SlotId(slot),
        cache_this: true,
    }
}

#[test]
fn exchange_id_answers_with_a_role_and_refuses_unknown_flags_and_protection() {
    let server = Server::new();
    let (_, sequence, flags) = server.exchange(&presented(b"a")).unwrap();
    assert_eq!((sequence, flags), (SequenceId(1), ExchangeIdFlags::USE_NON_PNFS));
    for flag in [4, 8, 0x200, 0x8_0000, ExchangeIdFlags::CONFIRMED_R] {
        let asked = ExchangeIdArgs4 { flags: ExchangeIdFlags(flag), ..presented(b"a") };
        assert_eq!(server.exchange(&asked), Err(NfsStat4::Inval), "{flag:x}");
    }
    let machine = StateProtectArgs::MachineCredential(StateProtectOps::default());
    let protected = ExchangeIdArgs4 { state_protect: machine, ..presented(b"a") };
    assert_eq!(server.exchange(&protected), Err(NfsStat4::Inval));
    let update = ExchangeIdFlags(ExchangeIdFlags::UPD_CONFIRMED_REC_A);
    let update = ExchangeIdArgs4 { flags: update, ..presented(b"a") };
    assert_eq!(server.exchange(&update), Err(NfsStat4::Noent));
    let client = server.client(b"a");
    server.session(client, channel());
    let confirmed = ExchangeIdFlags::USE_NON_PNFS | ExchangeIdFlags::CONFIRMED_R;
    assert_eq!(server.exchange(&update), Ok((client, SequenceId(2), confirmed)));
}

#[test]
fn a_server_is_the_same_after_a_restart_and_its_clients_are_not() {
    let owner = |key| {
        let server = Server::with_key(key);
        let reply = server.call(0, b"", &|compound| compound.push(&presented(b"a")));
        let mut results = CompoundResults::new(&reply).unwrap();
        let ok: ExchangeIdOk4<'_> = results.next(Nfs4Operation::ExchangeId).unwrap();
        assert_eq!(ok.server_owner.minor_id, 0);
        (ok.server_owner.major_id.bytes().to_vec(), ok.server_scope.bytes().to_vec(), ok.clientid)
    };
    let (one, again, other) = (owner([1; 16]), owner([1; 16]), owner([2; 16]));
    assert_eq!((&one.0, &one.1), (&again.0, &again.1));
    assert_ne!(one.2, again.2);
    assert_ne!(one.0, other.0);
    let status = Server::new().status(&|compound| compound.push(&creation(one.2, 1, channel())));
    assert_eq!(status, NfsStat4::StaleClientid);
}

#[test]
fn operations_of_sessions_stand_alone_or_after_sequence() {
    let server = Server::new();
    let session = server.ready();
    let statuses = [
        server.status(&|compound| {
            compound.push(&presented(b"b"));
            compound.bare(Nfs4Operation::Putrootfh);
        }),
        server.status(&|compound| {
            compound.push(&creation(Clientid(1), 1, channel()));
            compound.bare(Nfs4Operation::Putrootfh);
        }),
        server.status(&|compound| {
            compound.push(&DestroySessionArgs4 { session });
            compound.bare(Nfs4Operation::Putrootfh);
        }),
        server.status(&|compound| {
            compound.push(&sequence(session, 0, 1));
            compound.push(&DestroySessionArgs4 { session });
            compound.bare(Nfs4Operation::Putrootfh);
        }),
    ];
    assert_eq!(statuses, [NfsStat4::NotOnlyOp; 4]);
    let twice = server.status(&|compound| {
        compound.push(&sequence(session, 0, 2));
        compound.push(&sequence(session, 1, 1));
    });
    assert_eq!(twice, NfsStat4::SequencePos);
    let without = server.status(&|compound| compound.bare(Nfs4Operation::Putrootfh));
    assert_eq!(without, NfsStat4::OpNotInSession);
    // In the session of another client.
    let created = server.status(&|compound| {
        compound.push(&sequence(session, 0, 3));
        compound.push(&creation(server.client(b"b"), 1, channel()));
    });
    assert_eq!(created, NfsStat4::Ok);
}

#[test]
fn create_session_checks_its_flags_sizes_and_principal() {
    let server = Server::new();
    let client = server.client(b"a");
    let status = |arguments: &CreateSessionArgs4<'_>| server.status(&|compound| compound.push(arguments));
    let flags = CreateSessionArgs4 { flags: CreateSessionFlags(0xf), ..creation(client, 1, channel()) };
    assert_eq!(status(&flags), NfsStat4::Inval);
    let small = ChannelAttributes { request_max: 20, ..channel() };
    assert_eq!(status(&creation(client, 1, small.clone())), NfsStat4::Toosmall);
    let small_back = CreateSessionArgs4 { back: small, ..creation(client, 1, channel()) };
    assert_eq!(status(&small_back), NfsStat4::Toosmall);
    assert_eq!(status(&creation(client, 0, channel())), NfsStat4::SeqMisordered);
    let other = server.call(1, b"", &|compound| compound.push(&creation(client, 1, channel())));
    assert_eq!(CompoundResults::new(&other).unwrap().header().status, NfsStat4::ClidInuse);
    let create = || server.call(0, b"", &|compound| compound.push(&creation(client, 1, channel())));
    assert_eq!(create(), create());
}

#[test]
fn replies_to_callbacks_may_be_as_large_as_a_client_makes_them() {
    let server = Server::new();
    let back = ChannelAttributes { response_max: 1 << 16, ..channel() };
    let asked = CreateSessionArgs4 { back, ..creation(server.client(b"a"), 1, channel()) };
    let reply = server.call(0, b"", &|compound| compound.push(&asked));
    let mut results = CompoundResults::new(&reply).unwrap();
    let ok: CreateSessionOk4 = results.next(Nfs4Operation::CreateSession).unwrap();
    assert_eq!((ok.back.request_max, ok.back.response_max), (4096, 1 << 16));
}

#[test]
fn a_repeated_compound_gets_the_same_bytes_whatever_its_tag_and_highest_slot() {
    let server = Server::new();
    let session = server.ready();
    let root = |tag: &[u8], has_getfh: bool| {
        server.call(0, tag, &|compound| {
            compound.push(&sequence(session, 0, 1));
            compound.bare(Nfs4Operation::Putrootfh);
            if has_getfh {
                compound.bare(Nfs4Operation::Getfh);
            }
        })
    };
    let first = root(b"one", true);
    assert_eq!(CompoundResults::new(&first).unwrap().header().status, NfsStat4::Ok);
    assert_eq!(root(b"one", true), first);
    assert_eq!(root(b"another", true), first);
    let from_busier_client = server.call(0, b"one", &|compound| {
        compound.push(&SequenceArgs4 { highest_slot: SlotId(3), ..sequence(session, 0, 1) });
        compound.bare(Nfs4Operation::Putrootfh);
        compound.bare(Nfs4Operation::Getfh);
    });
    assert_eq!(from_busier_client, first);
    let other = root(b"one", false);
    assert_eq!(CompoundResults::new(&other).unwrap().header().status, NfsStat4::SeqFalseRetry);
    let as_other_user = server.call(1, b"one", &|compound| {
        compound.push(&sequence(session, 0, 1));
        compound.bare(Nfs4Operation::Putrootfh);
        compound.bare(Nfs4Operation::Getfh);
    });
    assert_eq!(CompoundResults::new(&as_other_user).unwrap().header().status, NfsStat4::SeqFalseRetry);
}

#[test]
fn a_repeated_compound_that_is_not_cached_fails_at_its_second_operation() {
    let server = Server::new();
    let session = server.ready();
    let uncached = SequenceArgs4 { cache_this: false, ..sequence(session, 0, 1) };
    let run = || {
        server.call(0, b"tag", &|compound| {
            compound.push(&uncached);
            compound.bare(Nfs4Operation::Putrootfh);
        })
    };
    assert_eq!(CompoundResults::new(&run()).unwrap().header().status, NfsStat4::Ok);
    let again = run();
    let mut results = CompoundResults::new(&again).unwrap();
    let header = *results.header();
    assert_eq!(
        (header.status, header.tag.bytes(), header.results),
        (NfsStat4::RetryUncachedRep, &b"tag"[..], 2)
    );
    let granted: SequenceOk4 = results.next(Nfs4Operation::Sequence).unwrap();
    assert_eq!((granted.session, granted.sequence), (session, SequenceId(1)));
    assert_eq!(results.status(Nfs4Operation::Putrootfh), Ok(NfsStat4::RetryUncachedRep));
    assert!(results.decoder().remaining().is_empty());
    // SETATTR has a body whatever its status.
    let uncached = SequenceArgs4 { cache_this: false, ..sequence(session, 0, 2) };
    let set = SetattrArgs4 { stateid: Stateid::ANONYMOUS, attributes: Fattr4::default() };
    let run = || {
        server.call(0, b"tag", &|compound| {
            compound.push(&uncached);
            compound.push(&set);
        })
    };
    assert_eq!(CompoundResults::new(&run()).unwrap().header().status, NfsStat4::Nofilehandle);
    let again = run();
    let mut results = CompoundResults::new(&again).unwrap();
    let _: SequenceOk4 = results.next(Nfs4Operation::Sequence).unwrap();
    assert_eq!(results.status(Nfs4Operation::Setattr), Ok(NfsStat4::RetryUncachedRep));
    assert_eq!(results.decoder().remaining(), [0; 4]);
    // A compound of SEQUENCE alone needs no cache.
    let alone = SequenceArgs4 { cache_this: false, ..sequence(session, 1, 1) };
    let run = || server.call(0, b"", &|compound| compound.push(&alone));
    assert_eq!(run(), run());
}

#[test]
fn a_compound_keeps_to_the_limits_of_its_session() {
    let server = Server::new();
    let small = ChannelAttributes { request_max: 512, operations_max: 4, ..channel() };
    let session = server.session(server.client(b"a"), small);
    let roots = |slot: u32, count: usize| {
        server.status(&|compound| {
            compound.push(&sequence(session, slot, 1));
            (0..count).for_each(|_| compound.bare(Nfs4Operation::Putrootfh));
        })
    };
    assert_eq!((roots(0, 3), roots(1, 4)), (NfsStat4::Ok, NfsStat4::TooManyOps));
    let stateids = VarArray::new(vec![Stateid::ANONYMOUS; 30]).unwrap();
    let large = server.status(&|compound| {
        compound.push(&sequence(session, 1, 1));
        compound.push(&TestStateidArgs4 { stateids: stateids.clone() });
    });
    assert_eq!(large, NfsStat4::ReqTooBig);
    let tiny = ChannelAttributes { response_cached_max: 10, ..channel() };
    let session = server.session(server.client(b"b"), tiny);
    let cached = server.status(&|compound| compound.push(&sequence(session, 0, 1)));
    assert_eq!(cached, NfsStat4::RepTooBigToCache);
}

#[test]
fn reclaims_are_completed_once() {
    let server = Server::new();
    let session = server.ready();
    let complete = |number, one_file_system| {
        server.status(&|compound| {
            compound.push(&sequence(session, 0, number));
            compound.push(&ReclaimCompleteArgs4 { one_file_system });
        })
    };
    assert_eq!(complete(1, false), NfsStat4::CompleteAlready);
    assert_eq!(complete(2, true), NfsStat4::Nofilehandle);
    let here = server.status(&|compound| {
        compound.push(&sequence(session, 0, 3));
        compound.bare(Nfs4Operation::Putrootfh);
        compound.push(&ReclaimCompleteArgs4 { one_file_system: true });
    });
    assert_eq!(here, NfsStat4::Ok);
}

#[test]
fn sessions_and_clients_are_destroyed() {
    let server = Server::new();
    let session = server.ready();
    let client = server.client(b"client");
    let end = |client| server.status(&|compound| compound.push(&DestroyClientidArgs4 { clientid: client }));
    assert_eq!((end(client), end(Clientid(5))), (NfsStat4::ClientidBusy, NfsStat4::StaleClientid));
    let own = server.status(&|compound| {
        compound.push(&sequence(session, 0, 1));
        compound.push(&DestroySessionArgs4 { session });
    });
    assert_eq!(own, NfsStat4::Ok);
    let again = server.status(&|compound| compound.push(&DestroySessionArgs4 { session }));
    assert_eq!(again, NfsStat4::Badsession);
    assert_eq!((end(client), end(client)), (NfsStat4::Ok, NfsStat4::StaleClientid));
}

#[test]
fn stateids_that_name_no_state_are_reported_one_by_one() {
    let server = Server::new();
    let session = server.ready();
    let forged = Stateid { seqid: 1, other: [7; 12] };
    let stateids = vec![Stateid::ANONYMOUS, forged, Stateid::READ_BYPASS];
    let reply = server.call(0, b"", &|compound| {
        compound.push(&sequence(session, 0, 1));
        compound.push(&TestStateidArgs4 { stateids: VarArray::new(stateids.clone()).unwrap() });
        compound.push(&FreeStateidArgs4 { stateid: forged });
    });
    let mut results = CompoundResults::new(&reply).unwrap();
    results.next::<SequenceOk4>(Nfs4Operation::Sequence).unwrap();
    let tested: TestStateidOk4 = results.next(Nfs4Operation::TestStateid).unwrap();
    assert_eq!(tested.statuses[..], [NfsStat4::BadStateid; 3]);
    assert_eq!(results.status(Nfs4Operation::FreeStateid), Ok(NfsStat4::BadStateid));
}

#[test]
fn connections_are_bound_and_callback_credentials_set() {
    let server = Server::new();
    let session = server.ready();
    let bind = |session, direction| {
        server.call(0, b"", &|compound| {
            compound.push(&BindConnToSessionArgs4 { session, direction, rdma: true });
        })
    };
    for direction in [ChannelDirFromClient::Fore, ChannelDirFromClient::ForeOrBoth] {
        let reply = bind(session, direction);
        let mut results = CompoundResults::new(&reply).unwrap();
        let bound: BindConnToSessionOk4 = results.next(Nfs4Operation::BindConnToSession).unwrap();
        // The test has no connection for a backchannel.
        let expected = BindConnToSessionOk4 { session, direction: ChannelDirFromServer::Fore, rdma: false };
        assert_eq!(bound, expected);
    }
    let status = |reply: Vec<u8>| CompoundResults::new(&reply).unwrap().header().status;
    assert_eq!(status(bind(session, ChannelDirFromClient::Back)), NfsStat4::Inval);
    assert_eq!(status(bind(SessionId([0; 16]), ChannelDirFromClient::Fore)), NfsStat4::Badsession);
    let control = |number, offered: Vec<CallbackSecParms4<'static>>| {
        let callback_security = VarArray::new(offered).unwrap();
        server.status(&|compound| {
            compound.push(&sequence(session, 0, number));
            let callback_security = callback_security.clone();
            compound.push(&BackchannelCtlArgs4 { callback_program: 9, callback_security });
        })
    };
    let opaque = |bytes| Opaque::new(bytes).unwrap();
    let gss = CallbackGssHandles { service: 1, from_server: opaque(b"a"), from_client: opaque(b"b") };
    assert_eq!(control(1, vec![CallbackSecParms4::Gss(gss)]), NfsStat4::Inval);
    assert_eq!(control(2, vec![CallbackSecParms4::Gss(gss), CallbackSecParms4::None]), NfsStat4::Ok);
}
