//! The interface of the model: single operations.
//!
//! The kernel looks a name up before its purpose is known. So the last name that a thread looked up
//! is stored until the thread's next operation: an open of the object requires close-to-open, a
//! creation is decided by the server. There is one stored name per thread, up to a limit.

use std::collections::HashMap;

use curt_policy::MonotonicTime;
use curt_types::FileKind;

use crate::lookup::LookupIntent;
use crate::{
    CredentialId, FileOperation, Linux, LinuxRequest, ObjectId, OpenId, OperationContext, Options, ROOM,
    ReportedObject,
};

/// Maximum number of threads with a stored name.
pub(crate) const WAITING_MAX: usize = 4096;

/// A request that Linux would have sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// The request, and its cause.
    pub request: LinuxRequest,
    /// The context of the operation.
    pub context: OperationContext,
}

/// A look-up whose purpose is not known yet.
#[derive(Debug)]
struct Waiting {
    context: OperationContext,
    directory: ObjectId,
    name: Box<[u8]>,
    found: Option<ReportedObject>,
    at: MonotonicTime,
}

/// A Linux client, mounted when this is created.
#[derive(Debug)]
pub struct LinuxClient {
    linux: Linux,
    /// By thread.
    waiting: HashMap<u32, Waiting>,
    /// Open files known to the model, so that it ignores a close of a file that was opened before
    /// it began.
    open: HashMap<OpenId, ObjectId>,
    seen: HashMap<ObjectId, ReportedObject>,
    sent: Vec<Sent>,
}

impl LinuxClient {
    /// A client whose cache contains only the root.
    #[must_use]
    pub fn new(options: Options, root: ReportedObject) -> Self {
        Self {
            linux: Linux::new(options, root, MonotonicTime::default()),
            waiting: HashMap::new(),
            open: HashMap::new(),
            seen: HashMap::from([(root.id, root)]),
            sent: Vec::new(),
        }
    }

    /// How often the cache was dropped because it was full.
    #[must_use]
    pub const fn forgotten(&self) -> u64 {
        self.linux.forgotten()
    }

    /// The requests since the last call.
    pub fn take_sent(&mut self) -> Vec<Sent> {
        std::mem::take(&mut self.sent)
    }

    /// No operation follows: stored look-ups have no other purpose.
    pub fn finish(&mut self) {
        for (_, waiting) in std::mem::take(&mut self.waiting) {
            self.look_up(&waiting, LookupIntent::Use);
        }
    }

    /// Performs an operation that begins at `now`.
    pub fn perform(&mut self, context: OperationContext, operation: &FileOperation<'_>, now: MonotonicTime) {
        let waiting = self.waiting.remove(&context.thread);
        let is_by_name = waiting.is_some_and(|waiting| {
            let intent = intent(&waiting, operation);
            self.look_up(&waiting, intent);
            intent == LookupIntent::Open
        });
        match *operation {
            FileOperation::Lookup(directory, name, found) => {
                if let Some(found) = found {
                    self.note(found);
                }
                if self.waiting.len() >= WAITING_MAX {
                    self.finish();
                }
                let waiting = Waiting { context, directory, name: Box::from(name), found, at: now };
                self.waiting.insert(context.thread, waiting);
            }
            FileOperation::Open(id, open, truncate) => {
                self.ask_to_open(context.credential, id, is_by_name, now);
                self.opened(open, id, now);
                if truncate {
                    self.linux.set_attributes(&self.cached_state(id), false, now);
                }
            }
            FileOperation::OpenRefused(id) => self.ask_to_open(context.credential, id, is_by_name, now),
            FileOperation::Access(id) => self.linux.check_access(context.credential, id, now),
            _ => self.on_object(operation, now),
        }
        self.account(context);
    }

    fn look_up(&mut self, waiting: &Waiting, intent: LookupIntent) {
        self.linux.look_up(
            waiting.context.credential,
            waiting.directory,
            &waiting.name,
            waiting.found.as_ref(),
            intent,
            waiting.at,
        );
        self.account(waiting.context);
    }

    fn account(&mut self, context: OperationContext) {
        let sent = self.linux.take_sent().into_iter();
        self.sent.extend(sent.map(|request| Sent { request, context }));
    }

    /// The requests before an open, successful or not.
    fn ask_to_open(&mut self, credential: CredentialId, id: ObjectId, is_by_name: bool, now: MonotonicTime) {
        if !is_by_name {
            self.linux.open_by_handle(&self.cached_state(id), now);
        }
        self.linux.check_access(credential, id, now);
    }

