//! The processes and paths that cause requests, counted on demand.
//!
//! A daemon counts nothing of this before the first command, and stops [`COUNT_AFTER_REQUEST`]
//! after the last one. The tables are bounded: of many processes or paths those with most requests
//! remain, and each count has its maximum error.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::heavy_hitters::{CountEstimate, HeavyHitters};
use crate::scope::RequestScope;
use crate::watch::{Watcher, Watchers};
use crate::{ClientCounter, Operation};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::process_tree::{ProcStatus, ProcessName};

/// Time for which counting continues after the last command.
const COUNT_AFTER_REQUEST: Duration = Duration::from_secs(10);

/// Number of processes and objects in each shard of the tables.
const TABLE: usize = 256;

/// Number of shards of the tables: concurrent threads seldom share one.
const SHARDS: usize = 8;

/// A process or a path, and the requests that it has caused since counting began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestOrigin {
    /// `PID NAME`, or a path.
    pub name: String,
    /// Upper bound of the number of requests.
    pub requests: u64,
    /// At most this many of them belong to other processes or paths.
    pub error: u64,
}

/// The counts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RequestOrigins {
    /// Time since counting began, in seconds.
    pub seconds: f64,
    /// By process.
    pub processes: Vec<RequestOrigin>,
    /// By path.
    pub paths: Vec<RequestOrigin>,
}

/// Counts while commands for it arrive.
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

impl RequestOriginCounter {
    /// The counts so far; counting starts with the first call. `path` returns an object's path, if
    /// known.
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
        Ok(RequestOrigins { seconds: since.elapsed().as_secs_f64(), ..tables.origins(path) })
    }

    fn begin(&self, watchers: &Arc<Watchers>) -> Result<RequestOriginWatch, String> {
        let part = || {
            Mutex::new(RequestOriginShard {
                processes: HeavyHitters::new(TABLE),
                objects: HeavyHitters::new(TABLE),
            })
        };
        let tables = Arc::new(RequestOriginTables { parts: (0..SHARDS).map(|_| part()).collect() });
        let watcher: Arc<dyn Watcher> = Arc::<RequestOriginTables>::clone(&tables);
        if !watchers.add(Arc::clone(&watcher)) {
            return Err("this mount has too many watchers already".to_owned());
        }
        let (now, watchers) = (Arc::clone(&self.now), Arc::clone(watchers));
        let ending = thread::Builder::new().name("watching".to_owned()).stack_size(256 * 1024);
        let ended = Arc::clone(&watcher);
        let registered = Arc::clone(&watchers);
        let thread = ending.spawn(move || {
            loop {
                thread::sleep(COUNT_AFTER_REQUEST / 4);
                let mut now = now.lock();
                if now.as_ref().is_none_or(|watch| watch.asked.elapsed() >= COUNT_AFTER_REQUEST) {
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
        Ok(RequestOriginWatch { tables, since: now, asked: now })
    }
}

impl Watcher for RequestOriginTables {
    fn sent(&self, _: Operation, scope: &RequestScope) {
        // Requests of one thread, and background requests for it, are counted in one shard: their
        // counts need not be added.
        let part = &self.parts[scope.process as usize % SHARDS];
        let mut part = part.lock();
        part.processes.count(scope.process, || process_of(scope.process));
        part.objects.count(scope.object, || ());
    }

    fn counted(&self, _: ClientCounter, _: &RequestScope) {}
}

impl RequestOriginTables {
    fn origins(&self, path: impl Fn(u64) -> Option<Vec<u8>>) -> RequestOrigins {
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
        // Paths are looked up while no table is locked.
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
            paths: heaviest(by_path.into_iter().map(|(name, count)| causer(name, count)).collect()),
        }
    }
}

fn add(sum: &mut CountEstimate, count: CountEstimate) {
    sum.count += count.count;
    sum.error += count.error;
}

fn causer(name: String, count: CountEstimate) -> RequestOrigin {
    RequestOrigin { name, requests: count.count, error: count.error }
}

/// At most as many as a table has, those with most requests first.
fn heaviest(mut origins: Vec<RequestOrigin>) -> Vec<RequestOrigin> {
    origins.sort_by(|one, other| other.requests.cmp(&one.requests).then_with(|| one.name.cmp(&other.name)));
    origins.truncate(TABLE);
    origins
}

/// The process of a thread, from /proc.
fn process_of(thread: u32) -> ProcessName {
    ProcStatus::of(thread)
        .map_or_else(|| ProcessName { pid: thread, name: "(ended)".to_owned() }, |status| status.process)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that fails may panic")]
mod tests {
    use crate::scope;

    use super::*;

    #[test]
    fn requests_after_the_first_report_are_listed_by_process_and_path() {
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
        let origins = watching.sample(&watchers, path).unwrap();
        let rows = |origins: &[RequestOrigin]| -> Vec<(String, u64)> {
            origins.iter().map(|causer| (causer.name.clone(), causer.requests)).collect()
        };
        let processes = rows(&origins.processes);
        assert!(processes[0].0.starts_with(&format!("{me} ")) && processes[0].1 == 3, "{processes:?}");
        assert_eq!(processes[1], ("(the mount itself)".to_owned(), 2));
        let paths = rows(&origins.paths);
        assert_eq!(paths[0], ("/five\\n".to_owned(), 3));
        assert_eq!(paths[1..], [("(forgotten)".to_owned(), 1), ("(no file)".to_owned(), 1)]);
        assert!(origins.seconds >= 0.0);
    }
}
