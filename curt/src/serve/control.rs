//! A server's control socket: statistics, times of stages, and one request as a call graph.
//!
//! `PID.server` in the directory of the sockets of mounts. Only the server's user and root may use
//! it, because it shows the clients' requests.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use curt_observe::control::{
    self, ClientRow, ControlCommands, ControlError, ControlSocket, DrawGraph, ExpireClient, ReportClients,
    ReportServer, ReportServerLocks, ServerLockRow, ServerLocksReport, SetStages,
};
pub(crate) use curt_observe::control::{FILE_CACHE_MOMENTS, ServerReport};
use curt_observe::events::{RecordedProcess, time_of_day_offset};
use curt_observe::stages::{CallGraph, StageTimes};
use curt_observe::{Operation, ServerCounters};
use curt_rpc::server::RpcServerHandle;
use curt_server::locks::{HeldLock, LockClient};
use curt_server::{ClientLock, ClientState, NfsService, ServerLockReport};

/// Suffix of a server's socket.
const ENDING: &str = "server";
/// Timeout of a graph: shorter than that of the client of the control socket.
const GRAPH_TIMEOUT: Duration = Duration::from_secs(8);

/// Maximum number of locks in a report.
const LOCK_ROWS_MAX: usize = 10_000;

/// The state that a control socket reports.
#[derive(Clone)]
pub(super) struct ServerControl {
    service: Arc<NfsService>,
    counters: Arc<ServerCounters>,
    state: Option<PathBuf>,
    since: Instant,
    /// The RPC server, once it exists.
    connections: Arc<OnceLock<RpcServerHandle>>,
}

/// Opens the control socket. If this fails, the error is logged and the server runs without one.
pub(super) fn listen(control: ServerControl) -> Option<ControlSocket> {
    let path = control::directory().join(format!("{}.{ENDING}", std::process::id()));
    let commands = ControlCommands::new(Arc::new(control), |server| origin(&server.service), |_, _| None)
        .on(|server, _, _: ReportServer| Ok(Box::new(server.report())))
        .on(|server, _, command: ReportServerLocks| Ok(server.locks(command.rows)))
        .on(|server, _, command: SetStages| {
            server.counters.stages.clear();
            server.counters.stages.set_every(command.every);
            Ok(())
        })
        .on(|server, _, _: ReportClients| Ok(server.clients()))
        .on(|server, _, ExpireClient { id }| {
            let found = server.service.expire_client(id);
            found.then_some(()).ok_or_else(|| ControlError::Refused(format!("no client has the id {id:#x}")))
        })
        .on(|server, _, command: DrawGraph| server.graph(&command.procedure));
    let listening = commands.listen(path.clone());
    listening
        .inspect_err(|error| {
            let path = path.display();
            tracing::warn!("cannot listen on {path}: {error}; 'curt stat --server' cannot find this server");
        })
        .ok()
}

/// The origin of this process's events.
pub(super) fn origin(service: &NfsService) -> RecordedProcess {
    RecordedProcess {
        curt: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        program: "serve".to_owned(),
        subject: service.export_paths().join(", "),
        time_of_day_offset: time_of_day_offset(),
    }
}

impl ServerControl {
    /// The state of a server that starts now.
    pub(super) fn new(
        service: &Arc<NfsService>,
        counters: &Arc<ServerCounters>,
        state: Option<PathBuf>,
    ) -> Self {
        Self {
            service: Arc::clone(service),
            counters: Arc::clone(counters),
            state: state.and_then(|state| std::fs::canonicalize(state).ok()),
            since: Instant::now(),
            connections: Arc::default(),
        }
    }

    /// Sets the RPC server.
    pub(super) fn set_connections(&self, handle: RpcServerHandle) {
        let first = self.connections.set(handle);
        debug_assert!(first.is_ok(), "a server has its connections in one place");
    }

    /// The times of stages.
    pub(super) fn stages(&self) -> &StageTimes {
        &self.counters.stages
    }

    /// The current report.
    pub(super) fn report(&self) -> ServerReport {
        let file_cache = self.service.file_cache().unwrap_or_default();
        ServerReport {
            pid: std::process::id(),
            curt: env!("CARGO_PKG_VERSION").to_owned(),
            age_seconds: self.since.elapsed().as_secs_f64(),
            state: self.state.clone(),
            exports: self.service.export_paths(),
            counters: self.counters.snapshot(),
            file_cache: file_cache
                .lines()
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
            file_cache_misses: file_cache.misses,
            stages: self.counters.stages.report(),
            lock_calls: self.counters.calls.lock_calls(),
            limits: self
                .connections
                .get()
                .into_iter()
                .flat_map(RpcServerHandle::limits_met)
                .map(|(limit, times)| (limit.name().to_owned(), times))
                .collect(),
        }
    }

