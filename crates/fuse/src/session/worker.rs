//! The threads of a session. Each reads a request, makes sure that another thread reads the device,
//! has the file system handle the request, and sends the reply.
//!
//! A thread reads (or is about to), handles a request, or is idle. Small replies are built on the
//! stack and sent by one write(2), data by one writev(2) from the method's buffer. Invariants: a
//! reply goes to the descriptor that its request was read from; when the last reader reads a
//! request, an idle thread is woken or a new one is requested before the request is handled; at
//! most `keep` threads read at a time; a thread that stays idle for `idle` ends.

use std::{
    io,
    os::fd::OwnedFd,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;

use super::{FuseSessionEnd, FuseSessionShared, REQUEST_BYTES_MAX};
use crate::{
    abi::{opcode, opcode_name},
    filesystem::Filesystem,
    listing::DirentBuffer,
    message_fields::{AttrOut, LockKind, NodeId, ReadIn},
    negotiate::IO_BYTES_MAX,
    reply::{self, ReadReply, SmallReply},
    request::{self, InHeader, RequestBody},
    requests_in_progress::{FuseContext, InFlightRequest, STACK_BYTES, WorkerStage},
    setlk_reply::SetlkReply,
    sys::PageBuffer,
};

/// Counts the threads of a session.
#[derive(Debug)]
pub(crate) struct FuseWorkerPool {
    /// Threads in read(2) or about to be. Changed without the mutex; it is a counter, and orders no
    /// other memory.
    readers: AtomicUsize,
    keep: usize,
    threads_max: usize,
    idle: Duration,
    state: Mutex<FuseWorkerPoolState>,
    all_ended: Condvar,
}

#[derive(Debug, Default)]
struct FuseWorkerPoolState {
    idle: Vec<Arc<IdleWorker>>,
    threads: usize,
    ended: bool,
    is_limit_logged: bool,
}

/// Where an idle thread waits.
#[derive(Debug, Default)]
struct IdleWorker {
    is_woken: Mutex<bool>,
    wakeup: Condvar,
}

/// The duty of the reader of a request before it handles the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum ReaderHandover {
    /// Another thread reads.
    HasReader,
    /// Start a thread, which is already counted.
    Spawn,
    /// No thread reads until a request is complete.
    LimitReached {
        /// Whether this happens for the first time.
        tell: bool,
    },
}

/// The next step of a thread that has completed a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum FuseWorkerStep {
    Read,
    End,
}

impl FuseWorkerPool {
    pub(crate) fn new(keep: usize, threads_max: usize, idle: Duration) -> Self {
        Self {
            readers: AtomicUsize::new(0),
            keep: keep.clamp(1, threads_max.max(1)),
            threads_max,
            idle,
            state: Mutex::default(),
            all_ended: Condvar::new(),
        }
    }

    /// Counts the threads that a session starts with, and returns their number.
    pub(crate) fn start(&self) -> usize {
        self.readers.store(self.keep, Ordering::SeqCst);
        self.state.lock().threads = self.keep;
        self.keep
    }

    /// The calling thread has read a request.
    pub(crate) fn request_read(&self) -> ReaderHandover {
        if self.readers.fetch_sub(1, Ordering::SeqCst) > 1 {
            return ReaderHandover::HasReader;
        }
        let mut state = self.state.lock();
        if state.ended {
            return ReaderHandover::HasReader;
        }
        if let Some(place) = state.idle.pop() {
            self.readers.fetch_add(1, Ordering::SeqCst);
            drop(state);
            *place.is_woken.lock() = true;
            place.wakeup.notify_one();
            ReaderHandover::HasReader
        } else if state.threads < self.threads_max {
            state.threads += 1;
            self.readers.fetch_add(1, Ordering::SeqCst);
            ReaderHandover::Spawn
        } else {
            let tell = !state.is_limit_logged;
            state.is_limit_logged = true;
            ReaderHandover::LimitReached { tell }
        }
    }

    /// A requested thread could not be started.
    pub(crate) fn spawn_failed(&self) {
        self.readers.fetch_sub(1, Ordering::SeqCst);
        self.thread_ended();
    }

