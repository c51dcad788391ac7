//! Explains a command's requests: the cause of each, the rule that saved each one not sent, and the
//! requests that Linux would have sent.
//!
//! There is one explanation at a time, from the start of a command to its end. Meanwhile the kernel
//! may not cache names and attributes, so that each operation of the command is observed
//! ([`crate::observed`]). The client answers from its cache what the kernel would
//! have answered from its own, so the requests are the same, with one exception
//! (`docs/decisions/explaining.md`). While nothing is explained, an operation costs one relaxed
//! load more.

mod explanation;
mod paths;
mod tally;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use curt_client::mounting::transfer_size;
use curt_client::{InodeId, Superblock};
use curt_fuse::{FuseAttr, FuseContext, MknodIn, NodeId, RequestBarrier, WriteIn};
use curt_linux_model::{
    CredentialId, FileOperation, LinuxRequest, ObjectId, OpenId, Options, ReportedObject, Writing,
};
use curt_observe::Watcher;
use curt_observe::explain::ExplainReport;
use curt_observe::scope::ScopeGuard;
use curt_types::FileKind;
use explanation::CommandExplanation;
use parking_lot::Mutex;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::observed::{FuseOperation, FuseOperationReply, FuseOperationResult};
use crate::options::Settings;

/// Maximum wait for the end of the command's operations, including write-back.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(8);
/// Maximum wait for the end of the lifetimes of names: a control client waits 10 s for a reply.
pub(crate) const NAMES_KEPT_MAX: Duration = Duration::from_secs(8);
/// If explaining could not begin, names are granted no lifetime for this time after the last
/// lifetime.
const NAMES_WITHHELD: Duration = Duration::from_secs(60);
/// Interval of the checks.
const DRAIN_CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// Explains on request.
pub struct Explainer {
    client: Arc<Superblock>,
    /// A command is being explained. Relaxed: an operation in progress may be counted or not.
    pub(crate) is_on: AtomicBool,
    present: Mutex<Option<Arc<CommandExplanation>>>,
    request_barrier: OnceLock<RequestBarrier>,
}

/// Why an explanation is not possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExplainError {
    /// Another command is being explained.
    #[error("process {0} already explains a command on this mount; only one can at a time")]
    Busy(u32),
    /// Too many watchers.
    #[error("this mount has too many watchers")]
    TooManyWatchers,
    /// The kernel keeps names for too long.
    #[error("the kernel still keeps names of this mount for {} s (kernelnames=); try again then", .0.as_secs())]
    NamesKept(Duration),
    /// This process has no explanation.
    #[error("this process explains no command on this mount")]
    Nothing,
}

impl Explainer {
    /// An explainer without an explanation.
    #[must_use]
    pub fn new(client: Arc<Superblock>) -> Self {
        Self {
            client,
            is_on: AtomicBool::new(false),
            present: Mutex::new(None),
            request_barrier: OnceLock::new(),
        }
    }

    /// Sets the barrier that shows whether all requests of the kernel have arrived.
    pub fn set_request_barrier(&self, barrier: RequestBarrier) {
        // There is one session per explainer.
        let _ = self.request_barrier.set(barrier);
    }

    /// Explains the requests of `head` and its descendants from now on, with `linux` as the options
    /// of the Linux client to compare with. Replaces an explanation whose head no longer exists.
    ///
    /// # Errors
    /// Another process's command is being explained.
    pub fn begin(&self, head: u32, linux: &Settings) -> Result<(), ExplainError> {
        {
            let mut present = self.present.lock();
            Self::check_free(&present)?;
            self.stop(&mut present);
        }
        self.await_names()?;
        let mut present = self.present.lock();
        Self::check_free(&present)?;
        let limits = self.client.server_limits();
        let options = Options {
            cache: linux.cache,
            read_size: transfer_size(linux.transport.rsize, limits.read_preferred, limits.read_max).into(),
            write_size: transfer_size(linux.transport.wsize, limits.write_preferred, limits.write_max).into(),
            list_size: limits.listing_preferred.into(),
            handle_size: self.client.handle_bytes() as u64,
            sync: linux.generic.sync,
        };
        let root = self.client.last_attributes(InodeId::ROOT);
        let root = ReportedObject {
            id: ObjectId(InodeId::ROOT.0),
            kind: FileKind::Directory,
            size: root.map_or(0, |stat| stat.attributes.size),
            stamp: root.map_or(0, |stat| {
                stamp(stat.attributes.ctime.seconds(), stat.attributes.ctime.nanoseconds())
            }),
        };
        let explanation = Arc::new(CommandExplanation::new(head, options, root, Instant::now()));
        let watcher: Arc<dyn Watcher> = Arc::<CommandExplanation>::clone(&explanation);
        if !self.client.rpc_client().watchers().add(watcher) {
            self.client.suspend_kernel_names(Duration::ZERO);
            return Err(ExplainError::TooManyWatchers);
        }
        // Until it ends.
        self.client.suspend_kernel_names(Duration::MAX);
        *present = Some(explanation);
        self.is_on.store(true, Relaxed);
        Ok(())
    }