    fn clients(&self) -> Vec<ClientRow> {
        let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        let row = |client: ClientState| ClientRow {
            id: client.id,
            name: client.name,
            implementation: client.implementation,
            address: client.address.to_string(),
            confirmed: client.confirmed,
            idle_seconds: client.idle.as_secs_f64(),
            sessions: count(client.sessions),
            opens: count(client.opens),
            locks: count(client.locks),
            delegations: count(client.delegations),
        };
        self.service.clients().into_iter().map(row).collect()
    }

    fn locks(&self, rows: usize) -> ServerLocksReport {
        let ServerLockReport { counts, locks } = self.service.client_locks(rows.min(LOCK_ROWS_MAX));
        ServerLocksReport {
            pid: std::process::id(),
            exports: self.service.export_paths(),
            is_in_grace: self.service.is_in_grace(),
            counts: counts.named().into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
            locks: locks.into_iter().map(lock_row).collect(),
        }
    }

    fn graph(&self, procedure: &str) -> Result<CallGraph, ControlError> {
        let operation = Operation::nfs_named(procedure)
            .ok_or_else(|| ControlError::Refused(format!("{procedure} is not a procedure of NFSv3")))?;
        self.counters.stages.next_graph(operation, GRAPH_TIMEOUT).ok_or_else(|| {
            let (name, seconds) = (operation.name(), GRAPH_TIMEOUT.as_secs());
            ControlError::Refused(format!("no {name} arrived within {seconds} s"))
        })
    }
}

fn lock_row(row: ClientLock) -> ServerLockRow {
    let ClientLock { export, fileid, lock: HeldLock { lock, waits } } = row;
    ServerLockRow {
        export: export.unwrap_or_default(),
        fileid,
        client: match lock.client {
            LockClient::Host(address) => address.to_string(),
            LockClient::Clientid(id) => format!("clientid {id:016x}"),
            LockClient::Local => "this machine".to_owned(),
        },
        process: lock.process,
        first: lock.range.first(),
        last: Some(lock.range.last()).filter(|last| *last != u64::MAX),
        is_write: lock.is_write(),
        is_held: !waits,
    }
}

/// Selects a server: by a process id, or a state directory. A directory whose name is a number is
/// written `./NUMBER`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ServerSelector {
    /// The only server.
    Any,
    Process(u32),
    State(PathBuf),
}

impl From<&str> for ServerSelector {
    fn from(text: &str) -> Self {
        match text.parse() {
            Ok(pid) => Self::Process(pid),
            Err(_) if text.is_empty() => Self::Any,
            Err(_) => Self::State(text.into()),
        }
    }
}

/// The socket and the report of the selected server.
pub(crate) fn find(which: &ServerSelector) -> Result<(PathBuf, Box<ServerReport>)> {
    let mut servers = control::call_all(&control::directory(), ENDING, &ReportServer {})?;
    let state = match which {
        ServerSelector::State(state) => {
            Some(std::fs::canonicalize(state).with_context(|| state.display().to_string())?)
        }
        ServerSelector::Any | ServerSelector::Process(_) => None,
    };
    let all: Vec<_> = servers.iter().map(|(_, report)| report.pid.to_string()).collect();
    let all = all.join(", ");
    servers.retain(|(_, report)| match which {
        ServerSelector::Any => true,
        ServerSelector::Process(pid) => report.pid == *pid,
        ServerSelector::State(_) => report.state == state,
    });
    match (servers.pop(), servers.as_slice()) {
        (Some(server), []) => Ok(server),
        (None, _) if all.is_empty() => bail!("no server of this user is running"),
        (None, _) => bail!("no such server of this user is running; the running ones, by process id: {all}"),
        (Some(_), _) => bail!("choose a server by its process id: {all}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_a_process_and_anything_else_a_directory() {
        assert_eq!(ServerSelector::from(""), ServerSelector::Any);
        assert_eq!(ServerSelector::from("12"), ServerSelector::Process(12));
        assert_eq!(ServerSelector::from("./12"), ServerSelector::State("./12".into()));
        assert_eq!(ServerSelector::from("/var/lib/curt"), ServerSelector::State("/var/lib/curt".into()));
    }
}
