//! A server of NFSv4.1 whose replies a test replaces.

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use curt_client::protocol::v4::mounting::Callbacks;
use curt_rpc::client::{CallError, CallReply, CallStatistics, Interrupt, ReplySink, RpcRequest, Transport};
use curt_xdr::Encode;
use parking_lot::Mutex;

use crate::world::World;

/// The numbers of operations.
pub(crate) mod op {
    pub(crate) const ACCESS: u32 = 3;
    pub(crate) const CLOSE: u32 = 4;
    pub(crate) const CREATE: u32 = 6;
    pub(crate) const DELEGRETURN: u32 = 8;
    pub(crate) const GETATTR: u32 = 9;
    pub(crate) const LINK: u32 = 11;
    pub(crate) const LOCK: u32 = 12;
    pub(crate) const LOCKU: u32 = 14;
    pub(crate) const LOOKUP: u32 = 15;
    pub(crate) const NVERIFY: u32 = 17;
    pub(crate) const OPEN: u32 = 18;
    pub(crate) const PUTFH: u32 = 22;
    pub(crate) const READDIR: u32 = 26;
    pub(crate) const REMOVE: u32 = 28;
    pub(crate) const RENAME: u32 = 29;
    pub(crate) const SAVEFH: u32 = 32;
    pub(crate) const SETATTR: u32 = 34;
    pub(crate) const WRITE: u32 = 38;
    pub(crate) const BIND_CONN_TO_SESSION: u32 = 41;
    pub(crate) const EXCHANGE_ID: u32 = 42;
    pub(crate) const CREATE_SESSION: u32 = 43;
    pub(crate) const DESTROY_SESSION: u32 = 44;
    pub(crate) const FREE_STATEID: u32 = 45;
    pub(crate) const SEQUENCE: u32 = 53;
    pub(crate) const TEST_STATEID: u32 = 55;
    pub(crate) const DESTROY_CLIENTID: u32 = 57;
    pub(crate) const RECLAIM_COMPLETE: u32 = 58;
}

/// The numbers of errors.
pub(crate) mod status {
    pub(crate) const IO: u32 = 5;
    pub(crate) const ACCESS: u32 = 13;
    pub(crate) const INVAL: u32 = 22;
    pub(crate) const NOSPC: u32 = 28;
    pub(crate) const STALE: u32 = 70;
    pub(crate) const BAD_COOKIE: u32 = 10_003;
    pub(crate) const NOTSUPP: u32 = 10_004;
    pub(crate) const SERVERFAULT: u32 = 10_006;
    pub(crate) const DELAY: u32 = 10_008;
    pub(crate) const GRACE: u32 = 10_013;
    pub(crate) const FHEXPIRED: u32 = 10_014;
    pub(crate) const CLID_INUSE: u32 = 10_017;
    pub(crate) const BAD_STATEID: u32 = 10_025;
    pub(crate) const NOT_SAME: u32 = 10_027;
    pub(crate) const NO_GRACE: u32 = 10_033;
    pub(crate) const RECLAIM_CONFLICT: u32 = 10_035;
    pub(crate) const LOCKS_HELD: u32 = 10_037;
    pub(crate) const ADMIN_REVOKED: u32 = 10_047;
    pub(crate) const BADSESSION: u32 = 10_052;
    pub(crate) const BADSLOT: u32 = 10_053;
    pub(crate) const CONN_NOT_BOUND_TO_SESSION: u32 = 10_055;
    pub(crate) const BACK_CHAN_BUSY: u32 = 10_057;
    pub(crate) const SEQ_MISORDERED: u32 = 10_063;
    pub(crate) const REQ_TOO_BIG: u32 = 10_065;
    pub(crate) const REP_TOO_BIG: u32 = 10_066;
    pub(crate) const REP_TOO_BIG_TO_CACHE: u32 = 10_067;
    pub(crate) const RETRY_UNCACHED_REP: u32 = 10_068;
    pub(crate) const TOO_MANY_OPS: u32 = 10_070;
    pub(crate) const CLIENTID_BUSY: u32 = 10_074;
}

/// The words of the header of a reply and of the result of SEQUENCE.
pub(crate) const HEAD: usize = 14;

/// Decides how the server treats a request; `None`: it executes it.
type Script = dyn Fn(&ScriptedRequest<'_>) -> Option<Result<Vec<u8>, CallError>> + Send + Sync;

/// A server that can be replaced, and whose replies can be.
pub(crate) struct ScriptedServer {
    to: Mutex<Arc<dyn Transport>>,
    script: Mutex<Option<Arc<Script>>>,
    /// By which it can call its client.
    pub(crate) callbacks: Callbacks,
    /// The first operations of all compounds that were executed.
    executed: Mutex<Vec<u32>>,
    /// Replies are received by sinks.
    pub(crate) has_sinks: AtomicBool,
    /// The number of replies that sinks have consumed.
    pub(crate) consumed: AtomicU32,
    /// How many lost connections were replaced.
    pub(crate) replacements: AtomicU64,
}

/// A request of NFSv4.1.
pub(crate) struct ScriptedRequest<'a> {
    /// The arguments of COMPOUND.
    pub(crate) words: Vec<u32>,
    /// The number of their bytes that are encoded, not sent from where they are.
    pub(crate) encoded: usize,
    server: &'a ScriptedServer,
    request: &'a RpcRequest<'a>,
    interrupt: &'a Interrupt,
    /// How long after its sending the first transmission was lost, and whether the server seems to
    /// have restarted.
    pub(crate) lost: Cell<Option<(Duration, bool)>>,
}

