//! A lock manager in memory (NLM version 4), whose replies a test can replace.

use std::{
    collections::{BTreeMap, VecDeque},
    net::IpAddr,
    sync::{Arc, Weak},
    time::Duration,
};

use curt_client::protocol::{
    LockEvents,
    v3::nlm::{LockReadiness, NlmHost},
};
use curt_policy::locks::LockRanges;
use curt_proto::nlm4::{
    self, NlmCancelArguments, NlmHolder, NlmLock, NlmLockArguments, NlmProcedure, NlmResult, NlmStat4,
    NlmTestArguments, NlmTestReply, NlmTestResult, NlmUnlockArguments, REPEATED_COOKIE,
};
use curt_rpc::auth::RpcCredential;
use curt_rpc::client::{CallError, CallReply, CallStatistics, Interrupt, RpcRequest, Transport};
use curt_types::{ByteRange, FileHandle, LockType};
use curt_xdr::{Decode, Decoder, Encode, Opaque};
use parking_lot::{Condvar, Mutex};

/// A test waits no longer than this for anything.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// The `svid` of another client.
pub(crate) const OTHER: i32 = 1;

/// A lock manager. It is also what the mount shares with others of its host.
#[derive(Debug, Default)]
pub(crate) struct LockManager {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    held: BTreeMap<(Vec<u8>, i32), LockRanges>,
    /// Statuses of the next LOCKs and TESTs, instead of what is true.
    script: VecDeque<NlmStat4>,
    refused_reclaims: Option<NlmStat4>,
    /// TEST names nobody, as at knfsd.
    hides_holders: bool,
    calls: Vec<String>,
    /// The users of `calls`.
    users: Vec<u32>,
    /// The only user that may write the files, and the status of others.
    writer: Option<(u32, NlmStat4)>,
    /// The file that another client unlocks after the next TEST.
    freed: Option<Vec<u8>>,
    /// Calls of this procedure wait.
    stuck: Option<NlmProcedure>,
    waiting: usize,
    wrong_cookie: bool,
    /// The next call is executed twice.
    sends_again: bool,
    calls_back: bool,
    /// Places are kept for LOCKs that are repeated.
    keeps_places: bool,
    /// Callbacks so far.
    cookies: u32,
    events: Option<Weak<dyn LockEvents>>,
}

impl LockManager {
    /// The calls since the last time, such as "LOCK wait w 0..=9".
    pub(crate) fn calls(&self) -> Vec<String> {
        let mut state = self.state.lock();
        state.users.clear();
        std::mem::take(&mut state.calls)
    }

    /// The users of the calls that [`Self::calls`] would return.
    pub(crate) fn users(&self) -> Vec<u32> {
        self.state.lock().users.clone()
    }

    /// Lets `user` alone write the files from now on: LOCKs and TESTs of write locks by others get
    /// this status.
    pub(crate) fn forbid_writing_except(&self, user: u32, status: NlmStat4) {
        self.state.lock().writer = Some((user, status));
    }

    /// The next LOCKs and TESTs get these statuses.
    pub(crate) fn script(&self, statuses: &[NlmStat4]) {
        self.state.lock().script.extend(statuses);
    }

    /// Reclaims get this status from now on.
    pub(crate) fn refuse_reclaims(&self, status: NlmStat4) {
        self.state.lock().refused_reclaims = Some(status);
    }

    /// TEST does not name holders from now on.
    pub(crate) fn hide_holders(&self) {
        self.state.lock().hides_holders = true;
    }

    /// The locks of this mount are gone.
    pub(crate) fn forget_all_but_others(&self) {
        self.state.lock().held.retain(|(_, svid), _| *svid == OTHER);
    }

    /// Blocked LOCKs are granted by callbacks.
    pub(crate) fn call_back(&self) {
        self.state.lock().calls_back = true;
    }

    /// LOCKs that are repeated have a place, as at `curt serve`.
    pub(crate) fn keep_places(&self) {
        self.state.lock().keeps_places = true;
    }

