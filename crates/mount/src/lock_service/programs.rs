//! The programs that servers and the system's status monitor call: NLM version 4 (GRANTED) and NSM
//! version 1 (NOTIFY).
//!
//! A call has an effect only if it comes from the address of a mount's server (a notice: from a
//! reserved port), or from this machine's monitor: over UDP and loopback, from a reserved port.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use curt_client::protocol::LockCallbackId;
use curt_proto::nlm4::{self, NlmProcedure, NlmResult, NlmStat4, NlmTestArguments};
use curt_proto::nsm::{self, MonResult, MonitorResult, MonitorState, NsmProcedure, NsmStatus, StateChange};
use curt_rpc::message::{CallMessage, ProcedureId, VersionRange};
use curt_rpc::server::{CallContext, CallFailure, RpcService};
use curt_types::FileHandle;
use curt_xdr::{Decode, Encode, decode_all};

use super::granted_results::{self, GrantedResult};

/// The procedure of a lock manager that the system's status monitor calls (Linux's lockd has the
/// same number).
pub const MONITOR_CALLBACK: u32 = 16;

/// Bytes of the record that a monitor returns: the address of a server.
pub(super) const ADDRESS_BYTES: usize = 16;

/// Ports below this one are root's (IPPORT_RESERVED).
pub const PORT_RESERVED: u16 = 1024;

/// The result of a callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantReply {
    /// The lock is an owner's.
    Confirmed,
    /// The lock has no waiter: the server takes it back.
    Denied,
    /// The owner's mount did not reply in time. It may have the lock, so the server must not take
    /// it back; it calls again.
    Unknown,
    /// The caller is no mount's server.
    Stranger,
}

/// Receives what servers say.
pub trait CallbackReceiver: Send + Sync + 'static {
    /// A server has granted a LOCK.
    fn granted(&self, server: IpAddr, grant: &Grant) -> GrantReply;

    /// A host reportedly has restarted.
    fn restarted(&self, host: IpAddr, state: i32);

    /// Whether hosts say so themselves. Otherwise the system's monitor does.
    fn is_monitor(&self) -> bool;

    /// The state number of this host.
    fn state(&self) -> i32;
}

/// A lock that a server has granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The owner's number.
    pub svid: i32,
    /// The file.
    pub file: FileHandle,
    /// The bytes.
    pub range: curt_types::ByteRange,
    /// How they are locked.
    pub lock_type: curt_types::LockType,
    /// The callback that reported it.
    pub callback: LockCallbackId,
}

/// The programs, for the calls that come by one transport.
pub struct CallbackPrograms<R> {
    pub(super) receiver: Arc<R>,
    pub(super) is_udp: bool,
    pub(super) results: SyncSender<GrantedResult>,
}

/// Whether a call may have to wait for a mount of another process, which may have stopped.
#[must_use]
pub fn may_wait(call: ProcedureId) -> bool {
    let ProcedureId { program, version, procedure } = call;
    (program, version) == (nlm4::PROGRAM, nlm4::VERSION)
        && matches!(
            NlmProcedure::from_number(procedure),
            Some(NlmProcedure::Granted | NlmProcedure::GrantedMsg)
        )
}

impl<R: CallbackReceiver> RpcService for CallbackPrograms<R> {
    fn call(
        &self,
        call: &CallMessage<'_>,
        context: &mut CallContext<'_>,
        reply: &mut Vec<u8>,
    ) -> Result<(), CallFailure> {
        let peer = context.peer();
        match (call.program, call.version) {
            (nlm4::PROGRAM, nlm4::VERSION) => {
                // A mount of another process may have to be asked.
                context.may_block();
                self.lock_manager(call, peer, reply)
            }
            (nlm4::PROGRAM, _) => {
                Err(CallFailure::ProgramMismatch(VersionRange { low: nlm4::VERSION, high: nlm4::VERSION }))
            }
            (nsm::PROGRAM, nsm::VERSION) => self.status_monitor(call, peer, reply),
            (nsm::PROGRAM, _) => {
                Err(CallFailure::ProgramMismatch(VersionRange { low: nsm::VERSION, high: nsm::VERSION }))
            }
            _ => Err(CallFailure::ProgramUnavailable),
        }
    }
}

