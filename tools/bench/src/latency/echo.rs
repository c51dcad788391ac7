//! The lower limit of latency: a server that receives, makes the system calls that an operation
//! needs (or none at all), and sends a prepared reply. It implements no protocol, has no state and
//! checks no caller.

use std::fs::File;
use std::io::{BufRead, BufReader, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use curt_bench::processes::{Daemon, free_port};
use rustix::fs::{AtFlags, Mode, OFlags, RawDir};
use rustix::io::ReadWriteFlags;
use serde::{Deserialize, Serialize};

use super::connection::{self, prepare};
use super::operations::LatencyOperation;

/// Maximum time of its start.
const START: Duration = Duration::from_secs(20);
/// Size of the receive buffer in bytes.
const INPUT_BYTES: usize = 1 << 20;
/// Maximum length of the description of a task.
const TASK_MAX: u64 = 4 << 20;
/// Size of the buffer for entries of a directory, in bytes.
const ENTRIES_BYTES: usize = 32 << 10;

/// The task of a connection; the first message on it, as a line of JSON.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct EchoTask {
    /// The length of each call, in bytes.
    pub(crate) call_bytes: usize,
    /// The reply to each call, except its xid.
    pub(crate) reply: Vec<u8>,
    /// None for an echo.
    pub(crate) work: Option<EchoWork>,
}

/// The system calls of an operation, and the offsets of their arguments in calls and replies, in
/// bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct EchoWork {
    pub(super) operation: LatencyOperation,
    /// The file or directory of the operation.
    pub(super) path: PathBuf,
    /// The file offset in a call, if it has one.
    pub(super) offset_at: usize,
    /// The data or the name in a call; for READ, the data in a reply.
    pub(super) data: Range<usize>,
}

/// Starts it as a separate process. Returns its address.
pub(crate) fn start() -> Result<(Daemon, SocketAddr)> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
    let mut command = crate::own_program();
    command.args(["latency-echo", &address.port().to_string()]);
    let mut daemon = Daemon::start("the echo server", &mut command)?;
    daemon.until("the echo server accepts", START, || Ok(TcpStream::connect(address).ok()))?;
    Ok((daemon, address))
}

/// Connects for a task.
pub(crate) fn connect(address: SocketAddr, task: &EchoTask) -> Result<TcpStream> {
    let mut stream = connection::connect(address)?;
    let line = serde_json::to_string(task)? + "\n";
    stream.write_all(line.as_bytes())?;
    let taken = stream.read_exact(&mut [0]);
    taken.context("the echo server does not take the task")?;
    Ok(stream)
}

/// Serves on loopback until the process ends, with a thread for each connection.
pub(crate) fn serve(port: u16) -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    for stream in listener.incoming() {
        let stream = stream?;
        std::thread::spawn(move || {
            if let Err(error) = answer(stream) {
                eprintln!("echo: {error:#}");
            }
        });
    }
    Ok(())
}

fn answer(mut stream: TcpStream) -> Result<()> {
    prepare(&stream)?;
    let mut line = String::new();
    // The peer sends nothing more before the reply.
    BufReader::new((&stream).take(TASK_MAX)).read_line(&mut line)?;
    // A probe of the port sends nothing.
    if line.is_empty() {
        return Ok(());
    }
    let task: EchoTask = serde_json::from_str(&line)?;
    let mut worker = task.work.map(worker).transpose()?;
    stream.write_all(&[0])?;
    let mut input = vec![0; INPUT_BYTES.max(2 * task.call_bytes)];
    let (mut filled, mut output) = (0, Vec::new());
    loop {
        let received = stream.read(&mut input[filled..])?;
        if received == 0 {
            return Ok(());
        }
        filled += received;
        let mut at = 0;
        while filled - at >= task.call_bytes {
            let call = &input[at..at + task.call_bytes];
            let start = output.len();
            output.extend_from_slice(&task.reply);
            output[start + 4..start + 8].copy_from_slice(&call[4..8]);
            if let Some(work) = &mut worker {
                work(call, &mut output[start..])?;
            }
            at += task.call_bytes;
        }
        input.copy_within(at..filled, 0);
        filled -= at;
        if !output.is_empty() {
            stream.write_all(&output)?;
            output.clear();
        }
    }
}

/// Makes the system calls of a task with a call and its reply.
type EchoWorker = Box<dyn FnMut(&[u8], &mut [u8]) -> Result<()>>;

fn worker(work: EchoWork) -> Result<EchoWorker> {
    let EchoWork { operation, path, offset_at, data } = work;
    let file = File::options().read(true).write(operation.writes()).open(&path);
    let file = file.with_context(|| path.display().to_string())?;
    let mut entries = vec![MaybeUninit::uninit(); ENTRIES_BYTES];
    Ok(Box::new(move |call, reply| {
        let data = data.clone();
        match operation {
            LatencyOperation::Getattr | LatencyOperation::Access | LatencyOperation::Close => {}
            LatencyOperation::Read => {
                let read = rustix::io::pread(&file, &mut reply[data.clone()], offset(call, offset_at))?;
                ensure!(read == data.len(), "a short read");
            }
            LatencyOperation::WriteUnstable | LatencyOperation::WriteFileSync => {
                rustix::fs::fstat(&file)?;
                let (data, offset) = (&call[data], offset(call, offset_at));
                let written = if operation == LatencyOperation::WriteFileSync {
                    rustix::io::pwritev2(&file, &[IoSlice::new(data)], offset, ReadWriteFlags::SYNC)?
                } else {
                    rustix::io::pwrite(&file, data, offset)?
                };
                ensure!(written == data.len(), "a short write");
            }
            LatencyOperation::Lookup | LatencyOperation::Open => {
                rustix::fs::statat(&file, &call[data], AtFlags::SYMLINK_NOFOLLOW)?;
            }
            LatencyOperation::Create => {
                rustix::fs::fstat(&file)?;
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
                let made = rustix::fs::openat(&file, &call[data], flags, Mode::from_raw_mode(0o644))?;
                rustix::fs::fstat(&made)?;
            }
            LatencyOperation::Remove => {
                rustix::fs::fstat(&file)?;
                rustix::fs::unlinkat(&file, &call[data], AtFlags::empty())?;
            }
            LatencyOperation::ReaddirPlus => {
                rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0))?;
                let mut listing = RawDir::new(&file, &mut entries);
                while let Some(entry) = listing.next() {
                    rustix::fs::statat(&file, entry?.file_name(), AtFlags::SYMLINK_NOFOLLOW)?;
                }
            }
        }
        rustix::fs::fstat(&file)?;
        Ok(())
    }))
}

fn offset(call: &[u8], at: usize) -> u64 {
    call.get(at..).and_then(|rest| rest.first_chunk::<8>()).map_or(0, |bytes| u64::from_be_bytes(*bytes))
}