    /// The calling thread has completed its request: parks it if enough others read.
    pub(crate) fn request_answered(&self) -> FuseWorkerStep {
        if self.try_read() {
            return FuseWorkerStep::Read;
        }
        let place = Arc::new(IdleWorker::default());
        {
            let mut state = self.state.lock();
            if state.ended {
                return FuseWorkerStep::End;
            }
            // Checked again under the mutex: a reader that found no idle thread has decremented the
            // counter before.
            if self.try_read() {
                return FuseWorkerStep::Read;
            }
            state.idle.push(place.clone());
        }
        let end = Instant::now() + self.idle;
        let mut go = place.is_woken.lock();
        while !*go {
            if place.wakeup.wait_until(&mut go, end).timed_out() {
                break;
            }
        }
        if *go {
            return FuseWorkerStep::Read;
        }
        drop(go);
        let mut state = self.state.lock();
        let idle_thread = state.idle.iter().position(|other| Arc::ptr_eq(other, &place));
        match idle_thread {
            Some(index) => {
                state.idle.remove(index);
                FuseWorkerStep::End
            }
            // Just woken, and counted as a reader by the waking thread, unless the mount has ended
            // (then reading fails).
            None => FuseWorkerStep::Read,
        }
    }

    fn try_read(&self) -> bool {
        self.readers
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |readers| {
                (readers < self.keep).then_some(readers + 1)
            })
            .is_ok()
    }

    /// The mount has ended: wakes idle threads.
    pub(crate) fn end(&self) {
        let idle_thread = {
            let mut state = self.state.lock();
            state.ended = true;
            std::mem::take(&mut state.idle)
        };
        for place in idle_thread {
            *place.is_woken.lock() = true;
            place.wakeup.notify_one();
        }
    }

    pub(crate) fn thread_ended(&self) {
        let mut state = self.state.lock();
        state.threads -= 1;
        if state.threads == 0 {
            self.all_ended.notify_all();
        }
    }

    pub(crate) fn threads(&self) -> usize {
        self.state.lock().threads
    }

    /// Waits until all threads have ended, or until the deadline; returns whether all have.
    pub(crate) fn wait_all_ended(&self, deadline: Instant) -> bool {
        let mut state = self.state.lock();
        while state.threads > 0 {
            if self.all_ended.wait_until(&mut state, deadline).timed_out() {
                return state.threads == 0;
            }
        }
        true
    }
}

impl<F: Filesystem> FuseSessionShared<F> {
    pub(super) fn spawn(self: &Arc<Self>, index: usize) -> io::Result<()> {
        let shared = self.clone();
        thread::Builder::new()
            .name("fuse".into())
            .stack_size(STACK_BYTES)
            .spawn(move || work(&shared, index))
            .map(drop)
    }

    /// The calling thread has read a request: makes sure that another thread reads the device.
    fn hand_reading_over(self: &Arc<Self>) {
        match self.pool.request_read() {
            ReaderHandover::HasReader => {}
            ReaderHandover::Spawn => {
                if let Err(error) = self.spawn(0) {
                    self.pool.spawn_failed();
                    tracing::warn!("cannot start another thread, requests may have to wait: {error}");
                }
            }
            ReaderHandover::LimitReached { tell } => {
                if tell {
                    tracing::warn!("all threads are busy; further requests wait");
                }
            }
        }
    }

    fn end(&self, how: FuseSessionEnd) {
        let first = self.ended.lock().replace(how).is_none();
        if first {
            self.end_seen.notify_all();
            self.pool.end();
        }
    }
}

