//! A cache of name services' answers about clients and users, filled by its own threads.
//!
//! A name service may take seconds, or never answer, so a serving thread never queries one. It uses
//! the cached answer. On a miss it queues the query and waits, without a lock, for a bounded time.
//! Every [`REFRESH`], answers that were used are queried again and the others are dropped; then the
//! generation of all decisions changes, so that they are made again. A negative answer is an
//! answer, too. While the responsible name service does not answer, its last answer stays valid, so
//! that clients do not lose their mounts because a name server is down. If there is no last answer,
//! the query is repeated when it is needed, at most every [`RETRY`].

mod queue;
mod service;
#[cfg(test)]
pub(super) use service::tests as tests_service;

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use curt_rpc::clock::TimeSource;
use parking_lot::{Condvar, Mutex, MutexGuard};

use queue::QueryQueue;
pub use service::{NameService, SystemNames};
pub(super) use service::{checked_name, is_member};

/// Time after which an answer is queried again.
const REFRESH: Duration = Duration::from_secs(60);
/// Minimum time between two attempts of a query without an answer.
const RETRY: Duration = Duration::from_secs(2);
/// Number of queries in progress at once; if all of them hang, others wait.
const WORKERS: usize = 24;
/// Maximum number of cached answers, and of queued queries.
const ANSWERS_MAX: usize = 16_384;

/// A query to a name service.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum NameQuery {
    /// The addresses of a host.
    Addresses(Box<str>),
    /// The name of an address, if that name resolves to the address.
    Name(IpAddr),
    /// Whether a netgroup contains a machine.
    Member(Box<str>, IpAddr),
    /// A user's groups.
    Groups(u32),
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
enum NameAnswer {
    Addresses(Arc<[IpAddr]>),
    Name(Option<Arc<str>>),
    Member(bool),
    Groups(Option<Arc<[u32]>>),
}

/// A cached answer.
struct CachedAnswer {
    answer: NameAnswer,
    /// Whether it was used since the last query.
    used: bool,
}

/// Answers and queries. The lock is never held during a query.
#[derive(Default)]
struct NameServiceCacheState {
    cached: HashMap<NameQuery, CachedAnswer>,
    queue: QueryQueue,
    /// Queries in the queue or in progress.
    pending: HashSet<NameQuery>,
    /// Queries that no service answered, and when.
    unanswered: HashMap<NameQuery, Instant>,
    started: bool,
    closing: bool,
}

struct NameServiceCacheInner {
    service: Box<dyn NameService>,
    state: Mutex<NameServiceCacheState>,
    /// The workers wait on it.
    work: Condvar,
    /// Threads that need an answer wait on it.
    answered: Condvar,
    /// The refresh thread waits on it.
    closing: Condvar,
    /// The generation of all decisions; see [`super::ExportsTable`].
    generation: Arc<AtomicU64>,
    clock: TimeSource,
}

/// The cache.
pub(crate) struct NameServiceCache(Arc<NameServiceCacheInner>);

impl NameServiceCache {
    pub(super) fn new(service: Box<dyn NameService>, generation: Arc<AtomicU64>, clock: TimeSource) -> Self {
        Self(Arc::new(NameServiceCacheInner {
            service,
            state: Mutex::default(),
            work: Condvar::new(),
            answered: Condvar::new(),
            closing: Condvar::new(),
            generation,
            clock,
        }))
    }

    /// Starts the threads that query, unless they run. A serving thread must not call it: the new
    /// threads would inherit its identity and capabilities, which are not sufficient for name
    /// services.
    pub(super) fn start(&self) -> std::io::Result<()> {
        if std::mem::replace(&mut self.0.state.lock().started, true) {
            return Ok(());
        }
        let spawn = |run: fn(&NameServiceCacheInner)| {
            let shared = Arc::clone(&self.0);
            std::thread::Builder::new().name("curt-names".into()).spawn(move || run(&shared)).map(drop)
        };
        spawn(NameServiceCacheInner::refresh_loop)?;
        (0..WORKERS).try_for_each(|_| spawn(NameServiceCacheInner::work))
    }

    /// The addresses of a host. If they are not cached, queues the query and returns `None`.
    pub(super) fn addresses(&self, host: &str) -> Option<Arc<[IpAddr]>> {
        match self.0.cached(NameQuery::Addresses(host.into()))? {
            NameAnswer::Addresses(addresses) => Some(addresses),
            NameAnswer::Name(_) | NameAnswer::Member(_) | NameAnswer::Groups(_) => None,
        }
    }

