//! `curt serve` with clients that send invalid data: each affects only itself, and causes one log
//! line.

mod ending;
mod log;
mod victim;

use std::io::{Read, Write};
use std::net::TcpStream;

use anyhow::{Context, Result, ensure};
use curt_proto::{mount3, nfs3, nlm4, nsm};
use curt_rpc::message::AcceptStatus;
use curt_rpc::record;
use curt_tests::process::until;
use curt_xdr::{Decoder, Encode, put_opaque};
use rustix::process::Signal;

use victim::*;

#[test]
fn every_procedure_with_cut_or_mutated_arguments_is_answered_or_rejected() -> Result<()> {
    let mut victim = Victim::start(&[])?;
    let mut numbers = Numbers(1);
    let mut stream = victim.connect()?;
    // The handle, a name, and numbers of all sizes: the start of most procedures' arguments.
    let mut sample = Vec::new();
    put_opaque(&mut sample, &victim.root);
    put_opaque(&mut sample, b"some name");
    for word in [0u32, 1, 2, 0x7fff_ffff, 0x8000_0000, u32::MAX, 0, 0, 0, 5, 0, 0] {
        word.encode(&mut sample);
    }
    let programs = [
        (nfs3::PROGRAM, 3, 23),
        (mount3::PROGRAM, 3, 7),
        (mount3::PROGRAM, 1, 7),
        (nfs3::PROGRAM, 4, 3),
        (nfs3::PROGRAM, 5, 2),
        (nlm4::PROGRAM, 4, 25),
        (nsm::PROGRAM, 1, 8),
    ];
    for (program, version, procedures) in programs {
        for procedure in 0..procedures {
            for round in 0..120 {
                let mut arguments = sample.clone();
                match round {
                    0..30 => arguments.truncate(round * 4),
                    30..100 => {
                        let at = numbers.below(arguments.len());
                        arguments[at] = numbers.next().to_be_bytes()[1];
                    }
                    _ => arguments = numbers.bytes(round * 3),
                }
                stream.write_all(&call_record(7, (program, version, procedure), &arguments))?;
                let outcome = read_outcome(&mut stream)?.context("the connection was closed")?;
                let expected = match (program, version, procedure) {
                    (nfs3::PROGRAM, 5, _) => matches!(outcome, Ok(AcceptStatus::ProgramMismatch(_))),
                    (nfs3::PROGRAM, 4, 2) | (nfs3::PROGRAM, 3, 22) | (mount3::PROGRAM, _, 6) => {
                        outcome == Ok(AcceptStatus::ProcedureUnavailable)
                    }
                    // The system's monitor calls it over UDP.
                    (nlm4::PROGRAM, _, 16) => {
                        matches!(outcome, Ok(AcceptStatus::SystemError | AcceptStatus::GarbageArguments))
                    }
                    _ => matches!(
                        outcome,
                        Ok(AcceptStatus::Success
                            | AcceptStatus::GarbageArguments
                            | AcceptStatus::ProcedureUnavailable)
                    ),
                };
                ensure!(expected, "program {program} version {version} procedure {procedure}: {outcome:?}");
            }
        }
    }
    ensure!(victim.warnings() <= 2, "more than a line for one client:\n{}", victim.running.output());
    victim.expect_unharmed()
}

#[test]
fn garbage_ends_its_connection_and_no_other() -> Result<()> {
    let mut victim = Victim::start(&[])?;
    let mut numbers = Numbers(2);
    let mut good = victim.connect()?;
    for round in 0..400 {
        let mut stream = victim.connect()?;
        let bytes = match round % 4 {
            // Random bytes; a random record; a modified call; many empty fragments.
            0 => {
                let count = 8 + numbers.below(3000);
                numbers.bytes(count)
            }
            1 => {
                let body = {
                    let count = numbers.below(600);
                    numbers.bytes(count)
                };
                [record::record_mark(body.len()).to_vec(), body].concat()
            }
            2 => {
                let mut call = call_record(1, (nfs3::PROGRAM, 3, 1), &numbers.bytes(40));
                for _ in 0..3 {
                    let at = numbers.below(call.len());
                    call[at] = numbers.next().to_be_bytes()[2];
                }
                call
            }
            _ => vec![0; 4 * 5000],
        };
        // The connection may be closed before all is written.
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
        if round % 20 == 0 {
            good.write_all(&call_record(9, (nfs3::PROGRAM, 3, 0), &[]))?;
            ensure!(read_outcome(&mut good)? == Some(Ok(AcceptStatus::Success)), "another client was harmed");
        }
    }
    ensure!(victim.warnings() <= 400, "more than a line for each client");
    victim.expect_unharmed()
}

#[test]
fn records_above_the_limit_end_the_connection_at_once() -> Result<()> {
    // No connection ends because its record stays incomplete.
    let mut victim = Victim::start(&["--half-record-timeout", "600"])?;
    // The announced length exceeds the limit; only a part is ever sent.
    for (program, announced) in
        [(nfs3::PROGRAM, 2 << 20), (mount3::PROGRAM, 2 << 20), (1, 2 << 20), (nfs3::PROGRAM, 0x7fff_ffff)]
    {
        let mut stream = victim.connect()?;
        let mut start = record::record_mark(announced).to_vec();
        start.extend([1, 0, 2, program, 3, 1].iter().flat_map(|word: &u32| word.to_be_bytes()));
        stream.write_all(&start)?;
        ensure!(
            read_outcome(&mut stream)?.is_none(),
            "{announced} bytes for program {program} were waited for"
        );
    }
    victim.expect_unharmed()
}

