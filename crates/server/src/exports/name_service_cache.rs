//! A cache of name services' answers about clients and users, filled by threads of its own.
//!
//! A name service may take seconds, or never answer; so a thread that serves requests never asks
//! one. It uses the cached answer, or leaves its question here and waits, holding no lock, for a
//! bounded time. Every [`REFRESH`], answers that were used are asked for again and the others are
//! forgotten; then the generation of all decisions changes, so that they are made anew. "There is
//! none" is an answer, too. While the responsible name service does not answer, its last answer is
//! kept, so that clients do not lose their mounts because a name server is down. If there is no
//! last answer, the question stays open, and is asked again when somebody needs it, at most every
//! [`RETRY`].

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

/// How long an answer is used before it is asked for again.
const REFRESH: Duration = Duration::from_secs(60);
/// How soon a question is asked again that nobody answered.
const RETRY: Duration = Duration::from_secs(2);
/// How many questions are asked at once; if all of them hang, others wait.
const WORKERS: usize = 24;
/// The most answers that are kept, and the most questions that may wait.
const ANSWERS_MAX: usize = 16_384;

/// A question to a name service.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum NameQuery {
    /// The addresses of a host.
    Addresses(Box<str>),
    /// The name of an address, if that name has the address.
    Name(IpAddr),
    /// Whether a netgroup has a machine.
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
    /// Whether it was used since it was last asked for.
    used: bool,
}

/// Answers and questions. Its lock is never held while a service is asked.
#[derive(Default)]
struct NameServiceCacheState {
    cached: HashMap<NameQuery, CachedAnswer>,
    queue: QueryQueue,
    /// Those in the queue, and those that are being asked.
    pending: HashSet<NameQuery>,
    /// Those that no service answered, and when.
    unanswered: HashMap<NameQuery, Instant>,
    started: bool,
    closing: bool,
}

struct NameServiceCacheInner {
    service: Box<dyn NameService>,
    state: Mutex<NameServiceCacheState>,
    /// Waited on by the workers.
    work: Condvar,
    /// Waited on by those who need an answer.
    answered: Condvar,
    /// Waited on by the thread that asks again.
    closing: Condvar,
    /// Of all decisions; see [`super::ExportsTable`].
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

    /// Starts the threads that ask, unless they run. Not to be called by a serving thread: the new
    /// threads would inherit its identity and capabilities, which are too few for name services.
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

    /// The addresses of a host, as far as is known now.
    pub(super) fn addresses(&self, host: &str) -> Option<Arc<[IpAddr]>> {
        match self.0.cached(NameQuery::Addresses(host.into()))? {
            NameAnswer::Addresses(addresses) => Some(addresses),
            NameAnswer::Name(_) | NameAnswer::Member(_) | NameAnswer::Groups(_) => None,
        }
    }

    /// The name of a machine, in lower case, as far as is known now.
    pub(super) fn name(&self, address: IpAddr) -> Option<Option<Arc<str>>> {
        match self.0.cached(NameQuery::Name(address))? {
            NameAnswer::Name(name) => Some(name),
            NameAnswer::Addresses(_) | NameAnswer::Member(_) | NameAnswer::Groups(_) => None,
        }
    }

    /// Whether a netgroup has a machine, as far as is known now.
    pub(super) fn member(&self, group: &str, address: IpAddr) -> Option<bool> {
        match self.0.cached(NameQuery::Member(group.into(), address))? {
            NameAnswer::Member(is) => Some(is),
            NameAnswer::Addresses(_) | NameAnswer::Name(_) | NameAnswer::Groups(_) => None,
        }
    }

    /// A user's groups, or that there is no such user, as far as is known now.
    pub(crate) fn groups(&self, uid: u32) -> Option<Option<Arc<[u32]>>> {
        match self.0.cached(NameQuery::Groups(uid))? {
            NameAnswer::Groups(groups) => Some(groups),
            NameAnswer::Addresses(_) | NameAnswer::Name(_) | NameAnswer::Member(_) => None,
        }
    }