    /// The name of a machine, in lower case. `None` if it is not cached, as in [`Self::addresses`].
    pub(super) fn name(&self, address: IpAddr) -> Option<Option<Arc<str>>> {
        match self.0.cached(NameQuery::Name(address))? {
            NameAnswer::Name(name) => Some(name),
            NameAnswer::Addresses(_) | NameAnswer::Member(_) | NameAnswer::Groups(_) => None,
        }
    }

    /// Whether a netgroup contains a machine. `None` if it is not cached, as in
    /// [`Self::addresses`].
    pub(super) fn member(&self, group: &str, address: IpAddr) -> Option<bool> {
        match self.0.cached(NameQuery::Member(group.into(), address))? {
            NameAnswer::Member(is) => Some(is),
            NameAnswer::Addresses(_) | NameAnswer::Name(_) | NameAnswer::Groups(_) => None,
        }
    }

    /// A user's groups, or that there is no such user. `None` if it is not cached, as in
    /// [`Self::addresses`].
    pub(crate) fn groups(&self, uid: u32) -> Option<Option<Arc<[u32]>>> {
        match self.0.cached(NameQuery::Groups(uid))? {
            NameAnswer::Groups(groups) => Some(groups),
            NameAnswer::Addresses(_) | NameAnswer::Name(_) | NameAnswer::Member(_) => None,
        }
    }

    /// Queries the addresses of these hosts and waits for them until `deadline`. From now on these
    /// stay cached even if unused; those of other hosts are dropped.
    pub(super) fn preload_hosts<'h>(&self, hosts: impl Iterator<Item = &'h str>, deadline: Instant) {
        let questions: HashSet<NameQuery> = hosts.map(|host| NameQuery::Addresses(host.into())).collect();
        let mut book = self.0.state.lock();
        book.cached.retain(|known, _| !matches!(known, NameQuery::Addresses(_)) || questions.contains(known));
        drop(book);
        for question in &questions {
            self.wait(question, deadline);
        }
    }

    /// Waits for the answer to a query until `deadline`, or until no service has answered. Returns
    /// whether there is an answer.
    pub(crate) fn wait(&self, question: &NameQuery, deadline: Instant) -> bool {
        let mut book = self.0.state.lock();
        loop {
            if book.cached.contains_key(question) {
                return true;
            }
            if !self.0.enqueue(&mut book, question.clone()) {
                return false;
            }
            let longest = self.0.clock.until(deadline);
            if !book.started || self.0.answered.wait_for(&mut book, longest).timed_out() {
                return book.cached.contains_key(question);
            }
        }
    }
}

impl Drop for NameServiceCache {
    fn drop(&mut self) {
        self.0.state.lock().closing = true;
        self.0.work.notify_all();
        self.0.closing.notify_all();
    }
}

impl NameServiceCacheInner {
    /// The cached answer; if there is none, queues the query.
    fn cached(&self, question: NameQuery) -> Option<NameAnswer> {
        let mut book = self.state.lock();
        if let Some(kept) = book.cached.get_mut(&question) {
            kept.used = true;
            return Some(kept.answer.clone());
        }
        self.enqueue(&mut book, question);
        None
    }

    /// Queues a query, if there is room for it. Returns `false` if no service answered it a moment
    /// ago, so that it is not repeated yet.
    fn enqueue(&self, book: &mut MutexGuard<'_, NameServiceCacheState>, question: NameQuery) -> bool {
        let asked = book.unanswered.get(&question);
        if asked.is_some_and(|asked| self.clock.since(*asked) < RETRY) {
            return false;
        }
        book.unanswered.remove(&question);
        if book.started && !book.pending.contains(&question) && book.queue.put(question.clone()) {
            book.pending.insert(question);
            self.work.notify_one();
        }
        true
    }

    /// The main function of a worker.
    fn work(&self) {
        let mut book = self.state.lock();
        while !book.closing {
            let Some(question) = book.queue.take() else {
                self.work.wait(&mut book);
                continue;
            };
            let answer = MutexGuard::unlocked(&mut book, || self.ask(&question));
            book.pending.remove(&question);
            book.queue.ended(&question);
            self.answered.notify_all();
            let had = book.cached.get(&question).map(|kept| kept.answer.clone());
            let Some(answer) = answer.or(had) else {
                if book.unanswered.len() >= ANSWERS_MAX {
                    book.unanswered.clear();
                }
                book.unanswered.insert(question, self.clock.now());
                continue;
            };
            if book.cached.len() >= ANSWERS_MAX && !book.cached.contains_key(&question) {
                // Drop another answer, so that the next use repeats the query. The decisions that
                // depend on it are made again.
                let other = book.cached.keys().next().cloned();
                other.map(|other| book.cached.remove(&other));
                self.generation.fetch_add(1, Ordering::Release);
            }
            // A refreshed answer has not been used since.
            let used = !book.cached.contains_key(&question);
            book.cached.insert(question, CachedAnswer { answer, used });
        }
    }

