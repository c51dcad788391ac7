//! A server of one file in the test's process. It distinguishes memory from disk, and a script may
//! intervene in any call. The bytes on the wire are encoded and decoded by hand, so that an error
//! in the wire types is found.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use curt_rpc::client::{CallError, CallReply, CallStatistics, Interrupt, ReplySink, RpcRequest, Transport};
use curt_xdr::{Decoder, Encode, put_opaque};
use parking_lot::{Condvar, Mutex};

/// Procedures that the server implements.
pub(super) const READ: u32 = 6;
pub(super) const WRITE: u32 = 7;
pub(super) const COMMIT: u32 = 21;

/// One call as the server saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) procedure: u32,
    pub(super) offset: u64,
    pub(super) count: u32,
    /// 0 UNSTABLE, 1 DATA_SYNC, 2 FILE_SYNC; 0 for procedures other than WRITE.
    pub(super) stability: u32,
    /// The uid of the credential.
    pub(super) uid: Option<u32>,
}

/// A fault that a script injects into a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Misbehaviour {
    /// Answer with this status.
    Status(u32),
    /// Read or write at most this number of bytes.
    Short(u32),
    /// Lose the data in memory before the call.
    RestartBefore,
    /// Lose the data in memory after the call.
    RestartAfter,
    /// Never reply: the call ends by interruption.
    Silence,
    /// No reply, with this error.
    Error(CallError),
    /// Answer with these bytes.
    Results(Vec<u8>),
}

type Script = Box<dyn FnMut(&Seen) -> Option<Misbehaviour> + Send>;
type After = Box<dyn FnMut(&Seen) + Send>;

#[derive(Default)]
pub(super) struct Server {
    state: Mutex<State>,
    script: Mutex<Option<Script>>,
    script_after: Mutex<Option<After>>,
    inside: Mutex<Inside>,
    entered: Condvar,
    /// Number of replies that were consumed where they were received.
    taken: AtomicUsize,
}

/// Calls in progress.
#[derive(Default)]
struct Inside {
    now: usize,
    most: usize,
    /// No call returns before this number of calls were in progress at once.
    meeting: usize,
    /// Ranges of WRITEs in progress.
    writes: Vec<(u64, u64)>,
}

#[derive(Default)]
pub(super) struct State {
    /// The contents that READ returns.
    pub(super) memory: Vec<u8>,
    /// The contents after a restart.
    pub(super) disk: Vec<u8>,
    pub(super) verifier: u64,
    pub(super) seen: Vec<Seen>,
    /// Number of changes: the file's times.
    changes: u32,
}

impl State {
    /// The server loses its memory.
    pub(super) fn restart(&mut self) {
        self.memory.clone_from(&self.disk);
        self.verifier += 1;
    }

    /// Another client sets the file's contents.
    pub(super) fn replace(&mut self, contents: &[u8]) {
        self.memory = contents.to_vec();
        self.disk = contents.to_vec();
        self.changes += 1;
    }
}

impl Server {
    pub(super) fn new(contents: &[u8]) -> Arc<Self> {
        let server = Arc::new(Self::default());
        server.state().replace(contents);
        server
    }

    pub(super) fn state(&self) -> parking_lot::MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The number of replies that were consumed where they were received.
    pub(super) fn taken(&self) -> usize {
        self.taken.load(SeqCst)
    }

    /// From now on `script` may intervene in each call.
    pub(super) fn script(&self, script: impl FnMut(&Seen) -> Option<Misbehaviour> + Send + 'static) {
        *self.script.lock() = Some(Box::new(script));
    }

    /// From now on `script` runs before each reply is returned.
    pub(super) fn script_after(&self, script: impl FnMut(&Seen) + Send + 'static) {
        *self.script_after.lock() = Some(Box::new(script));
    }

    /// The calls since the last use of this function: (procedure, offset, count, stability).
    pub(super) fn take_seen(&self) -> Vec<(u32, u64, u32, u32)> {
        let seen = std::mem::take(&mut self.state().seen);
        seen.into_iter().map(|seen| (seen.procedure, seen.offset, seen.count, seen.stability)).collect()
    }

    /// From now on no call returns before `calls` calls were in progress at once. If that never
    /// happens the test fails.
    pub(super) fn let_meet(&self, calls: usize) {
        self.inside.lock().meeting = calls;
    }

    fn enter(&self) {
        let mut inside = self.inside.lock();
        inside.now += 1;
        inside.most = inside.most.max(inside.now);
        self.entered.notify_all();
        while inside.most < inside.meeting {
            let result = self.entered.wait_for(&mut inside, std::time::Duration::from_secs(60));
            assert!(!result.timed_out(), "{} calls never met", inside.meeting);
        }
    }
}

impl Transport for Server {
    fn call(&self, request: &RpcRequest<'_>, interrupt: &Interrupt) -> Result<CallReply, CallError> {
        self.answer(request, interrupt).map(CallReply::from_results)
    }

    fn call_with_sink(
        &self,
        request: &RpcRequest<'_>,
        interrupt: &Interrupt,
        _: &mut CallStatistics,
        sink: &Arc<dyn ReplySink>,
    ) -> Result<CallReply, CallError> {
        let results = self.answer(request, interrupt)?;
        if sink.consume(&results) {
            self.taken.fetch_add(1, SeqCst);
            return Ok(CallReply::consumed());
        }
        Ok(CallReply::from_results(results))
    }
}