    /// Asks for the addresses of these hosts, which are kept from now on even if they are not used,
    /// and waits for them until `deadline`. Those of other hosts are forgotten.
    pub(super) fn preload_hosts<'h>(&self, hosts: impl Iterator<Item = &'h str>, deadline: Instant) {
        let questions: HashSet<NameQuery> = hosts.map(|host| NameQuery::Addresses(host.into())).collect();
        let mut book = self.0.state.lock();
        book.cached.retain(|known, _| !matches!(known, NameQuery::Addresses(_)) || questions.contains(known));
        drop(book);
        for question in &questions {
            self.wait(question, deadline);
        }
    }

    /// Waits for the answer to a question until `deadline`, unless nobody answers. Returns whether
    /// there is one.
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
    /// The cached answer; if there is none, puts the question.
    fn cached(&self, question: NameQuery) -> Option<NameAnswer> {
        let mut book = self.state.lock();
        if let Some(kept) = book.cached.get_mut(&question) {
            kept.used = true;
            return Some(kept.answer.clone());
        }
        self.enqueue(&mut book, question);
        None
    }

    /// Puts a question, if there is room for it. `false`: no service answered it a moment ago, and
    /// it is not asked again yet.
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

    /// A worker: asks the questions that were put.
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
                // Any other: whoever needs it asks once more. The decisions that were made of it
                // are made anew.
                let other = book.cached.keys().next().cloned();
                other.map(|other| book.cached.remove(&other));
                self.generation.fetch_add(1, Ordering::Release);
            }
            // What is asked again, nobody has used since.
            let used = !book.cached.contains_key(&question);
            book.cached.insert(question, CachedAnswer { answer, used });
        }
    }

    /// None: no responsible service answered.
    fn ask(&self, question: &NameQuery) -> Option<NameAnswer> {
        let service = &*self.service;
        Some(match question {
            NameQuery::Addresses(host) => NameAnswer::Addresses(service.addresses(host)?.into()),
            NameQuery::Name(address) => NameAnswer::Name(checked_name(service, *address)?.map(Into::into)),
            NameQuery::Member(group, address) => NameAnswer::Member(is_member(service, group, *address)?),
            NameQuery::Groups(uid) => NameAnswer::Groups(service.groups(*uid)?.map(Into::into)),
        })
    }

    /// The thread that asks again.
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

    /// Forgets answers that were not used, asks for the others again, and has all decisions made
    /// anew.
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

    use super::service::tests::Scripted;
    use super::*;

    fn names(service: Scripted) -> (NameServiceCache, Arc<AtomicU64>) {
        let generation = Arc::new(AtomicU64::new(1));
        let names = NameServiceCache::new(Box::new(service), Arc::clone(&generation), TimeSource::System);
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
    fn an_answer_is_kept_and_so_is_that_there_is_none() {
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
    fn a_service_that_hangs_holds_up_only_those_who_need_its_answer() {
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
    fn a_renewal_forgets_the_unused_asks_the_rest_and_changes_the_generation() {
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
    fn hosts_of_the_table_are_kept_unused_and_those_of_an_old_table_are_not() {
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
    fn what_was_known_is_kept_while_nobody_answers_and_what_was_not_stays_open() {
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
                // However long this takes.
                let unanswered = &mut names.0.state.lock().unanswered;
                unanswered.values_mut().for_each(|asked| *asked = soon());
            }
        }
        assert_eq!(asked.load(Ordering::Relaxed), before + 1, "not again and again");
        silent.store(false, Ordering::Relaxed);
        names.0.state.lock().unanswered.clear();
        let known = questions(two, 8).map(|question| wait(&names, question).unwrap());
        assert_eq!(known, [NameAnswer::Name(None), NameAnswer::Member(false), NameAnswer::Groups(None)]);
    }

    #[test]
    fn no_more_answers_are_kept_than_the_limit() {
        let (names, generation) = names(Scripted::default());
        let last = u32::try_from(ANSWERS_MAX).unwrap();
        for uid in 0..=last {
            assert!(names.wait(&NameQuery::Groups(uid), soon()));
        }
        assert_eq!(names.0.state.lock().cached.len(), ANSWERS_MAX);
        assert_eq!(generation.load(Ordering::Relaxed), 2);
    }
}
