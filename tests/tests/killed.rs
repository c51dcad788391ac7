//! A server that is killed repeatedly while clients change names: each repeats its calls without a
//! reply, over a new connection and with the same xid, and must get no EEXIST or ENOENT because of
//! its own change.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use curt_proto::nfs3::{
    CreateArguments, CreateHow, DirOpArgs, Filename, LinkArguments, MkdirArguments, NfsFh3, NfsPath,
    NfsProcedure, PROGRAM, RenameArguments, Sattr, SymlinkArguments, VERSION,
};
use curt_rpc::message::encode_call_header;
use curt_rpc::record;
use curt_xdr::{Decoder, Encode};
use rustix::process::Signal;

#[path = "bad_input/victim.rs"]
#[allow(dead_code, reason = "shared with the tests of bad input")]
mod victim;

use victim::{SOON, Victim, credential};

const CLIENTS: usize = 4;
const KILLS: usize = 30;
/// Minimum number of replies between two kills.
const CALLS_BETWEEN: usize = 40;

/// State shared by clients and the test.
struct World {
    address: Mutex<SocketAddr>,
    answered: AtomicUsize,
    repeated: AtomicUsize,
    stop: AtomicBool,
    root: NfsFh3,
}

/// A client: its names begin with its number.
struct Client<'w> {
    world: &'w World,
    number: usize,
    xid: u32,
    stream: Option<TcpStream>,
}

impl Client<'_> {
    /// Makes rounds of changes until it is stopped.
    fn run(&mut self) -> Result<()> {
        for round in 0.. {
            if self.world.stop.load(Ordering::SeqCst) {
                return Ok(());
            }
            self.round(round).with_context(|| format!("client {} in round {round}", self.number))?;
        }
        Ok(())
    }

    /// Calls each procedure that is not idempotent, once or more often. No object remains.
    fn round(&mut self, round: usize) -> Result<()> {
        let names =
            ["directory", "file", "moved", "link"].map(|kind| format!("{}-{kind}-{round}", self.number));
        let root = self.world.root;
        let attributes = Sattr { mode: Some(0o755), ..Sattr::default() };
        let [directory, file, moved, link] =
            [at(root, &names[0])?, at(root, &names[1])?, at(root, &names[2])?, at(root, &names[3])?];
        let mkdir = MkdirArguments { place: directory, attributes };
        let create = CreateArguments { place: file, how: CreateHow::Guarded(attributes) };
        let symlink = SymlinkArguments { place: link, attributes, target: NfsPath::new(b"target")? };
        self.call(NfsProcedure::Mkdir, &mkdir)?;
        let made = self.call(NfsProcedure::Create, &create)?;
        let mut made = Decoder::new(&made);
        ensure!(made.bool()?, "no handle");
        let file_handle: NfsFh3 = made.get()?;
        let rename = |from, to| RenameArguments { from, to };
        self.call(NfsProcedure::Rename, &rename(file, moved))?;
        let linked = LinkArguments { file: file_handle, place: file };
        self.call(NfsProcedure::Link, &linked)?;
        self.call(NfsProcedure::Symlink, &symlink)?;
        for name in [file, moved, link] {
            self.call(NfsProcedure::Remove, &name)?;
        }
        self.call(NfsProcedure::Rmdir, &directory)?;
        Ok(())
    }

    /// The results of a call after its status, which must be success, however often the call has to
    /// be sent.
    fn call(&mut self, procedure: NfsProcedure, arguments: &dyn Encode) -> Result<Vec<u8>> {
        self.xid += 1;
        let mut call = Vec::new();
        let body = record::begin_record(&mut call);
        let number = procedure.number();
        encode_call_header(&mut call, self.xid, PROGRAM, VERSION, number, &credential());
        arguments.encode(&mut call);
        record::finish_record(&mut call, body, 0);
        let deadline = Instant::now() + SOON;
        for attempt in 0.. {
            if let Some(reply) = self.try_call(&call) {
                // xid, type, accepted, verifier, success.
                let results = reply.get(24..).context("a reply without results")?;
                let status = results.first_chunk().map(|status| u32::from_be_bytes(*status));
                ensure!(
                    status == Some(0),
                    "{procedure} is told {status:?} after it was repeated {attempt} times"
                );
                self.world.answered.fetch_add(1, Ordering::SeqCst);
                self.world.repeated.fetch_add(attempt.min(1), Ordering::SeqCst);
                return Ok(results[4..].to_vec());
            }
            self.stream = None;
            ensure!(Instant::now() < deadline, "{procedure} is not answered");
            std::thread::yield_now();
        }
        bail!("unreachable")
    }

    /// Sends a record over the current connection or a new one; `None` if that ends before the
    /// reply.
    fn try_call(&mut self, call: &[u8]) -> Option<Vec<u8>> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            none => {
                let address = *self.world.address.lock().ok()?;
                let stream = TcpStream::connect_timeout(&address, Duration::from_secs(5)).ok()?;
                stream.set_nodelay(true).ok()?;
                stream.set_read_timeout(Some(SOON)).ok()?;
                none.insert(stream)
            }
        };
        stream.write_all(call).ok()?;
        let mut mark = [0; record::MARK_SIZE];
        stream.read_exact(&mut mark).ok()?;
        let length = u32::from_be_bytes(mark) & 0x7fff_ffff;
        let mut reply = vec![0; usize::try_from(length).ok()?];
        stream.read_exact(&mut reply).ok()?;
        Some(reply)
    }
}

