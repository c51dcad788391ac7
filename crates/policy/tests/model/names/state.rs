//! What the model consists of, and what happens in it.

use std::fmt;

use curt_policy::{
    AttributeState, Before, Facts, Moment, NameLabel, ServerClock, Ticket,
    names::{Entry, Learned},
};

use crate::time::{Changed, Time};

pub(super) const STRANGER: usize = 2;

/// The name that is looked up, and missing at first.
pub(super) const WANTED: usize = 0;
/// Another name, there at first, that only clients change, and only once.
pub(super) const OTHER: usize = 1;

#[derive(Clone, Debug, Hash)]
pub(super) struct State {
    pub(super) time: Time,
    pub(super) server: Server,
    pub(super) clients: [Client; 2],
    pub(super) strangers: u8,
    pub(super) losses: u8,
    /// A change that its client gave up before the server executed it.
    pub(super) orphan: Option<(usize, Request)>,
    pub(super) ticks: u8,
}

#[derive(Clone, Debug, Hash)]
pub(super) struct Server {
    /// For each name, whether it is there, and since when.
    pub(super) history: [Vec<(bool, Moment)>; 2],
    pub(super) changed: Changed,
}

#[derive(Clone, Debug, Hash)]
pub(super) struct Client {
    pub(super) directory: AttributeState,
    pub(super) clock: ServerClock,
    pub(super) names: [Name; 2],
    pub(super) threads: [Thread; 2],
    pub(super) operations: u8,
    pub(super) changed_in: Option<u16>,
    /// Another client changed the directory within the tick of a change of this one's, after it.
    pub(super) excused: bool,
}

#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Name {
    pub(super) entry: Option<(Entry, NameLabel)>,
    /// Counts beginnings and ends of changes of ours.
    pub(super) changes: u8,
    /// The states of the name's history before this one this client knows to be past.
    pub(super) floor: usize,
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
    /// The name that is wanted.
    pub(super) name: usize,
    pub(super) began: Moment,
    pub(super) sent_at: Moment,
    pub(super) ticket: Ticket,
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
    pub(super) before: Before,
    pub(super) after: Facts,
    /// Whether the name was there before, and is after.
    pub(super) was: bool,
    pub(super) is: bool,
    /// Where in the name's history this was.
    pub(super) position: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Tick,
    Stranger(usize),
    Begin(usize, usize, Request, usize),
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
                write!(
                    out,
                    "client {client}.{thread} gives up waiting for the reply to {request:?}"
                )
            }
            Self::ExecuteOrphan(request) => write!(out, "server executes {request:?} that was given up"),
            Self::Stranger(name) => write!(out, "a stranger makes or removes name {name}"),
            Self::Begin(client, thread, request, name) => {
                write!(out, "client {client}.{thread} begins {request:?} of name {name}")
            }
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
        for (other, own) in self.clients.iter_mut().enumerate() {
            own.excused |= other != by && own.changed_in == Some(self.time.tick);
        }
        if let Some(own) = self.clients.get_mut(by) {
            own.changed_in = Some(self.time.tick);
        }
        self.server.changed = self.server.changed.next(self.time);
        self.server.history[name].push((there, self.time.moment()));
    }
}

impl Server {
    pub(super) fn is_there(&self, name: usize) -> bool {
        self.history[name].last().unwrap().0
    }
}

impl Name {
    pub(super) fn keep(&mut self, learned: Learned) {
        match learned {
            Learned::Positive(label) => self.entry = Some((Entry::Positive, label)),
            Learned::Negative(label) => self.entry = Some((Entry::Negative, label)),
            Learned::Drop => self.entry = None,
            Learned::Leave => {}
        }
    }
}
