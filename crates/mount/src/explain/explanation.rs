//! One explanation: the requests that were sent and saved while a command runs, by path and
//! process.
//!
//! The counts and the model of Linux are under one lock, which is the last in the lock order: it is
//! taken while a request is counted, possibly under an inode's lock. Totals are exact: each request
//! is counted for its cause and operation, and also for a path and a process, of which a limited
//! number is kept.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use curt_linux_model::{
    CredentialId, FileOperation, LinuxClient, LinuxRequest, ObjectId, OperationContext, Options,
    ReportedObject,
};
use curt_observe::explain::{CauseRow, ExplainReport, PathRow, ProcessRow, RequestTally};
use curt_observe::process_tree::ProcessTree;
use curt_observe::scope::{self, RequestScope, ScopeGuard, WorkCounts, WorkMark};
use curt_observe::{Cause, ClientCounter, Operation, Rule, Watcher};
use curt_policy::MonotonicTime;
use parking_lot::Mutex;

use super::paths::{PATHS_MAX, PathIndex, PathTable};
use super::tally::RequestTallies;

/// Maximum number of paths of one cause that are counted separately.
const COUNTED_PATHS_MAX: usize = 1 << 14;
/// Maximum number of processes that are counted separately.
const PROCESSES_MAX: usize = 1024;
/// Maximum number of listed processes.
const PROCESSES_LISTED_MAX: usize = 20;
/// Interval in milliseconds of the checks whether the command's head still exists.
const CHECK_MILLISECONDS: u64 = 1000;
/// Maximum number of objects whose last user is recorded.
const USERS_MAX: usize = 1 << 16;

/// The counts of one command's requests.
pub(super) struct CommandExplanation {
    head: u32,
    began: Instant,
    /// Time of the last check of the head, in milliseconds since the start.
    looked: AtomicU64,
    /// Marks the work of the command's processes, so that its end can be awaited.
    mark: WorkMark,
    counts: Mutex<ExplainCounts>,
}

struct ExplainCounts {
    processes: ProcessTree,
    paths: PathTable,
    linux: LinuxClient,
    /// By cause and operation.
    sent: Vec<[u64; Operation::COUNT]>,
    others: [u64; Operation::COUNT],
    linux_sent: Vec<[u64; Operation::COUNT]>,
    saved: Vec<u64>,
    by_path: Vec<RequestTallies<PathIndex>>,
    by_process: RequestTallies<u32>,
    names: HashMap<u32, String>,
    /// The last user of each object, to whom its background work is attributed.
    users: HashMap<u64, u32>,
    operations: u64,
}

impl CommandExplanation {
    /// Explains from `now` on what `head` and its descendants do, compared with a Linux client with
    /// these options.
    pub(super) fn new(head: u32, options: Options, root: ReportedObject, now: Instant) -> Self {
        let nothing = || Cause::ALL.iter().map(|_| [0; Operation::COUNT]).collect();
        Self {
            head,
            began: now,
            looked: AtomicU64::new(0),
            mark: WorkMark::another(),
            counts: Mutex::new(ExplainCounts {
                processes: ProcessTree::new(head),
                paths: PathTable::new(PATHS_MAX),
                linux: LinuxClient::new(options, root),
                sent: nothing(),
                others: [0; Operation::COUNT],
                linux_sent: nothing(),
                saved: vec![0; Rule::ALL.len()],
                by_path: Cause::ALL.iter().map(|_| RequestTallies::new(COUNTED_PATHS_MAX)).collect(),
                by_process: RequestTallies::new(PROCESSES_MAX),
                names: HashMap::new(),
                users: HashMap::new(),
                operations: 0,
            }),
        }
    }

    /// The process whose command it is.
    pub(super) const fn head(&self) -> u32 {
        self.head
    }

    /// The command's work in progress.
    pub(super) fn in_progress(&self) -> WorkCounts {
        self.mark.counts()
    }

    /// Whether the head still exists.
    pub(super) fn is_wanted(&self) -> bool {
        self.counts.lock().processes.has_head()
    }

    /// Whether the head no longer exists; checked once a second.
    pub(super) fn is_abandoned(&self) -> bool {
        let now = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        // Relaxed: two concurrent callers both check.
        if now < self.looked.load(Relaxed) + CHECK_MILLISECONDS {
            return false;
        }
        self.looked.store(now, Relaxed);
        !self.is_wanted()
    }

