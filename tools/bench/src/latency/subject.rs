//! Who is measured: the echo, the floor, our server with and without its file cache, and other
//! servers.

use std::ffi::OsStr;
use std::net::{Ipv4Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result};
use curt_bench::processes::{Curt, Daemon, free_port, processor_time};
use curt_proto::nfs3::NfsFh3;
use curt_rpc::auth::RpcCredential;

use super::calls::PreparedCalls;
use super::check::{ReplyChecks, data_at};
use super::client::{LatencyConnection, connect, exchange};
use super::echo::{self, EchoTask, EchoWork};
use super::load::{BLOCK_BYTES, LatencyOperation, LoadShape};
use super::setup_client::{SetupClient, mount_address};
use super::tree::{self, LatencyTree};

/// How long a server may take to be there.
const START: Duration = Duration::from_secs(20);

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
        let port = address
            .rsplit_once(':')
            .and_then(|(_, port)| port.parse::<u16>().ok());
        if name.is_empty() || port.is_none() {
            return Err(wrong());
        }
        Ok(Self {
            name: name.to_owned(),
            address: address.to_owned(),
            path: format!("/{path}"),
            pid,
        })
    }
}

/// What a subject is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SubjectRole {
    /// Receives and sends.
    Echo,
    /// Does the system calls of an operation besides.
    Floor,
    /// `curt serve`.
    Curt,
    /// `curt serve --filecache off`.
    Uncached,
    /// Another server.
    Peer,
}

impl SubjectRole {
    /// How it is called; a peer has a name of its own.
    const fn name(self) -> &'static str {
        match self {
            Self::Echo => "echo",
            Self::Floor => "floor",
            Self::Curt => "curt",
            Self::Uncached => "filecache-off",
            Self::Peer => "peer",
        }
    }
}

/// Starts `curt serve` on loopback with these arguments besides, and its state below `state`.
pub(super) fn serve(
    arguments: &[&OsStr],
    state: &Path,
    credential: &RpcCredential,
) -> Result<(Daemon, SocketAddr, SetupClient)> {
    let port = free_port()?;
    let mut command = Curt::beside()?.command();
    command
        .arg("serve")
        .args(arguments)
        .args([
            "--bind",
            &format!("127.0.0.1:{port}"),
            "--mount-port",
            &port.to_string(),
        ])
        .args(["--no-rpcbind", "--state"])
        .arg(state.join(format!("state-{port}")));
    let mut daemon = Daemon::start("curt serve", &mut command)?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let line = daemon.until("curt serve accepts", START, || {
        Ok(SetupClient::connect(address, credential).ok())
    })?;
    Ok((daemon, address, line))
}

/// One of them.
pub(super) struct LatencySubject {
    pub(super) role: SubjectRole,
    pub(super) name: String,
    /// Its process, where it runs on this machine and is known.
    pub(super) pid: Option<u32>,
    pub(super) tree: LatencyTree,
    pub(super) line: SetupClient,
    address: SocketAddr,
    credential: RpcCredential,
    /// Connections that are kept from one measurement to the next.
    streams: Vec<TcpStream>,
    /// Where the tree is on this machine, for the floor.
    directory: PathBuf,
    _daemon: Option<Daemon>,
}

/// Where our servers' files are, and as whom they are asked for.
pub(super) struct SubjectSetup<'a> {
    /// What is exported.
    pub(super) directory: &'a Path,
    /// Where servers keep their keys.
    pub(super) state: &'a Path,
    pub(super) credential: &'a RpcCredential,
    /// The name of each tree begins so.
    pub(super) prefix: &'a str,
}

impl LatencySubject {
    /// `curt serve` on loopback.
    pub(super) fn serving(place: &SubjectSetup<'_>, role: SubjectRole) -> Result<Self> {
        let mut arguments = vec![place.directory.as_os_str()];
        arguments.extend(["--insecure", "--squash", "none"].map(OsStr::new));
        if role == SubjectRole::Uncached {
            arguments.extend(["--filecache", "off"].map(OsStr::new));
        }
        let (daemon, address, line) = serve(&arguments, place.state, place.credential)?;
        let root = line.mount(place.directory.as_os_str().as_encoded_bytes())?;
        let subject = Self::new(place, role, role.name(), line, root)?;
        Ok(subject.run_by(daemon, address))
    }

