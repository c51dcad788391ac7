//! A server's control socket: what it did, where its time goes, and one request as a call graph.
//!
//! `PID.server` beside the sockets of mounts, for the server's own user and root alone: what
//! clients ask for is nobody else's business. A question is one line of JSON, so is its answer.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use curt_mount::control::{self, ControlError, ControlSocket, EventStream, ReplyThenEvents};
use curt_rpc::server::RpcServerHandle;
use curt_server::NfsService;
use curt_trace::events::{RecordedProcess, time_of_day_offset};
use curt_trace::stages::{CallGraph, StageReport, StageTimes};
use curt_trace::{PROCEDURES, ServerCounters, ServerSnapshot};
use serde::{Deserialize, Serialize};

/// The ending of a server's socket.
const ENDING: &str = "server";
/// How long a graph is waited for: less than who asks waits for the answer.
const GRAPH_TIMEOUT: Duration = Duration::from_secs(8);

/// What a server is asked.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "ask")]
pub(crate) enum ServerControlRequest {
    /// What did you do?
    Report,
    /// Measure one request of so many from now on; 0: none. What was measured is forgotten.
    Stages { every: u32 },
    /// What does the next request of this procedure do?
    Graph { procedure: String },
    /// Tell me of events until I close the connection: those whose names fit these patterns.
    Events { patterns: String },
}

/// What it answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ServerControlReply {
    /// To [`ServerControlRequest::Report`].
    Report(Box<ServerReport>),
    /// To [`ServerControlRequest::Stages`]: one of so many is measured now.
    Stages(u32),
    /// To [`ServerControlRequest::CallGraph`].
    Graph(CallGraph),
    /// To [`ServerControlRequest::Events`]: a recording follows.
    Events,
    /// It cannot be done; why, and what to do.
    Refused(String),
}

/// A server, and what it did since it began.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ServerReport {
    /// Process id.
    pub(crate) pid: u32,
    /// Version of Curt.
    pub(crate) curt: String,
    /// How long it serves, in seconds.
    pub(crate) age_seconds: f64,
    /// Where it keeps what outlives it.
    pub(crate) state: Option<PathBuf>,
    /// Paths of what it exports.
    pub(crate) exports: Vec<String>,
    /// What was asked and remembered.
    pub(crate) counters: ServerSnapshot,
    /// Linux's nine lines of its file cache, all exports together.
    pub(crate) file_cache: BTreeMap<String, u64>,
    /// How often a file was not open yet.
    pub(crate) file_cache_misses: u64,
    /// Where the time went.
    pub(crate) stages: StageReport,
    /// How often each limit was met, by the option that sets it.
    #[serde(default)]
    pub(crate) limits: BTreeMap<String, u64>,
}

/// The lines of the file cache that tell of a moment; the others are sums.
pub(crate) const FILE_CACHE_MOMENTS: [&str; 4] =
    ["total inodes", "hash buckets", "lru entries", "mean age (ms)"];

impl ServerReport {
    /// What was done between `earlier` and this: sums are differences, and the age is the time
    /// between. What is no sum, and the times of stages, are as they are now.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let limits = self.limits.iter().map(|(name, now)| {
            let then = earlier.limits.get(name).copied().unwrap_or(0);
            (name.clone(), now.saturating_sub(then))
        });
        let file_cache = self.file_cache.iter().map(|(name, now)| {
            let then = earlier.file_cache.get(name).copied().unwrap_or(0);
            let then = if FILE_CACHE_MOMENTS.contains(&name.as_str()) {
                0
            } else {
                then
            };
            (name.clone(), now.saturating_sub(then))
        });
        Self {
            age_seconds: (self.age_seconds - earlier.age_seconds).max(0.0),
            counters: self.counters.since(&earlier.counters),
            file_cache: file_cache.collect(),
            limits: limits.collect(),
            file_cache_misses: self.file_cache_misses.saturating_sub(earlier.file_cache_misses),
            ..self.clone()
        }
    }
}

/// What a control socket speaks for.
#[derive(Clone)]
pub(super) struct ServerControl {
    service: Arc<NfsService>,
    counters: Arc<ServerCounters>,
    state: Option<PathBuf>,
    since: Instant,
    /// Where the connections are, once there can be any.
    connections: Arc<OnceLock<RpcServerHandle>>,
}

/// Opens the control socket. A server without one serves as well: why there is none is logged.
pub(super) fn listen(speaker: ServerControl) -> Option<ControlSocket> {
    let path = control::directory().join(format!("{}.{ENDING}", std::process::id()));
    let listening = control::listen_at(path.clone(), move |line, _| speaker.answer(line));
    listening
        .inspect_err(|error| {
            let path = path.display();
            tracing::warn!(
                "'curt stat --server' will not find this server: {path} cannot be listened on: {error}"
            );
        })
        .ok()
}

