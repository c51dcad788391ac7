//! The subjects: the echo, the floor, Curt's server with and without its file cache, and other
//! servers.

use std::ffi::OsStr;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result};
use curt_bench::processes::{Curt, Daemon, Testbed, processor_time};
use curt_rpc::auth::RpcCredential;

use super::connection::{LatencyConnection, connect, exchange};
use super::echo::{self, EchoTask};
use super::load::{LatencyOperation, LoadShape};
use super::operations::{PreparedCalls, ReplyChecks};
use super::tree::{LatencyExport, LatencyTree};

/// Another server: `NAME=HOST:PORT/PATH[,pid=N]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PeerServer {
    pub(super) name: String,
    /// `HOST:PORT`.
    address: String,
    path: String,
    pid: Option<u32>,
}

impl FromStr for PeerServer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "expected NAME=HOST:PORT/PATH or NAME=HOST:PORT/PATH,pid=N".to_owned();
        let (name, rest) = text.split_once('=').ok_or_else(wrong)?;
        let (place, pid) = match rest.rsplit_once(",pid=") {
            Some((place, pid)) => (place, Some(pid.parse().map_err(|_| wrong())?)),
            None => (rest, None),
        };
        let (address, path) = place.split_once('/').ok_or_else(wrong)?;
        let port = address.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
        if name.is_empty() || port.is_none() {
            return Err(wrong());
        }
        Ok(Self { name: name.to_owned(), address: address.to_owned(), path: format!("/{path}"), pid })
    }
}

/// The kind of a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SubjectRole {
    /// Receives and sends.
    Echo,
    /// Makes the system calls of an operation as well.
    Floor,
    /// `curt serve`.
    Curt,
    /// `curt serve --filecache off`.
    Uncached,
    /// Another server.
    Peer,
    /// System calls on a mount of Curt's server.
    Mount,
}

/// The directory of the servers' files, and the caller of the requests.
pub(super) struct SubjectSetup<'a> {
    /// The exported directory.
    pub(super) directory: &'a Path,
    pub(super) credential: &'a RpcCredential,
    /// The prefix of each tree's name.
    pub(super) prefix: &'a str,
}

/// A subject.
pub(super) struct LatencySubject {
    pub(super) role: SubjectRole,
    pub(super) name: String,
    /// Its process id, if it runs on this machine and is known.
    pub(super) pid: Option<u32>,
    pub(super) tree: LatencyTree,
    /// The echo does not run in its tree.
    address: SocketAddr,
    /// The directory of the tree on this machine, for the floor.
    directory: PathBuf,
    pub(super) world: Option<Testbed>,
    _echo: Option<Daemon>,
}

impl LatencySubject {
    /// `curt serve` on loopback.
    pub(super) fn serving(setup: &SubjectSetup<'_>, role: SubjectRole) -> Result<Self> {
        let (name, options): (_, &[_]) = match role {
            SubjectRole::Uncached => ("filecache-off", &["--filecache", "off"]),
            _ => ("curt", &[]),
        };
        let mut arguments = vec![setup.directory.as_os_str()];
        arguments.extend(["--insecure", "--squash", "none"].map(OsStr::new));
        arguments.extend(options.iter().map(OsStr::new));
        let world = Testbed::serving_with(&Curt::beside()?, setup.directory, None, &arguments)?;
        let port = world.port().context("the server was started here")?;
        let subject = Self::new(setup, role, name, setup.export(port)?)?;
        Ok(Self { pid: world.server_pid(), world: Some(world), ..subject })
    }

    /// A running server.
    pub(super) fn peer(setup: &SubjectSetup<'_>, peer: &PeerServer) -> Result<Self> {
        let (host, port) = peer.address.rsplit_once(':').context("an address has a port")?;
        let export = LatencyExport::mount(host, port.parse()?, None, peer.path.as_bytes(), setup.credential);
        let export = export.with_context(|| peer.name.clone())?;
        let subject = Self::new(setup, SubjectRole::Peer, &peer.name, export)?;
        Ok(Self { pid: peer.pid, ..subject })
    }