#[test]
fn half_records_and_idle_connections_hold_no_thread() -> Result<()> {
    // On a slow machine no client may exceed the timeout.
    let mut victim = Victim::start(&["--half-record-timeout", "600"])?;
    let call = call_record(3, (nfs3::PROGRAM, 3, 0), &[]);
    let mut slow: Vec<TcpStream> = (0..400).map(|_| victim.connect()).collect::<Result<_>>()?;
    // Byte by byte, as slowly as the server allows.
    for (at, byte) in call.iter().enumerate().take(call.len() - 1) {
        for stream in &mut slow[..200] {
            stream.write_all(&[*byte])?;
        }
        if at % 16 == 0 {
            victim.expect_unharmed()?;
        }
    }
    for stream in &mut slow[..200] {
        stream.write_all(&call[call.len() - 1..])?;
        ensure!(read_outcome(stream)? == Some(Ok(AcceptStatus::Success)), "a slow call was not answered");
    }
    victim.expect_unharmed()
}

#[test]
fn a_client_that_never_reads_harms_only_itself() -> Result<()> {
    let mut victim = Victim::start(&[])?;
    let read = victim.make_large_file()?;
    let mut greedy = Vec::new();
    for _ in 0..60 {
        let mut stream = victim.connect()?;
        stream.set_nonblocking(true)?;
        for xid in 0..100 {
            if stream.write_all(&call_record(xid, (nfs3::PROGRAM, 3, 6), &read)).is_err() {
                break;
            }
        }
        greedy.push(stream);
    }
    victim.expect_unharmed()?;
    // A client that begins to read gets all its replies.
    let mut stream = greedy.swap_remove(0);
    stream.set_nonblocking(false)?;
    for _ in 0..100 {
        ensure!(read_outcome(&mut stream)? == Some(Ok(AcceptStatus::Success)), "a reply is missing");
    }
    drop(greedy);
    victim.expect_unharmed()
}

#[test]
fn more_connections_than_allowed_take_the_place_of_idle_ones() -> Result<()> {
    let mut victim = Victim::start(&["--connections", "50"])?;
    let mut idle: Vec<TcpStream> = (0..200).map(|_| victim.connect()).collect::<Result<_>>()?;
    victim.expect_unharmed()?;
    // The oldest were closed.
    ensure!(read_outcome(&mut idle[0])?.is_none());
    // The server may not have closed all of them yet.
    let descriptors = format!("/proc/{}/fd", victim.running.pid());
    until("the others have no descriptors", SOON, || {
        Ok((std::fs::read_dir(&descriptors)?.count() < 80).then_some(()))
    })
}

#[test]
fn forged_handles_and_bad_names_get_the_rfcs_status() -> Result<()> {
    let victim = Victim::start(&[])?;
    let status = |procedure: u32, arguments: Vec<u8>| -> Result<u32> {
        Ok(Decoder::new(&victim.call(nfs3::PROGRAM, procedure, arguments)?).u32()?)
    };
    let opaque = |bytes: &[u8]| {
        let mut out = Vec::new();
        put_opaque(&mut out, bytes);
        out
    };
    for bit in 0..victim.root.len() * 8 {
        let mut forged = victim.root.clone();
        forged[bit / 8] ^= 1 << (bit % 8);
        let status = status(1, opaque(&forged))?;
        ensure!(status == 70 || status == 10_001, "a forged handle: {status}");
    }
    for length in 0..victim.root.len() {
        let status = status(1, opaque(&victim.root[..length]))?;
        ensure!(status == 70 || status == 10_001, "a cut handle: {status}");
    }
    let names: [(&[u8], u32); 7] = [
        (b"", 13),
        (b"a/b", 13),
        (b"a\0b", 13),
        (b".", 17),
        (b"..", 17),
        (&[b'x'; 256], 63),
        (&[b'x'; 1000], 63),
    ];
    for (name, expected) in names {
        let mut mkdir = opaque(&victim.root);
        put_opaque(&mut mkdir, name);
        mkdir.extend([0; 24]);
        let status = status(9, mkdir)?;
        ensure!(
            status == expected,
            "MKDIR of {:?}: {status} instead of {expected}",
            name.escape_ascii().to_string()
        );
    }
    Ok(())
}

#[test]
fn a_signal_stops_a_server_in_order() -> Result<()> {
    let mut victim = Victim::start(&[])?;
    let status = victim.running.stop()?;
    ensure!(status.success(), "{status}");
    ensure!(victim.running.output().contains("stopped"), "{}", victim.running.output());
    until("nobody answers any more", SOON, || Ok(TcpStream::connect(victim.address).is_err().then_some(())))
}

#[test]
fn a_second_signal_ends_a_server_at_once() -> Result<()> {
    let mut victim = Victim::start(&[])?;
    // A server waits some seconds for a client that receives no replies.
    let large = victim.make_large_file()?;
    let mut greedy = victim.connect()?;
    for xid in 0..20 {
        greedy.write_all(&call_record(xid, (nfs3::PROGRAM, 3, 6), &large))?;
    }
    victim.expect_unharmed()?;
    victim.running.signal(Signal::TERM)?;
    victim.running.wait_for("stopping", SOON)?;
    victim.running.signal(Signal::TERM)?;
    let status = victim.running.wait(SOON)?;
    // If it had waited, it would have ended in order.
    ensure!(status.code() == Some(1), "{status}");
    Ok(())
}