/// Whose events they are that this process tells of.
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
    /// Speaks for a server that begins now.
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

    /// Tells where the connections are of whom it speaks for.
    pub(super) fn set_connections(&self, handle: RpcServerHandle) {
        let first = self.connections.set(handle);
        debug_assert!(first.is_ok(), "a server has its connections in one place");
    }

    /// Where the time of its requests goes.
    pub(super) fn stages(&self) -> &StageTimes {
        &self.counters.stages
    }

    fn answer(&self, line: &str) -> ReplyThenEvents<ServerControlReply> {
        match serde_json::from_str(line) {
            Ok(ServerControlRequest::Report) => ServerControlReply::Report(Box::new(self.report())).into(),
            Ok(ServerControlRequest::Stages { every }) => {
                self.counters.stages.clear();
                self.counters.stages.set_every(every);
                ServerControlReply::Stages(every).into()
            }
            Ok(ServerControlRequest::Graph { procedure }) => self.graph(&procedure).into(),
            Ok(ServerControlRequest::Events { patterns }) => {
                match EventStream::begin(&patterns, origin(&self.service), Box::new(|_| None)) {
                    Ok(live) => ReplyThenEvents {
                        answer: ServerControlReply::Events,
                        events: Some(live),
                    },
                    Err(why) => ServerControlReply::Refused(why).into(),
                }
            }
            Err(error) => {
                ServerControlReply::Refused(format!("the question is not understood: {error}")).into()
            }
        }
    }

    /// What it did so far.
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
            limits: self
                .connections
                .get()
                .into_iter()
                .flat_map(RpcServerHandle::limits_met)
                .map(|(limit, times)| (limit.name().to_owned(), times))
                .collect(),
        }
    }

    fn graph(&self, procedure: &str) -> ServerControlReply {
        let number = PROCEDURES
            .iter()
            .zip(0_u32..)
            .find(|(name, _)| name.eq_ignore_ascii_case(procedure));
        let Some((name, number)) = number else {
            return ServerControlReply::Refused(format!("{procedure} is no procedure of NFSv3"));
        };
        match self.counters.stages.next_graph(number, GRAPH_TIMEOUT) {
            Some(graph) => ServerControlReply::Graph(graph),
            None => ServerControlReply::Refused(format!(
                "nobody asked for a {name} within {} s",
                GRAPH_TIMEOUT.as_secs()
            )),
        }
    }
}

/// Which server is meant: a process id, or a state directory. A directory that is called like a
/// number is `./NUMBER`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ServerSelector {
    /// The only one.
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

/// The socket and the report of the server that is meant.
pub(crate) fn find(which: &ServerSelector) -> Result<(PathBuf, ServerReport)> {
    let mut servers = list(&control::directory())?;
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
        (None, _) if all.is_empty() => bail!("no server of this user runs here"),
        (None, _) => bail!("no such server of this user runs here; by their process ids these do: {all}"),
        (Some(_), _) => bail!("say which server, by its process id: {all}"),
    }
}

fn list(directory: &Path) -> io::Result<Vec<(PathBuf, ServerReport)>> {
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    // Below /tmp anybody can make a directory of that name.
    control::check_owner(directory)?;
    let mut servers = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != ENDING) {
            continue;
        }
        match control::exchange(&path, &ServerControlRequest::Report) {
            Ok(ServerControlReply::Report(report)) => servers.push((path, *report)),
            Err(ControlError::Io(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                // It was killed; somebody else may have removed it already.
                let _ = std::fs::remove_file(&path);
            }
            Ok(_) | Err(_) => {}
        }
    }
    Ok(servers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_a_process_and_anything_else_a_directory() {
        assert_eq!(ServerSelector::from(""), ServerSelector::Any);
        assert_eq!(ServerSelector::from("12"), ServerSelector::Process(12));
        assert_eq!(ServerSelector::from("./12"), ServerSelector::State("./12".into()));
        assert_eq!(
            ServerSelector::from("/var/lib/curt"),
            ServerSelector::State("/var/lib/curt".into())
        );
    }

    #[test]
    fn questions_and_answers_are_lines_of_json() {
        let question = serde_json::to_string(&ServerControlRequest::Graph {
            procedure: "WRITE".to_owned(),
        });
        assert_eq!(
            question.unwrap_or_default(),
            r#"{"ask":"graph","procedure":"WRITE"}"#
        );
        let answer = serde_json::to_string(&ServerControlReply::Stages(16)).unwrap_or_default();
        assert_eq!(answer, r#"{"stages":16}"#);
    }
}