/// Runs a thread. The thread with `index` 0 uses the mount's own descriptor, the others a clone if
/// possible, so that they do not contend for one queue.
fn work<F: Filesystem>(shared: &Arc<FuseSessionShared<F>>, index: usize) {
    let device = if index == 0 { shared.device.shared() } else { shared.device.cloned() };
    let flight = shared.requests.join();
    let stage = shared.stages.join();
    match PageBuffer::new(REQUEST_BYTES_MAX) {
        Ok(buffer) => FuseWorker {
            shared,
            device,
            request: flight.clone(),
            stage: stage.clone(),
            buffer,
            reply_buffers: ReplyBuffers::default(),
        }
        .run(),
        Err(errno) => tracing::warn!("cannot allocate a request buffer: {errno}"),
    }
    // Another thread may still read it.
    stage.set_idle();
    shared.stages.leave(&stage);
    shared.requests.leave(&flight);
    shared.pool.thread_ended();
}

struct FuseWorker<'a, F: Filesystem> {
    shared: &'a Arc<FuseSessionShared<F>>,
    device: Arc<OwnedFd>,
    request: Arc<InFlightRequest>,
    stage: Arc<WorkerStage>,
    buffer: PageBuffer,
    reply_buffers: ReplyBuffers,
}

/// Whether a request waits for a lock. The kernel sends an unlock that may wait (F_SETLKW, or
/// flock(2) without LOCK_NB) with the same opcode.
fn waits_for_lock(operation: &RequestBody<'_>) -> bool {
    matches!(operation, RequestBody::Setlk { lock, wait: true } if lock.range.kind != LockKind::Unlock)
}

impl<F: Filesystem> FuseWorker<'_, F> {
    fn run(mut self) {
        loop {
            self.stage.set_reading();
            match rustix::io::read(&self.device, &mut *self.buffer.bytes()) {
                Ok(length) => {
                    self.stage.set_received();
                    self.shared.hand_reading_over();
                    self.answer(length);
                    self.stage.set_idle();
                    if self.shared.pool.request_answered() == FuseWorkerStep::End {
                        return;
                    }
                }
                // ENOENT: the request was withdrawn before it could be read.
                Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => {}
                Err(errno) => {
                    self.shared.end(match errno {
                        Errno::NODEV => FuseSessionEnd::Unmounted,
                        Errno::CONNABORTED => FuseSessionEnd::Aborted,
                        other => FuseSessionEnd::Failed(other),
                    });
                    return;
                }
            }
        }
    }

    fn answer(&mut self, length: usize) {
        let shared = self.shared;
        let Ok((header, body)) = request::split(&self.buffer.bytes()[..length]) else {
            tracing::warn!("a request of {length} bytes from the kernel has no header; dropped");
            return;
        };
        let operation = match request::parse(&header, body) {
            Ok(RequestBody::Interrupt { unique }) => {
                shared.requests.interrupt(unique);
                return;
            }
            Ok(operation) => operation,
            Err(malformed) => {
                tracing::warn!("{}: {malformed}", opcode_name(header.opcode));
                reply::send_error(&self.device, header.unique, Errno::IO);
                return;
            }
        };
        // The reply to a request for a lock may be sent after this thread has begun another one.
        let may_outlive = matches!(operation, RequestBody::Setlk { .. });
        let request = if may_outlive { shared.requests.join() } else { Arc::clone(&self.request) };
        shared.requests.begin(&request, &header, waits_for_lock(&operation));
        let interruption = request.interruption();
        let InHeader { uid, gid, tid, .. } = header;
        let context = &FuseContext {
            uid,
            gid,
            tid,
            interruption: &interruption,
            requests: &shared.requests,
            request: &request,
            stage: &self.stage,
            stages: &shared.stages,
        };
        let handler = RequestHandler { device: &self.device, header, context, only_user: shared.only_user };
        let filesystem = &*shared.filesystem;
        let reserve = &mut self.reply_buffers;
        let served = catch_unwind(AssertUnwindSafe(|| handler.serve(filesystem, operation, reserve)));
        if served.is_err() {
            tracing::error!("{} panicked: replying EIO", opcode_name(header.opcode));
        }
        if !may_outlive {
            if served.is_err() {
                reply::send_error(&self.device, header.unique, Errno::IO);
            }
            shared.requests.end(&self.request);
        }
    }
}

