//! The model as it is told of operations one by one.
//!
//! The kernel looks a name up before it shows what for. So the last name that a thread has looked
//! up waits here until that thread's next operation: an open of the object follows close-to-open, a
//! creation goes to the server. Owns the last names, one for each thread, bounded.

use std::collections::HashMap;

use curt_policy::Moment;
use curt_types::FileKind;

use crate::lookup::LookupIntent;
use crate::{
    FileOperation, Linux, LinuxRequest, ObjectId, OpenId, OperationContext, Options, ROOM, Seen, Who,
};

/// Threads whose last name waits, at most.
pub(crate) const WAITING_MAX: usize = 4096;

/// A request that Linux would have sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// What, and why.
    pub request: LinuxRequest,
    /// For whom.
    pub context: OperationContext,
}

/// A name whose purpose is not known yet.
#[derive(Debug)]
struct Waiting {
    context: OperationContext,
    directory: ObjectId,
    name: Box<[u8]>,
    found: Option<Seen>,
    at: Moment,
}

/// A Linux client that was mounted when it was made.
#[derive(Debug)]
pub struct LinuxClient {
    linux: Linux,
    /// By thread.
    waiting: HashMap<u32, Waiting>,
    /// What the model knows to be open, so that it ignores a close of what was opened before it
    /// began.
    open: HashMap<OpenId, ObjectId>,
    seen: HashMap<ObjectId, Seen>,
    sent: Vec<Sent>,
}

impl LinuxClient {
    /// A client that knows its root and nothing else.
    #[must_use]
    pub fn new(options: Options, root: Seen) -> Self {
        Self {
            linux: Linux::new(options, root, Moment::default()),
            waiting: HashMap::new(),
            open: HashMap::new(),
            seen: HashMap::from([(root.id, root)]),
            sent: Vec::new(),
        }
    }

    /// How often everything was forgotten for want of room.
    #[must_use]
    pub const fn forgotten(&self) -> u64 {
        self.linux.forgotten()
    }

    /// What would have been sent since the last time.
    pub fn take_sent(&mut self) -> Vec<Sent> {
        std::mem::take(&mut self.sent)
    }

    /// No operation follows: names that were looked up were looked up for their own sake.
    pub fn finish(&mut self) {
        for (_, waiting) in std::mem::take(&mut self.waiting) {
            self.look_up(&waiting, LookupIntent::Use);
        }
    }

    /// An operation that begins at `now`.
    pub fn perform(&mut self, context: OperationContext, operation: &FileOperation<'_>, now: Moment) {
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
                let waiting = Waiting {
                    context,
                    directory,
                    name: Box::from(name),
                    found,
                    at: now,
                };
                self.waiting.insert(context.thread, waiting);
            }
            FileOperation::Open(id, open, truncate) => {
                self.ask_to_open(context.who, id, is_by_name, now);
                self.opened(open, id, now);
                if truncate {
                    self.linux.set_attributes(&self.known(id), false, now);
                }
            }
            FileOperation::OpenRefused(id) => self.ask_to_open(context.who, id, is_by_name, now),
            FileOperation::Access(id) => self.linux.check_access(context.who, id, now),
            _ => self.on_object(operation, now),
        }
        self.account(context);
    }

    fn look_up(&mut self, waiting: &Waiting, intent: LookupIntent) {
        self.linux.look_up(
            waiting.context.who,
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

    /// The requests before an open, whether it succeeds or not.
    fn ask_to_open(&mut self, who: Who, id: ObjectId, is_by_name: bool, now: Moment) {
        if !is_by_name {
            self.linux.open_by_handle(&self.known(id), now);
        }
        self.linux.check_access(who, id, now);
    }

    fn opened(&mut self, open: OpenId, id: ObjectId, now: Moment) {
        self.linux.opened(id, now);
        self.open.insert(open, id);
    }

    /// An operation whose rules do not ask who performs it.
    fn on_object(&mut self, operation: &FileOperation<'_>, now: Moment) {
        match *operation {
            FileOperation::Getattr(seen) => {
                self.note(seen);
                self.linux.stat(&seen, now);
            }
            FileOperation::Readlink(id) => self.linux.read_link(&self.known(id), now),
            FileOperation::Create {
                request,
                directory,
                name,
                made,
                exclusive,
                open,
            } => {
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
            FileOperation::Rename(from, to) => self.linux.rename(from, to, now),
            FileOperation::Setattr(seen, rights) => {
                self.note(seen);
                self.linux.set_attributes(&seen, rights, now);
            }
            FileOperation::Read(id, open, (offset, count)) => {
                self.linux.read(open, &self.known(id), offset, count, now);
            }
            FileOperation::ReadDirect(id, (offset, count)) => {
                self.linux.read_direct(&self.known(id), offset, count, now);
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
            // They are done already.
            FileOperation::Lookup(..)
            | FileOperation::Open(..)
            | FileOperation::OpenRefused(_)
            | FileOperation::Access(_) => {}
        }
    }

    /// The object as it was last reported.
    fn known(&self, id: ObjectId) -> Seen {
        self.seen.get(&id).copied().unwrap_or(Seen {
            id,
            kind: FileKind::Regular,
            size: 0,
            stamp: 0,
        })
    }

    fn note(&mut self, seen: Seen) {
        if self.seen.len() >= ROOM {
            self.seen.clear();
        }
        self.seen.insert(seen.id, seen);
    }
}

/// What a thread has looked a name up for, by its next operation.
fn intent(waiting: &Waiting, operation: &FileOperation<'_>) -> LookupIntent {
    let is_there =
        |directory: ObjectId, name: &[u8]| waiting.directory == directory && *waiting.name == *name;
    match *operation {
        FileOperation::Open(id, ..) | FileOperation::OpenRefused(id)
            if waiting.found.is_some_and(|found| found.id == id) =>
        {
            LookupIntent::Open
        }
        FileOperation::Create {
            request,
            directory,
            name,
            exclusive,
            ..
        } if is_there(directory, name) => match request {
            LinuxRequest::CreateFile if !exclusive => LookupIntent::OpenOrMake,
            _ => LookupIntent::Make,
        },
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
