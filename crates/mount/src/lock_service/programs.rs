//! The programs that servers and the system's status monitor call: NLM version 4 (GRANTED) and NSM
//! version 1 (NOTIFY).
//!
//! Whoever calls, a call has an effect only if it comes from the address of a mount's server, or
//! from this machine's monitor.

use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use curt_client::protocol::v3::nlm;
use curt_proto::nlm4::{
    self, NlmProcedure, NlmResult, NlmStat4, NlmTestArguments, NlmTestReply, NlmTestResult,
};
use curt_proto::nsm::{self, MonResult, MonitorResult, MonitorState, NsmProcedure, NsmStatus, StateChange};
use curt_rpc::message::{CallMessage, VersionRange};
use curt_rpc::server::{CallContext, CallFailure, RpcService};
use curt_types::FileHandle;
use curt_xdr::{Decode, Encode, decode_all};

/// The procedure of a lock manager that the system's status monitor calls (Linux's lockd has the
/// same number).
pub(super) const MONITOR_CALLBACK: u32 = 16;

/// Bytes of the record that a monitor returns: the address of a server.
pub(super) const ADDRESS_BYTES: usize = 16;

/// Timeout of the reply to GRANTED_MSG.
const RESULT_TIMEOUT: Duration = Duration::from_secs(5);

/// Receives what servers say.
pub(super) trait CallbackReceiver: Send + Sync + 'static {
    /// A server has granted a LOCK; whether this is confirmed.
    fn granted(&self, server: IpAddr, grant: &Grant) -> bool;

    /// A host restarted.
    fn restarted(&self, host: IpAddr, state: i32);

    /// The state number of this host.
    fn state(&self) -> i32;
}

/// A lock that a server has granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    pub(super) svid: i32,
    pub(super) file: FileHandle,
    pub(super) range: curt_types::ByteRange,
    pub(super) lock_type: curt_types::LockType,
}

/// The programs.
pub(super) struct CallbackPrograms<R>(pub(super) R);