/// A thread's buffer for the data of replies, allocated at first use.
#[derive(Default)]
struct ReplyBuffers {
    data: Option<PageBuffer>,
    target: Vec<u8>,
}

impl ReplyBuffers {
    /// `size` bytes with arbitrary contents.
    fn data(&mut self, size: u32) -> Result<&mut [u8], Errno> {
        let size = usize::try_from(size.min(IO_BYTES_MAX)).map_err(|_| Errno::INVAL)?;
        let buffer = match &mut self.data {
            Some(buffer) => buffer,
            none => none.insert(PageBuffer::new(IO_BYTES_MAX as usize)?),
        };
        Ok(&mut buffer.bytes()[..size])
    }
}

/// One request in progress.
struct RequestHandler<'a> {
    device: &'a Arc<OwnedFd>,
    header: InHeader,
    context: &'a FuseContext<'a>,
    only_user: Option<u32>,
}

impl RequestHandler<'_> {
    /// Has `filesystem` handle the operation.
    fn serve(&self, filesystem: &impl Filesystem, operation: RequestBody<'_>, reserve: &mut ReplyBuffers) {
        if self.is_somebody_else() {
            if matches!(operation, RequestBody::Setlk { .. }) {
                return self.setlk_reply().send(Err(Errno::ACCESS));
            }
            return self.error(match operation {
                RequestBody::Lookup { name } => {
                    filesystem.refused_lookup(self.header.node, name, Errno::ACCESS)
                }
                _ => Errno::ACCESS,
            });
        }
        let InHeader { node, tid, .. } = self.header;
        // Requests to the server meanwhile are counted for this thread and this object.
        let _scope = curt_observe::scope::operation(tid, node.0);
        let context = self.context;
        match operation {
            RequestBody::Lookup { name } => {
                let answer = filesystem
                    .lookup(context, node, name)
                    .map_err(|refusal| filesystem.refused_lookup(node, name, refusal));
                self.send(answer, |reply, entry| reply.entry(&entry));
            }
            RequestBody::Forget { lookups } => filesystem.forget(node, lookups),
            RequestBody::BatchForget(forgets) => {
                forgets.iter().for_each(|(node, lookups)| filesystem.forget(node, lookups));
            }
            RequestBody::Getattr { fh } => self.stat(filesystem.getattr(context, node, fh)),
            RequestBody::Setattr(set) => self.stat(filesystem.setattr(context, node, &set)),
            RequestBody::Access { mask } => self.done(filesystem.access(context, node, mask)),
            RequestBody::Readlink => {
                reserve.target.clear();
                let answer = filesystem.readlink(context, node, &mut reserve.target);
                self.data(answer.map(|()| reserve.target.as_slice()));
            }
            RequestBody::Statfs => {
                self.send(filesystem.statfs(context, node), |reply, sizes| reply.sizes(&sizes));
            }
            // The kernel's error for unsupported ioctl(2) commands.
            RequestBody::Ioctl => self.error(Errno::NOTTY),
            RequestBody::Destroy => self.done(Ok(())),
            RequestBody::Init(_) | RequestBody::Interrupt { .. } | RequestBody::Unsupported => {
                self.error(Errno::NOSYS);
            }
            other => self.files(filesystem, other, reserve),
        }
    }

    /// Operations on open files and directories.
    fn files(&self, filesystem: &impl Filesystem, operation: RequestBody<'_>, reserve: &mut ReplyBuffers) {
        let (context, node) = (self.context, self.header.node);
        match operation {
            RequestBody::Open(open) => {
                self.send(filesystem.open(context, node, &open), |reply, opened| reply.opened(&opened));
            }
            RequestBody::Read(read) => self.read(filesystem, &read),
            RequestBody::Write { write, data } => {
                self.send(filesystem.write(context, node, &write, data), |reply, count| {
                    reply.u32(count);
                    reply.u32(0);
                });
            }
            RequestBody::Flush { fh, lock_owner } => {
                self.done(filesystem.flush(context, node, fh, lock_owner))
            }
            RequestBody::Fsync { fh, data_only } => self.done(filesystem.fsync(context, node, fh, data_only)),
            RequestBody::Release(release) => {
                filesystem.release(context, node, &release);
                self.done(Ok(()));
            }
            RequestBody::Opendir { flags } => {
                self.send(filesystem.opendir(context, node, flags), |reply, opened| reply.opened(&opened));
            }
            RequestBody::Readdir { fh, offset, size, plus } => {
                let ask =
                    |listing: &mut DirentBuffer<'_>| filesystem.readdir(context, node, fh, offset, listing);
                self.list(reserve.data(size), plus, ask);
            }
            RequestBody::Fsyncdir { fh } => self.done(filesystem.fsyncdir(context, node, fh)),
            RequestBody::Releasedir { fh } => {
                filesystem.releasedir(context, node, fh);
                self.done(Ok(()));
            }
            RequestBody::Getlk(lock) => {
                self.send(filesystem.getlk(context, node, &lock), |reply, lock| reply.lock(&lock));
            }
            RequestBody::Setlk { lock, wait } => {
                filesystem.setlk(context, node, &lock, wait, self.setlk_reply());
            }
            naming => self.naming(filesystem, node, naming),
        }
    }

    /// Has `ask` fill `buffer`, and sends the filled part.
    fn list(
        &self,
        buffer: Result<&mut [u8], Errno>,
        plus: bool,
        ask: impl FnOnce(&mut DirentBuffer<'_>) -> Result<(), Errno>,
    ) {
        let answer = buffer.and_then(|buffer| {
            let mut listing = DirentBuffer::new(buffer, plus);
            ask(&mut listing)?;
            let used = listing.bytes();
            Ok(&buffer[..used])
        });
        self.data(answer);
    }

    fn stat(&self, answer: Result<AttrOut, Errno>) {
        self.send(answer, |reply, stat| reply.attributes(&stat.attributes, stat.valid));
    }

    /// Operations that create, rename or remove a name.
    fn naming(&self, filesystem: &impl Filesystem, parent: NodeId, operation: RequestBody<'_>) {
        let context = self.context;
        match operation {
            RequestBody::Symlink { name, target } => {
                self.send(filesystem.symlink(context, parent, name, target), |reply, entry| {
                    reply.entry(&entry)
                });
            }
            RequestBody::Mknod { name, new } => {
                self.send(filesystem.mknod(context, parent, name, &new), |reply, entry| reply.entry(&entry));
            }
            RequestBody::Mkdir { name, mode } => {
                self.send(filesystem.mkdir(context, parent, name, mode), |reply, entry| reply.entry(&entry));
            }
            RequestBody::Link { node, name } => {
                self.send(filesystem.link(context, node, parent, name), |reply, entry| reply.entry(&entry));
            }
            RequestBody::Create { name, create } => {
                self.send(filesystem.create(context, parent, name, &create), |reply, (entry, opened)| {
                    reply.entry(&entry);
                    reply.opened(&opened);
                });
            }
            RequestBody::Unlink { name } => self.done(filesystem.unlink(context, parent, name)),
            RequestBody::Rmdir { name } => self.done(filesystem.rmdir(context, parent, name)),
            RequestBody::Rename { name, new_parent, new_name, flags } => {
                self.done(filesystem.rename(context, parent, name, new_parent, new_name, flags));
            }
            _ => self.error(Errno::NOSYS),
        }
    }

    fn read(&self, filesystem: &impl Filesystem, read: &ReadIn) {
        let reply = ReadReply::new(Arc::clone(self.device), self.header.unique, read.size);
        let answer = filesystem.read(self.context, self.header.node, read, &reply);
        if !reply.is_sent() {
            self.done(answer);
        }
    }

    /// The reply to a request that is registered by itself.
    fn setlk_reply(&self) -> SetlkReply {
        let (requests, request) = (Arc::clone(self.context.requests), Arc::clone(self.context.request));
        SetlkReply::new(self.device, self.header.unique, move || {
            requests.end(&request);
            requests.leave(&request);
        })
    }

    /// Whether the caller is not the user of the mount. Open files remain usable.
    fn is_somebody_else(&self) -> bool {
        let Some(owner) = self.only_user else { return false };
        self.header.uid != 0
            && self.header.uid != owner
            && !matches!(
                self.header.opcode,
                opcode::FORGET
                    | opcode::BATCH_FORGET
                    | opcode::READ
                    | opcode::WRITE
                    | opcode::FLUSH
                    | opcode::FSYNC
                    | opcode::RELEASE
                    | opcode::READDIR
                    | opcode::READDIRPLUS
                    | opcode::FSYNCDIR
                    | opcode::RELEASEDIR
                    | opcode::DESTROY
            )
    }

    fn send<T>(&self, answer: Result<T, Errno>, fill: impl FnOnce(&mut SmallReply, T)) {
        match answer {
            Ok(value) => {
                let mut reply = SmallReply::new();
                fill(&mut reply, value);
                self.sent(rustix::io::write(self.device, reply.finish(self.header.unique)));
            }
            Err(errno) => self.error(errno),
        }
    }

    fn done(&self, answer: Result<(), Errno>) {
        self.send(answer, |_, ()| {});
    }

    fn data(&self, answer: Result<&[u8], Errno>) {
        match answer {
            Ok(data) => self.sent(reply::send_data(self.device, self.header.unique, data)),
            Err(errno) => self.error(errno),
        }
    }

    fn error(&self, errno: Errno) {
        reply::send_error(self.device, self.header.unique, errno);
    }

    fn sent(&self, sent: Result<usize, Errno>) {
        reply::settle(self.device, self.header.unique, self.header.opcode, sent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(keep: usize, threads_max: usize) -> FuseWorkerPool {
        let pool = FuseWorkerPool::new(keep, threads_max, Duration::from_secs(60));
        assert_eq!(pool.start(), keep);
        pool
    }

    #[test]
    fn the_last_reader_finds_a_successor_before_it_answers() {
        let pool = pool(2, 4);
        assert_eq!(pool.request_read(), ReaderHandover::HasReader);
        assert_eq!(pool.request_read(), ReaderHandover::Spawn);
        assert_eq!(pool.request_read(), ReaderHandover::Spawn);
        assert_eq!(pool.request_read(), ReaderHandover::LimitReached { tell: true });
        assert_eq!(pool.request_answered(), FuseWorkerStep::Read);
        assert_eq!(pool.request_read(), ReaderHandover::LimitReached { tell: false });
    }

    #[test]
    fn enough_readers_let_the_next_sleep_and_the_last_to_leave_wakes_it() {
        let pool = pool(1, 8);
        assert_eq!(pool.request_read(), ReaderHandover::Spawn);
        thread::scope(|scope| {
            let idle_thread = scope.spawn(|| pool.request_answered());
            while pool.state.lock().idle.is_empty() {
                thread::yield_now();
            }
            assert_eq!(pool.request_read(), ReaderHandover::HasReader);
            assert_eq!(idle_thread.join().expect("it does not panic"), FuseWorkerStep::Read);
        });
        assert_eq!(pool.readers.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_thread_nobody_needs_ends() {
        let pool = FuseWorkerPool::new(1, 8, Duration::ZERO);
        assert_eq!(pool.start(), 1);
        assert_eq!(pool.request_answered(), FuseWorkerStep::End);
        assert!(pool.state.lock().idle.is_empty());
    }

    #[test]
    fn the_end_wakes_everybody() {
        let pool = pool(1, 8);
        thread::scope(|scope| {
            let idle_thread = scope.spawn(|| pool.request_answered());
            while pool.state.lock().idle.is_empty() {
                thread::yield_now();
            }
            pool.end();
            assert_eq!(
                idle_thread.join().expect("it does not panic"),
                FuseWorkerStep::Read,
                "reading tells it of the end"
            );
        });
        assert_eq!(pool.request_answered(), FuseWorkerStep::End);
        assert!(!pool.wait_all_ended(Instant::now()));
        pool.thread_ended();
        assert!(pool.wait_all_ended(Instant::now()));
    }
}