    /// Whether no other command is being explained.
    fn check_free(present: &Option<Arc<CommandExplanation>>) -> Result<(), ExplainError> {
        match present.as_ref().filter(|other| other.is_wanted()) {
            Some(other) => Err(ExplainError::Busy(other.head())),
            None => Ok(()),
        }
    }

    /// Waits until the kernel caches no name of this mount, because it answers for such names
    /// without a request. From now on names are granted no lifetime. If the last lifetime is too
    /// long to wait for, this holds until the user can try again, so that not every attempt fails.
    fn await_names(&self) -> Result<(), ExplainError> {
        self.client.suspend_kernel_names(self.client.kernel_names_expire_in() + NAMES_WITHHELD);
        let kept = self.client.kernel_names_expire_in();
        if kept > NAMES_KEPT_MAX {
            return Err(ExplainError::NamesKept(kept));
        }
        thread::sleep(kept);
        Ok(())
    }

    /// Ends the explanation and returns it, with at most `paths` paths for each cause. Before that,
    /// waits for at most 8 s until all operations of the command have ended and its data are
    /// written.
    ///
    /// # Errors
    /// There is no explanation of `head`.
    pub fn end(&self, head: u32, paths: usize) -> Result<ExplainReport, ExplainError> {
        let present = self.present.lock().clone();
        let explanation = present.filter(|present| present.head() == head).ok_or(ExplainError::Nothing)?;
        let deadline = Instant::now() + DRAIN_TIMEOUT;
        // The last close may still be under way, with dirty data; and write-back belongs to the
        // command, too.
        let is_settled = self.wait_until_idle(&explanation, deadline) && {
            self.client.write_all(deadline.saturating_duration_since(Instant::now()));
            self.wait_until_idle(&explanation, deadline)
        };
        self.clear(&mut self.present.lock());
        Ok(explanation.report(paths, is_settled))
    }

