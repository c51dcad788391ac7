//! The guarantees of the data half, tested against a scripted server and against a model.

#![allow(clippy::unwrap_used, reason = "a test may end in a panic")]

use crate::protocol::OpenContext;
use crate::protocol::v3::NfsV3;
use curt_types::{Attributes, FileHandle, Wcc};
mod in_place_read;
mod model;
mod random;
mod reading;
mod segments;
mod sequences;
mod server;
mod stopping;
mod writing;

use std::{
    fmt,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use curt_observe::ClientCounters;
use curt_rpc::{
    auth::{AuthSysCredential, AuthSysGids, MachineName, RpcCredential},
    client::{Interrupt, Transport},
};
use parking_lot::Mutex;

use super::{
    errors::DataError,
    file::FileData,
    options::DataOptions,
    owner::DataOwner,
    plane::{DataPlane, OpenData, OpenMode},
    write::WritePosition,
};
use crate::{
    protocol::rpc_client::RpcClient,
    threads::{Background, BackgroundTask, BackgroundThreads, Clock},
};
use server::Server;

/// A clock that moves only when a test advances it or waits on it.
#[derive(Debug)]
struct Scripted(Mutex<Instant>);

impl Clock for Scripted {
    fn now(&self) -> Instant {
        *self.0.lock()
    }

    fn pause(&self, duration: Duration, _: &Interrupt) {
        *self.0.lock() += duration;
    }
}

/// Runs work at once, and delayed work when the test requests it.
#[derive(Default)]
struct Inline(Mutex<Vec<BackgroundTask>>);

impl Background for Inline {
    fn spawn(&self, task: BackgroundTask) {
        task();
    }

    fn spawn_after(&self, _: Duration, task: BackgroundTask) {
        self.0.lock().push(task);
    }
}

impl Inline {
    /// Runs the work that was delayed so far.
    fn run_delayed(&self) {
        let tasks = std::mem::take(&mut *self.0.lock());
        tasks.into_iter().for_each(|task| task());
    }
}

impl fmt::Debug for Inline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Inline")
    }
}

/// An inode whose only attribute is its size.
#[derive(Debug)]
struct File {
    data: FileData,
    believed: Mutex<Option<u64>>,
    in_flight: Mutex<i64>,
}

impl DataOwner for File {
    fn handle(&self) -> &FileHandle {
        handle()
    }

    fn data(&self) -> &FileData {
        &self.data
    }

    fn fresh_size(&self) -> Option<u64> {
        *self.believed.lock()
    }

    fn last_size(&self) -> Option<u64> {
        *self.believed.lock()
    }

    fn absorb_read(&self, attributes: Option<&Attributes>, _: Instant) {
        *self.believed.lock() = attributes.map(|attributes| attributes.size);
    }

    fn begin_write(&self) {
        *self.in_flight.lock() += 1;
    }

    fn absorb_write(&self, wcc: &Wcc, _: Instant) {
        *self.in_flight.lock() -= 1;
        *self.believed.lock() = wcc.after.map(|attributes| attributes.size);
    }

    fn label(&self) -> String {
        "the file".into()
    }
}

fn handle() -> &'static FileHandle {
    static HANDLE: OnceLock<FileHandle> = OnceLock::new();
    HANDLE.get_or_init(|| FileHandle::new(b"the file").unwrap())
}

/// One file on one server, with the data half in between.
struct Rig {
    server: Arc<Server>,
    plane: Arc<DataPlane>,
    file: Arc<File>,
    owner: Arc<dyn DataOwner>,
    counters: Arc<ClientCounters>,
    clock: Arc<Scripted>,
    inline: Arc<Inline>,
}

/// Small sizes, so that small files take many requests.
fn small() -> DataOptions {
    DataOptions {
        read_size: 16 << 10,
        write_size: 4096,
        read_ahead: 64 << 10,
        cache_bytes: 1 << 20,
        keep_read: u64::MAX,
        unwritten_bytes: 1 << 20,
        write_behind: Duration::from_secs(5),
        synchronous: false,
    }
}

impl Rig {
    /// All work runs on the test's thread.
    fn inline(contents: &[u8], options: DataOptions) -> Self {
        let inline = Arc::new(Inline::default());
        let background: Arc<dyn Background> = inline.clone();
        Self::new(contents, options, background, inline)
    }

    /// Background work runs on threads.
    fn threaded(contents: &[u8], options: DataOptions) -> Self {
        Self::new(contents, options, Arc::new(BackgroundThreads::new(16)), Arc::default())
    }

    fn new(
        contents: &[u8],
        options: DataOptions,
        background: Arc<dyn Background>,
        inline: Arc<Inline>,
    ) -> Self {
        let server = Server::new(contents);
        let transport: Arc<dyn Transport> = server.clone();
        let clock = Arc::new(Scripted(Mutex::new(Instant::now())));
        let wire = Arc::new(RpcClient::new(transport, clock.clone()));
        let counters = Arc::new(ClientCounters::default());
        let plane = DataPlane::new(NfsV3::new(wire), options, counters.clone(), clock.clone(), background);
        let data = plane.new_file();
        let believed = Mutex::new(Some(contents.len() as u64));
        let file = Arc::new(File { data, believed, in_flight: Mutex::new(0) });
        let owner: Arc<dyn DataOwner> = file.clone();
        Self { server, plane, file, owner, counters, clock, inline }
    }

    fn open(&self) -> OpenData {
        self.open_as(1000, OpenMode::default())
    }

    fn open_as(&self, uid: u32, mode: OpenMode) -> OpenData {
        let machine_name = MachineName::new(b"here");
        let credential = RpcCredential::Sys(AuthSysCredential {
            machine_name,
            uid,
            gid: uid,
            groups: AuthSysGids::default(),
        });
        let context = OpenContext { owner: uid, credential: Arc::new(credential) };
        self.plane.open(&self.file.data, Arc::new(context), mode)
    }

    fn read(&self, open: &OpenData, offset: u64, count: usize) -> Result<Vec<u8>, DataError> {
        let bytes = self.plane.read(&self.owner, open, offset, count, &Interrupt::never())?;
        Ok(bytes.to_vec())
    }

    fn write(&self, open: &OpenData, offset: u64, bytes: &[u8]) -> Result<usize, DataError> {
        self.plane
            .write(&self.owner, open, WritePosition::At(offset), bytes, &Interrupt::never())
            .map(|taken| taken.count)
    }

    fn append(&self, open: &OpenData, bytes: &[u8]) -> Result<usize, DataError> {
        let size = || Ok(self.file.believed.lock().unwrap_or_default());
        self.plane
            .write(&self.owner, open, WritePosition::End(&size), bytes, &Interrupt::never())
            .map(|taken| taken.count)
    }

    fn flush(&self, open: &OpenData) -> Result<(), DataError> {
        self.plane.flush(&self.owner, open, &Interrupt::never())
    }
}

/// Bytes that differ from place to place.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| u8::try_from((at * 7 + at / 251) % 251).unwrap()).collect()
}
