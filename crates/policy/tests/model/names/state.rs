//! The state of the model and its steps.

use std::fmt;

use curt_policy::{AttributeState, CachingAttributes, MonotonicTime, MutationTicket, ServerClock};
use curt_types::PreOpState;

use crate::{
    server::{Changes, History},
    table::Name,
    time::Time,
};

/// The name that is looked up; missing initially.
pub(super) const WANTED: usize = 0;
/// Another name, present initially, that only clients change, and only once.
pub(super) const OTHER: usize = 1;

#[derive(Clone, Debug, Hash)]
pub(super) struct State {
    pub(super) time: Time,
    pub(super) server: Server,
    pub(super) clients: [Client; 2],
    pub(super) strangers: u8,
    pub(super) losses: u8,
    /// A change that its client cancelled before the server executed it.
    pub(super) orphan: Option<(usize, Request)>,
    pub(super) ticks: u8,
}

#[derive(Clone, Debug, Hash)]
pub(super) struct Server {
    /// Whether each name exists.
    pub(super) history: [History<bool>; 2],
    pub(super) changes: Changes,
}

#[derive(Clone, Debug, Hash)]
pub(super) struct Client {
    pub(super) directory: AttributeState,
    pub(super) clock: ServerClock,
    pub(super) names: [Name<bool>; 2],
    /// The kernel's entry of the wanted name, and its end.
    pub(super) kernel: Option<(bool, MonotonicTime)>,
    pub(super) threads: [Thread; 2],
    pub(super) operations: u8,
}

#[derive(Clone, Debug, Hash)]
pub(super) enum Thread {
    Idle,
    Waiting(Call),
    Answered(Call, Reply),
}

#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct Call {
    pub(super) request: Request,
    /// The name of the request.
    pub(super) name: usize,
    pub(super) began: MonotonicTime,
    pub(super) sent_at: MonotonicTime,
    pub(super) ticket: MutationTicket,
    pub(super) changes: u8,
    /// The name's floor when the operation began.
    pub(super) floor: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Request {
    Getattr,
    Lookup,
    Create,
    Remove,
}

#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct Reply {
    pub(super) before: PreOpState,
    pub(super) after: CachingAttributes,
    /// Whether the name existed before, and exists after.
    pub(super) was: bool,
    pub(super) is: bool,
    /// The position of this state in the name's history.
    pub(super) position: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Tick,
    Stranger(usize),
    Begin(usize, usize, Request, usize),
    Walk(usize),
    Execute(usize, usize, Request),
    Receive(usize, usize, Request),
    GiveUp(usize, usize, Request),
    ExecuteOrphan(Request),
}

impl fmt::Debug for Step {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Tick => write!(out, "10 ms pass"),
            Self::GiveUp(client, thread, request) => {
                write!(out, "client {client}.{thread} gives up waiting for the reply to {request:?}")
            }
            Self::ExecuteOrphan(request) => write!(out, "server executes {request:?} that was given up"),
            Self::Stranger(name) => write!(out, "a stranger makes or removes name {name}"),
            Self::Begin(client, thread, request, name) => {
                write!(out, "client {client}.{thread} begins {request:?} of name {name}")
            }
            Self::Walk(client) => write!(out, "the kernel of client {client} answers by itself"),
            Self::Execute(client, thread, request) => {
                write!(out, "server executes {request:?} of {client}.{thread}")
            }
            Self::Receive(client, thread, request) => {
                write!(out, "client {client}.{thread} gets the reply to {request:?}")
            }
        }
    }
}

impl State {
    pub(super) fn change(&mut self, by: usize, name: usize, there: bool) {
        self.server.changes.make(by, self.time);
        self.server.history[name].push(there, self.time.moment());
    }
}
