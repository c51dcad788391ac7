//! Copies one file from or to an NFSv3 server through the library, and says how fast it was.
//!
//!     transfer read  SERVER[:PORT] /EXPORT NAME
//!     transfer write SERVER[:PORT] /EXPORT NAME BYTES
//!
//! With a port, NFS and MOUNT are both looked for there; without, the portmapper is asked.

use std::{
    error::Error,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use curt_client::protocol::v3::{self, mounting::Nfs3Mount};
use curt_client::{
    Caller, ClientOptions, Environment, LookupResult, MountedRoot, OpenFlags, Superblock,
    caller::RpcSecurity,
    data::DataOptions,
    mounting::{self, ExportSource},
    ops,
    threads::{BackgroundThreads, MonotonicClock},
};
use curt_rpc::client::{Interrupt, NoTransportEvents, PortSource, TcpOptions};

/// Bytes of one read or write.
const STEP: usize = 1 << 20;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words[..] {
        ["read", server, export, name] => mount(server, export).and_then(|client| read(&client, name)),
        ["write", server, export, name, bytes] => {
            mount(server, export).and_then(|client| write(&client, name, bytes.parse()?))
        }
        _ => Err("usage: transfer read|write SERVER[:PORT] /EXPORT NAME [BYTES]".into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn mount(server: &str, export: &str) -> Result<Superblock, Box<dyn Error>> {
    let (host, port) = match server.split_once(':') {
        Some((host, port)) => (host, Some(port.parse()?)),
        None => (server, None),
    };
    let security = RpcSecurity::sys();
    let root = rustix::process::geteuid().is_root();
    let transport = TcpOptions { reserved_port: root, ..TcpOptions::new(host.into(), PortSource::Fixed(0)) };
    let (path, credential) = (export.as_bytes(), security.credential(&us()));
    let source = ExportSource {
        nfs_port: port,
        mount_port: port,
        ..ExportSource::new(path, transport, credential, Duration::from_secs(10))
    };
    let clock = Arc::new(MonotonicClock);
    let mount = Nfs3Mount { locks: &|| None, clock: clock.clone() };
    let mounted = v3::mounting::mount(&source, mount, Arc::new(NoTransportEvents), &Interrupt::never())?;
    let data = DataOptions {
        read_size: mounting::transfer_size(None, mounted.limits.read_preferred, mounted.limits.read_max),
        write_size: mounting::transfer_size(None, mounted.limits.write_preferred, mounted.limits.write_max),
        read_ahead: read_ahead()?,
        ..DataOptions::default()
    };
    let behaviour = ClientOptions { data, ..ClientOptions::default() };
    let environment = Environment { clock, background: Arc::new(BackgroundThreads::new(32)), observer: None };
    let root = MountedRoot { handle: mounted.root, limits: mounted.limits, path_limits: mounted.path_limits };
    Ok(Superblock::new(&root, mounted.protocol, security, &behaviour, &environment)?)
}

/// CURT_READ_AHEAD: bytes, for who wants to see what difference it makes.
fn read_ahead() -> Result<u64, Box<dyn Error>> {
    match std::env::var("CURT_READ_AHEAD") {
        Ok(bytes) => Ok(bytes.parse()?),
        Err(_) => Ok(DataOptions::default().read_ahead),
    }
}

fn us() -> Caller {
    let groups: Vec<u32> =
        rustix::process::getgroups().unwrap_or_default().iter().map(|gid| gid.as_raw()).collect();
    Caller::new(rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw(), &groups)
}

fn read(client: &Superblock, name: &str) -> Result<(), Box<dyn Error>> {
    let LookupResult::Positive(found) = ops::lookup(&client.op(&us()), client.root(), name.as_bytes())?
    else {
        return Err(format!("{name}: no such file").into());
    };
    let began = Instant::now();
    let file = ops::open(&client.op(&us()), found.id, OpenFlags::reading())?.file;
    let mut buffer = vec![0; STEP];
    let mut position = 0;
    loop {
        let count = ops::read(&client.op(&us()), &file, position, STEP)?.copy_to(&mut buffer);
        if count == 0 {
            break;
        }
        position += count as u64;
    }
    ops::close(&client.op(&us()), &file)?;
    report("read", position, began, client);
    Ok(())
}

fn write(client: &Superblock, name: &str, bytes: u64) -> Result<(), Box<dyn Error>> {
    let flags = OpenFlags { truncate: true, ..OpenFlags::writing() };
    let began = Instant::now();
    let (_, opened) = ops::create(&client.op(&us()), client.root(), name.as_bytes(), 0o644, flags)?;
    let buffer: Vec<u8> = (0..=u8::MAX).cycle().take(STEP).collect();
    let mut position = 0;
    while position < bytes {
        let step = usize::try_from(bytes - position).unwrap_or(STEP).min(STEP);
        position += ops::write(&client.op(&us()), &opened.file, position, &buffer[..step])? as u64;
    }
    ops::close(&client.op(&us()), &opened.file)?;
    report("written and on disk", position, began, client);
    Ok(())
}

fn report(what: &str, bytes: u64, began: Instant, client: &Superblock) {
    let seconds = began.elapsed().as_secs_f64();
    // Sizes of files are far below 2^52: nothing is lost.
    #[expect(clippy::cast_precision_loss, reason = "for people to read")]
    let rate = bytes as f64 / seconds / 1e6;
    println!("{bytes} bytes {what} in {seconds:.3} s, {rate:.0} MB/s");
    for (name, count) in client.counters().requests.iter().filter(|(_, count)| *count > 0) {
        println!("{name:12} {count}");
    }
}