    fn now(&self) -> MonotonicTime {
        MonotonicTime::from_start(self.began.elapsed())
    }

    /// A thread's operation on an object, or on a name in it, begins. Until the returned value is
    /// dropped, this thread works for it.
    pub(super) fn enter(&self, thread: u32, node: ObjectId, name: Option<&[u8]>) -> ScopeGuard {
        let mut counts = self.counts.lock();
        let mut path = counts.paths.of(node);
        if let Some(name) = name {
            path = counts.paths.name(path, name);
        }
        let thread = if thread == 0 {
            // The kernel does it for the last user of the object.
            counts.users.get(&node.0).copied().unwrap_or(0)
        } else {
            if counts.users.len() >= USERS_MAX && !counts.users.contains_key(&node.0) {
                counts.users.clear();
            }
            counts.users.insert(node.0, thread);
            thread
        };
        let mark = match counts.process(thread) {
            Some(_) => self.mark,
            None => WorkMark::NONE,
        };
        scope::enter(RequestScope { process: thread, object: node.0, path: path.0, cause: None, mark })
    }

    /// An operation has ended with this outcome. Called before the value that
    /// [`CommandExplanation::enter`] returned is dropped.
    pub(super) fn completed(&self, caller: CredentialId, operation: &FileOperation<'_>) {
        let now = self.now();
        let scope = scope::current();
        let mut counts = self.counts.lock();
        if let FileOperation::Lookup(_, _, Some(found)) | FileOperation::Create { made: found, .. } =
            operation
        {
            counts.paths.reached(found.id, PathIndex(scope.path));
        }
        let thread = scope.process;
        if counts.process(thread).is_none() {
            return;
        }
        counts.operations += 1;
        let context = OperationContext { thread, credential: caller, path: scope.path };
        counts.linux.perform(context, operation, now);
        counts.take_linux(self.head);
    }

    /// The whole report, with at most `paths` paths for each cause; `is_settled`: no operation of
    /// the command is in progress.
    pub(super) fn report(&self, paths: usize, is_settled: bool) -> ExplainReport {
        let mut counts = self.counts.lock();
        counts.linux.finish();
        let head = self.head;
        counts.take_linux(head);
        ExplainReport { unfinished: !is_settled, ..counts.report(paths) }
    }
}

impl ExplainCounts {
    /// The process of a thread, if it belongs to the command.
    fn process(&mut self, thread: u32) -> Option<u32> {
        let member = self.processes.member(thread)?;
        if self.names.len() < 2 * PROCESSES_MAX && !self.names.contains_key(&member.pid) {
            self.names.insert(member.pid, member.name);
        }
        Some(member.pid)
    }

    /// The process and path of this scope.
    fn attributed(&mut self, scope: &RequestScope) -> (Option<u32>, PathIndex) {
        if scope.path != 0 {
            return (self.process(scope.process), PathIndex(scope.path));
        }
        let user = self.users.get(&scope.object).copied().unwrap_or(scope.process);
        let path = if scope.object == 0 { PathIndex(0) } else { self.paths.of(ObjectId(scope.object)) };
        (self.process(user), path)
    }

    fn count(&mut self, cause: Cause, process: u32, path: PathIndex, count: impl Fn(&mut RequestTally)) {
        self.by_path[cause.index()].count(path, &count);
        self.by_process.count(process, &count);
    }

    fn take_linux(&mut self, head: u32) {
        for sent in self.linux.take_sent() {
            let cause = cause(sent.request);
            if let Some(operation) = Operation::nfs3(sent.request.procedure()) {
                self.linux_sent[cause.index()][operation.index()] += 1;
            }
            let process = self.process(sent.context.thread).unwrap_or(head);
            let path = PathIndex(sent.context.path);
            self.count(cause, process, path, |tally| tally.linux += 1);
        }
    }