    fn opened(&mut self, open: OpenId, id: ObjectId, now: MonotonicTime) {
        self.linux.opened(id, now);
        self.open.insert(open, id);
    }

    /// An operation that does not depend on the caller.
    fn on_object(&mut self, operation: &FileOperation<'_>, now: MonotonicTime) {
        match *operation {
            FileOperation::Getattr(seen) => {
                self.note(seen);
                self.linux.stat(&seen, now);
            }
            FileOperation::Readlink(id) => self.linux.read_link(&self.cached_state(id), now),
            FileOperation::Create { request, directory, name, made, exclusive, open } => {
                self.note(made);
                self.linux.make(request, directory, name, &made, exclusive, now);
                if let Some(open) = open {
                    self.opened(open, made.id, now);
                }
            }
            FileOperation::Link(directory, name, seen) => {
                self.note(seen);
                self.linux.link(directory, name, &seen, now);
            }
            FileOperation::Unlink(directory, name) => self.linux.unlink(directory, name, now),
            FileOperation::Rmdir(directory, name) => self.linux.remove_directory(directory, name, now),
            FileOperation::Rename((from, from_name), (to, to_name)) => {
                self.linux.rename(from, from_name, to, to_name, now);
            }
            FileOperation::Setattr(seen, rights) => {
                self.note(seen);
                self.linux.set_attributes(&seen, rights, now);
            }
            FileOperation::Read(id, open, (offset, count)) => {
                self.linux.read(open, &self.cached_state(id), offset, count, now);
            }
            FileOperation::ReadDirect(id, (offset, count)) => {
                self.linux.read_direct(&self.cached_state(id), offset, count, now);
            }
            FileOperation::Write(id, (offset, count), how) => self.linux.write(id, offset, count, how, now),
            FileOperation::Flush(id) => self.linux.make_durable(id, now),
            FileOperation::FlushFailed(id) => self.linux.fail_to_write(id, now),
            FileOperation::Release(open) => {
                if let Some(id) = self.open.remove(&open) {
                    self.linux.closed(open, id, now);
                }
            }
            FileOperation::Readdir(id, open, from_start, ref names) => {
                self.linux.list(open, id, from_start, names, now);
            }
            FileOperation::Statfs => self.linux.statfs(),
            FileOperation::Refused(request, about, name) => self.linux.refused(request, about, name, now),
            // These were handled before.
            FileOperation::Lookup(..)
            | FileOperation::Open(..)
            | FileOperation::OpenRefused(_)
            | FileOperation::Access(_) => {}
        }
    }

    /// The object as last reported.
    fn cached_state(&self, id: ObjectId) -> ReportedObject {
        self.seen.get(&id).copied().unwrap_or(ReportedObject {
            id,
            kind: FileKind::Regular,
            size: 0,
            stamp: 0,
        })
    }

    fn note(&mut self, seen: ReportedObject) {
        if self.seen.len() >= ROOM {
            self.seen.clear();
        }
        self.seen.insert(seen.id, seen);
    }
}

/// The purpose of a thread's look-up, by its next operation.
fn intent(waiting: &Waiting, operation: &FileOperation<'_>) -> LookupIntent {
    let is_there =
        |directory: ObjectId, name: &[u8]| waiting.directory == directory && *waiting.name == *name;
    match *operation {
        FileOperation::Open(id, ..) | FileOperation::OpenRefused(id)
            if waiting.found.is_some_and(|found| found.id == id) =>
        {
            LookupIntent::Open
        }
        FileOperation::Create { request, directory, name, exclusive, .. } if is_there(directory, name) => {
            match request {
                LinuxRequest::CreateFile if !exclusive => LookupIntent::OpenOrMake,
                _ => LookupIntent::Make,
            }
        }
        FileOperation::Link(directory, name, _) | FileOperation::Rename(_, (directory, name))
            if is_there(directory, name) =>
        {
            LookupIntent::Make
        }
        FileOperation::Refused(request, directory, Some(name)) if is_there(directory, name) => {
            match request {
                LinuxRequest::CreateFile => LookupIntent::OpenOrMake,
                LinuxRequest::Remove | LinuxRequest::RemoveDirectory => LookupIntent::Use,
                _ => LookupIntent::Make,
            }
        }
        _ => LookupIntent::Use,
    }
}