impl<R: CallbackReceiver> CallbackPrograms<R> {
    /// The programs for TCP and for UDP. A thread is started that sends results.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn for_both_transports(receiver: &Arc<R>) -> std::io::Result<[Self; 2]> {
        let results = granted_results::start()?;
        Ok([false, true].map(|is_udp| Self {
            receiver: Arc::clone(receiver),
            is_udp,
            results: results.clone(),
        }))
    }

    /// Receives what servers say.
    pub fn receiver(&self) -> &R {
        &self.receiver
    }

    fn lock_manager(
        &self,
        call: &CallMessage<'_>,
        peer: SocketAddr,
        reply: &mut Vec<u8>,
    ) -> Result<(), CallFailure> {
        if call.procedure == MONITOR_CALLBACK {
            return self.monitor_callback(call, peer);
        }
        let server = peer.ip();
        match NlmProcedure::from_number(call.procedure) {
            Some(NlmProcedure::Null) => Ok(()),
            Some(NlmProcedure::Granted) => {
                let arguments: NlmTestArguments<'_> = decoded(call)?;
                let status = match self.grant(server, &arguments) {
                    GrantReply::Confirmed => NlmStat4::Granted,
                    GrantReply::Denied | GrantReply::Stranger => NlmStat4::Denied,
                    GrantReply::Unknown => return Err(CallFailure::NoReply),
                };
                NlmResult { cookie: arguments.cookie, status }.encode(reply);
                Ok(())
            }
            Some(NlmProcedure::GrantedMsg) => {
                let arguments: NlmTestArguments<'_> = decoded(call)?;
                let status = match self.grant(server, &arguments) {
                    GrantReply::Confirmed => NlmStat4::Granted,
                    GrantReply::Denied => NlmStat4::Denied,
                    // The address of a datagram may be forged: nothing is sent there.
                    GrantReply::Unknown | GrantReply::Stranger => return Ok(()),
                };
                let cookie = arguments.cookie.bytes().to_vec();
                // A full queue drops it: the server calls back again.
                let _ = self.results.try_send(GrantedResult { server, cookie, status });
                Ok(())
            }
            // This is no server of locks. If one of this host has ended, and will start again, its
            // clients must not take their requests for done.
            Some(
                NlmProcedure::Test
                | NlmProcedure::Lock
                | NlmProcedure::Cancel
                | NlmProcedure::Unlock
                | NlmProcedure::NmLock,
            ) => Err(CallFailure::NoReply),
            _ => Err(CallFailure::ProcedureUnavailable),
        }
    }

    fn grant(&self, peer: IpAddr, arguments: &NlmTestArguments<'_>) -> GrantReply {
        let file = FileHandle::new(arguments.lock.fh.bytes()).ok();
        let Some((file, range)) = file.zip(arguments.lock.range()) else { return GrantReply::Stranger };
        let lock_type = nlm4::lock_type(arguments.exclusive);
        let callback = LockCallbackId::of_cookie(arguments.cookie.bytes());
        let grant = Grant { svid: arguments.lock.svid, file, range, lock_type, callback };
        self.receiver.granted(peer, &grant)
    }

    /// The system's status monitor reports that a server restarted. rpc.statd calls over UDP from a
    /// reserved port, which Linux's lockd requires, too: other local users must not make mounts
    /// lose their locks.
    fn monitor_callback(&self, call: &CallMessage<'_>, peer: SocketAddr) -> Result<(), CallFailure> {
        let status: NsmStatus<'_> = decoded(call)?;
        if !self.is_udp || !peer.ip().is_loopback() || peer.port() >= PORT_RESERVED {
            return Err(CallFailure::SystemError);
        }
        self.receiver.restarted(address_of(status.private), status.state);
        Ok(())
    }

    fn status_monitor(
        &self,
        call: &CallMessage<'_>,
        peer: SocketAddr,
        reply: &mut Vec<u8>,
    ) -> Result<(), CallFailure> {
        match NsmProcedure::from_number(call.procedure) {
            Some(NsmProcedure::Null) => Ok(()),
            Some(NsmProcedure::Notify) => {
                let change: StateChange<'_> = decoded(call)?;
                // Any user of the server can send from other ports.
                if self.receiver.is_monitor() && peer.port() < PORT_RESERVED {
                    self.receiver.restarted(peer.ip(), change.state);
                }
                Ok(())
            }
            // Nothing is monitored for others.
            Some(NsmProcedure::Stat | NsmProcedure::Mon) => {
                MonResult { result: MonitorResult::Failure, state: self.receiver.state() }.encode(reply);
                Ok(())
            }
            Some(NsmProcedure::Unmon | NsmProcedure::UnmonAll) => {
                MonitorState(self.receiver.state()).encode(reply);
                Ok(())
            }
            Some(NsmProcedure::SimuCrash) | None => Err(CallFailure::ProcedureUnavailable),
        }
    }
}