    fn report(&self, paths: usize) -> ExplainReport {
        let (processes, processes_rest) = self.by_process.largest(PROCESSES_LISTED_MAX);
        let process = |(pid, requests): (u32, RequestTally)| ProcessRow {
            pid,
            name: self.names.get(&pid).cloned().unwrap_or_default(),
            requests,
        };
        ExplainReport {
            causes: Cause::ALL.iter().filter_map(|cause| self.row(*cause, paths)).collect(),
            requests: by_key(self.sent.iter()),
            others: by_key([&self.others].into_iter()),
            linux: by_key(self.linux_sent.iter()),
            processes: processes.into_iter().map(process).collect(),
            processes_rest,
            operations: self.operations,
            linux_forgot: self.linux.forgotten(),
            unfinished: false,
        }
    }

    fn row(&self, cause: Cause, paths: usize) -> Option<CauseRow> {
        let saved = Rule::ALL.iter().zip(&self.saved);
        let saved = saved.filter(|(rule, saved)| rule.cause() == cause && **saved > 0);
        let (largest, paths_rest) = self.by_path[cause.index()].largest(paths);
        let path =
            |(path, requests): (PathIndex, RequestTally)| PathRow { path: self.paths.text(path), requests };
        let row = CauseRow {
            cause: cause.name().to_owned(),
            sent: self.sent[cause.index()].iter().sum(),
            linux: self.linux_sent[cause.index()].iter().sum(),
            saved: saved.map(|(rule, saved)| (rule.name().to_owned(), *saved)).collect(),
            paths: largest.into_iter().map(path).collect(),
            paths_rest,
        };
        let is_empty = row.sent == 0 && row.linux == 0 && row.saved.is_empty();
        (!is_empty).then_some(row)
    }
}

fn by_key<'a>(rows: impl Iterator<Item = &'a [u64; Operation::COUNT]>) -> BTreeMap<String, u64> {
    let mut sums = [0; Operation::COUNT];
    for row in rows {
        sums.iter_mut().zip(row).for_each(|(sum, calls)| *sum += calls);
    }
    let all = Operation::nfs().chain(Operation::nfs4());
    let named = all.map(|operation| (operation.key().into_owned(), sums[operation.index()]));
    named.filter(|(_, calls)| *calls > 0).collect()
}

/// The cause of a request that Linux would have sent.
const fn cause(request: LinuxRequest) -> Cause {
    match request {
        LinuxRequest::OpenCheck => Cause::OpenCheck,
        LinuxRequest::NameCheck => Cause::NameCheck,
        LinuxRequest::AttributesExpired => Cause::AttributesExpired,
        LinuxRequest::ListingCheck => Cause::ListingCheck,
        LinuxRequest::FirstUse => Cause::FirstUse,
        LinuxRequest::NameAgain => Cause::NameAgain,
        LinuxRequest::Access => Cause::Access,
        LinuxRequest::LinkTarget => Cause::LinkTarget,
        LinuxRequest::DataRead => Cause::DataRead,
        LinuxRequest::ReadAhead => Cause::ReadAhead,
        LinuxRequest::Write => Cause::Write,
        LinuxRequest::Commit => Cause::Commit,
        LinuxRequest::SetAttributes => Cause::SetAttributes,
        LinuxRequest::CreateFile
        | LinuxRequest::CreateDirectory
        | LinuxRequest::CreateLink
        | LinuxRequest::CreateNode
        | LinuxRequest::HardLink => Cause::Create,
        LinuxRequest::Remove | LinuxRequest::RemoveDirectory => Cause::Remove,
        LinuxRequest::Rename => Cause::Rename,
        LinuxRequest::ListPlus | LinuxRequest::ListPlain => Cause::Listing,
        LinuxRequest::Statfs => Cause::Statfs,
    }
}

impl Watcher for CommandExplanation {
    fn sent(&self, operation: Operation, scope: &RequestScope) {
        let cause = scope.cause.unwrap_or_else(|| Cause::of_operation(operation));
        let mut counts = self.counts.lock();
        match counts.attributed(scope) {
            (Some(process), path) => {
                counts.sent[cause.index()][operation.index()] += 1;
                counts.count(cause, process, path, |tally| tally.sent += 1);
            }
            (None, _) => counts.others[operation.index()] += 1,
        }
    }

    fn counted(&self, counter: ClientCounter, scope: &RequestScope) {
        let Some(rule) = Rule::of(counter) else { return };
        let mut counts = self.counts.lock();
        if let (Some(process), path) = counts.attributed(scope) {
            counts.saved[rule.index()] += 1;
            counts.count(rule.cause(), process, path, |tally| tally.saved += 1);
        }
    }
}
