//! The transport over TCP: distributes calls over connections, and sends them again if one is lost.

use std::{
    cell::Cell,
    io,
    net::SocketAddr,
    os::fd::OwnedFd,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use curt_observe::{
    Operation, TransportReport,
    events::{Event, procedure_name},
    probe, scope,
};
use curt_sync::{Interrupt, Wake, WakerRegistration};
use parking_lot::Mutex;

use super::{
    activity::ServerActivity,
    call_in_progress::{CallEnd, CallInProgress, CallParameters},
    connect::{KeepAlive, random_u32},
    connection::ClientConnection,
    connection_slot::{ConnectAttempts, ConnectionSlot},
    events::TransportEvents,
    options::{RecoveryMode, TcpOptions},
    outgoing::OutgoingRecord,
    statistics::{CallStatistics, ConnectStatistics, ConnectionStatistics},
    timer::RetransmitTimer,
    transport::Transport,
};
use crate::connection::{
    arguments::BulkData,
    reply::CallReply,
    reply_sink::ReplySink,
    request::{CallError, RpcRequest},
};
use crate::{
    clock::TimeSource,
    connection::{pending_call::unwrap_reply, waiter::CallWaiter},
    record::buffer_pool::BufferPool,
    security::{credential::CallFlavor, flavor::AuthFlavor},
};

/// Maximum size of the cached receive buffers in bytes.
const POOL_MAX: usize = 16 << 20;

/// Encode buffers above this size are not cached: only calls without bulk data are long, and they
/// are rare.
const HEAD_CAPACITY_MAX: usize = 64 << 10;

/// Calls over one to sixteen TCP connections, which are established again when lost.
pub struct TcpTransport {
    shared: Arc<TcpTransportInner>,
    slots: Vec<Arc<ConnectionSlot>>,
}

/// State shared by the connections of a transport.
pub(super) struct TcpTransportInner {
    pub(super) options: TcpOptions,
    pub(super) activity: Arc<ServerActivity>,
    pool: Arc<BufferPool>,
    xid: AtomicU32,
    /// How many lost connections were replaced.
    pub(super) replacements: AtomicU64,
    /// The called program and version: probes send its NULL procedure.
    program: OnceLock<(u32, u32)>,
    /// The connections of all slots. Its lock is taken after that of a slot, and before that of a
    /// connection.
    connections: Mutex<Vec<Weak<ClientConnection>>>,
}

impl TcpTransport {
    /// A transport that connects when the first call is made, for a hard mount without limit.
    #[must_use]
    pub fn new(options: TcpOptions, events: Arc<dyn TransportEvents>) -> Self {
        let count = options.nconnect.get().min(TcpOptions::NCONNECT_MAX);
        let activity =
            Arc::new(ServerActivity::new(options.server.to_string(), options.clock.clone(), events));
        // If the kernel has no random number, the process id is used: the first xid only has to
        // differ from the last transport's.
        let first = random_u32().unwrap_or_else(|_| std::process::id());
        Self {
            shared: Arc::new(TcpTransportInner {
                options,
                activity,
                pool: Arc::new(BufferPool::new(POOL_MAX)),
                xid: AtomicU32::new(first),
                replacements: AtomicU64::new(0),
                program: OnceLock::new(),
                connections: Mutex::default(),
            }),
            slots: (0..count).map(|_| Arc::default()).collect(),
        }
    }

    /// Connects once, now; after a later loss the transport connects again as usual.
    ///
    /// # Errors
    /// [`CallError::Unreachable`] after one attempt at each of the server's addresses (`NotFound`:
    /// the name has none; `PermissionDenied`: no privilege for a reserved port), or
    /// [`CallError::Interrupted`].
    pub fn connect(
        options: TcpOptions,
        events: Arc<dyn TransportEvents>,
        interrupt: &Interrupt,
    ) -> Result<Self, CallError> {
        let transport = Self::new(options, events);
        let waiter = CallWaiter::current();
        let _registration = register(interrupt, &waiter);
        let mut timer = RetransmitTimer::new(transport.options(), transport.clock().now());
        transport.slots[0].connection(
            &transport.shared,
            &waiter,
            interrupt,
            &mut timer,
            true,
            ConnectAttempts::Once,
        )?;
        Ok(transport)
    }

    /// The options in force.
    #[must_use]
    pub fn options(&self) -> &TcpOptions {
        &self.shared.options
    }

    fn clock(&self) -> &TimeSource {
        &self.shared.options.clock
    }

    /// Closes the connections; calls that wait, now or later, end with [`CallError::Closed`].
    pub fn close(&self) {
        for slot in &self.slots {
            slot.close();
        }
    }

    /// Emits the event that a call is sent.
    fn trace_call(&self, xid: u32, request: &RpcRequest<'_>, sent: usize) {
        let operation = || Operation::of_call(request.program, request.version, request.procedure);
        probe!(RpcCall {
            xid,
            procedure: procedure_name(request.program, request.version, request.procedure).bytes(),
            sent,
            server: self.shared.activity.server(),
            cause: scope::cause(operation()).name()
        });
    }

    fn choose(&self) -> &Arc<ConnectionSlot> {
        let least = self.slots.iter().min_by_key(|slot| slot.outstanding());
        least.expect("nconnect is at least 1")
    }

    /// Sends a call over successive connections until it has ended.
    fn send(
        &self,
        xid: u32,
        request: &RpcRequest<'_>,
        sink: Option<&Arc<dyn ReplySink>>,
        interrupt: &Interrupt,
        statistics: &mut CallStatistics,
    ) -> Result<CallReply, CallError> {
        let flavor = CallFlavor::of(request.credential);
        let mut record = CallRecord::new(xid, request, flavor.get());
        self.trace_call(xid, request, record.outgoing().len());
        let waiter = CallWaiter::current();
        let _registration = register(interrupt, &waiter);
        let _waiting = self.shared.activity.begin_wait();
        let slot = self.choose();
        let _outstanding = slot.begin_call();
        let began = self.clock().now();
        let mut timer = RetransmitTimer::new(self.options(), began);
        let patient = self.options().recovery == RecoveryMode::Hard;
        let mut sent_before = false;
        loop {
            let connection = slot.connection(
                &self.shared,
                &waiter,
                interrupt,
                &mut timer,
                patient,
                ConnectAttempts::UntilConnected,
            )?;
            let parameters = CallParameters {
                xid,
                outgoing: record.outgoing(),
                results_max: request.results_max,
                flavor: flavor.context(),
                sink: sink.filter(|_| !flavor.get().wraps()),
                interrupt,
                waiter: &waiter,
                retransmission: self.options().retransmission,
                began,
            };
            let Some(mut call) = CallInProgress::start(&connection, &parameters, &mut *statistics) else {
                continue;
            };
            if sent_before {
                self.shared.activity.events().retransmitted();
                probe!(RpcRetransmit {
                    xid,
                    server: self.shared.activity.server(),
                    reason: "connection lost"
                });
            }
            let quiet = || slot.quiet(&self.shared, &connection);
            let end = call.run(&mut timer, patient, &quiet);
            let was_sent = call.was_sent();
            drop(call);
            match end {
                CallEnd::Done(outcome) => {
                    return outcome.and_then(|reply| unwrap_reply(reply, flavor.get(), request.results_max));
                }
                CallEnd::TimedOut => return Err(self.shared.timed_out()),
                CallEnd::ConnectionLost => sent_before |= was_sent,
                CallEnd::SignAgain => sent_before = false,
            }
            if flavor.context().is_some() {
                record = CallRecord::new(xid, request, flavor.get());
            }
        }
    }

    fn call_by(
        &self,
        request: &RpcRequest<'_>,
        interrupt: &Interrupt,
        statistics: &mut CallStatistics,
        sink: Option<&Arc<dyn ReplySink>>,
    ) -> Result<CallReply, CallError> {
        let xid = self.shared.next_xid();
        let _ = self.shared.program.get_or_init(|| (request.program, request.version));
        let began = Event::RpcReply.is_wanted().then(|| self.clock().now());
        let outcome = self.send(xid, request, sink, interrupt, statistics);
        probe!(RpcReply {
            xid,
            procedure: procedure_name(request.program, request.version, request.procedure).bytes(),
            received: statistics.bytes_received,
            // The wait for a connection, or for other calls to be sent, is not the server's time.
            rtt: began.map_or(Duration::ZERO, |began| self
                .clock()
                .since(began)
                .saturating_sub(statistics.reading_for_others + statistics.queued)),
            error: outcome.as_ref().err().map_or(0, CallError::negative_errno)
        });
        outcome
    }
}

impl Transport for TcpTransport {
    fn call(&self, request: &RpcRequest<'_>, interrupt: &Interrupt) -> Result<CallReply, CallError> {
        self.call_with_statistics(request, interrupt, &mut CallStatistics::default())
    }

    fn call_with_statistics(
        &self,
        request: &RpcRequest<'_>,
        interrupt: &Interrupt,
        statistics: &mut CallStatistics,
    ) -> Result<CallReply, CallError> {
        self.call_by(request, interrupt, statistics, None)
    }

    fn call_with_sink(
        &self,
        request: &RpcRequest<'_>,
        interrupt: &Interrupt,
        statistics: &mut CallStatistics,
        sink: &Arc<dyn ReplySink>,
    ) -> Result<CallReply, CallError> {
        self.call_by(request, interrupt, statistics, Some(sink))
    }

    fn silent_for(&self) -> Option<Duration> {
        self.shared.activity.silent_for()
    }

    fn replacements(&self) -> u64 {
        // Relaxed: it is only compared with an earlier value.
        self.shared.replacements.load(Ordering::Relaxed)
    }

    fn report(&self) -> TransportReport {
        let (mut traffic, mut connecting) = (ConnectionStatistics::default(), ConnectStatistics::default());
        let (mut port, mut connections) = (0, 0);
        for slot in &self.slots {
            let connection = slot.add_statistics(&mut traffic, &mut connecting);
            connections += u64::from(connection.is_some());
            if let Some(connection) = connection.filter(|_| port == 0) {
                port = connection.local().map_or(0, |address| address.port());
            }
        }
        TransportReport {
            figures: traffic.figures(&connecting),
            port,
            idle_seconds: self.shared.activity.idle_for().as_secs(),
            most_at_once: traffic.most_at_once,
            connections,
        }
    }
}

thread_local! {
    /// The thread's encode buffer.
    static HEAD: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// The record of a call as it is sent.
struct CallRecord<'a> {
    head: Vec<u8>,
    bulk: BulkData<'a>,
}

impl<'a> CallRecord<'a> {
    fn new(xid: u32, request: &RpcRequest<'a>, flavor: &dyn AuthFlavor) -> Self {
        let mut head = HEAD.take();
        head.clear();
        let bulk = request.encode(&mut head, xid, flavor);
        Self { head, bulk }
    }

    fn outgoing(&self) -> OutgoingRecord<'_> {
        OutgoingRecord::new(self.bulk.split(&self.head))
    }
}

