//! Locks of NFSv3: the programs NLM and NSM, with the threads that call other hosts.
//!
//! The programs exist once per host: this server also receives what other servers call the mounts
//! of this host for, and passes it on.

mod monitor;
mod nlm_callbacks;
mod notices;
mod ports;
mod router;

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use curt_mount::lock_service::{CallbackPrograms, ServerLockService, ServerPorts, SystemMonitor, may_wait};
use curt_rpc::server::{DatagramServer, RpcService};
use curt_server::{LockServing, NfsService, RestartNotices};

use self::monitor::MonitorThread;
use self::nlm_callbacks::PeerThreads;
use self::notices::Notices;
use self::router::{HostReceiver, LockRouter};
use super::arguments::ServeArguments;
use super::listeners::Listeners;
use super::registration::LockServiceOwner;

/// The lock service of a server.
pub(super) struct LockServer {
    /// `None`: another server on this host has it, or it is not registered.
    mounts: Option<Arc<ServerLockService>>,
    peers: Arc<PeerThreads>,
    notices: RestartNotices,
    host_name: Vec<u8>,
    grace: Duration,
    /// The programs over TCP and UDP.
    pub(super) programs: [Arc<dyn RpcService>; 2],
}

impl LockServer {
    /// Begins to serve locks. `None`: not wanted.
    pub(super) fn start(arguments: &ServeArguments, service: &Arc<NfsService>) -> Result<Option<Self>> {
        if arguments.no_locks {
            return Ok(None);
        }
        let host_name = rustix::system::uname().nodename().to_bytes().to_vec();
        let given = arguments.grace.map(|seconds| Duration::from_secs(seconds.into()));
        let grace = given.unwrap_or_else(|| service.default_grace());
        let peers = PeerThreads::start(service).context("cannot start the threads for lock callbacks")?;
        let serving =
            LockServing { peers: Arc::<PeerThreads>::clone(&peers), host_name: host_name.clone(), grace };
        let notices = service.serve_locks(serving).context("cannot serve locks (use --no-locks)")?;
        let hosts = notices.hosts.len();
        if hosts > 0 {
            tracing::info!(
                "{hosts} hosts had locks: for {} s they can reclaim them, and no other locks are granted",
                grace.as_secs()
            );
        }
        let here = notices.hosts.iter().flat_map(|host| {
            host.locals.iter().copied().filter(|local| nlm_callbacks::is_here(host.address, Some(*local)))
        });
        // Without rpcbind it is not known to other hosts, and must not take their callbacks away
        // from the mounts of this one.
        let mounts = if arguments.no_rpcbind { None } else { claim(here.collect()) };
        peers.set_mounts(mounts.clone());
        let receiver = HostReceiver { service: Arc::clone(service), mounts: mounts.clone() };
        let callbacks = CallbackPrograms::for_both_transports(&Arc::new(receiver));
        let programs = callbacks.context("cannot start a thread for the locks of mounts")?.map(|callbacks| {
            let router = LockRouter { service: Arc::clone(service), callbacks };
            Arc::new(router) as Arc<dyn RpcService>
        });
        Ok(Some(Self { mounts, peers, notices, host_name, grace, programs }))
    }

    /// The program that has the lock service of this host.
    pub(super) fn owner(locks: Option<&Self>) -> LockServiceOwner {
        match locks {
            Some(Self { mounts: Some(_), .. }) => LockServiceOwner::ThisServer,
            _ => LockServiceOwner::Another,
        }
    }

    /// The servers of calls over UDP.
    pub(super) fn datagram_servers(
        &self,
        sockets: Vec<UdpSocket>,
        by_port: impl Fn(Arc<dyn RpcService>) -> Arc<dyn RpcService>,
    ) -> io::Result<Vec<DatagramServer>> {
        let [_, programs] = &self.programs;
        let serve = |socket| DatagramServer::new(socket, by_port(Arc::clone(programs)), may_wait);
        sockets.into_iter().map(serve).collect()
    }

    /// Informs the mounts of this host whether other hosts can call it, and notifies the hosts that
    /// had locks. To be called when the ports are open and registered.
    ///
    /// `ports`: those of NLM over TCP and UDP, if they are registered where rpcbind runs.
    pub(super) fn announce(
        &self,
        service: &Arc<NfsService>,
        listeners: &Listeners,
        ports: Option<[u16; 2]>,
    ) -> Result<()> {
        let own_monitor = listeners.statd.first().map_or(0, SocketAddr::port);
        if let Some(mounts) = &self.mounts {
            mounts.serve(ports.map(|nlm| ServerPorts { nlm, nsm: own_monitor }));
        }
        let listed = self.notices.hosts.iter().map(|host| host.address).collect();
        self.peers.set_monitor(MonitorThread::start(move || SystemMonitor::find(own_monitor), listed));
        let notices = Notices {
            service: Arc::clone(service),
            mounts: self.mounts.clone(),
            host_name: self.host_name.clone(),
            grace: self.grace,
        };
        notices.send(&self.notices).context("cannot start the threads that notify hosts of the restart")
    }

    /// Ends the part of this server in the locks of mounts.
    pub(super) fn end(&self) {
        if let Some(mounts) = &self.mounts {
            mounts.end();
        }
    }
}

/// Takes over the lock service of this host. Without it mounts on this host poll for locks.
fn claim(restarted: Vec<IpAddr>) -> Option<Arc<ServerLockService>> {
    match ServerLockService::claim(restarted) {
        Ok(Some(mounts)) => Some(Arc::new(mounts)),
        Ok(None) => {
            tracing::warn!(
                "another server on this host serves its locks: clients of this one must be given its ports \
                 (lockport=), or locks be turned off (--no-locks)"
            );
            None
        }
        Err(error) => {
            tracing::info!("the locks of mounts on this host are not served: {error}");
            None
        }
    }
}