    /// The connection is lost before the reply to the next call, which is sent again.
    pub(crate) fn lose_connection(&self) {
        self.state.lock().sends_again = true;
    }

    /// Replies have another cookie.
    pub(crate) fn mix_up_cookies(&self, wrong: bool) {
        self.state.lock().wrong_cookie = wrong;
    }

    /// Another client unlocks a file as soon as TEST has found its lock.
    pub(crate) fn free_after_test(&self, file: &[u8]) {
        self.state.lock().freed = Some(file.to_vec());
    }

    /// Calls of a procedure wait from now on, until the next call of this.
    pub(crate) fn hold(&self, procedure: Option<NlmProcedure>) {
        self.state.lock().stuck = procedure;
        self.changed.notify_all();
    }

    /// Waits until a call waits.
    pub(crate) fn wait_for_held(&self) {
        self.wait_until_held(1);
    }

    /// Waits until so many calls wait.
    pub(crate) fn wait_until_held(&self, count: usize) {
        let mut state = self.state.lock();
        while state.waiting < count {
            let is_late = self.changed.wait_for(&mut state, SOON).timed_out();
            assert!(!is_late, "{} of {count} calls wait", state.waiting);
        }
    }

    /// Waits for so many calls since the last look at them.
    pub(crate) fn wait_for_calls(&self, count: usize) {
        let mut state = self.state.lock();
        while state.calls.len() < count {
            assert!(!self.changed.wait_for(&mut state, SOON).timed_out(), "{:?}", state.calls);
        }
    }

    /// Another client locks a range of the file or, without a type, unlocks it.
    pub(crate) fn other(&self, file: &[u8], range: ByteRange, lock_type: Option<LockType>) {
        let mut state = self.state.lock();
        state.held.entry((file.to_vec(), OTHER)).or_default().set(range, lock_type);
    }

    /// A copy of a LOCK is executed that the first owner of this mount has sent before.
    pub(crate) fn execute_copy(&self, file: &[u8], range: ByteRange) {
        let ranges = LockRanges::of(range, LockType::Write);
        self.state.lock().held.insert((file.to_vec(), self.first_svid()), ranges);
    }

    /// Whether anything of this mount is locked.
    pub(crate) fn holds_something(&self) -> bool {
        self.state.lock().held.iter().any(|((_, svid), ranges)| *svid != OTHER && !ranges.is_empty())
    }

    /// Grants the lock of the blocked LOCK that `calls` shows last; whether this is confirmed.
    pub(crate) fn grant(&self, file: &[u8], first_owner: u32, range: ByteRange) -> bool {
        let svid = self.first_svid() + i32::try_from(first_owner).unwrap();
        let ranges = LockRanges::of(range, LockType::Write);
        let mut state = self.state.lock();
        state.held.insert((file.to_vec(), svid), ranges);
        state.cookies += 1;
        drop(state);
        self.call_again(file, first_owner, range)
    }

    /// Repeats the last callback.
    pub(crate) fn call_again(&self, file: &[u8], first_owner: u32, range: ByteRange) -> bool {
        let events = self.state.lock().events.clone().and_then(|events| events.upgrade()).unwrap();
        let owner = curt_client::protocol::WireOwner(first_owner);
        let lock = curt_client::protocol::WireLock { owner, range, lock_type: LockType::Write };
        let cookie = self.state.lock().cookies.to_be_bytes();
        let callback = curt_client::protocol::LockCallbackId::of_cookie(&cookie);
        events.granted(&FileHandle::new(file).unwrap(), &lock, callback)
    }

    /// Forgets all locks, and says so.
    pub(crate) fn restart(&self) {
        self.state.lock().held.clear();
        self.say_that_it_restarted();
    }

    /// Says that it has forgotten all locks.
    pub(crate) fn say_that_it_restarted(&self) {
        let events = self.state.lock().events.clone().and_then(|events| events.upgrade()).unwrap();
        events.server_restarted();
    }
}