struct Words<'a>(&'a [u32]);

impl Encode for Words<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.0.iter().flat_map(|word| word.to_be_bytes()));
    }
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks(4).map(|word| u32::from_be_bytes(word.try_into().unwrap())).collect()
}

pub(crate) fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// The reply to a compound whose first operation is refused.
pub(crate) fn refused(operation: u32, status: u32) -> Vec<u8> {
    bytes(&[status, 0, 1, operation, status])
}

/// Replaces a word of a reply: status, length of the tag (0), number of results, then the first
/// result.
pub(crate) fn set_word(reply: &mut [u8], word: usize, value: u32) {
    reply[4 * word..4 * word + 4].copy_from_slice(&value.to_be_bytes());
}

/// The word at which the result of the GETATTR of this number begins in a reply, if it has so many.
pub(crate) fn getattr_at(reply: &[u8], number: usize) -> Option<usize> {
    let is_getattr = |words: &[u32]| matches!(words, [op::GETATTR, 0, 1..=3]);
    let words = words(reply);
    let mut found = words.windows(3).enumerate().filter(|(_, words)| is_getattr(words));
    found.nth(number).map(|(at, _)| at)
}

/// Damages that result as knfsd before Linux 6.14 does: the word behind its status, the length of a
/// bitmap, is zero. `false`: there is none.
pub(crate) fn damage_getattr(reply: &mut [u8], number: usize) -> bool {
    let at = getattr_at(reply, number);
    at.into_iter().for_each(|at| set_word(reply, at + 2, 0));
    at.is_some()
}

/// The operations of a compound up to the first one that does more than to find an object, to
/// describe it, or to end a state.
fn first_operations(words: &[u32]) -> Vec<u32> {
    let (mut at, mut operations) = (3, Vec::new());
    for _ in 0..words[2] {
        let operation = words[at];
        operations.push(operation);
        at += 1;
        let opaque = |at: usize| 1 + usize::try_from(words[at]).unwrap().div_ceil(4);
        let bitmap = |at: usize| 1 + usize::try_from(words[at]).unwrap();
        at += match operation {
            op::SEQUENCE => 8,
            op::PUTFH | op::LOOKUP => opaque(at),
            10 | 24 | 31 | op::SAVEFH => 0,
            op::GETATTR => bitmap(at),
            op::NVERIFY | 37 => bitmap(at) + opaque(at + bitmap(at)),
            op::CLOSE => 5,
            op::DELEGRETURN => 4,
            _ => break,
        };
    }
    operations
}

impl ScriptedRequest<'_> {
    /// The first operations, up to the main one.
    pub(crate) fn first_operations(&self) -> Vec<u32> {
        first_operations(&self.words)
    }

    /// The last of the first operations.
    pub(crate) fn main(&self) -> u32 {
        first_operations(&self.words).last().copied().unwrap_or(0)
    }

    /// Whether this operation is among them.
    pub(crate) fn does(&self, operation: u32) -> bool {
        first_operations(&self.words).contains(&operation)
    }

    /// The number of operations.
    pub(crate) fn operations(&self) -> u32 {
        self.words[2]
    }

    /// The server executes other arguments.
    pub(crate) fn execute_instead(&self, words: &[u32]) -> Result<Vec<u8>, CallError> {
        self.server.executed.lock().extend(first_operations(words));
        let arguments = &Words(words);
        let request = RpcRequest { arguments, ..*self.request };
        let to = Arc::clone(&self.server.to.lock());
        to.call(&request, self.interrupt).map(|reply| reply.results().to_vec())
    }

    /// The server does not reply until the client gives the request up.
    pub(crate) fn keep_silent(&self) -> Result<Vec<u8>, CallError> {
        assert!(self.interrupt.wait_for(Duration::from_secs(60)), "it is not given up");
        Err(CallError::Interrupted)
    }

    /// The server executes the request.
    pub(crate) fn execute(&self) -> Result<Vec<u8>, CallError> {
        self.execute_instead(&self.words)
    }

    /// The server executes the request, and its reply is changed.
    pub(crate) fn spoil(&self, spoil: impl FnOnce(&mut Vec<u8>)) -> Result<Vec<u8>, CallError> {
        let mut reply = self.execute()?;
        spoil(&mut reply);
        Ok(reply)
    }

    /// The server executes SEQUENCE, and frees the states of all FREE_STATEIDs up to the first for
    /// which `free` returns another status than 0.
    pub(crate) fn free_states(&self, mut free: impl FnMut([u32; 3]) -> u32) -> Result<Vec<u8>, CallError> {
        let (mut results, mut count, mut status) = (Vec::new(), 0, 0);
        for operation in self.words[12..].chunks_exact(5) {
            status = free([operation[2], operation[3], operation[4]]);
            results.extend([op::FREE_STATEID, status]);
            count += 1;
            if status != 0 {
                break;
            }
        }
        self.answer(count, status, &results)
    }

    /// The server executes SEQUENCE, and the other operations have these results.
    pub(crate) fn answer(&self, count: u32, status: u32, results: &[u32]) -> Result<Vec<u8>, CallError> {
        let mut alone = self.words[..12].to_vec();
        alone[2] = 1;
        let mut reply = self.execute_instead(&alone)?;
        reply.extend(bytes(results));
        set_word(&mut reply, 0, status);
        set_word(&mut reply, 2, 1 + count);
        Ok(reply)
    }
}