    /// Waits until no operation of the command is in progress, in the kernel or here; `false` after
    /// `deadline`.
    fn wait_until_idle(&self, explanation: &CommandExplanation, deadline: Instant) -> bool {
        loop {
            let before = explanation.in_progress();
            let has_all = self.request_barrier.get().is_none_or(RequestBarrier::is_clear);
            // The kernel delays some requests until others have ended, so none of those may have
            // been in progress meanwhile.
            if before.now == 0 && has_all && explanation.in_progress() == before {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            thread::sleep(DRAIN_CHECK_INTERVAL);
        }
    }

    fn clear(&self, present: &mut Option<Arc<CommandExplanation>>) {
        self.stop(present);
        self.client.suspend_kernel_names(Duration::ZERO);
    }

    fn stop(&self, present: &mut Option<Arc<CommandExplanation>>) {
        self.is_on.store(false, Relaxed);
        if let Some(former) = present.take() {
            let watcher: Arc<dyn Watcher> = former;
            self.client.rpc_client().watchers().remove(&watcher);
        }
    }

    /// The current explanation.
    fn present(&self) -> Option<Arc<CommandExplanation>> {
        let mut present = self.present.lock();
        if present.as_ref().is_some_and(|present| present.is_abandoned()) {
            self.clear(&mut present);
        }
        present.clone()
    }
}

/// Flags of open(2). O_DSYNC is a part of O_SYNC.
const TRUNCATE: u32 = OFlags::TRUNC.bits();
const EXCLUSIVE: u32 = OFlags::EXCL.bits();
const DURABLE: u32 = OFlags::DSYNC.bits();
const DIRECT: u32 = OFlags::DIRECT.bits();
const BOTH_WAYS: u32 = OFlags::RDWR.bits();
/// The type bits of st_mode, and those of a file, a directory and a symbolic link.
const TYPE: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;
const LINK: u32 = 0o120_000;

/// An operation in progress that an explanation observes.
pub(crate) struct ExplainedOperation {
    explanation: Arc<CommandExplanation>,
    caller: CredentialId,
    _entered: ScopeGuard,
}

impl Explainer {
    /// An operation begins; `None` if no command is being explained.
    pub(crate) fn enter(
        &self,
        context: &FuseContext<'_>,
        operation: &FuseOperation<'_>,
    ) -> Option<ExplainedOperation> {
        let explanation = self.present()?;
        let (node, name) = operation.place();
        let entered = explanation.enter(context.tid, object(node), name);
        let caller = CredentialId(u64::from(context.uid) << 32 | u64::from(context.gid));
        Some(ExplainedOperation { explanation, caller, _entered: entered })
    }
}

impl ExplainedOperation {
    /// The operation has ended with this outcome.
    pub(crate) fn end(&self, operation: &FuseOperation<'_>, outcome: &FuseOperationResult<'_>) {
        if let Some(happened) = completed(operation, outcome) {
            self.explanation.completed(self.caller, &happened);
        }
    }
}

/// The outcome of an operation, as input of the model of Linux.
fn completed<'a>(
    operation: &FuseOperation<'a>,
    outcome: &FuseOperationResult<'a>,
) -> Option<FileOperation<'a>> {
    let entry = || {
        let entry = outcome.entry()?;
        Some(seen(entry.node, &entry.attributes))
    };
    match *operation {
        FuseOperation::Lookup((parent, name)) => match outcome.0 {
            Ok(_) | Err(Errno::NOENT) => Some(FileOperation::Lookup(object(parent), name, entry())),
            Err(Errno::ACCESS) => Some(FileOperation::Access(object(parent))),
            Err(_) => None,
        },
        // Linux sends ACCESS for denials as well, and caches them.
        FuseOperation::Access(node, mask) => {
            let has_answer = mask != 0 && matches!(outcome.0, Ok(_) | Err(Errno::ACCESS));
            has_answer.then_some(FileOperation::Access(object(node)))
        }
        _ if outcome.0.is_err() => failed(operation, outcome),
        FuseOperation::Symlink((parent, name), _) => {
            Some(made(LinuxRequest::CreateLink, parent, name, entry()?))
        }
        FuseOperation::Mknod((parent, name), new) => Some(made(request_of_node(new), parent, name, entry()?)),
        FuseOperation::Mkdir((parent, name), _) => {
            Some(made(LinuxRequest::CreateDirectory, parent, name, entry()?))
        }
        FuseOperation::Create((parent, name), create) => Some(FileOperation::Create {
            request: LinuxRequest::CreateFile,
            directory: object(parent),
            name,
            made: entry()?,
            exclusive: create.flags & EXCLUSIVE != 0,
            open: opened(outcome),
        }),
        FuseOperation::Unlink((parent, name)) => Some(FileOperation::Unlink(object(parent), name)),
        FuseOperation::Rmdir((parent, name)) => Some(FileOperation::Rmdir(object(parent), name)),
        FuseOperation::Rename((parent, name), (new_parent, new_name)) => {
            Some(FileOperation::Rename((object(parent), name), (object(new_parent), new_name)))
        }
        FuseOperation::Link(_, (parent, name)) => Some(FileOperation::Link(object(parent), name, entry()?)),
        _ => completed_on_object(operation, outcome),
    }
}

/// An object that was created without being opened.
const fn made<'a>(
    request: LinuxRequest,
    parent: NodeId,
    name: &'a [u8],
    made: ReportedObject,
) -> FileOperation<'a> {
    FileOperation::Create { request, directory: object(parent), name, made, exclusive: false, open: None }
}

/// The outcome of a failed operation. Linux decides permission to open and search by the server's
/// last reply, and leaves changes to the server.
fn failed<'a>(operation: &FuseOperation<'a>, outcome: &FuseOperationResult<'a>) -> Option<FileOperation<'a>> {
    let errno = outcome.errno()?;
    let refused = |parent, name: &'a [u8], request| {
        let is_asked = !matches!(errno, Errno::NAMETOOLONG | Errno::INVAL | Errno::NOSYS | Errno::INTR);
        is_asked.then_some(FileOperation::Refused(request, object(parent), Some(name)))
    };
    match *operation {
        FuseOperation::Open(node, _) | FuseOperation::Opendir(node) => {
            (errno == Errno::ACCESS).then_some(FileOperation::OpenRefused(object(node)))
        }
        FuseOperation::Symlink((parent, name), _) => refused(parent, name, LinuxRequest::CreateLink),
        FuseOperation::Mknod((parent, name), new) => refused(parent, name, request_of_node(new)),
        FuseOperation::Mkdir((parent, name), _) => refused(parent, name, LinuxRequest::CreateDirectory),
        FuseOperation::Create((parent, name), _) => refused(parent, name, LinuxRequest::CreateFile),
        FuseOperation::Unlink((parent, name)) => refused(parent, name, LinuxRequest::Remove),
        FuseOperation::Rmdir((parent, name)) => refused(parent, name, LinuxRequest::RemoveDirectory),
        FuseOperation::Rename((parent, name), _) => refused(parent, name, LinuxRequest::Rename),
        FuseOperation::Link(_, (parent, name)) => refused(parent, name, LinuxRequest::HardLink),
        FuseOperation::Setattr(node, _) => {
            Some(FileOperation::Refused(LinuxRequest::SetAttributes, object(node), None))
        }
        FuseOperation::Flush(node) | FuseOperation::Fsync(node) => {
            Some(FileOperation::FlushFailed(object(node)))
        }
        // Linux sees the error only when the data are sent.
        FuseOperation::Write(node, write, count) => Some(written(node, write, count)),
        FuseOperation::Release(_, release) => Some(FileOperation::Release(OpenId(release.fh.0))),
        FuseOperation::Releasedir(_, fh) => Some(FileOperation::Release(OpenId(fh.0))),
        _ => None,
    }
}

