//! The watchdog: whether calls are answered.
//!
//! If no call was answered since the last check, the server calls its own NULL procedure over a
//! connection to itself, which passes all stages of a client's call (accepting, idle set, serving
//! threads). If all threads of a server are blocked, this fails, and the service manager restarts
//! the server.

use std::{
    io::{self, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use curt_observe::{ServerCounter, ServerCounters};
use curt_proto::{nfs3, nfs4};
use curt_rpc::{auth::RpcCredential, message::call_record};

use curt_server::Versions;

use super::systemd;

/// The fraction of the watchdog's timeout after which it is notified, so that one late notification
/// is harmless.
const WATCHDOG_PART: u32 = 3;

/// The xid of the call: any value for a connection with one call.
const XID: u32 = 1;

/// The length of the reply to NULL: its record mark, and the header of an accepted call.
const REPLY: usize = 4 + 24;

/// Notifies the service manager while calls are answered, if it has a watchdog, until the server
/// `stops`.
pub(super) fn watch(
    address: SocketAddr,
    versions: Versions,
    counters: Arc<ServerCounters>,
    stops: Arc<AtomicBool>,
) -> io::Result<()> {
    let Some(limit) = systemd::watchdog() else {
        return Ok(());
    };
    let interval = limit / WATCHDOG_PART;
    let mut probe_state = LivenessProbe::new(reachable(address), versions, counters);
    let watcher = move || {
        while !stops.load(Ordering::Relaxed) {
            match probe_state.check(interval) {
                Ok(()) => systemd::alive(),
                Err(_) if stops.load(Ordering::Relaxed) => {}
                Err(error) => tracing::error!("the server no longer answers calls: {error}"),
            }
            thread::sleep(interval);
        }
    };
    thread::Builder::new().name("curt-watchdog".into()).spawn(watcher)?;
    Ok(())
}

/// The state of the last check.
struct LivenessProbe {
    address: SocketAddr,
    /// A version of NFS that the server answers.
    version: u32,
    counters: Arc<ServerCounters>,
    answered: u64,
}

impl LivenessProbe {
    const fn new(address: SocketAddr, versions: Versions, counters: Arc<ServerCounters>) -> Self {
        let version = if versions.v3 { nfs3::VERSION } else { nfs4::VERSION };
        Self { address, version, counters, answered: 0 }
    }

    /// Checks whether calls were answered since the last check, or are within `timeout`.
    fn check(&mut self, timeout: Duration) -> io::Result<()> {
        let served = || self.counters.events.value(ServerCounter::Requests);
        let before = std::mem::replace(&mut self.answered, served());
        if self.answered != before {
            return Ok(());
        }
        probe(self.address, self.version, timeout)?;
        self.answered = self.counters.events.value(ServerCounter::Requests);
        Ok(())
    }
}

/// Calls this server and waits for the reply.
fn probe(address: SocketAddr, version: u32, timeout: Duration) -> io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&address, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    let null = nfs3::NfsProcedure::Null.number();
    stream.write_all(&call_record(XID, nfs3::PROGRAM, version, null, &RpcCredential::None, &()))?;
    stream.read_exact(&mut [0; REPLY])
}

/// A local address of a server that listens on `address`.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that fails may panic")]
mod tests {
    use std::net::TcpListener;

    use curt_rpc::{
        message::CallMessage,
        server::{CallContext, CallFailure, Limits, RpcServer, RpcService},
    };

    use super::*;

    struct Answers(Arc<ServerCounters>);

    impl RpcService for Answers {
        fn call(
            &self,
            _: &CallMessage<'_>,
            _: &mut CallContext<'_>,
            _: &mut Vec<u8>,
        ) -> Result<(), CallFailure> {
            self.0.count(ServerCounter::Requests);
            Ok(())
        }
    }

    #[test]
    fn a_server_that_answers_lives_and_one_that_only_accepts_does_not() {
        let counters = Arc::new(ServerCounters::default());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut probe_state =
            LivenessProbe::new(listener.local_addr().unwrap(), Versions::default(), Arc::clone(&counters));
        let short = Duration::from_millis(50);
        // The system accepts the connection, and there is no reply.
        assert!(probe_state.check(short).is_err());
        // Calls of other clients are answered: this is sufficient.
        counters.count(ServerCounter::Requests);
        assert!(probe_state.check(short).is_ok());
        assert!(probe_state.check(short).is_err());
        let service = Arc::new(Answers(Arc::clone(&counters)));
        let server = RpcServer::new(vec![listener], service, Limits::default()).unwrap();
        let handle = server.handle();
        thread::scope(|scope| {
            scope.spawn(|| server.run());
            let long = Duration::from_secs(60);
            assert!((0..3).all(|_| probe_state.check(long).is_ok()));
            handle.shutdown();
        });
        assert!(probe_state.check(short).is_err(), "nobody listens any more");
    }

    #[test]
    fn a_server_on_every_address_is_reached_on_this_machine() {
        for (address, expected) in
            [("0.0.0.0:2049", "127.0.0.1:2049"), ("[::]:2049", "[::1]:2049"), ("10.0.0.1:7", "10.0.0.1:7")]
        {
            assert_eq!(reachable(address.parse().unwrap()), expected.parse().unwrap());
        }
    }
}
