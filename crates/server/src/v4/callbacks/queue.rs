//! The callbacks that wait for a thread.
//!
//! Some threads are for clients that have answered last time, and no client occupies all of these.
//! Some others are not for clients that have not answered. The clients of one address occupy half
//! of the threads, and at most as many as are free; those of them that have not answered occupy
//! fewer: a host can make any number of clients, which answer only as long as it likes, and has
//! several addresses. So clients that do not answer delay each other, and others of their own
//! address.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use curt_proto::nfs4::Clientid;
use parking_lot::{Condvar, Mutex};

/// The threads.
pub(super) const THREADS: usize = 8;
/// The threads that may call clients which have not answered last time.
const THREADS_FOR_SILENT: usize = THREADS / 4;
/// The threads that may call clients which have not answered last time, or were never called.
const THREADS_FOR_UNPROVEN: usize = THREADS / 4 * 3;
/// Threads of these that may call clients of one address (for IPv6, of one /64).
const THREADS_FOR_UNPROVEN_OF_ADDRESS: usize = THREADS_FOR_SILENT;
/// The threads that may call clients of one address which have answered last time.
const THREADS_FOR_ADDRESS: usize = THREADS / 2;
/// Callbacks in progress of one client that has answered last time; of others it is one.
const IN_PROGRESS_MAX: usize = THREADS / 4;
/// Clients whose last answer is known; beyond that all are forgotten.
const KNOWN_MAX: usize = 16_384;

/// How a client has taken its last callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LastCallback {
    Answered,
    /// There was none, or it is forgotten.
    Unknown,
    Unanswered,
}

/// The queue. The number of callbacks is limited by those who send them: each waiting lock and
/// each delegation has at most one.
pub(super) struct CallbackQueue<C> {
    waiting: Mutex<Waiting<C>>,
    changed: Condvar,
}

struct Waiting<C> {
    callbacks: HashMap<Clientid, ClientCallbacks<C>>,
    /// Clients with callbacks that wait, of which another may be in progress.
    ready: VecDeque<Clientid>,
    /// Whether a client has answered the last callback.
    answers: HashMap<Clientid, bool>,
    /// Threads that call clients which have not answered the last one.
    silent_threads: usize,
    /// Threads that call these, or clients that were never called.
    unproven_threads: usize,
    addresses: HashMap<AddressGroup, AddressClients>,
    /// The service has ended.
    is_over: bool,
}

/// An address, and whether its clients are unproven.
type AddressGroup = (IpAddr, bool);

/// The clients of a group that are called; it has no record without any.
#[derive(Default)]
struct AddressClients {
    /// Threads that call them.
    threads: usize,
    /// Clients of the address, of this group or the other, that wait until one of these threads has
    /// ended its call; none without threads.
    waiting: VecDeque<Clientid>,
}

/// The callbacks of a client; it has no record without any.
struct ClientCallbacks<C> {
    waiting: VecDeque<C>,
    in_progress: usize,
    /// Whether the client is in the list of those that are ready, or in that of its address.
    is_ready: bool,
}

/// A callback that a thread has taken.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DequeuedCallback<C> {
    pub(super) callback: C,
    pub(super) turn: CallbackTurn,
}

/// The place of a callback in progress among the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CallbackTurn {
    pub(super) client: Clientid,
    /// How the client has taken the last one.
    last: LastCallback,
    /// The address that counts it.
    address: Option<IpAddr>,
}

impl CallbackTurn {
    /// Whether the client has not answered last time, or was never called.
    fn is_unproven(&self) -> bool {
        self.last != LastCallback::Answered
    }

    fn group(&self, address: IpAddr) -> AddressGroup {
        (address, self.is_unproven())
    }
}

impl<C> Default for CallbackQueue<C> {
    fn default() -> Self {
        Self { waiting: Mutex::default(), changed: Condvar::new() }
    }
}

impl<C> CallbackQueue<C> {
    pub(super) fn add(&self, client: Clientid, callback: C) {
        self.waiting.lock().add(client, callback);
        self.changed.notify_one();
    }

    /// The next callback; none at the end.
    pub(super) fn next(&self) -> Option<DequeuedCallback<C>> {
        let mut waiting = self.waiting.lock();
        loop {
            if waiting.is_over {
                return None;
            }
            if let Some(taken) = waiting.take() {
                // Several clients may have become ready at once.
                if !waiting.ready.is_empty() {
                    self.changed.notify_one();
                }
                return Some(taken);
            }
            self.changed.wait(&mut waiting);
        }
    }