impl<R: CallbackReceiver> RpcService for CallbackPrograms<R> {
    fn call(
        &self,
        call: &CallMessage<'_>,
        context: &mut CallContext<'_>,
        reply: &mut Vec<u8>,
    ) -> Result<(), CallFailure> {
        let peer = context.peer().ip();
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
    fn lock_manager(
        &self,
        call: &CallMessage<'_>,
        peer: IpAddr,
        reply: &mut Vec<u8>,
    ) -> Result<(), CallFailure> {
        if call.procedure == MONITOR_CALLBACK {
            return self.monitor_callback(call, peer);
        }
        match NlmProcedure::from_number(call.procedure) {
            Some(NlmProcedure::Null) => Ok(()),
            Some(NlmProcedure::Granted) => {
                let arguments: NlmTestArguments<'_> = decoded(call)?;
                let status = self.grant(peer, &arguments);
                NlmResult { cookie: arguments.cookie, status }.encode(reply);
                Ok(())
            }
            Some(NlmProcedure::GrantedMsg) => {
                let arguments: NlmTestArguments<'_> = decoded(call)?;
                let status = self.grant(peer, &arguments);
                let cookie = arguments.cookie.bytes().to_vec();
                let send = move || nlm::send_granted_result(peer, &cookie, status, RESULT_TIMEOUT);
                if let Err(error) = thread::Builder::new().name("curt-granted".into()).spawn(send) {
                    tracing::warn!(%error, "no thread for the reply to GRANTED_MSG");
                }
                Ok(())
            }
            // This is no server of locks.
            Some(NlmProcedure::Test) => {
                let arguments: NlmTestArguments<'_> = decoded(call)?;
                let reply_of = NlmTestReply::Other(NlmStat4::DeniedNolocks);
                NlmTestResult { cookie: arguments.cookie, reply: reply_of }.encode(reply);
                Ok(())
            }
            _ => Err(CallFailure::ProcedureUnavailable),
        }
    }

    fn grant(&self, peer: IpAddr, arguments: &NlmTestArguments<'_>) -> NlmStat4 {
        let file = FileHandle::new(arguments.lock.fh.bytes()).ok();
        let Some((file, range)) = file.zip(arguments.lock.range()) else { return NlmStat4::Denied };
        let lock_type = nlm4::lock_type(arguments.exclusive);
        let grant = Grant { svid: arguments.lock.svid, file, range, lock_type };
        if self.0.granted(peer, &grant) { NlmStat4::Granted } else { NlmStat4::Denied }
    }

    /// The system's status monitor says that a server restarted.
    fn monitor_callback(&self, call: &CallMessage<'_>, peer: IpAddr) -> Result<(), CallFailure> {
        let status: NsmStatus<'_> = decoded(call)?;
        if peer.is_loopback() {
            self.0.restarted(address_of(status.private), status.state);
        }
        Ok(())
    }

    fn status_monitor(
        &self,
        call: &CallMessage<'_>,
        peer: IpAddr,
        reply: &mut Vec<u8>,
    ) -> Result<(), CallFailure> {
        match NsmProcedure::from_number(call.procedure) {
            Some(NsmProcedure::Null) => Ok(()),
            Some(NsmProcedure::Notify) => {
                let change: StateChange<'_> = decoded(call)?;
                self.0.restarted(peer, change.state);
                Ok(())
            }
            // Nothing is monitored for others.
            Some(NsmProcedure::Stat | NsmProcedure::Mon) => {
                MonResult { result: MonitorResult::Failure, state: self.0.state() }.encode(reply);
                Ok(())
            }
            Some(NsmProcedure::Unmon | NsmProcedure::UnmonAll) => {
                MonitorState(self.0.state()).encode(reply);
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

    use curt_proto::nlm4::NlmLock;
    use curt_rpc::security::auth::OpaqueAuth;
    use curt_types::{ByteRange, LockType};
    use curt_xdr::Opaque;
    use parking_lot::Mutex;

    use super::*;

    #[derive(Default)]
    struct Heard(Mutex<Vec<String>>);

    impl CallbackReceiver for Heard {
        fn granted(&self, server: IpAddr, grant: &Grant) -> bool {
            self.0
                .lock()
                .push(format!("{server} granted {} {:?} {:?}", grant.svid, grant.range, grant.lock_type));
            grant.svid == 7
        }

        fn restarted(&self, host: IpAddr, state: i32) {
            self.0.lock().push(format!("{host} restarted {state}"));
        }

        fn state(&self) -> i32 {
            5
        }
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
        let peer = std::net::SocketAddr::new(peer.parse().unwrap(), 1000);
        let mut reply = Vec::new();
        programs.call(&call, &mut CallContext::detached(peer, peer), &mut reply).map(|()| reply)
    }

    fn grant(svid: i32, length: u64) -> NlmTestArguments<'static> {
        let lock = NlmLock {
            caller_name: Opaque::new(b"server").unwrap(),
            fh: Opaque::new(b"handle").unwrap(),
            oh: Opaque::new(b"owner").unwrap(),
            svid,
            offset: 10,
            length,
        };
        NlmTestArguments { cookie: Opaque::new(b"cookie").unwrap(), exclusive: true, lock }
    }

    #[test]
    fn grants_are_passed_on_with_their_senders_address_and_answered() {
        let programs = CallbackPrograms(Heard::default());
        let target = (nlm4::PROGRAM, nlm4::VERSION, NlmProcedure::Granted.number());
        for (svid, length, status) in
            [(7, 0, NlmStat4::Granted), (8, 5, NlmStat4::Denied), (7, u64::MAX, NlmStat4::Denied)]
        {
            let reply = ask(&programs, target, "10.0.0.1", &grant(svid, length)).unwrap();
            let result: NlmResult<'_> = decode_all(&reply).unwrap();
            assert_eq!((result.status, result.cookie.bytes()), (status, &b"cookie"[..]));
        }
        let ranges = [ByteRange::new(10, u64::MAX).unwrap(), ByteRange::new(10, 14).unwrap()];
        let heard = [(7, ranges[0]), (8, ranges[1])];
        let heard =
            heard.map(|(svid, range)| format!("10.0.0.1 granted {svid} {range:?} {:?}", LockType::Write));
        assert_eq!(*programs.0.0.lock(), heard);
        assert!(ask(&programs, (nlm4::PROGRAM, 3, 5), "10.0.0.1", &()).is_err());
    }

    #[test]
    fn restarts_are_believed_of_the_host_itself_and_of_the_monitor_of_this_machine() {
        let programs = CallbackPrograms(Heard::default());
        let change = StateChange { name: Opaque::new(b"whoever").unwrap(), state: 9 };
        let notify = (nsm::PROGRAM, nsm::VERSION, NsmProcedure::Notify.number());
        ask(&programs, notify, "10.0.0.1", &change).unwrap();
        let private = record_of("10.0.0.2".parse().unwrap());
        let status = NsmStatus { name: Opaque::new(b"server").unwrap(), state: 11, private };
        let monitor = (nlm4::PROGRAM, nlm4::VERSION, MONITOR_CALLBACK);
        ask(&programs, monitor, "10.0.0.3", &status).unwrap();
        assert_eq!(*programs.0.0.lock(), ["10.0.0.1 restarted 9"], "a stranger is not heard");
        ask(&programs, monitor, "127.0.0.1", &status).unwrap();
        assert_eq!(programs.0.0.lock()[1], "10.0.0.2 restarted 11");
    }
}