const fn request_of_node(new: &MknodIn) -> LinuxRequest {
    match new.mode & TYPE {
        REGULAR | 0 => LinuxRequest::CreateFile,
        _ => LinuxRequest::CreateNode,
    }
}

const fn written<'a>(node: NodeId, write: &WriteIn, count: usize) -> FileOperation<'a> {
    let how = Writing {
        durable: write.flags & DURABLE != 0,
        direct: write.flags & DIRECT != 0,
        reads: write.flags & BOTH_WAYS != 0,
    };
    FileOperation::Write(object(node), (write.offset, count as u64), how)
}

/// Counts a completion for operations without a name.
fn completed_on_object<'a>(
    operation: &FuseOperation<'a>,
    outcome: &FuseOperationResult<'a>,
) -> Option<FileOperation<'a>> {
    match *operation {
        FuseOperation::Getattr(node) => match outcome.0 {
            Ok(FuseOperationReply::Stat(stat)) => Some(FileOperation::Getattr(seen(node, &stat.attributes))),
            Ok(_) | Err(_) => None,
        },
        FuseOperation::Setattr(node, set) => match outcome.0 {
            Ok(FuseOperationReply::Stat(stat)) => {
                let rights = set.mode.is_some() || set.uid.is_some() || set.gid.is_some();
                Some(FileOperation::Setattr(seen(node, &stat.attributes), rights))
            }
            Ok(_) | Err(_) => None,
        },
        FuseOperation::Readlink(node) => Some(FileOperation::Readlink(object(node))),
        FuseOperation::Open(node, open) => {
            let truncate = open.flags & TRUNCATE != 0;
            Some(FileOperation::Open(object(node), opened(outcome)?, truncate))
        }
        FuseOperation::Opendir(node) => Some(FileOperation::Open(object(node), opened(outcome)?, false)),
        FuseOperation::Read(node, read) => {
            let range = (read.offset, u64::from(read.size));
            Some(if read.flags & DIRECT == 0 {
                FileOperation::Read(object(node), OpenId(read.fh.0), range)
            } else {
                FileOperation::ReadDirect(object(node), range)
            })
        }
        FuseOperation::Write(node, write, _) => match outcome.0 {
            Ok(FuseOperationReply::Bytes(bytes)) => Some(written(node, write, bytes)),
            Ok(_) | Err(_) => None,
        },
        FuseOperation::Statfs(_) => Some(FileOperation::Statfs),
        FuseOperation::Flush(node) | FuseOperation::Fsync(node) => Some(FileOperation::Flush(object(node))),
        FuseOperation::Release(_, release) => Some(FileOperation::Release(OpenId(release.fh.0))),
        FuseOperation::Readdir(node, (fh, from), _) => match outcome.0 {
            Ok(FuseOperationReply::Listed(listing)) => {
                Some(FileOperation::Readdir(object(node), OpenId(fh.0), from == 0, listing.names().collect()))
            }
            Ok(_) | Err(_) => None,
        },
        FuseOperation::Releasedir(_, fh) => Some(FileOperation::Release(OpenId(fh.0))),
        _ => None,
    }
}

fn opened(outcome: &FuseOperationResult<'_>) -> Option<OpenId> {
    match outcome.0 {
        Ok(FuseOperationReply::Opened(opened) | FuseOperationReply::Created(_, opened)) => {
            Some(OpenId(opened.fh.0))
        }
        Ok(_) | Err(_) => None,
    }
}

const fn object(node: NodeId) -> ObjectId {
    ObjectId(node.0)
}

const fn seen(node: NodeId, attributes: &FuseAttr) -> ReportedObject {
    ReportedObject {
        id: object(node),
        kind: match attributes.mode & TYPE {
            REGULAR => FileKind::Regular,
            DIRECTORY => FileKind::Directory,
            LINK => FileKind::Symlink,
            _ => FileKind::Fifo,
        },
        size: attributes.size,
        stamp: stamp(attributes.ctime.seconds, attributes.ctime.nanoseconds),
    }
}

/// A stamp that differs after each change.
const fn stamp(seconds: i64, nanoseconds: u32) -> u64 {
    seconds.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(nanoseconds as u64)
}