    /// The echo or the floor, whose replies are prepared ones of `curt`.
    pub(super) fn bare(setup: &SubjectSetup<'_>, role: SubjectRole, curt: &Self) -> Result<Self> {
        let name = if role == SubjectRole::Echo { "echo" } else { "floor" };
        let (echo, address) = echo::start()?;
        let subject = Self::new(setup, role, name, setup.export(curt.address.port())?)?;
        Ok(Self { pid: Some(echo.pid()), address, _echo: Some(echo), ..subject })
    }

    fn new(setup: &SubjectSetup<'_>, role: SubjectRole, name: &str, export: LatencyExport) -> Result<Self> {
        let tree_name = format!("{}-{name}", setup.prefix);
        let directory = setup.directory.join(&tree_name);
        Ok(Self {
            role,
            name: name.to_owned(),
            pid: None,
            address: export.address,
            tree: LatencyTree::make(export, tree_name)
                .with_context(|| format!("{name}: cannot make the files to measure with"))?,
            directory,
            world: None,
            _echo: None,
        })
    }

    /// The connections of a shape.
    pub(super) fn connections(
        &self,
        operation: LatencyOperation,
        shape: LoadShape,
        generation: u64,
    ) -> Result<Vec<LatencyConnection>> {
        let connection = |connection| {
            let calls = PreparedCalls::new(operation, &self.tree, connection, shape.outstanding, generation)?;
            let checks = ReplyChecks::new(operation, shape.outstanding);
            if !matches!(self.role, SubjectRole::Echo | SubjectRole::Floor) {
                return Ok(LatencyConnection::new(self.connect()?, calls, checks));
            }
            let reply = self.reply_to(operation)?;
            let (work, checks) = match self.role {
                SubjectRole::Echo => (None, ReplyChecks::Same(reply.clone())),
                _ => (Some(calls.work(operation, &self.directory, connection, &reply)?), checks),
            };
            let task = EchoTask { call_bytes: calls.sample().len(), reply, work };
            Ok(LatencyConnection::new(echo::connect(self.address, &task)?, calls, checks))
        };
        (0..shape.connections).map(connection).collect()
    }

    pub(super) fn connect(&self) -> Result<TcpStream> {
        connect(self.address)
    }

    /// The reply of Curt's server to the first call of a connection. Its change is undone.
    fn reply_to(&self, operation: LatencyOperation) -> Result<Vec<u8>> {
        let mut stream = connect(self.tree.export.address)?;
        let mut reply_to =
            |operation| exchange(&mut stream, PreparedCalls::new(operation, &self.tree, 0, 1, 0)?.sample());
        if operation == LatencyOperation::Remove {
            reply_to(LatencyOperation::Create)?;
        }
        let reply = reply_to(operation)?;
        if operation == LatencyOperation::Create {
            reply_to(LatencyOperation::Remove)?;
        }
        Ok(reply)
    }

    /// The processor time of its process, if known.
    pub(super) fn processor_time(&self) -> Option<Duration> {
        processor_time(self.pid?).ok()
    }

    /// Removes its files.
    pub(super) fn end(self) -> Result<()> {
        self.tree.remove()
    }
}

impl SubjectSetup<'_> {
    /// The export of Curt's server at `port`.
    fn export(&self, port: u16) -> Result<LatencyExport> {
        let path = self.directory.as_os_str().as_encoded_bytes();
        LatencyExport::mount("127.0.0.1", port, Some(port), path, self.credential)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_parsed_with_or_without_their_process() {
        let peer = |pid| PeerServer {
            name: "ganesha".into(),
            address: "127.0.0.1:2049".into(),
            path: "/srv/a,b".into(),
            pid,
        };
        assert_eq!("ganesha=127.0.0.1:2049/srv/a,b".parse(), Ok(peer(None)));
        assert_eq!("ganesha=127.0.0.1:2049/srv/a,b,pid=12".parse(), Ok(peer(Some(12))));
        for wrong in ["ganesha", "g=host/path", "g=host:1", "=h:1/p", "g=h:1/p,pid=x", "g=h:99999/p"] {
            assert!(wrong.parse::<PeerServer>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_peer_may_have_an_ipv6_address() {
        let peer: PeerServer = "x=[::1]:2049/".parse().expect("it is right");
        assert_eq!((peer.address.as_str(), peer.path.as_str()), ("[::1]:2049", "/"));
    }
}
