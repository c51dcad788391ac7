//! Tests of the lock table: its rules one by one, against a naive model with random calls, and with
//! all orders of events of a few clients.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod accounts;
mod explore;
mod kernel;
mod naive;
mod queue;
mod ranges;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use curt_types::{ByteRange, FileHandle, LockType};
use curt_vfs::{HandleScheme, NodeHandle};

use super::*;
use crate::file_handle::FileSystemId;

impl LockTable {
    /// Releases all locks of a client and takes its requests out of the queues.
    fn release_client(&mut self, client: LockClient, now: Instant, callbacks: &mut Vec<LockCallback>) {
        self.release_owners(client, &|_, _| true, now, callbacks);
    }
}

/// A table with its clients and clock.
struct Fixture {
    table: LockTable,
    accounts: Vec<Arc<ClientAccount>>,
    now: Instant,
    /// Callbacks that are not taken yet.
    callbacks: Vec<LockCallback>,
    handle: FileHandle,
}

/// How a request of a test waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Waits {
    No,
    Polled,
    Repeated,
    Granted,
    Notified,
}

impl Waits {
    /// `open`: the number of the open of a request that is notified.
    fn of_request(self, handle: &FileHandle, open: u64) -> LockWait<'_> {
        match self {
            Self::No => LockWait::No,
            Self::Polled => LockWait::Polled,
            Self::Repeated => LockWait::Repeated { handle },
            Self::Granted => LockWait::Granted { handle, local: None },
            Self::Notified => LockWait::Notified { handle, open },
        }
    }
}

/// An owner of a test: the client's number and the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Who {
    client: u8,
    process: u32,
}

const fn who(client: u8, process: u32) -> Who {
    Who { client, process }
}

impl Who {
    fn client(self) -> LockClient {
        client(self.client)
    }

    fn owner(self) -> LockOwner<'static> {
        LockOwner { client: self.client(), process: self.process, name: b"owner" }
    }

    /// The owner of a lock.
    fn of(lock: &LockHolder) -> Self {
        let LockClient::Host(IpAddr::V4(address)) = lock.client else { panic!("not a client of a test") };
        Self { client: address.octets()[3], process: lock.process }
    }
}

fn client(number: u8) -> LockClient {
    LockClient::Host(IpAddr::V4(Ipv4Addr::new(10, 0, 0, number)))
}

fn file(number: u32) -> LockFile {
    let node = NodeHandle::new(HandleScheme::Kernel, 1, &number.to_be_bytes()).unwrap();
    LockFile { file_system: FileSystemId(1), node }
}

fn bytes(first: u64, last: u64) -> ByteRange {
    ByteRange::new(first, last).unwrap()
}

const FILE: u32 = 1;
const READ: LockType = LockType::Read;
const WRITE: LockType = LockType::Write;
const WHOLE: ByteRange = ByteRange::WHOLE;
const ACCEPTED: CallbackAnswer = CallbackAnswer::Accepted { round_trip: Duration::from_millis(1) };

impl Fixture {
    fn new() -> Self {
        Self::with(ClientLimits::CLIENT, LockTableOptions::default())
    }

    fn with(limits: ClientLimits, options: LockTableOptions) -> Self {
        let account = |number| Arc::new(ClientAccount::new(client(number), limits, None));
        Self {
            table: LockTable::new(options),
            accounts: (0..8).map(account).collect(),
            now: Instant::now(),
            callbacks: Vec::new(),
            handle: FileHandle::new(b"handle").unwrap(),
        }
    }

    fn lock(&mut self, who: Who, lock_type: LockType, range: ByteRange, waits: Waits) -> LockOutcome {
        self.lock_in(FILE, who, lock_type, range, waits)
    }

    fn lock_in(
        &mut self,
        number: u32,
        who: Who,
        lock_type: LockType,
        range: ByteRange,
        waits: Waits,
    ) -> LockOutcome {
        let wait = waits.of_request(&self.handle, who.process.into());
        let request = LockRequest { owner: who.owner(), lock_type, range, wait, reclaim: false };
        let account = &self.accounts[usize::from(who.client)];
        self.table.lock(&file(number), &request, account, None, self.now, &mut self.callbacks)
    }

    /// Locks what must be free.
    fn take(&mut self, who: Who, lock_type: LockType, range: ByteRange) {
        assert_eq!(self.lock(who, lock_type, range, Waits::No), LockOutcome::Granted);
    }

    /// Waits for what must not be free.
    fn queue(&mut self, who: Who, lock_type: LockType, range: ByteRange, waits: Waits) {
        let outcome = self.lock(who, lock_type, range, waits);
        assert!(matches!(outcome, LockOutcome::Blocked(_)), "{outcome:?}");
    }

    fn denies(&mut self, who: Who, lock_type: LockType, range: ByteRange) -> bool {
        matches!(self.lock(who, lock_type, range, Waits::No), LockOutcome::Denied(_))
    }

    /// Whether a request that may wait is denied.
    fn holds_back(&mut self, who: Who, lock_type: LockType, range: ByteRange) -> bool {
        matches!(self.lock(who, lock_type, range, Waits::Polled), LockOutcome::Denied(_))
    }

    fn unlock(&mut self, who: Who, range: ByteRange) {
        let file = file(FILE);
        self.table.unlock(&file, &who.owner(), range, self.now, &mut self.callbacks).unwrap();
    }

    fn cancel(&mut self, who: Who, lock_type: LockType, range: ByteRange) -> CancelOutcome {
        let file = file(FILE);
        self.table.cancel(&file, &who.owner(), lock_type, range, self.now, &mut self.callbacks)
    }

    fn answer(&mut self, callback: &LockCallback, answer: CallbackAnswer) {
        let client = callback.lock.client;
        self.table.answered(client, callback.id, answer, self.now, &mut self.callbacks);
    }

    fn advance(&mut self, time: Duration) {
        self.now += time;
        self.table.tick(self.now, &mut self.callbacks);
    }

    fn callbacks(&mut self) -> Vec<LockCallback> {
        std::mem::take(&mut self.callbacks)
    }

    /// The owners of the locks that the callbacks since the last call report.
    fn called(&mut self) -> Vec<Who> {
        self.callbacks().iter().map(|callback| Who::of(&callback.lock)).collect()
    }

    /// As [`Self::called`], after all clients have accepted.
    fn called_and_accepted(&mut self) -> Vec<Who> {
        let callbacks = self.callbacks();
        for callback in &callbacks {
            self.answer(callback, ACCEPTED);
        }
        callbacks.iter().map(|callback| Who::of(&callback.lock)).collect()
    }

    /// The locks of an owner in the file, in order.
    fn held(&self, who: Who) -> Vec<(LockType, ByteRange)> {
        let mut held = Vec::new();
        self.table.report(&mut |_, lock| {
            if !lock.waits && Who::of(&lock.lock) == who {
                held.push((lock.lock.lock_type, lock.lock.range));
            }
            true
        });
        held.sort_by_key(|lock| lock.1);
        held
    }

    /// Nothing is left of what has been released.
    fn assert_empty(&self) {
        let counts = self.table.counts();
        assert_eq!((counts.files, counts.locks, counts.owners, counts.waiters), (0, 0, 0, 0));
        assert_eq!(self.table.timers.len(), 0);
        for account in &self.accounts {
            assert!(account.is_empty(), "{account:?}");
        }
    }
}
