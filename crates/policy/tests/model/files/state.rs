//! The state of the model and its steps.

use std::fmt;

use curt_policy::{
    AttributeState, CachingAttributes, Delegation, MonotonicTime, MutationTicket, ServerClock,
    data::PagesLabel,
};
use curt_types::PreOpState;

use crate::{server::Changes, time::Time};

pub(super) type Block = u8;

#[derive(Clone, Debug, Hash)]
pub(super) struct State {
    pub(super) time: Time,
    pub(super) server: Server,
    pub(super) clients: [Client; 2],
    /// Number of writes begun: the content of the next block.
    pub(super) written: u8,
    pub(super) strangers: u8,
    pub(super) ticks: u8,
}

#[derive(Clone, Debug, Hash)]
pub(super) struct Server {
    /// The contents of each block in the order of the WRITEs.
    pub(super) history: [Vec<Block>; 2],
    /// For each block, the number of these whose writer has closed.
    pub(super) closed: [usize; 2],
    pub(super) changes: Changes,
    /// Which clients hold a read delegation.
    pub(super) delegated: [bool; 2],
}

#[derive(Clone, Debug, Hash)]
pub(super) struct Client {
    pub(super) attributes: AttributeState,
    pub(super) clock: ServerClock,
    pub(super) clean: [Option<Block>; 2],
    pub(super) dirty: [Option<Block>; 2],
    pub(super) label: Option<PagesLabel>,
    pub(super) delegation: Option<Delegation>,
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
    pub(super) began: MonotonicTime,
    pub(super) sent_at: MonotonicTime,
    pub(super) ticket: MutationTicket,
    /// The closed contents when the operation began.
    pub(super) floor: [usize; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Request {
    Getattr,
    Read,
    Write(usize, Block),
}

#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct Reply {
    pub(super) before: PreOpState,
    pub(super) after: CachingAttributes,
    pub(super) blocks: [Block; 2],
    /// The number of contents of the written block.
    pub(super) taken: usize,
    /// The reply contains a delegation, which was not recalled since.
    pub(super) delegated: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Tick,
    Stranger(usize),
    BeginRead(usize, usize),
    BeginWrite(usize, usize, usize),
    Execute(usize, usize, Request),
    Receive(usize, usize, Request),
}

impl fmt::Debug for Step {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Tick => write!(out, "10 ms pass"),
            Self::Stranger(block) => write!(out, "a stranger writes block {block} and closes"),
            Self::BeginRead(client, thread) => write!(out, "client {client}.{thread} opens and reads"),
            Self::BeginWrite(client, thread, block) => {
                write!(out, "client {client}.{thread} writes block {block}")
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
    /// The server accepts new contents of a block from a client or a stranger.
    pub(super) fn change(&mut self, by: usize, block: usize, content: Block) {
        self.server.changes.make(by, self.time);
        self.server.history[block].push(content);
    }
}

impl Client {
    pub(super) fn drop_pages(&mut self) {
        self.clean = [None; 2];
        self.label = None;
    }

    /// The result of a read without a request.
    pub(super) fn cached(&self) -> Option<[Block; 2]> {
        let block = |block: usize| self.dirty[block].or(self.clean[block]);
        Some([block(0)?, block(1)?])
    }

    pub(super) fn keep_pages(
        &mut self,
        blocks: [Block; 2],
        ticket: MutationTicket,
        adopted: bool,
        sent_at: MonotonicTime,
    ) {
        let contents = self.attributes.contents();
        let Some(epoch) = contents.filter(|_| adopted && self.attributes.is_undisturbed(ticket)) else {
            return;
        };
        if self.label.is_some_and(|held| held.epoch != epoch) {
            self.drop_pages();
        }
        self.label.get_or_insert(PagesLabel { epoch, sent_at });
        self.clean = blocks.map(Some);
    }
}