fn decoded<'a, T: Decode<'a>>(call: &CallMessage<'a>) -> Result<T, CallFailure> {
    decode_all(call.arguments).map_err(|_| CallFailure::GarbageArguments)
}

/// An address as a record of a monitor.
pub(super) fn record_of(address: IpAddr) -> [u8; ADDRESS_BYTES] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

fn address_of(record: [u8; ADDRESS_BYTES]) -> IpAddr {
    std::net::Ipv6Addr::from(record).to_canonical()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may end in a panic")]

    use std::sync::mpsc::{Receiver, sync_channel};

    use curt_proto::nlm4::NlmLock;
    use curt_rpc::security::auth::OpaqueAuth;
    use curt_types::{ByteRange, LockType};
    use curt_xdr::Opaque;
    use parking_lot::Mutex;

    use super::*;

    #[derive(Default)]
    struct Heard {
        said: Mutex<Vec<String>>,
        has_system_monitor: bool,
    }

    impl CallbackReceiver for Heard {
        fn granted(&self, server: IpAddr, grant: &Grant) -> GrantReply {
            let Grant { svid, range, lock_type, .. } = grant;
            self.said.lock().push(format!("{server} granted {svid} {range:?} {lock_type:?}"));
            match svid {
                7 => GrantReply::Confirmed,
                8 => GrantReply::Denied,
                9 => GrantReply::Unknown,
                _ => GrantReply::Stranger,
            }
        }

        fn restarted(&self, host: IpAddr, state: i32) {
            self.said.lock().push(format!("{host} restarted {state}"));
        }

        fn is_monitor(&self) -> bool {
            !self.has_system_monitor
        }

        fn state(&self) -> i32 {
            5
        }
    }

    type Programs = (CallbackPrograms<Heard>, Receiver<GrantedResult>);

    fn programs(heard: Heard, is_udp: bool) -> Programs {
        let (results, sent) = sync_channel(2);
        (CallbackPrograms { receiver: Arc::new(heard), is_udp, results }, sent)
    }

    fn ask(
        programs: &CallbackPrograms<Heard>,
        target: (u32, u32, u32),
        peer: &str,
        arguments: &dyn Encode,
    ) -> Result<Vec<u8>, CallFailure> {
        let (program, version, procedure) = target;
        let mut bytes = Vec::new();
        arguments.encode(&mut bytes);
        let call = CallMessage {
            xid: 1,
            program,
            version,
            procedure,
            credential: OpaqueAuth::None,
            arguments: &bytes,
        };
        let peer = peer.parse().unwrap();
        let mut reply = Vec::new();
        programs.call(&call, &mut CallContext::detached(peer, peer), &mut reply).map(|()| reply)
    }

    fn grant(svid: i32, length: u64, cookie: &'static [u8]) -> NlmTestArguments<'static> {
        let lock = NlmLock {
            caller_name: Opaque::new(b"server").unwrap(),
            fh: Opaque::new(b"handle").unwrap(),
            oh: Opaque::new(b"owner").unwrap(),
            svid,
            offset: 10,
            length,
        };
        NlmTestArguments { cookie: Opaque::new(cookie).unwrap(), exclusive: true, lock }
    }

    const NLM: fn(NlmProcedure) -> (u32, u32, u32) =
        |procedure| (nlm4::PROGRAM, nlm4::VERSION, procedure.number());

    #[test]
    fn grants_are_passed_on_with_their_senders_address_and_answered() {
        let (programs, _) = programs(Heard::default(), false);
        let server = "10.0.0.1:900";
        for (svid, length, status) in [
            (7, 0, Ok(NlmStat4::Granted)),
            (8, 5, Ok(NlmStat4::Denied)),
            (7, u64::MAX, Ok(NlmStat4::Denied)),
            (10, 5, Ok(NlmStat4::Denied)),
            // The mount may have the lock: the server must not take it back.
            (9, 5, Err(CallFailure::NoReply)),
        ] {
            let reply = ask(&programs, NLM(NlmProcedure::Granted), server, &grant(svid, length, b"cookie"));
            let status_of = |reply: Vec<u8>| {
                let result: NlmResult<'_> = decode_all(&reply).unwrap();
                assert_eq!(result.cookie.bytes(), b"cookie");
                result.status
            };
            assert_eq!(reply.map(status_of), status);
        }
        let ranges = [ByteRange::new(10, u64::MAX).unwrap(), ByteRange::new(10, 14).unwrap()];
        let heard = [(7, ranges[0]), (8, ranges[1]), (10, ranges[1]), (9, ranges[1])];
        let heard =
            heard.map(|(svid, range)| format!("10.0.0.1 granted {svid} {range:?} {:?}", LockType::Write));
        assert_eq!(*programs.receiver.said.lock(), heard);
        assert!(ask(&programs, (nlm4::PROGRAM, 3, 5), server, &()).is_err());
        for procedure in [NlmProcedure::Lock, NlmProcedure::Unlock, NlmProcedure::Test] {
            assert_eq!(ask(&programs, NLM(procedure), server, &()), Err(CallFailure::NoReply));
        }
    }

    #[test]
    fn strangers_get_no_reply_to_granted_msg_and_the_queue_of_replies_is_bounded() {
        const LONGEST: &[u8] = &[7; nlm4::NETOBJ_MAX];
        let (programs, sent) = programs(Heard::default(), true);
        let target = NLM(NlmProcedure::GrantedMsg);
        for svid in [10, 9, 11, i32::MIN] {
            assert_eq!(ask(&programs, target, "10.0.0.1:900", &grant(svid, 1, b"cookie")), Ok(vec![]));
        }
        assert!(sent.try_recv().is_err());
        for _ in 0..1000 {
            assert_eq!(ask(&programs, target, "10.0.0.1:900", &grant(7, 1, LONGEST)), Ok(vec![]));
        }
        let server = "10.0.0.1".parse().unwrap();
        let expected = GrantedResult { server, cookie: LONGEST.to_vec(), status: NlmStat4::Granted };
        assert_eq!(sent.try_iter().collect::<Vec<_>>(), [expected.clone(), expected]);
    }

    #[test]
    fn restarts_are_believed_of_the_host_itself_and_of_the_monitor_of_this_machine() {
        let private = record_of("10.0.0.2".parse().unwrap());
        let status = NsmStatus { name: Opaque::new(b"server").unwrap(), state: 11, private };
        let monitor = (nlm4::PROGRAM, nlm4::VERSION, MONITOR_CALLBACK);
        for (is_udp, peer, is_believed) in [
            (true, "127.0.0.1:1023", true),
            // Another user of this machine; a stranger; and what rpc.statd never does.
            (true, "127.0.0.1:1024", false),
            (true, "10.0.0.3:900", false),
            (false, "127.0.0.1:900", false),
        ] {
            let (programs, _) = programs(Heard::default(), is_udp);
            let reply = ask(&programs, monitor, peer, &status);
            assert_eq!(reply.is_ok(), is_believed, "{peer}");
            let expected: &[&str] = if is_believed { &["10.0.0.2 restarted 11"] } else { &[] };
            assert_eq!(*programs.receiver.said.lock(), expected, "{peer}");
        }
        let change = StateChange { name: Opaque::new(b"whoever").unwrap(), state: 9 };
        let notify = (nsm::PROGRAM, nsm::VERSION, NsmProcedure::Notify.number());
        let is_heard = &["10.0.0.1 restarted 9"][..];
        for (has_system_monitor, peer, expected) in [
            (false, "10.0.0.1:1023", is_heard),
            // Another user of the server.
            (false, "10.0.0.1:1024", &[]),
            (true, "10.0.0.1:900", &[]),
        ] {
            let (programs, _) = programs(Heard { has_system_monitor, ..Heard::default() }, true);
            ask(&programs, notify, peer, &change).unwrap();
            assert_eq!(*programs.receiver.said.lock(), expected, "{peer}");
        }
    }
}
