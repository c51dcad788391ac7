//! What the model consists of, and what happens in it.

use std::fmt;

use curt_policy::{
    AttributeState, Facts, Moment, MutationTicket, ServerClock, complete::ListingScan, names::DentryState,
};
use curt_types::PreOpState;

use super::complete::Complete;
use crate::{
    server::{Changes, History},
    table::Name,
    time::Time,
};

/// Names that the directory can have. The first comes first in a listing, in a reply of its own if
/// there are two.
pub(super) const NAMES: usize = 2;

/// Missing at first.
pub(super) const EARLY: usize = 0;
/// There at first.
pub(super) const LATE: usize = 1;

/// The object that a name leads to; `None`: the name is missing.
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
    /// Of each name, what it leads to.
    pub(super) history: [History<Object>; NAMES],
    pub(super) changes: Changes,
    /// Objects that were ever made.
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
    /// The server has read the names of a listing's reply, and not yet the directory's attributes.
    Half(Call, Listed),
    Answered(Call, Reply),
    /// More of a listing is to be asked for.
    Paused(Call),
}

#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct Call {
    pub(super) request: Request,
    /// The name that is wanted, made, removed or renamed to.
    pub(super) name: usize,
    pub(super) began: Moment,
    pub(super) sent_at: Moment,
    pub(super) ticket: MutationTicket,
    /// Of each name when the request was sent.
    pub(super) changes: [u8; NAMES],
    /// The name's floor when the operation began.
    pub(super) floor: usize,
    /// Of a listing: what came before.
    pub(super) pass: Option<(ListingScan, Listed)>,
    /// A look-up waits for what a listing tells of its name.
    pub(super) wants: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Request {
    Getattr,
    Lookup,
    /// The names from this one on, in one reply or up to the next.
    List(usize),
    Create,
    Remove,
    /// The other name is given to the object.
    Rename,
}

/// What a reply of a listing says of the names in it.
pub(super) type Listed = [Object; NAMES];

#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct Reply {
    pub(super) before: PreOpState,
    pub(super) after: Facts,
    /// Where the names lead before, and after.
    pub(super) was: Listed,
    pub(super) is: Listed,
    /// Where in the names' histories this was.
    pub(super) positions: [usize; NAMES],
}

/// What another client does at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Change {
    Create(usize),
    Remove(usize),
    /// To this name, replacing what is there.
    Rename(usize),
    /// With a new object.
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
    /// Somebody gives names other objects, all at once.
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

    /// What a change does to names, if it can be done.
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

/// What is known of a name that leads there.
pub(super) fn kind(object: Object) -> DentryState {
    if object.is_some() { DentryState::Positive } else { DentryState::Negative }
}
