//! Explains a command's requests: the cause of each, the rule that saved each one not sent, and the
//! requests that Linux would have sent.
//!
//! There is one explanation at a time, from the start of a command to its end. Meanwhile the kernel
//! may not cache names and attributes, so that each operation of the command is observed (this is a
//! [`crate::observed::OperationObserver`]). The client answers from its cache what the kernel would
//! have answered from its own, so the requests are the same, with one exception
//! (`docs/decisions/explaining.md`). While nothing is explained, an operation costs one relaxed
//! load more.

mod observer;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use curt_client::mounting::transfer_size;
use curt_client::{InodeId, Superblock};
use curt_fuse::RequestBarrier;
use curt_linux_model::{ObjectId, Options, Seen};
use curt_observe::Watcher;
use curt_observe::explain::{CommandExplanation, ExplainReport};
use curt_types::FileKind;
use parking_lot::Mutex;

use crate::options::Settings;

/// Maximum wait for the end of the command's operations, including write-back.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(8);
/// Maximum wait for the end of the lifetimes of names: a control client waits 10 s for a reply.
pub(crate) const NAMES_KEPT_MAX: Duration = Duration::from_secs(8);
/// How much longer than the lifetimes last no name is granted one, if explaining did not begin.
const NAMES_WITHHELD: Duration = Duration::from_secs(60);
/// Interval of the checks.
const DRAIN_CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// Explains on request.
pub struct Explainer {
    client: Arc<Superblock>,
    is_on: AtomicBool,
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
    pub fn set_request_barrier(&self, arrivals: RequestBarrier) {
        // There is one session per explainer.
        let _ = self.request_barrier.set(arrivals);
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
        let root = Seen {
            id: ObjectId(InodeId::ROOT.0),
            kind: FileKind::Directory,
            size: root.map_or(0, |stat| stat.attributes.size),
            stamp: root.map_or(0, |stat| {
                observer::stamp(stat.attributes.ctime.seconds(), stat.attributes.ctime.nanoseconds())
            }),
        };
        let explanation = Arc::new(CommandExplanation::new(head, options, root, Instant::now()));
        let watcher: Arc<dyn Watcher> = Arc::<CommandExplanation>::clone(&explanation);
        if !self.client.wire().watchers().add(watcher) {
            self.client.withhold_names(Duration::ZERO);
            return Err(ExplainError::TooManyWatchers);
        }
        // Until it ends.
        self.client.withhold_names(Duration::MAX);
        *present = Some(explanation);
        // Relaxed: an operation in progress may be counted or not.
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

    /// Waits until the kernel keeps no name of this mount: it answers for them without a request.
    /// From now on it is granted none; if they last too long to wait for them, also until the user
    /// can try again, so that it does not fail each time.
    fn await_names(&self) -> Result<(), ExplainError> {
        self.client.withhold_names(self.client.names_kept_for() + NAMES_WITHHELD);
        let kept = self.client.names_kept_for();
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
            let before = explanation.under_way();
            let has_all = self.request_barrier.get().is_none_or(RequestBarrier::is_clear);
            // The kernel delays some requests until others have ended, so none of those may have
            // been in progress meanwhile.
            if before.now == 0 && has_all && explanation.under_way() == before {
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
        self.client.withhold_names(Duration::ZERO);
    }

    fn stop(&self, present: &mut Option<Arc<CommandExplanation>>) {
        self.is_on.store(false, Relaxed);
        if let Some(former) = present.take() {
            let watcher: Arc<dyn Watcher> = former;
            self.client.wire().watchers().remove(&watcher);
        }
    }

    /// The current explanation.
    fn present(&self) -> Option<Arc<CommandExplanation>> {
        if !self.is_on.load(Relaxed) {
            return None;
        }
        let mut present = self.present.lock();
        if present.as_ref().is_some_and(|present| present.is_abandoned()) {
            self.clear(&mut present);
        }
        present.clone()
    }
}

impl fmt::Debug for Explainer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Explainer").field("is_on", &self.is_on).finish_non_exhaustive()
    }
}