fn at(directory: NfsFh3, name: &str) -> Result<DirOpArgs<'_>> {
    Ok(DirOpArgs { directory, name: Filename::new(name.as_bytes())? })
}

// SEMANTICS: restart-1.
#[test]
fn clients_of_a_server_that_is_killed_repeatedly_see_no_error() -> Result<()> {
    let top = tempfile::tempdir()?;
    let export = top.path().join("export");
    std::fs::create_dir(&export)?;
    std::fs::set_permissions(&export, std::fs::Permissions::from_mode(0o777))?;
    let path = export.to_str().context("a path of letters")?;
    let state = top.path().join("state");
    let state = state.to_str().context("a path of letters")?;
    let start = || Victim::serving(path, &[path, "--state", state, "--save-replies", "on"]);
    let mut server = start()?;
    let world = World {
        address: Mutex::new(server.address),
        answered: AtomicUsize::new(0),
        repeated: AtomicUsize::new(0),
        stop: AtomicBool::new(false),
        root: NfsFh3::new(&server.root)?,
    };
    let told = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let mut client = Client {
                    world: &world,
                    number,
                    // Each client has its own range of xids: all have the same address.
                    xid: u32::try_from(number).unwrap_or(0) << 24,
                    stream: None,
                };
                scope.spawn(move || client.run())
            })
            .collect();
        let killed = (0..KILLS).try_for_each(|kill| -> Result<()> {
            let before = world.answered.load(Ordering::SeqCst);
            let enough = CALLS_BETWEEN + kill * 37 % 101;
            while world.answered.load(Ordering::SeqCst) < before + enough {
                if clients.iter().any(std::thread::ScopedJoinHandle::is_finished) {
                    return Ok(());
                }
                std::thread::yield_now();
            }
            server.running.signal(Signal::KILL)?;
            server.running.wait(SOON)?;
            server = start()?;
            *world.address.lock().map_err(|_| anyhow::anyhow!("poisoned"))? = server.address;
            Ok(())
        });
        world.stop.store(true, Ordering::SeqCst);
        let told: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
        killed.map(|()| told)
    })?;
    for client in told {
        client.map_err(|_| anyhow::anyhow!("a client panicked"))??;
    }
    let repeated = world.repeated.load(Ordering::SeqCst);
    ensure!(repeated >= KILLS / 2, "only {repeated} calls were repeated");
    ensure!(std::fs::read_dir(&export)?.count() == 0, "something is left");
    Ok(())
}