impl Drop for CallRecord<'_> {
    fn drop(&mut self) {
        if self.head.capacity() <= HEAD_CAPACITY_MAX {
            HEAD.set(std::mem::take(&mut self.head));
        }
    }
}

/// The address of the connections that are established. Removes the others.
fn established_peer(connections: &mut Vec<Weak<ClientConnection>>) -> Option<SocketAddr> {
    let peer = |connection: &Weak<ClientConnection>| connection.upgrade()?.established_peer();
    connections.retain(|connection| peer(connection).is_some());
    connections.iter().find_map(peer)
}

fn register<'a>(interrupt: &'a Interrupt, waiter: &Arc<CallWaiter>) -> WakerRegistration<'a> {
    let waiter: Arc<dyn Wake> = Arc::<CallWaiter>::clone(waiter);
    interrupt.register(waiter)
}

impl Drop for TcpTransport {
    fn drop(&mut self) {
        self.close();
    }
}

impl TcpTransportInner {
    /// Creates a connection from a connected socket.
    ///
    /// # Errors
    /// There are connections to another address, which were made at the same time.
    pub(super) fn adopt(&self, socket: OwnedFd) -> io::Result<Arc<ClientConnection>> {
        let mut connections = self.connections.lock();
        let (activity, pool) = (Arc::clone(&self.activity), Arc::clone(&self.pool));
        let keep_alive = KeepAlive::of(&self.options);
        let connection = ClientConnection::new(socket, activity, pool, self.options.reply_max, keep_alive)?;
        let others = established_peer(&mut connections).map(|peer| peer.ip());
        if others.is_some() && connection.peer().map(|peer| peer.ip()) != others {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "other connections have another address"));
        }
        let connection = Arc::new(connection);
        if let Some(handler) = &self.options.callbacks {
            connection.serve_callbacks(handler.clone())?;
        }
        connections.push(Arc::downgrade(&connection));
        Ok(connection)
    }

    /// The address to which there are connections.
    pub(super) fn peer(&self) -> Option<SocketAddr> {
        established_peer(&mut self.connections.lock())
    }

    /// The xid of a new call.
    pub(super) fn next_xid(&self) -> u32 {
        // Relaxed: a call only needs a unique number.
        self.xid.fetch_add(1, Ordering::Relaxed)
    }

    /// The program and version of the first call.
    pub(super) fn program(&self) -> Option<(u32, u32)> {
        self.program.get().copied()
    }

    pub(super) fn timed_out(&self) -> CallError {
        CallError::TimedOut { softerr: self.options.recovery == RecoveryMode::SoftErr }
    }
}
