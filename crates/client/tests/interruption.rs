//! Calls to a server that does not reply: they end when they are interrupted, and on soft mounts
//! after the timeout.

#![allow(clippy::unwrap_used, reason = "a test may end in a panic")]

use std::{
    net::{Ipv4Addr, TcpListener},
    sync::Arc,
    time::Duration,
};

use curt_client::{
    errno,
    protocol::{
        FileOperations, OpenCaller, OpenContext, OperationFigure, Protocol as _, RpcCaller, RpcClient,
        WriteRequest, v3::NfsV3,
    },
    threads::MonotonicClock,
};
use curt_observe::Operation;
use curt_rpc::{
    auth::RpcCredential,
    client::{
        CallError, Interrupt, NoTransportEvents, PortSource, RecoveryMode, ServerName, TcpOptions,
        TcpTransport, Transport,
    },
};
use curt_types::{FileHandle, Stability};
use rustix::io::Errno;

/// A server that accepts connections and calls and never replies.
struct Silent {
    _listener: TcpListener,
    protocol: Arc<NfsV3>,
}

fn silent(hardness: RecoveryMode, timeout: Duration) -> Silent {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = PortSource::Fixed(listener.local_addr().unwrap().port());
    let server = ServerName::Address(Ipv4Addr::LOCALHOST.into());
    let options = TcpOptions { recovery: hardness, timeout, retrans: 1, ..TcpOptions::new(server, port) };
    let transport: Arc<dyn Transport> = Arc::new(TcpTransport::new(options, Arc::new(NoTransportEvents)));
    Silent {
        _listener: listener,
        protocol: NfsV3::new(Arc::new(RpcClient::new(transport, Arc::new(MonotonicClock)))),
    }
}

const LONG: Duration = Duration::from_secs(600);

// SEMANTICS: rpc-1.
#[test]
fn every_kind_of_call_ends_when_it_is_interrupted() {
    let silent = silent(RecoveryMode::Hard, LONG);
    let file = FileHandle::new(b"file").unwrap();
    let (nfs, interrupt) = (&silent.protocol, Interrupt::new());
    let caller = RpcCaller { credential: &RpcCredential::None, interrupt: &interrupt };
    let open = OpenContext { owner: 1, credential: Arc::new(RpcCredential::None) };
    let open = OpenCaller { open: &open, interrupt: &interrupt };
    let data = vec![7; 1 << 20];
    let write = WriteRequest {
        offset: 0,
        stability: Stability::Unstable,
        bytes: &data,
        set: None,
        is_lost: &|| false,
    };
    std::thread::scope(|scope| {
        let calls = [
            scope.spawn(|| nfs.attributes(caller, &file).map(drop)),
            scope.spawn(|| nfs.read(open, &file, 0..1 << 20, None).map(drop)),
            scope.spawn(|| nfs.write(open, &file, write).map(drop)),
            scope.spawn(|| nfs.find(caller, &file, b"name").map(drop)),
            scope.spawn(|| nfs.commit(open, &file).map(drop)),
        ];
        while nfs.rpc().transport().silent_for().is_none() {
            std::thread::yield_now();
        }
        interrupt.raise();
        for call in calls {
            let error = call.join().unwrap().unwrap_err();
            assert_eq!((error, errno::of_call(error)), (CallError::Interrupted, Errno::INTR));
        }
    });
}

#[test]
fn an_interrupted_call_does_not_interrupt_others() {
    let silent = silent(RecoveryMode::Hard, LONG);
    let file = FileHandle::new(b"file").unwrap();
    let (one, other) = (Interrupt::new(), Interrupt::new());
    let call = |interrupt: &Interrupt| {
        let caller = RpcCaller { credential: &RpcCredential::None, interrupt };
        silent.protocol.attributes(caller, &file).map(drop)
    };
    std::thread::scope(|scope| {
        let stays = scope.spawn(|| call(&other));
        let goes = scope.spawn(|| call(&one));
        one.raise();
        assert_eq!(goes.join().unwrap(), Err(CallError::Interrupted));
        assert!(!stays.is_finished(), "it still waits");
        other.raise();
        assert_eq!(stays.join().unwrap(), Err(CallError::Interrupted));
    });
}

// SEMANTICS: rpc-5.
#[test]
fn soft_mounts_time_out_with_the_configured_error() {
    for (hardness, expected) in [(RecoveryMode::Soft, Errno::IO), (RecoveryMode::SoftErr, Errno::TIMEDOUT)] {
        let silent = silent(hardness, Duration::from_millis(50));
        let never = Interrupt::never();
        let caller = RpcCaller { credential: &RpcCredential::None, interrupt: &never };
        let file = FileHandle::new(b"file").unwrap();
        let error = silent.protocol.attributes(caller, &file).unwrap_err();
        assert_eq!(errno::of_call(error), expected);
        let getattr = Operation::nfs_named("GETATTR").unwrap();
        assert_eq!(silent.protocol.rpc().statistics().value(getattr, OperationFigure::Timeouts), 1);
    }
}
