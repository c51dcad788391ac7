//! Who is measured: the echo, the floor, our server with and without its file cache, and other servers.

use std::ffi::OsStr;
use std::net::{Ipv4Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result};
use curt_bench::processes::{Curt, Daemon, free_port, processor_time};
use curt_proto::nfs3::FileHandle;
use curt_rpc::auth::Credential;

use super::calls::Calls;
use super::check::{Checks, data_at};
use super::client::Lane;
use super::echo::{self, Task, Work};
use super::line::{Line, connect, mount_address};
use super::shape::{BLOCK_BYTES, Operation, Shape};
use super::tree::{self, Tree};

/// How long a server may take to be there.
const START: Duration = Duration::from_secs(20);

/// Another server: `NAME=HOST:PORT/PATH[,pid=N]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Peer {
    pub(super) name: String,
    /// `HOST:PORT`.
    address: String,
    path: String,
    pid: Option<u32>,
}

impl FromStr for Peer {
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
pub(super) enum Role {
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

impl Role {
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
    credential: &Credential,
) -> Result<(Daemon, SocketAddr, Line)> {
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
        Ok(Line::connect(address, credential).ok())
    })?;
    Ok((daemon, address, line))
}

/// One of them.
pub(super) struct Subject {
    pub(super) role: Role,
    pub(super) name: String,
    /// Its process, where it runs on this machine and is known.
    pub(super) pid: Option<u32>,
    pub(super) tree: Tree,
    pub(super) line: Line,
    address: SocketAddr,
    credential: Credential,
    /// Connections that are kept from one measurement to the next.
    streams: Vec<TcpStream>,
    /// Where the tree is on this machine, for the floor.
    directory: PathBuf,
    _daemon: Option<Daemon>,
}

/// Where our servers' files are, and as whom they are asked for.
pub(super) struct Place<'a> {
    /// What is exported.
    pub(super) directory: &'a Path,
    /// Where servers keep their keys.
    pub(super) state: &'a Path,
    pub(super) credential: &'a Credential,
    /// The name of each tree begins so.
    pub(super) prefix: &'a str,
}

impl Subject {
    /// `curt serve` on loopback.
    pub(super) fn serving(place: &Place<'_>, role: Role) -> Result<Self> {
        let mut arguments = vec![place.directory.as_os_str()];
        arguments.extend(["--insecure", "--squash", "none"].map(OsStr::new));
        if role == Role::Uncached {
            arguments.extend(["--filecache", "off"].map(OsStr::new));
        }
        let (daemon, address, mut line) = serve(&arguments, place.state, place.credential)?;
        let root = line.mount(place.directory.as_os_str().as_encoded_bytes())?;
        let pid = Some(daemon.pid());
        Self::new(place, role, role.name(), (address, root), line, pid, Some(daemon))
    }

