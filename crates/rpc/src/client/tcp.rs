//! The transport over TCP: calls spread over connections, sent again when one is lost.

use std::{
    cell::Cell,
    io,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use curt_xdr::padding;

use super::{
    CallError, Events, Hardness, Interrupt, Reply, Request, TcpOptions, Transport,
    activity::Activity,
    connect::random_u32,
    connection::Connection,
    interrupt::{Registration, Wake},
    lane::{Attempts, Lane},
    outgoing::Outgoing,
    timer::Timer,
    turn::{End, Turn},
    waiter::Waiter,
};
use crate::{buffer::Pool, message::encode_call_header, record};

/// How many bytes of receive buffers are kept for the next replies.
const POOL_MAX: usize = 16 << 20;

/// Encode buffers above this size are not kept: only calls without bulk data are long, and they are rare.
const HEAD_KEPT_MAX: usize = 64 << 10;

/// Calls over one to sixteen TCP connections, which are made again when they are lost.
pub struct TcpTransport {
    shared: Arc<Shared>,
    lanes: Vec<Arc<Lane>>,
    xid: AtomicU32,
}

/// What the connections of a transport have in common.
pub(super) struct Shared {
    pub(super) options: TcpOptions,
    pub(super) activity: Arc<Activity>,
    pool: Arc<Pool>,
}

impl TcpTransport {
    /// A transport that connects when the first call is made, and for a hard mount tries for ever.
    #[must_use]
    pub fn new(options: TcpOptions, events: Arc<dyn Events>) -> Self {
        let count = options.nconnect.get().min(TcpOptions::NCONNECT_MAX);
        let activity = Arc::new(Activity::new(options.server.to_string(), events));
        // Should the kernel have no random number, the time does: it only has to differ from the last transport's.
        let first = random_u32().unwrap_or_else(|_| std::process::id());
        Self {
            shared: Arc::new(Shared {
                options,
                activity,
                pool: Arc::new(Pool::new(POOL_MAX)),
            }),
            lanes: (0..count).map(|_| Arc::default()).collect(),
            xid: AtomicU32::new(first),
        }
    }

    /// Connects once, now; a transport made so is connected again like any other when the connection is lost later.
    ///
    /// # Errors
    /// [`CallError::Unreachable`] after one attempt at each of the server's addresses (`NotFound`: the name has none;
    /// `PermissionDenied`: no right to a reserved port), or [`CallError::Interrupted`].
    pub fn connect(
        options: TcpOptions,
        events: Arc<dyn Events>,
        interrupt: &Interrupt,
    ) -> Result<Self, CallError> {
        let transport = Self::new(options, events);
        let waiter = Waiter::current();
        let _registration = register(interrupt, &waiter);
        let mut timer = Timer::new(transport.options(), Instant::now());
        transport.lanes[0].connection(
            &transport.shared,
            &waiter,
            (interrupt, &mut timer, true),
            Attempts::Once,
        )?;
        Ok(transport)
    }

    /// The options in force.
    #[must_use]
    pub fn options(&self) -> &TcpOptions {
        &self.shared.options
    }

    /// Closes the connections; calls that wait, now or later, end with [`CallError::Closed`].
    pub fn close(&self) {
        for lane in &self.lanes {
            lane.close();
        }
    }

    fn choose(&self) -> &Arc<Lane> {
        let least = self.lanes.iter().min_by_key(|lane| lane.outstanding());
        least.expect("nconnect is at least 1")
    }

    fn send(
        &self,
        xid: u32,
        outgoing: Outgoing<'_>,
        results_max: usize,
        interrupt: &Interrupt,
    ) -> Result<Reply, CallError> {
        let waiter = Waiter::current();
        let _registration = register(interrupt, &waiter);
        let _waiting = self.shared.activity.wait();
        let lane = self.choose();
        let _outstanding = lane.enter();
        let mut timer = Timer::new(self.options(), Instant::now());
        let patient = self.options().hardness == Hardness::Hard;
        let mut sent_before = false;
        loop {
            let connection = lane.connection(
                &self.shared,
                &waiter,
                (interrupt, &mut timer, patient),
                Attempts::Many,
            )?;
            let turn = Turn::join(&connection, xid, outgoing, results_max, interrupt, &waiter);
            let Some(mut turn) = turn else { continue };
            if sent_before {
                self.shared.activity.events().retransmitted();
            }
            match turn.run(&mut timer, patient) {
                End::Over(outcome) => return outcome,
                End::Expired => return Err(self.shared.timed_out()),
                End::Lost => sent_before |= turn.was_sent(),
            }
        }
    }
}

impl Transport for TcpTransport {
    fn call(&self, request: &Request<'_>, interrupt: &Interrupt) -> Result<Reply, CallError> {
        // Pairs with nothing: a number of its own is all that a call needs.
        let xid = self.xid.fetch_add(1, Ordering::Relaxed);
        let mut head = HEAD.take();
        head.clear();
        let padding = &[0u8; 3][..padding(request.bulk.len())];
        encode(&mut head, xid, request, padding.len());
        let outgoing = Outgoing::new(&head, request.bulk, padding);
        let outcome = self.send(xid, outgoing, request.results_max, interrupt);
        if head.capacity() <= HEAD_KEPT_MAX {
            HEAD.set(head);
        }
        outcome
    }

    fn silent_for(&self) -> Option<Duration> {
        self.shared.activity.silent_for()
    }
}

thread_local! {
    /// Where this thread's calls are encoded.
    static HEAD: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

fn encode(head: &mut Vec<u8>, xid: u32, request: &Request<'_>, padding: usize) {
    let body = record::open(head);
    let procedure = (request.program, request.version, request.procedure);
    encode_call_header(head, xid, procedure, request.credential);
    request.arguments.encode(head);
    record::close(head, body, request.bulk.len() + padding);
}

fn register<'a>(interrupt: &'a Interrupt, waiter: &Arc<Waiter>) -> Registration<'a> {
    let waiter: Arc<dyn Wake> = Arc::<Waiter>::clone(waiter);
    interrupt.register(waiter)
}

impl Drop for TcpTransport {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    /// Makes a connection of a socket that is connected.
    pub(super) fn adopt(&self, socket: OwnedFd) -> io::Result<Arc<Connection>> {
        let (activity, pool) = (Arc::clone(&self.activity), Arc::clone(&self.pool));
        Connection::new(socket, activity, pool, self.options.reply_max).map(Arc::new)
    }

    pub(super) fn timed_out(&self) -> CallError {
        CallError::TimedOut {
            softerr: self.options.hardness == Hardness::SoftErr,
        }
    }
}