    /// Executes a query. None: no responsible service answered.
    fn ask(&self, question: &NameQuery) -> Option<NameAnswer> {
        let service = &*self.service;
        Some(match question {
            NameQuery::Addresses(host) => NameAnswer::Addresses(service.addresses(host)?.into()),
            NameQuery::Name(address) => NameAnswer::Name(checked_name(service, *address)?.map(Into::into)),
            NameQuery::Member(group, address) => NameAnswer::Member(is_member(service, group, *address)?),
            NameQuery::Groups(uid) => NameAnswer::Groups(service.groups(*uid)?.map(Into::into)),
        })
    }

    /// The main function of the refresh thread.
    fn refresh_loop(&self) {
        let mut book = self.state.lock();
        while !book.closing {
            self.closing.wait_while_for(&mut book, |book| !book.closing, REFRESH);
            if book.closing {
                return;
            }
            self.refresh(&mut book);
        }
    }

    /// Drops unused answers, queries the others again, and increments the generation.
    fn refresh(&self, book: &mut MutexGuard<'_, NameServiceCacheState>) {
        let of_the_table = |question: &NameQuery| matches!(question, NameQuery::Addresses(_));
        book.cached.retain(|question, kept| std::mem::take(&mut kept.used) || of_the_table(question));
        let questions: Vec<NameQuery> = book.cached.keys().cloned().collect();
        for question in questions {
            self.enqueue(book, question);
        }
        self.answered.wait_while_for(book, |book| !book.pending.is_empty(), REFRESH / 2);
        self.generation.fetch_add(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use std::sync::atomic::AtomicBool;

    use curt_rpc::clock::ScriptedTime;

    use super::service::tests::Scripted;
    use super::*;

    fn names(service: Scripted) -> (NameServiceCache, Arc<AtomicU64>) {
        let generation = Arc::new(AtomicU64::new(1));
        // Its time stands still.
        let clock = ScriptedTime::new().clock();
        let names = NameServiceCache::new(Box::new(service), Arc::clone(&generation), clock);
        names.start().unwrap();
        (names, generation)
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    fn wait(names: &NameServiceCache, question: NameQuery) -> Option<NameAnswer> {
        names.wait(&question, soon());
        names.0.cached(question)
    }

    #[test]
    fn positive_and_negative_answers_are_cached() {
        let service = Scripted::default().user(7, &[70, 71]);
        let asked = Arc::clone(&service.asked);
        let (names, _) = names(service);
        assert_eq!(names.groups(7), None, "nobody waits who did not say so");
        for _ in 0..3 {
            assert!(names.wait(&NameQuery::Groups(7), soon()) && names.wait(&NameQuery::Groups(8), soon()));
            assert_eq!(names.groups(7).unwrap().as_deref(), Some(&[70, 71][..]));
            assert_eq!(names.groups(8), Some(None));
        }
        assert_eq!(asked.load(Ordering::Relaxed), 2, "each question was put once");
    }

    // SEMANTICS: export-9.
    #[test]
    fn a_hanging_name_service_delays_only_requests_that_need_its_answer() {
        let mut service = Scripted::default().user(7, &[70]);
        let released = Arc::new(AtomicBool::new(false));
        let gate = Arc::clone(&released);
        service.before_name = Box::new(move || {
            while !gate.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let (names, _) = names(service);
        let slow = NameQuery::Name("10.0.0.1".parse().unwrap());
        assert!(!names.wait(&slow, Instant::now()));
        assert!(names.wait(&NameQuery::Groups(7), soon()));
        assert_eq!(names.0.cached(slow.clone()), None, "still unanswered");
        released.store(true, Ordering::Release);
        assert_eq!(wait(&names, slow), Some(NameAnswer::Name(None)));
    }

    #[test]
    fn nothing_is_waited_for_before_there_is_anybody_to_ask() {
        let names = NameServiceCache::new(Box::new(Scripted::default()), Arc::default(), TimeSource::System);
        assert!(!names.wait(&NameQuery::Groups(7), soon()));
    }

    #[test]
    fn a_refresh_drops_unused_answers_queries_the_others_and_changes_the_generation() {
        let service = Scripted::default().user(7, &[70]).user(8, &[80]);
        let (asked, users) = (Arc::clone(&service.asked), Arc::clone(&service.users));
        let (names, generation) = names(service);
        let renew = || {
            let shared = &names.0;
            shared.refresh(&mut shared.state.lock());
            (asked.load(Ordering::Relaxed), generation.load(Ordering::Relaxed))
        };
        let groups = |uid| wait(&names, NameQuery::Groups(uid)).unwrap();
        let are = |list: &[u32]| NameAnswer::Groups(Some(list.into()));
        assert_eq!((groups(7), groups(8)), (are(&[70]), are(&[80])));
        assert_eq!(renew(), (4, 2), "both were used, and are asked again");
        users.lock().insert(7, vec![71]);
        assert_eq!(groups(7), are(&[70]), "kept until the next renewal");
        assert_eq!(renew(), (5, 3), "8 was not used, and is forgotten");
        assert_eq!(groups(7), are(&[71]));
    }

    #[test]
    fn unused_hosts_of_the_current_table_stay_cached_and_those_of_an_old_table_do_not() {
        let service = Scripted::default().host("a", "10.0.0.1").host("b", "10.0.0.2");
        let (names, _) = names(service);
        names.preload_hosts(["a", "b", "none"].into_iter(), soon());
        let known = |host: &str| names.addresses(host).map(|addresses| addresses.len());
        assert_eq!((known("a"), known("b"), known("none")), (Some(1), Some(1), Some(0)));
        for _ in 0..2 {
            names.0.refresh(&mut names.0.state.lock());
        }
        assert_eq!(known("a"), Some(1));
        names.preload_hosts(["b"].into_iter(), soon());
        assert_eq!(known("b"), Some(1));
        assert_eq!(known("a"), None);
    }

    // SEMANTICS: export-10.
    #[test]
    fn without_a_reply_cached_answers_stay_and_other_queries_remain_open() {
        let service = Scripted::default().host("a", "10.0.0.1").user(7, &[70]).member("group", "a");
        let asked = Arc::clone(&service.asked);
        let silent = Arc::clone(&service.silent);
        let (names, _) = names(service);
        let hosts = || ["a", "b"].into_iter();
        names.preload_hosts(hosts(), soon());
        let known = |host: &str| names.addresses(host).map(|addresses| addresses.len());
        let [one, two]: [IpAddr; 2] = ["10.0.0.1", "10.0.0.2"].map(|address| address.parse().unwrap());
        let questions = |address, uid| {
            let member = NameQuery::Member("group".into(), address);
            [NameQuery::Name(address), member, NameQuery::Groups(uid)]
        };
        let answers = questions(one, 7).map(|question| wait(&names, question).unwrap());
        silent.store(true, Ordering::Relaxed);
        names.0.refresh(&mut names.0.state.lock());
        assert_eq!((known("a"), known("b")), (Some(1), Some(0)));
        assert_eq!(questions(one, 7).map(|question| wait(&names, question).unwrap()), answers);
        names.preload_hosts(["a", "c"].into_iter(), soon());
        assert_eq!(known("c"), None, "never known");
        let before = asked.load(Ordering::Relaxed);
        for question in questions(two, 8) {
            for _ in 0..3 {
                assert!(!names.wait(&question, soon()), "at once, and not for long");
            }
        }
        assert_eq!(asked.load(Ordering::Relaxed), before + 1, "not again and again");
        silent.store(false, Ordering::Relaxed);
        names.0.state.lock().unanswered.clear();
        let known = questions(two, 8).map(|question| wait(&names, question).unwrap());
        assert_eq!(known, [NameAnswer::Name(None), NameAnswer::Member(false), NameAnswer::Groups(None)]);
    }

    #[test]
    fn the_number_of_cached_answers_is_limited() {
        let (names, generation) = names(Scripted::default());
        let last = u32::try_from(ANSWERS_MAX).unwrap();
        for uid in 0..=last {
            assert!(names.wait(&NameQuery::Groups(uid), soon()));
        }
        assert_eq!(names.0.state.lock().cached.len(), ANSWERS_MAX);
        assert_eq!(generation.load(Ordering::Relaxed), 2);
    }
}