    /// A server that runs already.
    pub(super) fn peer(place: &SubjectSetup<'_>, peer: &PeerServer) -> Result<Self> {
        let address = peer
            .address
            .to_socket_addrs()
            .with_context(|| peer.address.clone())?;
        let mut last = None;
        for address in address {
            match SetupClient::connect(address, place.credential) {
                Ok(line) => {
                    let root = SetupClient::connect(mount_address(address), place.credential)?
                        .mount(peer.path.as_bytes())
                        .with_context(|| peer.name.clone())?;
                    let subject = Self::new(place, SubjectRole::Peer, &peer.name, line, root)?;
                    return Ok(Self {
                        pid: peer.pid,
                        ..subject
                    });
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last
            .with_context(|| peer.address.clone())?
            .context(peer.name.clone()))
    }

    /// The echo or the floor, whose replies are those of `curt` made beforehand.
    pub(super) fn bare(place: &SubjectSetup<'_>, role: SubjectRole, curt: &Self) -> Result<Self> {
        let port = free_port()?;
        let mut command = crate::own_program();
        command.args(["latency-echo", &port.to_string()]);
        let mut daemon = Daemon::start("the echo", &mut command)?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        daemon.until("the echo accepts", START, || Ok(TcpStream::connect(address).ok()))?;
        let line = SetupClient::connect(curt.address, place.credential)?;
        let root = line.mount(place.directory.as_os_str().as_encoded_bytes())?;
        let subject = Self::new(place, role, role.name(), line, root)?;
        Ok(subject.run_by(daemon, address))
    }

    fn new(
        place: &SubjectSetup<'_>,
        role: SubjectRole,
        name: &str,
        line: SetupClient,
        root: NfsFh3,
    ) -> Result<Self> {
        let tree_name = format!("{}-{name}", place.prefix);
        let tree = LatencyTree::make(&line, root, &tree_name)
            .with_context(|| format!("{name}: cannot make the files to measure with"))?;
        Ok(Self {
            role,
            name: name.to_owned(),
            pid: None,
            tree,
            address: line.address(),
            line,
            credential: place.credential.clone(),
            streams: Vec::new(),
            directory: place.directory.join(&tree_name),
            _daemon: None,
        })
    }

    /// The same, of a server that was started for it.
    fn run_by(self, daemon: Daemon, address: SocketAddr) -> Self {
        Self {
            pid: Some(daemon.pid()),
            address,
            _daemon: Some(daemon),
            ..self
        }
    }

    /// Where it listens.
    pub(super) const fn port(&self) -> u16 {
        self.address.port()
    }

    /// A connection for each of the shape's.
    pub(super) fn connections(
        &mut self,
        operation: LatencyOperation,
        shape: LoadShape,
        generation: u64,
    ) -> Result<Vec<LatencyConnection>> {
        (0..shape.connections)
            .map(|connection| self.connection(operation, connection, shape.outstanding, generation))
            .collect()
    }

    fn connection(
        &mut self,
        operation: LatencyOperation,
        connection: usize,
        slots_count: usize,
        generation: u64,
    ) -> Result<LatencyConnection> {
        let calls = PreparedCalls::new(
            operation,
            &self.tree,
            connection,
            slots_count,
            &self.credential,
            generation,
        )?;
        if !matches!(self.role, SubjectRole::Echo | SubjectRole::Floor) {
            let checks = ReplyChecks::new(operation, &self.tree, connection, slots_count);
            return Ok(LatencyConnection::new(self.stream(connection)?, calls, checks));
        }
        let reply = self.reply_to(operation, &calls)?;
        let (work, checks) = if self.role == SubjectRole::Echo {
            (None, ReplyChecks::echo(&reply, slots_count))
        } else {
            let checks = ReplyChecks::new(operation, &self.tree, connection, slots_count);
            (Some(self.work(operation, connection, &calls, &reply)?), checks)
        };
        let task = EchoTask {
            call_bytes: calls.sample().len(),
            reply,
            work,
        };
        Ok(LatencyConnection::new(
            echo::connect(self.address, &task)?,
            calls,
            checks,
        ))
    }

    /// The connection of that number, made when it is wanted first.
    pub(super) fn stream(&mut self, connection: usize) -> Result<TcpStream> {
        while self.streams.len() <= connection {
            self.streams.push(connect(self.address)?);
        }
        Ok(self.streams[connection].try_clone()?)
    }

    /// What our server answers to the first of the calls. What it changes is as it was afterwards.
    fn reply_to(&self, operation: LatencyOperation, calls: &PreparedCalls) -> Result<Vec<u8>> {
        let mut stream = connect(self.line.address())?;
        let pair = |operation| PreparedCalls::new(operation, &self.tree, 0, 1, &self.credential, 0);
        match operation {
            LatencyOperation::Create | LatencyOperation::Remove => {
                let created = exchange(&mut stream, pair(LatencyOperation::Create)?.sample())?;
                let removed = exchange(&mut stream, pair(LatencyOperation::Remove)?.sample())?;
                Ok(match operation {
                    LatencyOperation::Create => created,
                    _ => removed,
                })
            }
            _ => exchange(&mut stream, calls.sample()),
        }
    }

    /// The system calls that the operation cannot do without.
    fn work(
        &self,
        operation: LatencyOperation,
        connection: usize,
        calls: &PreparedCalls,
        reply: &[u8],
    ) -> Result<EchoWork> {
        let length = calls.sample().len();
        let file = tree::file_name(connection);
        let (name, offset_at, data) = match operation {
            LatencyOperation::Getattr | LatencyOperation::Access => (file, 0, 0..0),
            // The offset and the count end the call.
            LatencyOperation::Read => {
                let data_at = data_at(reply, BLOCK_BYTES)?;
                (file, length - 12, data_at..data_at + BLOCK_BYTES)
            }
            // Offset, count, how firmly, length and data end the call.
            LatencyOperation::WriteUnstable | LatencyOperation::WriteFileSync => {
                let data_at = length - BLOCK_BYTES;
                (tree::written_name(connection), data_at - 20, data_at..length)
            }
            LatencyOperation::Lookup => {
                let name_at = length - file.len().next_multiple_of(4);
                (String::new(), 0, name_at..name_at + file.len())
            }
            LatencyOperation::Create | LatencyOperation::Remove => {
                let name = calls.name_span().context("the call has no name")?;
                (tree::MADE.to_owned(), 0, name)
            }
            LatencyOperation::ReaddirPlus => (tree::LISTED.to_owned(), 0, 0..0),
        };
        Ok(EchoWork {
            operation,
            path: self.directory.join(name),
            offset_at,
            data,
        })
    }

    /// How long its process has used a processor, where it is known.
    pub(super) fn processor_time(&self) -> Option<Duration> {
        processor_time(self.pid?).ok()
    }

    /// Checks that what was changed is as it was changed: blocks written, and no name left behind.
    pub(super) fn verify(
        &self,
        operation: LatencyOperation,
        shape: LoadShape,
        generation: u64,
    ) -> Result<()> {
        match operation {
            LatencyOperation::WriteUnstable | LatencyOperation::WriteFileSync
                if self.role != SubjectRole::Echo =>
            {
                for connection in 0..shape.connections {
                    self.tree
                        .verify(&self.line, connection, shape.outstanding, generation)?;
                }
            }
            LatencyOperation::Remove => {
                let left = self.tree.made_count(&self.line)?;
                anyhow::ensure!(left == 0, "{left} names are left that were removed");
            }
            _ => {}
        }
        Ok(())
    }

    /// Removes its files.
    pub(super) fn end(self) -> Result<()> {
        self.tree.remove(&self.line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_told_with_or_without_their_process() {
        let peer = |pid| PeerServer {
            name: "ganesha".into(),
            address: "127.0.0.1:2049".into(),
            path: "/srv/a,b".into(),
            pid,
        };
        assert_eq!("ganesha=127.0.0.1:2049/srv/a,b".parse(), Ok(peer(None)));
        assert_eq!(
            "ganesha=127.0.0.1:2049/srv/a,b,pid=12".parse(),
            Ok(peer(Some(12)))
        );
        for wrong in [
            "ganesha",
            "g=host/path",
            "g=host:1",
            "=h:1/p",
            "g=h:1/p,pid=x",
            "g=h:99999/p",
        ] {
            assert!(wrong.parse::<PeerServer>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_peer_may_have_an_ipv6_address() {
        let peer: PeerServer = "x=[::1]:2049/".parse().expect("it is right");
        assert_eq!((peer.address.as_str(), peer.path.as_str()), ("[::1]:2049", "/"));
    }
}