    /// A server that runs already.
    pub(super) fn peer(place: &Place<'_>, peer: &Peer) -> Result<Self> {
        let address = peer
            .address
            .to_socket_addrs()
            .with_context(|| peer.address.clone())?;
        let mut last = None;
        for address in address {
            match Line::connect(address, place.credential) {
                Ok(line) => {
                    let root = Line::connect(mount_address(address), place.credential)?
                        .mount(peer.path.as_bytes())
                        .with_context(|| peer.name.clone())?;
                    let server = (address, root);
                    return Self::new(place, Role::Peer, &peer.name, server, line, peer.pid, None);
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last
            .with_context(|| peer.address.clone())?
            .context(peer.name.clone()))
    }

    /// The echo or the floor, whose replies are those of `curt` made beforehand.
    pub(super) fn bare(place: &Place<'_>, role: Role, curt: &Self) -> Result<Self> {
        let port = free_port()?;
        let mut command = crate::own_program();
        command.args(["latency-echo", &port.to_string()]);
        let mut daemon = Daemon::start("the echo", &mut command)?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        daemon.until("the echo accepts", START, || Ok(TcpStream::connect(address).ok()))?;
        let mut line = Line::connect(curt.address, place.credential)?;
        let root = line.mount(place.directory.as_os_str().as_encoded_bytes())?;
        let pid = Some(daemon.pid());
        Self::new(place, role, role.name(), (address, root), line, pid, Some(daemon))
    }

    fn new(
        place: &Place<'_>,
        role: Role,
        name: &str,
        (address, root): (SocketAddr, FileHandle),
        mut line: Line,
        pid: Option<u32>,
        daemon: Option<Daemon>,
    ) -> Result<Self> {
        let tree_name = format!("{}-{name}", place.prefix);
        let tree = Tree::make(&mut line, root, &tree_name)
            .with_context(|| format!("{name}: cannot make the files to measure with"))?;
        Ok(Self {
            role,
            name: name.to_owned(),
            pid,
            tree,
            line,
            address,
            credential: place.credential.clone(),
            streams: Vec::new(),
            directory: place.directory.join(&tree_name),
            _daemon: daemon,
        })
    }

    /// Where it listens.
    pub(super) const fn port(&self) -> u16 {
        self.address.port()
    }

    /// A connection for each of the shape's.
    pub(super) fn lanes(&mut self, operation: Operation, shape: Shape, generation: u64) -> Result<Vec<Lane>> {
        (0..shape.connections)
            .map(|connection| self.lane(operation, connection, shape.outstanding, generation))
            .collect()
    }

    fn lane(
        &mut self,
        operation: Operation,
        connection: usize,
        slots_count: usize,
        generation: u64,
    ) -> Result<Lane> {
        let with = (&self.credential, generation);
        let calls = Calls::new(operation, &self.tree, connection, slots_count, with)?;
        if !matches!(self.role, Role::Echo | Role::Floor) {
            let checks = Checks::new(operation, &self.tree, connection, slots_count);
            return Lane::new(self.stream(connection)?, calls, checks);
        }
        let reply = self.reply_to(operation, &calls)?;
        let (work, checks) = if self.role == Role::Echo {
            (None, Checks::echo(&reply, slots_count))
        } else {
            let checks = Checks::new(operation, &self.tree, connection, slots_count);
            (Some(self.work(operation, connection, &calls, &reply)?), checks)
        };
        let task = Task {
            call_bytes: calls.sample().len(),
            reply,
            work,
        };
        Lane::new(echo::connect(self.address, &task)?, calls, checks)
    }

    /// The connection of that number, made when it is wanted first.
    pub(super) fn stream(&mut self, connection: usize) -> Result<TcpStream> {
        while self.streams.len() <= connection {
            self.streams.push(connect(self.address)?);
        }
        Ok(self.streams[connection].try_clone()?)
    }

    /// What our server answers to the first of the calls. What it changes is as it was afterwards.
    fn reply_to(&mut self, operation: Operation, calls: &Calls) -> Result<Vec<u8>> {
        let with = (&self.credential, 0);
        let pair = |operation| Calls::new(operation, &self.tree, 0, 1, with);
        match operation {
            Operation::Create => {
                let reply = self.line.exchange(pair(Operation::Create)?.sample())?;
                self.line.exchange(pair(Operation::Remove)?.sample())?;
                Ok(reply)
            }
            Operation::Remove => {
                self.line.exchange(pair(Operation::Create)?.sample())?;
                self.line.exchange(pair(Operation::Remove)?.sample())
            }
            _ => self.line.exchange(calls.sample()),
        }
    }

    /// The system calls that the operation cannot do without.
    fn work(&self, operation: Operation, connection: usize, calls: &Calls, reply: &[u8]) -> Result<Work> {
        let length = calls.sample().len();
        let file = tree::file_name(connection);
        let (name, offset_at, data) = match operation {
            Operation::Getattr | Operation::Access => (file, 0, 0..0),
            // The offset and the count end the call.
            Operation::Read => {
                let data_at = data_at(reply, BLOCK_BYTES)?;
                (file, length - 12, data_at..data_at + BLOCK_BYTES)
            }
            // Offset, count, how firmly, length and data end the call.
            Operation::WriteUnstable | Operation::WriteFileSync => {
                let data_at = length - BLOCK_BYTES;
                (tree::written_name(connection), data_at - 20, data_at..length)
            }
            Operation::Lookup => {
                let name_at = length - file.len().next_multiple_of(4);
                (String::new(), 0, name_at..name_at + file.len())
            }
            Operation::Create | Operation::Remove => {
                let name = calls.name_span().context("the call has no name")?;
                (tree::MADE.to_owned(), 0, name)
            }
            Operation::ReaddirPlus => (tree::LISTED.to_owned(), 0, 0..0),
        };
        Ok(Work {
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
    pub(super) fn verify(&mut self, operation: Operation, shape: Shape, generation: u64) -> Result<()> {
        match operation {
            Operation::WriteUnstable | Operation::WriteFileSync if self.role != Role::Echo => {
                for connection in 0..shape.connections {
                    self.tree
                        .verify(&mut self.line, connection, shape.outstanding, generation)?;
                }
            }
            Operation::Remove => {
                let left = self.tree.made_count(&mut self.line)?;
                anyhow::ensure!(left == 0, "{left} names are left that were removed");
            }
            _ => {}
        }
        Ok(())
    }

    /// Removes its files.
    pub(super) fn end(mut self) -> Result<()> {
        self.tree.remove(&mut self.line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_told_with_or_without_their_process() {
        let peer = |pid| Peer {
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
            assert!(wrong.parse::<Peer>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_peer_may_have_an_ipv6_address() {
        let peer: Peer = "x=[::1]:2049/".parse().expect("it is right");
        assert_eq!((peer.address.as_str(), peer.path.as_str()), ("[::1]:2049", "/"));
    }
}