    /// Begins a callback to a client at this address. None, if too many threads call clients there,
    /// or as many as are free: it waits until one of them has ended.
    pub(super) fn begin(&self, taken: DequeuedCallback<C>, address: IpAddr) -> Option<DequeuedCallback<C>> {
        self.waiting.lock().begin(taken, address)
    }

    /// The callback of a client has ended.
    pub(super) fn finish(&self, turn: CallbackTurn, has_answered: bool) {
        self.waiting.lock().finish(turn, has_answered);
        self.changed.notify_one();
    }

    /// The client has no slot free for a callback: it waits until another one has ended.
    pub(super) fn put_back(&self, taken: DequeuedCallback<C>) {
        self.waiting.lock().put_back(taken);
        self.changed.notify_one();
    }

    /// Lets the threads end.
    pub(super) fn end(&self) {
        self.waiting.lock().is_over = true;
        self.changed.notify_all();
    }
}

impl<C> Default for Waiting<C> {
    fn default() -> Self {
        Self {
            callbacks: HashMap::new(),
            ready: VecDeque::new(),
            answers: HashMap::new(),
            silent_threads: 0,
            unproven_threads: 0,
            addresses: HashMap::new(),
            is_over: false,
        }
    }
}

impl<C> Waiting<C> {
    fn add(&mut self, client: Clientid, callback: C) {
        let own = self.callbacks.entry(client).or_insert_with(|| ClientCallbacks {
            waiting: VecDeque::new(),
            in_progress: 0,
            is_ready: false,
        });
        own.waiting.push_back(callback);
        self.make_ready(client);
    }

    /// Lists a client as ready, if another callback of it may begin.
    fn make_ready(&mut self, client: Clientid) {
        let max = if self.last(client) == LastCallback::Answered { IN_PROGRESS_MAX } else { 1 };
        let Some(own) = self.callbacks.get_mut(&client) else { return };
        if !own.is_ready && !own.waiting.is_empty() && own.in_progress < max {
            own.is_ready = true;
            self.ready.push_back(client);
        }
    }

    fn last(&self, client: Clientid) -> LastCallback {
        match self.answers.get(&client) {
            Some(true) => LastCallback::Answered,
            Some(false) => LastCallback::Unanswered,
            None => LastCallback::Unknown,
        }
    }

    /// Whether a thread may call a client.
    fn allows(&self, last: LastCallback) -> bool {
        let allows_unproven = self.unproven_threads < THREADS_FOR_UNPROVEN;
        match last {
            LastCallback::Answered => true,
            LastCallback::Unknown => allows_unproven,
            LastCallback::Unanswered => allows_unproven && self.silent_threads < THREADS_FOR_SILENT,
        }
    }

    fn take(&mut self) -> Option<DequeuedCallback<C>> {
        let at = self.ready.iter().position(|client| self.allows(self.last(*client)))?;
        let client = self.ready.remove(at)?;
        let own = self.callbacks.get_mut(&client)?;
        own.is_ready = false;
        let callback = own.waiting.pop_front()?;
        own.in_progress += 1;
        let last = self.last(client);
        self.silent_threads += usize::from(last == LastCallback::Unanswered);
        self.unproven_threads += usize::from(last != LastCallback::Answered);
        self.make_ready(client);
        Some(DequeuedCallback { callback, turn: CallbackTurn { client, last, address: None } })
    }

    fn begin(&mut self, mut taken: DequeuedCallback<C>, address: IpAddr) -> Option<DequeuedCallback<C>> {
        let client = taken.turn.client;
        let is_unproven = taken.turn.is_unproven();
        let max = if is_unproven { THREADS_FOR_UNPROVEN_OF_ADDRESS } else { THREADS_FOR_ADDRESS };
        let threads = |is_unproven| self.addresses.get(&(address, is_unproven)).map_or(0, |of| of.threads);
        let (of_group, of_address) = (threads(is_unproven), threads(true) + threads(false));
        let in_progress: usize = self.addresses.values().map(|of| of.threads).sum();
        if of_group < max && (of_address == 0 || of_address < THREADS - in_progress) {
            self.addresses.entry(taken.turn.group(address)).or_default().threads += 1;
            taken.turn.address = Some(address);
            return Some(taken);
        }
        // It waits in a group with a call in progress, whose end wakes it.
        let group = (address, is_unproven == (of_group > 0));
        if let Some(own) = self.callbacks.get_mut(&client) {
            own.waiting.push_front(taken.callback);
            // It may have become ready for another callback, since this one was taken, or wait for
            // the address already.
            let at = if own.is_ready { self.ready.iter().rposition(|ready| *ready == client) } else { None };
            if let Some(at) = at {
                self.ready.remove(at);
            }
            if at.is_some() || !own.is_ready {
                self.addresses.entry(group).or_default().waiting.push_back(client);
            }
            own.is_ready = true;
        }
        self.end_one(taken.turn);
        None
    }