impl State {
    fn conflict(&self, lock: &NlmLock<'_>, lock_type: LockType) -> Option<(i32, ByteRange, LockType)> {
        let range = lock.range().unwrap();
        let others =
            self.held.iter().filter(|((file, svid), _)| file == lock.fh.bytes() && *svid != lock.svid);
        let mut locks = others.flat_map(|((_, svid), ranges)| {
            ranges.overlapping(range).map(|(range, lock_type)| (*svid, range, lock_type))
        });
        locks.find(|(_, _, other)| lock_type.conflicts(*other))
    }

    fn set(&mut self, lock: &NlmLock<'_>, lock_type: Option<LockType>) {
        let ranges = self.held.entry((lock.fh.bytes().to_vec(), lock.svid)).or_default();
        ranges.set(lock.range().unwrap(), lock_type);
    }

    fn refusal(&self, user: u32, exclusive: bool) -> Option<NlmStat4> {
        self.writer.filter(|(writer, _)| exclusive && *writer != user).map(|(_, status)| status)
    }

    fn lock(&mut self, user: u32, arguments: &NlmLockArguments<'_>) -> NlmStat4 {
        let lock_type = nlm4::lock_type(arguments.exclusive);
        if let Some(status) = self.refusal(user, arguments.exclusive) {
            return status;
        }
        if let Some(status) = self.refused_reclaims.filter(|_| arguments.reclaim) {
            return status;
        }
        let status = match (self.script.pop_front(), self.conflict(&arguments.lock, lock_type)) {
            (Some(status), _) => status,
            (None, Some(_)) if arguments.block || self.keeps_places && is_repeated(arguments) => {
                NlmStat4::Blocked
            }
            (None, Some(_)) => NlmStat4::Denied,
            (None, None) => NlmStat4::Granted,
        };
        if status == NlmStat4::Granted {
            self.set(&arguments.lock, Some(lock_type));
        }
        status
    }
}

fn decode<'a, T: Decode<'a>>(bytes: &'a [u8]) -> T {
    T::decode(&mut Decoder::new(bytes)).unwrap()
}

fn is_repeated(arguments: &NlmLockArguments<'_>) -> bool {
    arguments.cookie.bytes().starts_with(&REPEATED_COOKIE)
}

fn describe(what: &str, lock: &NlmLock<'_>, exclusive: bool) -> String {
    format!("{what} {} {:?}", if exclusive { "w" } else { "r" }, lock.range().unwrap())
}