impl ScriptedServer {
    pub(crate) fn new(world: &World) -> Arc<Self> {
        Self::over(world.way())
    }

    pub(crate) fn over(to: Arc<dyn Transport>) -> Arc<Self> {
        Self::with(to, Callbacks::default())
    }

    /// A server that can call its client.
    pub(crate) fn calling_back(world: &World) -> Arc<Self> {
        let callbacks = Callbacks::default();
        Self::with(world.way_with(&callbacks), callbacks)
    }

    fn with(to: Arc<dyn Transport>, callbacks: Callbacks) -> Arc<Self> {
        Arc::new(Self {
            to: Mutex::new(to),
            script: Mutex::new(None),
            callbacks,
            executed: Mutex::default(),
            has_sinks: AtomicBool::new(false),
            consumed: AtomicU32::new(0),
            replacements: AtomicU64::new(0),
        })
    }

    /// Another server is called from now on.
    pub(crate) fn replace(&self, to: Arc<dyn Transport>) {
        *self.to.lock() = to;
    }

    pub(crate) fn script(
        &self,
        script: impl Fn(&ScriptedRequest<'_>) -> Option<Result<Vec<u8>, CallError>> + Send + Sync + 'static,
    ) {
        *self.script.lock() = Some(Arc::new(script));
    }

    /// How many operations of this kind it has executed, among the first ones of each compound.
    pub(crate) fn executed(&self, operation: u32) -> usize {
        self.executed.lock().iter().filter(|executed| **executed == operation).count()
    }

    /// All replies are changed from now on.
    pub(crate) fn spoil(&self, spoil: impl Fn(&mut Vec<u8>) + Send + Sync + 'static) {
        self.script(move |asked| Some(asked.spoil(&spoil)));
    }

    /// The server executes everything from now on.
    pub(crate) fn obey(&self) {
        *self.script.lock() = None;
    }
}

impl Transport for ScriptedServer {
    fn call(&self, request: &RpcRequest<'_>, interrupt: &Interrupt) -> Result<CallReply, CallError> {
        self.call_with_statistics(request, interrupt, &mut CallStatistics::default())
    }

    fn call_with_statistics(
        &self,
        request: &RpcRequest<'_>,
        interrupt: &Interrupt,
        statistics: &mut CallStatistics,
    ) -> Result<CallReply, CallError> {
        let mut arguments = Vec::new();
        request.copy_arguments(&mut arguments);
        let words = words(&arguments);
        arguments.clear();
        request.arguments.encode_around(&mut arguments);
        let (encoded, lost) = (arguments.len(), Cell::new(None));
        let asked = ScriptedRequest { words, encoded, server: self, request, interrupt, lost };
        let script = self.script.lock().clone();
        let reply = script.and_then(|script| script(&asked)).unwrap_or_else(|| asked.execute());
        statistics.transmissions = 1;
        if let Some((lost, restarted)) = asked.lost.get() {
            statistics.transmissions = 2;
            (statistics.lost, statistics.restarted) = (Some(lost), restarted);
        }
        reply.map(CallReply::from_results)
    }

    fn call_with_sink(
        &self,
        request: &RpcRequest<'_>,
        interrupt: &Interrupt,
        statistics: &mut CallStatistics,
        sink: &Arc<dyn ReplySink>,
    ) -> Result<CallReply, CallError> {
        let reply = self.call_with_statistics(request, interrupt, statistics)?;
        if !self.has_sinks.load(Relaxed) || !sink.consume(reply.results()) {
            return Ok(reply);
        }
        self.consumed.fetch_add(1, Relaxed);
        Ok(CallReply::consumed())
    }

    fn replacements(&self) -> u64 {
        self.replacements.load(Relaxed)
    }
}
