//! Replies that contain a range of a file.

use std::{
    fs::File,
    io::{Seek, SeekFrom, Write},
    net::TcpStream,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use curt_rpc::{
    message::{AcceptStatus, CallMessage},
    server::{CallContext, CallFailure, Limits, RpcServer, RpcServerHandle, RpcService, SendfileRange},
};
use rustix::fs::MemfdFlags;

use crate::{
    fake::{eventually, listen},
    fixture::{call_record, expect_end, read_reply},
};

const PIECE: u32 = 1;
const SLOW_PIECE: u32 = 2;
const FAILURE: u32 = 3;
/// States a position of the range beyond the end of the reply.
const MISPLACED: u32 = 4;

const FILE_SIZE: u32 = 3 << 20;
const HEAD: [u8; 4] = *b"head";
const TAIL: [u8; 3] = *b"end";

/// Replies with the requested range of a file, between a head and a tail.
struct Pieces {
    file: Arc<OwnedFd>,
    failed: Arc<AtomicBool>,
}

impl RpcService for Pieces {
    fn call(
        &self,
        call: &CallMessage<'_>,
        context: &mut CallContext<'_>,
        reply: &mut Vec<u8>,
    ) -> Result<(), CallFailure> {
        let number = |at: usize| u32::from_be_bytes(call.arguments[at..at + 4].try_into().unwrap());
        if call.procedure == SLOW_PIECE {
            context.may_block();
        }
        assert!(context.allows_sendfile());
        reply.extend_from_slice(&HEAD);
        let piece = SendfileRange {
            file: Arc::clone(&self.file),
            offset: number(0).into(),
            length: number(4),
            failed: Arc::clone(&self.failed),
        };
        let beyond = if call.procedure == MISPLACED { 1 << 20 } else { 0 };
        context.attach(reply.len() + beyond, piece);
        reply.extend_from_slice(&TAIL);
        if call.procedure == FAILURE {
            return Err(CallFailure::SystemError);
        }
        Ok(())
    }
}

/// The file's content at a position: words at different positions differ.
fn byte(at: u32) -> u8 {
    (at / 4).to_be_bytes()[(at % 4) as usize]
}

struct Running {
    stream: TcpStream,
    failed: Arc<AtomicBool>,
    handle: RpcServerHandle,
}

impl Running {
    fn serve(file: OwnedFd) -> Self {
        let (listener, address) = listen();
        let failed = Arc::new(AtomicBool::new(false));
        let service = Pieces { file: Arc::new(file), failed: Arc::clone(&failed) };
        let limits = Limits { record: crate::fixture::RECORD_MAX, ..Limits::default() };
        let server = RpcServer::new(vec![listener], Arc::new(service), limits).unwrap();
        let handle = server.handle();
        thread::spawn(move || server.run());
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
        Self { stream, failed, handle }
    }

    fn ask(&mut self, xid: u32, procedure: u32, offset: u32, length: u32) {
        let arguments = [offset, length].map(u32::to_be_bytes).concat();
        self.stream.write_all(&call_record(xid, procedure, &arguments)).unwrap();
    }

    /// The bytes of the file in the next reply.
    fn piece(&mut self) -> (u32, Vec<u8>) {
        let (xid, status, results) = read_reply(&mut self.stream);
        assert_eq!(status, Ok(AcceptStatus::Success));
        let (head, rest) = results.split_at(HEAD.len());
        let (piece, tail) = rest.split_at(rest.len() - TAIL.len());
        assert_eq!((head, tail), (&HEAD[..], &TAIL[..]));
        (xid, piece.to_vec())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.handle.shutdown();
    }
}

fn full_file() -> File {
    let mut file = File::from(rustix::fs::memfd_create("pieces", MemfdFlags::CLOEXEC).unwrap());
    let content: Vec<u8> = (0..FILE_SIZE).map(byte).collect();
    file.write_all(&content).unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    file
}

#[test]
fn pieces_stand_where_they_belong_among_other_bytes() {
    let mut running = Running::serve(full_file().into());
    for (xid, (offset, length)) in
        (1..).zip([(0, 0), (0, 1), (5, 70_000), (FILE_SIZE - 3, 3), (4096, 1 << 20)])
    {
        for procedure in [PIECE, SLOW_PIECE] {
            running.ask(xid, procedure, offset, length);
            let expected: Vec<u8> = (offset..offset + length).map(byte).collect();
            assert!(running.piece() == (xid, expected), "{length} bytes from {offset}");
        }
    }
}

#[test]
fn a_client_that_takes_its_pieces_late_gets_them_whole() {
    let mut running = Running::serve(full_file().into());
    // More than a socket holds: the rest is queued.
    let count = 24;
    for xid in 0..count {
        running.ask(xid, if xid % 2 == 0 { PIECE } else { SLOW_PIECE }, xid * 4, 1 << 20);
    }
    eventually("the client's own buffer fills", || {
        rustix::io::ioctl_fionread(&running.stream).unwrap() > 32 << 10
    });
    let mut seen: Vec<u32> = (0..count)
        .map(|_| {
            let (xid, piece) = running.piece();
            let expected: Vec<u8> = (xid * 4..xid * 4 + (1 << 20)).map(byte).collect();
            assert!(piece == expected, "the piece of call {xid}");
            xid
        })
        .collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..count).collect::<Vec<_>>());
}

#[test]
fn a_file_that_was_cut_short_is_made_up_with_zeros() {
    let file = full_file();
    file.set_len(100_000).unwrap();
    let mut running = Running::serve(file.into());
    running.ask(1, PIECE, 90_000, 50_000);
    let mut expected: Vec<u8> = (90_000..100_000).map(byte).collect();
    expected.resize(50_000, 0);
    assert!(running.piece() == (1, expected));
    running.ask(2, SLOW_PIECE, FILE_SIZE, 40_000);
    assert!(running.piece() == (2, vec![0; 40_000]));
    assert!(!running.failed.load(Ordering::SeqCst));
}

#[test]
fn a_file_that_cannot_be_read_ends_the_connection_and_is_reported() {
    let mut running = Running::serve(write_only());
    running.ask(1, PIECE, 0, 20_000);
    let mut received = Vec::new();
    // The head may have arrived; no other byte may replace the file's.
    let _ = std::io::Read::read_to_end(&mut running.stream, &mut received);
    assert!(received.len() < 100, "{} bytes came", received.len());
    expect_end(&mut running.stream);
    assert!(running.failed.load(Ordering::SeqCst));
}

#[test]
fn a_call_that_fails_has_no_piece() {
    let mut running = Running::serve(full_file().into());
    running.ask(1, FAILURE, 0, 20_000);
    let (xid, status, results) = read_reply(&mut running.stream);
    assert_eq!((xid, status, results), (1, Ok(AcceptStatus::SystemError), vec![]));
}

#[test]
fn a_fault_behind_the_service_ends_its_connection_and_no_other() {
    let mut running = Running::serve(full_file().into());
    let address = running.stream.peer_addr().unwrap();
    let mut other = std::mem::replace(&mut running.stream, TcpStream::connect(address).unwrap());
    running.ask(1, MISPLACED, 0, 20_000);
    expect_end(&mut running.stream);
    eventually("the connection is forgotten", || running.handle.connections() == 1);
    std::mem::swap(&mut running.stream, &mut other);
    running.ask(2, PIECE, 0, 20_000);
    let (xid, piece) = running.piece();
    assert_eq!((xid, piece.len()), (2, 20_000));
}

/// A file that is open only for writing.
fn write_only() -> OwnedFd {
    use rustix::fs::{Mode, OFlags};
    let file = full_file();
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()).unwrap()
}