impl Transport for LockManager {
    fn call(&self, request: &RpcRequest<'_>, interrupt: &Interrupt) -> Result<CallReply, CallError> {
        let mut bytes = Vec::new();
        request.copy_arguments(&mut bytes);
        let procedure = NlmProcedure::from_number(request.procedure).unwrap();
        let user = match request.credential {
            RpcCredential::Sys(sys) => sys.uid,
            RpcCredential::None | RpcCredential::Context(_) => u32::MAX,
        };
        let mut state = self.state.lock();
        state.waiting += 1;
        while state.stuck == Some(procedure) && !interrupt.is_raised() {
            self.changed.notify_all();
            self.changed.wait_for(&mut state, Duration::from_millis(20));
        }
        state.waiting -= 1;
        let (cookie, status, call) = match procedure {
            NlmProcedure::Lock => {
                let arguments: NlmLockArguments<'_> = decode(&bytes);
                let status = state.lock(user, &arguments);
                let how = if arguments.reclaim { "RECLAIM" } else { "LOCK" };
                let wait = match arguments.block {
                    true => " wait",
                    false if state.keeps_places && is_repeated(&arguments) => " repeated",
                    false => "",
                };
                (
                    arguments.cookie,
                    status,
                    describe(&format!("{how}{wait}"), &arguments.lock, arguments.exclusive),
                )
            }
            NlmProcedure::Unlock => {
                let arguments: NlmUnlockArguments<'_> = decode(&bytes);
                state.set(&arguments.lock, None);
                let call = format!("UNLOCK {:?}", arguments.lock.range().unwrap());
                (arguments.cookie, NlmStat4::Granted, call)
            }
            NlmProcedure::Cancel => {
                let arguments: NlmCancelArguments<'_> = decode(&bytes);
                (
                    arguments.cookie,
                    NlmStat4::Granted,
                    describe("CANCEL", &arguments.lock, arguments.exclusive),
                )
            }
            NlmProcedure::Test => {
                let arguments: NlmTestArguments<'_> = decode(&bytes);
                let found = state.conflict(&arguments.lock, nlm4::lock_type(arguments.exclusive));
                if let Some(file) = state.freed.take() {
                    state.held.remove(&(file, OTHER));
                }
                let mut results = Vec::new();
                let refusal = state.refusal(user, arguments.exclusive);
                let reply = match (refusal.or_else(|| state.script.pop_front()), found) {
                    (Some(status), _) => NlmTestReply::Other(status),
                    (None, Some((svid, range, lock_type))) => {
                        let svid = if state.hides_holders { OTHER } else { svid };
                        let (offset, length) = nlm4::offset_and_length(range);
                        let exclusive = lock_type == LockType::Write;
                        let oh = Opaque::new(b"somebody").unwrap();
                        NlmTestReply::Denied(NlmHolder { exclusive, svid, oh, offset, length })
                    }
                    (None, None) => NlmTestReply::Other(NlmStat4::Granted),
                };
                NlmTestResult { cookie: arguments.cookie, reply }.encode(&mut results);
                state.calls.push("TEST".to_owned());
                state.users.push(user);
                self.changed.notify_all();
                return Ok(CallReply::from_results(results));
            }
            NlmProcedure::Null => return Ok(CallReply::from_results(Vec::new())),
            other => panic!("{other:?}"),
        };
        state.calls.push(call);
        state.users.push(user);
        self.changed.notify_all();
        let mut results = Vec::new();
        let cookie = if state.wrong_cookie { Opaque::new(b"12345678").unwrap() } else { cookie };
        NlmResult { cookie, status }.encode(&mut results);
        Ok(CallReply::from_results(results))
    }

    fn call_with_statistics(
        &self,
        request: &RpcRequest<'_>,
        interrupt: &Interrupt,
        statistics: &mut CallStatistics,
    ) -> Result<CallReply, CallError> {
        statistics.transmissions = 1;
        let reply = self.call(request, interrupt);
        if !std::mem::take(&mut self.state.lock().sends_again) {
            return reply;
        }
        statistics.transmissions = 2;
        self.call(request, interrupt)
    }
}

impl NlmHost for LockManager {
    fn first_svid(&self) -> i32 {
        1000
    }

    fn can_be_called(&self) -> bool {
        self.state.lock().calls_back
    }

    fn nsm_state(&self) -> i32 {
        3
    }

    fn prepare(&self, _: IpAddr) -> LockReadiness {
        LockReadiness::Ready
    }

    fn report(&self, events: Weak<dyn LockEvents>) {
        self.state.lock().events = Some(events);
    }
}

/// A client of this lock manager.
pub(crate) fn client(manager: &Arc<LockManager>) -> curt_client::protocol::v3::nlm::NlmClient {
    use curt_client::protocol::v3::nlm::{NlmClient, NlmOptions};
    use curt_rpc::client::{PortSource, ServerName, TcpOptions};
    let server = ServerName::Address(std::net::Ipv4Addr::LOCALHOST.into());
    let options = NlmOptions {
        transport: TcpOptions::new(server, PortSource::Fixed(1)),
        port: Some(1),
        host_name: b"tester".to_vec(),
        timeout: SOON,
    };
    let host: Arc<dyn NlmHost> = Arc::<LockManager>::clone(manager);
    let transport: Arc<dyn Transport> = Arc::<LockManager>::clone(manager);
    NlmClient::over(transport, options, host)
}
