//! Which processes and paths cause requests, counted while somebody asks for it.
//!
//! A daemon counts nothing of this until it is asked, and stops when it has not been asked for
//! [`COUNT_AFTER_REQUEST`]. The tables are bounded: of many processes or paths those with most
//! requests are kept, and each count comes with its largest possible error.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use curt_trace::heavy_hitters::{CountEstimate, HeavyHitters};
use curt_trace::scope::RequestScope;
use curt_trace::watch::{Watcher, Watchers};
use curt_trace::{ClientCounter, Operation};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// How long counting goes on after the last question.
const COUNT_AFTER_REQUEST: Duration = Duration::from_secs(10);

/// Processes and objects in each part of the tables.
const TABLE: usize = 256;

/// Parts of the tables: threads that send at the same time seldom meet in one.
const SHARDS: usize = 8;

/// A process or a path, and the requests that it has caused since counting began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestOrigin {
    /// What it is: `PID NAME`, or a path.
    pub name: String,
    /// Requests at most.
    pub requests: u64,
    /// At most this many of them belong to others.
    pub error: u64,
}

/// What has been counted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RequestOrigins {
    /// Since when, in seconds before now.
    pub seconds: f64,
    /// By process.
    pub processes: Vec<RequestOrigin>,
    /// By path.
    pub paths: Vec<RequestOrigin>,
}

/// Counts for as long as somebody asks.
#[derive(Debug, Default)]
pub struct RequestOriginCounter {
    now: Arc<Mutex<Option<RequestOriginWatch>>>,
}

#[derive(Debug)]
struct RequestOriginWatch {
    tables: Arc<RequestOriginTables>,
    since: Instant,
    asked: Instant,
}

#[derive(Debug)]
struct RequestOriginTables {
    parts: Vec<Mutex<RequestOriginShard>>,
}

#[derive(Debug)]
struct RequestOriginShard {
    /// By thread, with its process.
    processes: HeavyHitters<u32, ProcessName>,
    objects: HeavyHitters<u64, ()>,
}

/// A process by its number and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ProcessName {
    pid: u32,
    name: String,
}

impl RequestOriginCounter {
    /// The counts so far; counting starts with the first question. `path` returns an object's path
    /// as far as it is known.
    ///
    /// # Errors
    /// Why it cannot be counted.
    pub fn sample(
        &self,
        watchers: &Arc<Watchers>,
        path: impl Fn(u64) -> Option<Vec<u8>>,
    ) -> Result<RequestOrigins, String> {
        let mut now = self.now.lock();
        let watch = match &mut *now {
            Some(watch) => watch,
            none => none.insert(self.begin(watchers)?),
        };
        watch.asked = Instant::now();
        let (tables, since) = (Arc::clone(&watch.tables), watch.since);
        drop(now);
        Ok(RequestOrigins {
            seconds: since.elapsed().as_secs_f64(),
            ..tables.causers(path)
        })
    }

    fn begin(&self, watchers: &Arc<Watchers>) -> Result<RequestOriginWatch, String> {
        let part = || {
            Mutex::new(RequestOriginShard {
                processes: HeavyHitters::new(TABLE),
                objects: HeavyHitters::new(TABLE),
            })
        };
        let tables = Arc::new(RequestOriginTables {
            parts: (0..SHARDS).map(|_| part()).collect(),
        });
        let watcher: Arc<dyn Watcher> = Arc::<RequestOriginTables>::clone(&tables);
        if !watchers.add(Arc::clone(&watcher)) {
            return Err("this mount has too many watchers already".to_owned());
        }
        let (now, watchers) = (Arc::clone(&self.now), Arc::clone(watchers));
        let ending = thread::Builder::new()
            .name("watching".to_owned())
            .stack_size(256 * 1024);
        let ended = Arc::clone(&watcher);
        let registered = Arc::clone(&watchers);
        let thread = ending.spawn(move || {
            loop {
                thread::sleep(COUNT_AFTER_REQUEST / 4);
                let mut now = now.lock();
                if now
                    .as_ref()
                    .is_none_or(|watch| watch.asked.elapsed() >= COUNT_AFTER_REQUEST)
                {
                    *now = None;
                    break;
                }
            }
            registered.remove(&ended);
        });
        if let Err(error) = thread {
            watchers.remove(&watcher);
            return Err(format!("no thread to watch with: {error}"));
        }
        let now = Instant::now();
        Ok(RequestOriginWatch {
            tables,
            since: now,
            asked: now,
        })
    }
}

