//! The server's behaviour for normal clients.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod backchannel;
mod deferred;
#[path = "../fake/mod.rs"]
#[allow(unreachable_pub, dead_code, reason = "shared by the tests of this folder")]
mod fake;
mod fixture;
mod hostile;
mod limits;
mod sendfile;
mod unsent;

use std::{
    io::Write,
    net::TcpStream,
    sync::atomic::Ordering,
    thread::{self},
};

use curt_rpc::{
    auth::AuthStatus, client::CallError, clock::ScriptedTime, message::VersionRange, record, server::Limits,
};
use fake::eventually;

use fixture::*;

#[test]
fn many_clients_get_their_own_replies() {
    let running = serve(Limits::default());
    thread::scope(|scope| {
        for client in 0u32..8 {
            let running = &running;
            scope.spawn(move || {
                let transport = running.transport();
                thread::scope(|inner| {
                    for thread in 0u32..3 {
                        let transport = &transport;
                        inner.spawn(move || {
                            for number in 0..100u32 {
                                let mut arguments = [client, thread, number].map(u32::to_be_bytes).concat();
                                arguments.resize(12 + 4 * (number as usize * 97 % 5000), 1);
                                assert_eq!(call(transport, ECHO, &arguments).unwrap(), arguments);
                            }
                        });
                    }
                });
            });
        }
    });
}

#[test]
fn fragments_and_pipelines_are_answered_in_one_go() {
    let running = serve(Limits::default());
    let mut stream = running.connect();
    let record = call_record(1, ECHO, &[5; 4000]);
    let mut cut = Vec::new();
    for (index, piece) in record[4..].chunks(700).enumerate() {
        let mut mark = record::record_mark(piece.len());
        if (index + 1) * 700 < record.len() - 4 {
            mark[0] = 0;
        }
        cut.extend_from_slice(&mark);
        cut.extend_from_slice(piece);
    }
    for xid in 2..200 {
        cut.extend(call_record(xid, ECHO, &xid.to_be_bytes()));
    }
    stream.write_all(&cut).unwrap();
    expect_echo(&mut stream, 1, &[5; 4000]);
    for xid in 2..200u32 {
        expect_echo(&mut stream, xid, &xid.to_be_bytes());
    }
}

#[test]
fn a_slow_call_delays_nothing_behind_it() {
    let running = serve(Limits::default());
    let mut stream = running.connect();
    // In one segment with the next call, and alone.
    let mut both = call_record(1, SLOW, &[1; 4]);
    both.extend(call_record(2, ECHO, &[2; 4]));
    stream.write_all(&both).unwrap();
    expect_echo(&mut stream, 2, &[2; 4]);
    for xid in 3..20u32 {
        stream.write_all(&call_record(xid, if xid % 3 == 0 { SLOW } else { ECHO }, &[3; 4])).unwrap();
        if xid % 3 != 0 {
            expect_echo(&mut stream, xid, &[3; 4]);
        }
    }
    eventually("all slow calls are begun", || running.answers.slow_begun.load(Ordering::SeqCst) == 7);
    running.answers.release(7);
    let mut late: Vec<u32> = (0..7).map(|_| read_reply(&mut stream).0).collect();
    late.sort_unstable();
    assert_eq!(late, [1, 3, 6, 9, 12, 15, 18]);
    stream.write_all(&call_record(50, ECHO, &[])).unwrap();
    expect_echo(&mut stream, 50, &[]);
}

#[test]
fn every_failure_becomes_its_status() {
    let running = serve(Limits::default());
    let transport = running.transport();
    let errors = [
        CallError::ProgramUnavailable,
        CallError::ProgramMismatch(VersionRange { low: 3, high: 4 }),
        CallError::ProcedureUnavailable,
        CallError::GarbageArguments,
        CallError::SystemError,
        CallError::Denied(AuthStatus::TooWeak),
    ];
    for (procedure, error) in (FAILURES..).zip(errors) {
        assert_eq!(call(&transport, procedure, &[]), Err(error));
    }
    assert_eq!(call(&transport, ECHO, &[1; 4]), Ok(vec![1; 4]));
}

#[test]
fn a_fault_of_the_service_is_a_system_error_of_that_call() {
    let running = serve(Limits::default());
    let transport = running.transport();
    assert_eq!(call(&transport, FAULT, &[]), Err(CallError::SystemError));
    assert_eq!(call(&transport, ECHO, &[1; 4]), Ok(vec![1; 4]));
}

#[test]
fn shutdown_finishes_what_was_begun() {
    // No time passes that would end a connection.
    let mut running = serve_by(ScriptedTime::new().clock(), Limits::default());
    let mut stream = running.connect();
    let mut idle = running.connect();
    stream.write_all(&call_record(1, SLOW, &[1; 4])).unwrap();
    eventually("the call is begun", || running.answers.slow_begun.load(Ordering::SeqCst) == 1);
    running.handle.shutdown();
    eventually("nobody can connect any more", || TcpStream::connect(running.address).is_err());
    expect_end(&mut idle);
    running.answers.release(1);
    expect_echo(&mut stream, 1, &[1; 4]);
    expect_end(&mut stream);
    running.stop();
}
