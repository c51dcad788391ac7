//! Denied calls and malformed replies.

use std::{io::Write, thread};

use crate::fake::*;
use curt_rpc::{
    client::{CallError, TcpOptions, TcpTransport},
    message::{AcceptStatus, RejectedReply, VersionRange, encode_denied, encode_failure},
    record,
};
use curt_xdr::DecodeError;

use crate::transport;

/// A server that answers the first call of each connection with `reply(call)` and echoes all
/// others.
fn first_reply(reply: impl Fn(&[u8]) -> Vec<u8> + Send + 'static) -> TcpOptions {
    let (listener, address) = listen();
    thread::spawn(move || {
        let mut first = true;
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            while let Some(record) = read_record(&mut stream) {
                let answer = if std::mem::take(&mut first) { reply(&record) } else { echo(&record) };
                if stream.write_all(&answer).is_err() {
                    break;
                }
            }
        }
    });
    options(address)
}

fn record_of(encode: impl Fn(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    let body = record::begin_record(&mut out);
    encode(&mut out);
    record::finish_record(&mut out, body, 0);
    out
}

#[test]
fn every_status_of_a_reply_becomes_its_error() {
    let versions = VersionRange { low: 2, high: 5 };
    let accepted = [
        (AcceptStatus::ProgramUnavailable, CallError::ProgramUnavailable),
        (AcceptStatus::ProgramMismatch(versions), CallError::ProgramMismatch(versions)),
        (AcceptStatus::ProcedureUnavailable, CallError::ProcedureUnavailable),
        (AcceptStatus::GarbageArguments, CallError::GarbageArguments),
        (AcceptStatus::SystemError, CallError::SystemError),
    ];
    for (status, error) in accepted {
        let options = first_reply(move |call| record_of(|out| encode_failure(out, xid(call), status)));
        let transport = transport(options);
        assert_eq!(call(&transport, &[]).unwrap_err(), error);
        assert_eq!(call(&transport, &[1; 4]).unwrap().results(), [1; 4]);
    }
    use curt_rpc::auth::AuthStatus;
    let denied = [
        (RejectedReply::RpcMismatch(versions), CallError::RpcMismatch(versions)),
        (RejectedReply::Authentication(AuthStatus::TooWeak), CallError::Denied(AuthStatus::TooWeak)),
        (
            RejectedReply::Authentication(AuthStatus::GssContextProblem),
            CallError::Denied(AuthStatus::GssContextProblem),
        ),
    ];
    for (denial, error) in denied {
        let options = first_reply(move |call| record_of(|out| encode_denied(out, xid(call), denial)));
        assert_eq!(call(&transport(options), &[]).unwrap_err(), error);
    }
}

#[test]
fn a_malformed_reply_is_an_error_of_its_caller_and_the_connection_goes_on() {
    let cases: [fn(u32) -> Vec<u8>; 6] = [
        |xid| xid.to_be_bytes().to_vec(),
        |xid| [xid, 1].map(u32::to_be_bytes).concat(),
        |xid| [xid, 2, 0, 0, 0, 0].map(u32::to_be_bytes).concat(),
        |xid| [xid, 1, 7, 0, 0, 0].map(u32::to_be_bytes).concat(),
        |xid| [xid, 1, 0, 0, 0, 9].map(u32::to_be_bytes).concat(),
        |xid| [xid, 1, 0, 0, 401, 0].map(u32::to_be_bytes).concat(),
    ];
    for case in cases {
        let counts = Counts::new();
        let options = first_reply(move |call| record_of(|out| out.extend(case(xid(call)))));
        let transport = TcpTransport::new(options, counts.clone());
        assert!(matches!(call(&transport, &[]), Err(CallError::Malformed(_))));
        assert_eq!(call(&transport, &[1; 4]).unwrap().results(), [1; 4]);
        assert_eq!((of(&counts.malformed), of(&counts.reconnected)), (1, 0));
    }
}

#[test]
fn a_reply_longer_than_the_procedure_allows_ends_the_connection_and_that_call_alone() {
    let huge = |call: &[u8]| {
        let mut out = record::record_mark(1 << 30).to_vec();
        out.extend(xid(call).to_be_bytes());
        out.resize(60_000, 3);
        out
    };
    let counts = Counts::new();
    let transport = TcpTransport::new(first_reply(huge), counts.clone());
    assert!(matches!(call(&transport, &[]), Err(CallError::Malformed(DecodeError::TooLong { .. }))));
    assert_eq!(call(&transport, &[1; 4]).unwrap().results(), [1; 4]);
    assert_eq!((of(&counts.malformed), of(&counts.reconnected)), (1, 1));
}

#[test]
fn garbage_ends_the_connection_and_the_call_is_made_again() {
    let counts = Counts::new();
    let garbage = |_: &[u8]| b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec();
    let transport = TcpTransport::new(first_reply(garbage), counts.clone());
    assert_eq!(call(&transport, &[1; 4]).unwrap().results(), [1; 4]);
    assert_eq!((of(&counts.malformed), of(&counts.reconnected), of(&counts.retransmitted)), (1, 1, 1));
}
