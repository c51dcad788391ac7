//! The state of the model and its steps.

use std::fmt;

use curt_policy::{
    AttributeState, CachingAttributes, MonotonicTime, MutationTicket, ServerClock,
    complete_directory::ListingScan, names::DentryState,
};
use curt_types::PreOpState;

use super::complete::Complete;
use crate::{
    server::{Changes, History},
    table::Name,
    time::Time,
};

/// The number of names that the directory can have. The first comes first in a listing; with two
/// replies, each has one name.
pub(super) const NAMES: usize = 2;

/// Missing initially.
pub(super) const EARLY: usize = 0;
/// Present initially.
pub(super) const LATE: usize = 1;

/// The object of a name; `None`: the name is missing.
pub(super) type Object = Option<u8>;

#[derive(Clone, Debug, Hash)]
pub(super) struct State {
    pub(super) time: Time,
    pub(super) server: Server,
    pub(super) clients: [Client; 2],
    pub(super) strangers: u8,
    pub(super) evictions: u8,
    pub(super) losses: u8,
    pub(super) ticks: u8,
}

#[derive(Clone, Debug, Hash)]
pub(super) struct Server {
    /// The objects of each name.
    pub(super) history: [History<Object>; NAMES],
    pub(super) changes: Changes,
    /// The number of objects created so far.
    pub(super) made: u8,
}

#[derive(Clone, Debug, Hash)]
pub(super) struct Client {
    pub(super) directory: AttributeState,
    pub(super) clock: ServerClock,
    pub(super) names: [Name<Object>; NAMES],
    pub(super) complete: Option<Complete>,
    pub(super) threads: [Thread; 2],
    pub(super) operations: u8,
}

#[derive(Clone, Debug, Hash)]
pub(super) enum Thread {
    Idle,
    Waiting(Call),
    /// The server has read the names for a listing's reply, but not yet the directory's attributes.
    Half(Call, Listed),
    Answered(Call, Reply),
    /// The listing needs a further request.
    Paused(Call),
}

#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct Call {
    pub(super) request: Request,
    /// The name that is looked up, created, removed or the target of a rename.
    pub(super) name: usize,
    pub(super) began: MonotonicTime,
    pub(super) sent_at: MonotonicTime,
    pub(super) ticket: MutationTicket,
    /// The count of changes of each name when the request was sent.
    pub(super) changes: [u8; NAMES],
    /// The name's floor when the operation began.
    pub(super) floor: usize,
    /// The result of the listing so far.
    pub(super) pass: Option<(ListingScan, Listed)>,
    /// A lookup waits for its name in the listing.
    pub(super) wants: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Request {
    Getattr,
    Lookup,
    /// The names from this one, in one reply or up to the next.
    List(usize),
    Create,
    Remove,
    /// The object gets the other name.
    Rename,
}

/// The objects of the names in a reply of a listing.
pub(super) type Listed = [Object; NAMES];

#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct Reply {
    pub(super) before: PreOpState,
    pub(super) after: CachingAttributes,
    /// The objects of the names before and after.
    pub(super) was: Listed,
    pub(super) is: Listed,
    /// The positions of these states in the names' histories.
    pub(super) positions: [usize; NAMES],
}

/// A change that another client makes immediately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Change {
    Create(usize),
    Remove(usize),
    /// To this name, replacing its object.
    Rename(usize),
    /// By a new object.
    Replace(usize),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Tick,
    Stranger(Change),
    Evict(usize, usize),
    Begin(usize, usize, Request, usize),
    Read(usize, usize),
    Execute(usize, usize, Request),
    Receive(usize, usize, Request),
    Lose(usize, usize, Request),
    GoOn(usize, usize),
}

impl fmt::Debug for Step {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Tick => write!(out, "10 ms pass"),
            Self::Stranger(change) => write!(out, "a stranger does {change:?}"),
            Self::Evict(client, name) => write!(out, "client {client} lets go of name {name}"),
            Self::Begin(client, thread, request, name) => {
                write!(out, "client {client}.{thread} begins {request:?} for name {name}")
            }
            Self::Read(client, thread) => write!(out, "server reads the names for {client}.{thread}"),
            Self::Execute(client, thread, request) => {
                write!(out, "server executes {request:?} of {client}.{thread}")
            }
            Self::Receive(client, thread, request) => {
                write!(out, "client {client}.{thread} gets the reply to {request:?}")
            }
            Self::GoOn(client, thread) => write!(out, "client {client}.{thread} goes on with its listing"),
            Self::Lose(client, thread, request) => {
                write!(out, "the reply to {request:?} of {client}.{thread} is lost")
            }
        }
    }
}

impl State {
    /// A client gives names other objects, all at once.
    pub(super) fn change(&mut self, by: usize, now: &[(usize, Object)]) {
        self.server.changes.make(by, self.time);
        for (name, object) in now {
            self.server.history[*name].push(*object, self.time.moment());
        }
    }
}

impl Server {
    pub(super) fn object(&self, name: usize) -> Object {
        self.history[name].is()
    }

    pub(super) fn objects(&self) -> Listed {
        [EARLY, LATE].map(|name| self.object(name))
    }

    pub(super) fn make(&mut self) -> Object {
        self.made += 1;
        Some(self.made)
    }

    /// The effect of a change on names, if it is possible.
    pub(super) fn effect(&mut self, change: Change) -> Option<Vec<(usize, Object)>> {
        match change {
            Change::Create(name) if self.object(name).is_none() => Some(vec![(name, self.make())]),
            Change::Remove(name) if self.object(name).is_some() => Some(vec![(name, None)]),
            Change::Replace(name) if self.object(name).is_some() => Some(vec![(name, self.make())]),
            Change::Rename(to) => {
                let moved = self.object(1 - to)?;
                Some(vec![(to, Some(moved)), (1 - to, None)])
            }
            Change::Create(_) | Change::Remove(_) | Change::Replace(_) => None,
        }
    }
}

/// The cache state of a name with this object.
pub(super) fn kind(object: Object) -> DentryState {
    if object.is_some() { DentryState::Positive } else { DentryState::Negative }
}