    fn finish(&mut self, turn: CallbackTurn, has_answered: bool) {
        if self.answers.len() >= KNOWN_MAX {
            self.answers.clear();
        }
        self.answers.insert(turn.client, has_answered);
        self.end_one(turn);
        self.make_ready(turn.client);
    }

    fn put_back(&mut self, taken: DequeuedCallback<C>) {
        let client = taken.turn.client;
        if let Some(own) = self.callbacks.get_mut(&client) {
            own.waiting.push_front(taken.callback);
        }
        self.end_one(taken.turn);
        // Those in progress use the slots; if they have ended since, nobody else wakes it.
        if self.callbacks.get(&client).is_some_and(|own| own.in_progress == 0) {
            self.make_ready(client);
        }
    }

    /// A callback in progress has ended.
    fn end_one(&mut self, turn: CallbackTurn) {
        let CallbackTurn { client, last, address } = turn;
        if let Some(group) = address.map(|address| turn.group(address))
            && let Some(of_address) = self.addresses.get_mut(&group)
        {
            of_address.threads -= 1;
            self.ready.extend(of_address.waiting.pop_front());
            if of_address.threads == 0 {
                // A client that became ready above may lose its session, and then wakes nobody.
                self.ready.extend(of_address.waiting.drain(..));
                self.addresses.remove(&group);
            }
        }
        self.silent_threads -= usize::from(last == LastCallback::Unanswered);
        self.unproven_threads -= usize::from(last != LastCallback::Answered);
        if let Some(own) = self.callbacks.get_mut(&client) {
            own.in_progress -= 1;
            if own.in_progress == 0 && own.waiting.is_empty() {
                self.callbacks.remove(&client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use std::time::Duration;

    use super::LastCallback::{Answered, Unanswered, Unknown};
    use super::*;

    fn add(waiting: &mut Waiting<u64>, client: u64) {
        waiting.add(Clientid(client), client);
    }

    fn take(waiting: &mut Waiting<u64>) -> Option<u64> {
        waiting.take().map(|taken| taken.callback)
    }

    fn turn(client: u64, last: LastCallback) -> CallbackTurn {
        CallbackTurn { client: Clientid(client), last, address: None }
    }

    fn finish(waiting: &mut Waiting<u64>, client: u64, last: LastCallback, has_answered: bool) {
        waiting.finish(turn(client, last), has_answered);
    }

    #[test]
    fn clients_that_have_not_answered_do_not_occupy_all_threads() {
        let mut waiting = Waiting::default();
        let number = |threads| u64::try_from(threads).unwrap();
        let (silent, unproven) = (number(THREADS_FOR_SILENT), number(THREADS_FOR_UNPROVEN));
        add(&mut waiting, 100);
        assert_eq!(take(&mut waiting), Some(100));
        finish(&mut waiting, 100, Unknown, true);
        for client in 1..=silent + 1 {
            add(&mut waiting, client);
            assert_eq!(take(&mut waiting), Some(client));
            finish(&mut waiting, client, Unknown, false);
        }
        // Those that have not answered leave threads to new clients.
        (1..=silent + 1).for_each(|client| add(&mut waiting, client));
        (1..=silent).for_each(|client| assert_eq!(take(&mut waiting), Some(client)));
        assert_eq!(take(&mut waiting), None);
        for client in 10..=10 + unproven - silent {
            add(&mut waiting, client);
        }
        for client in 10..10 + unproven - silent {
            assert_eq!(take(&mut waiting), Some(client));
        }
        // New ones leave threads to those that have answered.
        assert_eq!(take(&mut waiting), None);
        add(&mut waiting, 100);
        let taken = waiting.take().unwrap();
        assert_eq!(taken, DequeuedCallback { callback: 100, turn: turn(100, Answered) });
        finish(&mut waiting, 1, Unanswered, false);
        assert_eq!(take(&mut waiting), Some(silent + 1));
        finish(&mut waiting, 10, Unknown, true);
        assert_eq!(take(&mut waiting), Some(10 + unproven - silent));
        // The one that does not answer any more is as slow as others.
        finish(&mut waiting, 100, Answered, false);
        add(&mut waiting, 100);
        assert_eq!(take(&mut waiting), None);
    }

    #[test]
    fn the_clients_of_one_address_that_have_answered_leave_threads_to_those_of_others() {
        let mut waiting = Waiting::default();
        let (one, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let clients = 1..=20;
        clients.clone().chain([200, 300]).for_each(|client| {
            add(&mut waiting, client);
            assert_eq!(take(&mut waiting), Some(client));
            finish(&mut waiting, client, Unknown, true);
        });
        clients.clone().for_each(|client| (0..3).for_each(|_| add(&mut waiting, client)));
        add(&mut waiting, 200);
        let mut begun = Vec::new();
        let of_other = loop {
            let taken = waiting.take().unwrap();
            if taken.callback == 200 {
                break waiting.begin(taken, other).unwrap();
            }
            begun.extend(waiting.begin(taken, one));
        };
        while let Some(taken) = waiting.take() {
            assert!(waiting.begin(taken, one).is_none());
        }
        assert_eq!(begun.len(), THREADS / 2);
        waiting.finish(of_other.turn, true);
        // Two threads have taken callbacks of a client: it waits for its address once.
        (0..3).for_each(|_| add(&mut waiting, 300));
        for taken in [waiting.take().unwrap(), waiting.take().unwrap()] {
            assert_eq!(taken.callback, 300);
            assert!(waiting.begin(taken, one).is_none());
        }
        assert_eq!(take(&mut waiting), None);
        let mut ended = 0;
        while let Some(taken) = begun.pop() {
            waiting.finish(taken.turn, true);
            ended += 1;
            while begun.len() < THREADS_FOR_ADDRESS
                && let Some(taken) = waiting.take()
            {
                begun.extend(waiting.begin(taken, one));
            }
        }
        assert_eq!(ended, (clients.count() + 1) * 3);
        assert!(waiting.callbacks.is_empty() && waiting.ready.is_empty() && waiting.addresses.is_empty());
    }

    #[test]
    fn two_addresses_of_one_host_leave_threads_to_others() {
        let mut waiting = Waiting::default();
        let addresses = [IpAddr::from([10, 0, 0, 1]), "2001:db8::1".parse().unwrap()];
        let address = |client: u64| addresses[usize::try_from(client % 2).unwrap()];
        // Some have answered, and others are new.
        for client in 1..=20 {
            add(&mut waiting, client);
            assert_eq!(take(&mut waiting), Some(client));
            finish(&mut waiting, client, Unknown, true);
        }
        let clients = 1..=40;
        clients.clone().for_each(|client| add(&mut waiting, client));
        let mut begun = Vec::new();
        let begin_all = |waiting: &mut Waiting<u64>, begun: &mut Vec<_>| {
            while let Some(taken) = waiting.take() {
                let address = address(taken.callback);
                begun.extend(waiting.begin(taken, address));
            }
            assert!(begun.len() < THREADS - 1, "{begun:?}");
        };
        begin_all(&mut waiting, &mut begun);
        assert_eq!(begun.len(), THREADS / 4 * 3);
        add(&mut waiting, 100);
        let taken = waiting.take().unwrap();
        let of_other = waiting.begin(taken, IpAddr::from([10, 0, 0, 2])).unwrap();
        waiting.finish(of_other.turn, true);
        // All are called in the end.
        let mut ended = 0;
        while let Some(taken) = begun.pop() {
            waiting.finish(taken.turn, true);
            ended += 1;
            begin_all(&mut waiting, &mut begun);
        }
        assert_eq!(ended, clients.count());
        assert!(waiting.callbacks.is_empty() && waiting.ready.is_empty() && waiting.addresses.is_empty());
    }

    #[test]
    fn the_new_clients_of_one_address_leave_threads_to_those_of_others() {
        let mut waiting = Waiting::default();
        let (one, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        (1..=100).for_each(|client| add(&mut waiting, client));
        add(&mut waiting, 200);
        let begin = |waiting: &mut Waiting<u64>, address| {
            let taken = waiting.take()?;
            waiting.begin(taken, address)
        };
        let begun: Vec<_> = (1..=100).filter_map(|_| begin(&mut waiting, one)).collect();
        assert_eq!(begun.len(), THREADS_FOR_UNPROVEN_OF_ADDRESS);
        let of_other = begin(&mut waiting, other).unwrap();
        assert_eq!((of_other.callback, take(&mut waiting)), (200, None));
        // They follow each other, and one that was held back is called once.
        add(&mut waiting, 3);
        let mut last = begun;
        for client in 3..=100 {
            waiting.finish(last.remove(0).turn, client % 2 == 0);
            let next = begin(&mut waiting, one).unwrap();
            assert_eq!(next.callback, client);
            assert!(begin(&mut waiting, one).is_none());
            last.push(next);
        }
        last.into_iter().for_each(|taken| waiting.finish(taken.turn, true));
        waiting.finish(of_other.turn, true);
        while let Some(taken) = waiting.take() {
            let taken = waiting.begin(taken, one).unwrap();
            waiting.finish(taken.turn, true);
        }
        assert!(waiting.callbacks.is_empty() && waiting.ready.is_empty() && waiting.addresses.is_empty());
        assert_eq!((waiting.silent_threads, waiting.unproven_threads), (0, 0));
    }

    #[test]
    fn a_client_without_a_session_does_not_stop_the_others_of_its_address() {
        let queue = CallbackQueue::default();
        let address = IpAddr::from([10, 0, 0, 1]);
        let called = 1..=u64::try_from(THREADS_FOR_UNPROVEN_OF_ADDRESS).unwrap();
        let (first, last) = (called.end() + 1, called.end() + 6);
        (1..=last).for_each(|client| queue.add(Clientid(client), client));
        let take = || queue.waiting.lock().take().unwrap();
        let begun: Vec<_> = called.map(|_| queue.begin(take(), address).unwrap()).collect();
        for _ in first..=last {
            assert!(queue.begin(take(), address).is_none());
        }
        let (sender, taken) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            // These have lost their sessions, so they are called without an address.
            for _ in first..first + 4 {
                scope.spawn(|| sender.send(queue.next().map(|taken| taken.callback)));
            }
            begun.into_iter().for_each(|taken| queue.finish(taken.turn, false));
            let next = |_| taken.recv_timeout(Duration::from_secs(60)).unwrap_or_default();
            let mut lost: Vec<_> = (first..first + 4).map(next).collect();
            queue.end();
            lost.sort_unstable();
            assert!(lost.into_iter().eq((first..first + 4).map(Some)));
        });
        let mut waiting = queue.waiting.lock();
        (first..first + 4).for_each(|client| finish(&mut waiting, client, Unknown, false));
        for client in [last - 1, last] {
            let taken = waiting.take().unwrap();
            let taken = waiting.begin(taken, address).unwrap();
            assert_eq!(taken.callback, client);
            waiting.finish(taken.turn, true);
        }
        assert!(waiting.callbacks.is_empty() && waiting.ready.is_empty() && waiting.addresses.is_empty());
    }

    #[test]
    fn a_client_that_answers_has_several_callbacks_in_progress_within_its_slots() {
        let mut waiting = Waiting::default();
        (0..IN_PROGRESS_MAX + 3).for_each(|_| add(&mut waiting, 1));
        // It was never called.
        assert_eq!((take(&mut waiting), take(&mut waiting)), (Some(1), None));
        finish(&mut waiting, 1, Unknown, true);
        for _ in 0..IN_PROGRESS_MAX {
            assert_eq!(take(&mut waiting), Some(1));
        }
        assert_eq!(take(&mut waiting), None);
        // It has one slot less: the callback waits until another one has ended.
        waiting.put_back(DequeuedCallback { callback: 1, turn: turn(1, Answered) });
        assert_eq!(take(&mut waiting), None);
        for _ in 1..IN_PROGRESS_MAX {
            finish(&mut waiting, 1, Answered, true);
        }
        assert_eq!(take(&mut waiting), Some(1));
        // None of the others uses a slot any more: nobody has to wake it.
        waiting.put_back(DequeuedCallback { callback: 1, turn: turn(1, Answered) });
        for _ in 0..IN_PROGRESS_MAX {
            assert_eq!(take(&mut waiting), Some(1));
        }
        for _ in 0..IN_PROGRESS_MAX {
            finish(&mut waiting, 1, Answered, true);
        }
        while take(&mut waiting).is_some() {
            finish(&mut waiting, 1, Answered, true);
        }
        assert!(waiting.callbacks.is_empty() && waiting.ready.is_empty());
    }
}