impl Server {
    fn answer(&self, request: &RpcRequest<'_>, interrupt: &Interrupt) -> Result<Vec<u8>, CallError> {
        if interrupt.is_raised() {
            return Err(CallError::Interrupted);
        }
        assert_eq!((request.program, request.version), (100_003, 3));
        let mut arguments = Vec::new();
        request.copy_arguments(&mut arguments);
        let (seen, data) = decode(request, &arguments).expect("arguments are well formed");
        self.state().seen.push(seen.clone());
        let range = (seen.offset, seen.offset + u64::from(seen.count));
        if seen.procedure == WRITE {
            let mut inside = self.inside.lock();
            let overlaps = |other: &&(u64, u64)| other.0 < range.1 && range.0 < other.1;
            assert_eq!(
                inside.writes.iter().find(overlaps),
                None,
                "WRITEs that overlap are in flight together"
            );
            inside.writes.push(range);
        }
        self.enter();
        let results = self.respond(seen.clone(), &data, interrupt);
        // Taken out while it runs: it may wait for other calls.
        let script = self.script_after.lock().take();
        if let Some(mut script) = script {
            script(&seen);
            *self.script_after.lock() = Some(script);
        }
        let mut inside = self.inside.lock();
        inside.now -= 1;
        if let Some(at) = inside.writes.iter().position(|write| *write == range) {
            inside.writes.swap_remove(at);
        }
        results
    }

    fn respond(&self, seen: Seen, data: &[u8], interrupt: &Interrupt) -> Result<Vec<u8>, CallError> {
        let fault = self.script.lock().as_mut().and_then(|script| script(&seen));
        match fault.clone() {
            Some(Misbehaviour::Error(error)) => return Err(error),
            Some(Misbehaviour::Results(results)) => return Ok(results),
            Some(Misbehaviour::Silence) => {
                while !interrupt.wait_for(std::time::Duration::from_secs(1)) {}
                return Err(CallError::Interrupted);
            }
            _ => {}
        }
        let mut state = self.state();
        if fault == Some(Misbehaviour::RestartBefore) {
            state.restart();
        }
        let results = match fault {
            Some(Misbehaviour::Status(status)) => state.refuse(seen.procedure, status),
            Some(Misbehaviour::Short(count)) => {
                state.perform(&Seen { count: seen.count.min(count), ..seen }, data)
            }
            _ => state.perform(&seen, data),
        };
        if fault == Some(Misbehaviour::RestartAfter) {
            state.restart();
        }
        Ok(results)
    }
}

fn decode(request: &RpcRequest<'_>, arguments: &[u8]) -> Result<(Seen, Vec<u8>), curt_xdr::DecodeError> {
    let mut decoder = Decoder::new(arguments);
    let _handle = decoder.opaque(64)?;
    let (procedure, offset, count) = (request.procedure, decoder.u64()?, decoder.u32()?);
    let uid = match request.credential {
        curt_rpc::auth::RpcCredential::Sys(sys) => Some(sys.uid),
        curt_rpc::auth::RpcCredential::None | curt_rpc::auth::RpcCredential::Context(_) => None,
    };
    let mut seen = Seen { procedure, offset, count, stability: 0, uid };
    let mut data = Vec::new();
    if procedure == WRITE {
        seen.stability = decoder.u32()?;
        data = decoder.opaque(1 << 30)?.to_vec();
        assert_eq!(u32::try_from(data.len()), Ok(count));
    }
    decoder.finish()?;
    Ok((seen, data))
}

impl State {
    fn perform(&mut self, seen: &Seen, data: &[u8]) -> Vec<u8> {
        let mut results = Vec::new();
        0_u32.encode(&mut results);
        let [start, count] =
            [seen.offset, u64::from(seen.count)].map(|number| usize::try_from(number).expect("small"));
        match seen.procedure {
            READ => {
                let end = (start + count).min(self.memory.len());
                let bytes = self.memory.get(start..end).unwrap_or_default();
                self.put_attributes(&mut results);
                u32::try_from(bytes.len()).expect("small").encode(&mut results);
                (start + bytes.len() >= self.memory.len()).encode(&mut results);
                put_opaque(&mut results, bytes);
            }
            WRITE => {
                self.put_before(&mut results);
                put_bytes(&mut self.memory, start, &data[..count]);
                if seen.stability > 0 {
                    put_bytes(&mut self.disk, start, &data[..count]);
                }
                self.changes += 1;
                self.put_attributes(&mut results);
                seen.count.encode(&mut results);
                seen.stability.encode(&mut results);
                self.verifier.encode(&mut results);
            }
            COMMIT => {
                self.disk.clone_from(&self.memory);
                self.put_before(&mut results);
                self.put_attributes(&mut results);
                self.verifier.encode(&mut results);
            }
            other => panic!("procedure {other} is not served"),
        }
        results
    }

    fn refuse(&self, procedure: u32, status: u32) -> Vec<u8> {
        let mut results = Vec::new();
        status.encode(&mut results);
        if procedure != READ {
            self.put_before(&mut results);
        }
        self.put_attributes(&mut results);
        results
    }

    fn put_before(&self, results: &mut Vec<u8>) {
        true.encode(results);
        (self.memory.len() as u64).encode(results);
        for _ in 0..2 {
            self.changes.encode(results);
            0_u32.encode(results);
        }
    }

    fn put_attributes(&self, results: &mut Vec<u8>) {
        true.encode(results);
        for word in [1, 0o644, 1, 1000, 1000] {
            word.encode(results);
        }
        (self.memory.len() as u64).encode(results);
        (self.memory.len() as u64).encode(results);
        [0_u32, 0].iter().for_each(|word| word.encode(results));
        [7_u64, 42].iter().for_each(|word| word.encode(results));
        for _ in 0..3 {
            self.changes.encode(results);
            0_u32.encode(results);
        }
    }
}

fn put_bytes(file: &mut Vec<u8>, start: usize, bytes: &[u8]) {
    if file.len() < start + bytes.len() {
        file.resize(start + bytes.len(), 0);
    }
    file[start..start + bytes.len()].copy_from_slice(bytes);
}