impl Watcher for RequestOriginTables {
    fn sent(&self, _: Operation, scope: &RequestScope) {
        // One thread's requests, and those made for it elsewhere, are counted in one part: their
        // counts need no adding up.
        let part = &self.parts[scope.process as usize % SHARDS];
        let mut part = part.lock();
        part.processes
            .count(scope.process, || ProcessName::of(scope.process));
        part.objects.count(scope.object, || ());
    }

    fn counted(&self, _: ClientCounter, _: &RequestScope) {}
}

impl RequestOriginTables {
    fn causers(&self, path: impl Fn(u64) -> Option<Vec<u8>>) -> RequestOrigins {
        let mut processes: BTreeMap<ProcessName, CountEstimate> = BTreeMap::new();
        let mut objects: BTreeMap<u64, CountEstimate> = BTreeMap::new();
        for part in &self.parts {
            let part = part.lock();
            for (_, count, process) in part.processes.iter() {
                add(processes.entry(process.clone()).or_default(), count);
            }
            for (object, count, ()) in part.objects.iter() {
                add(objects.entry(*object).or_default(), count);
            }
        }
        let processes = processes.into_iter().map(|(process, count)| {
            let name = match process.pid {
                0 => "(the mount itself)".to_owned(),
                pid => format!("{pid} {}", process.name),
            };
            causer(name, count)
        });
        // Paths are looked up when no table is locked.
        let mut by_path: BTreeMap<String, CountEstimate> = BTreeMap::new();
        for (object, count) in objects {
            let name = match (object, path(object)) {
                (0, _) => "(no file)".to_owned(),
                (_, Some(path)) => path.escape_ascii().to_string(),
                (_, None) => "(forgotten)".to_owned(),
            };
            add(by_path.entry(name).or_default(), count);
        }
        RequestOrigins {
            seconds: 0.0,
            processes: heaviest(processes.collect()),
            paths: heaviest(
                by_path
                    .into_iter()
                    .map(|(name, count)| causer(name, count))
                    .collect(),
            ),
        }
    }
}

fn add(sum: &mut CountEstimate, count: CountEstimate) {
    sum.count += count.count;
    sum.error += count.error;
}

fn causer(name: String, count: CountEstimate) -> RequestOrigin {
    RequestOrigin {
        name,
        requests: count.count,
        error: count.error,
    }
}

/// As many as a table has, those with the most requests first.
fn heaviest(mut causers: Vec<RequestOrigin>) -> Vec<RequestOrigin> {
    causers.sort_by(|one, other| {
        other
            .requests
            .cmp(&one.requests)
            .then_with(|| one.name.cmp(&other.name))
    });
    causers.truncate(TABLE);
    causers
}

impl ProcessName {
    /// The process of a thread, as /proc has it at this moment.
    fn of(thread: u32) -> Self {
        let status = match thread {
            0 => String::new(),
            _ => std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default(),
        };
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.map(str::trim)
        };
        Self {
            pid: field("Tgid:").and_then(|pid| pid.parse().ok()).unwrap_or(thread),
            name: field("Name:").unwrap_or("(ended)").to_owned(),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that fails may panic")]
mod tests {
    use curt_trace::scope;

    use super::*;

    #[test]
    fn what_is_sent_after_the_first_look_is_told_by_process_and_path() {
        let watchers = Arc::new(Watchers::default());
        let watching = RequestOriginCounter::default();
        let me = std::process::id();
        let ask = |process: u32, object: u64| {
            let _scope = scope::operation(process, object);
            watchers.sent(Operation::nfs_named("GETATTR").unwrap());
        };
        let path = |object: u64| (object == 5).then(|| b"/five\n".to_vec());
        ask(me, 5);
        assert_eq!(watching.sample(&watchers, path).unwrap().processes, []);
        (0..3).for_each(|_| ask(me, 5));
        ask(0, 6);
        ask(0, 0);
        let causers = watching.sample(&watchers, path).unwrap();
        let told = |causers: &[RequestOrigin]| -> Vec<(String, u64)> {
            causers
                .iter()
                .map(|causer| (causer.name.clone(), causer.requests))
                .collect()
        };
        let processes = told(&causers.processes);
        assert!(
            processes[0].0.starts_with(&format!("{me} ")) && processes[0].1 == 3,
            "{processes:?}"
        );
        assert_eq!(processes[1], ("(the mount itself)".to_owned(), 2));
        let paths = told(&causers.paths);
        assert_eq!(paths[0], ("/five\\n".to_owned(), 3));
        assert_eq!(
            paths[1..],
            [("(forgotten)".to_owned(), 1), ("(no file)".to_owned(), 1)]
        );
        assert!(causers.seconds >= 0.0);
    }
}
